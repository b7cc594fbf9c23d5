//! Deadlocks: claimants that wait for each other in a cycle, because they have taken locks one by one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::claim::{Claimant, Mode};
use crate::engine::LockInfo;
use crate::error::Result;
use crate::locks::Locks;
use crate::name::LockName;
use crate::token::FencingToken;

/// Claimants that wait for each other in a cycle: each for the next, the last for the first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// Each waits for the lock that the next one holds.
    pub edges: Vec<DeadlockEdge>,
}

/// One claimant of the cycle, and the next.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadlockEdge {
    /// Who waits.
    pub who: Claimant,
    /// The lock that it waits for.
    pub lock: LockName,
    /// Who holds that lock.
    pub held_by: Claimant,
    /// The holder's fencing token.
    pub token: FencingToken,
}

impl Locks {
    /// The deadlocks among the claims on locks whose names begin with `prefix`: claimants that wait for each other in a cycle. A cycle
    /// is reported if it is seen twice in a row, since holders change during an inspection.
    ///
    /// Claimants are told apart by label, host and process: tasks of one process with the same label count as one. Give each
    /// piece of work a [label](crate::LockRequest::label) of its own to tell it apart.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn deadlocks(&self, prefix: impl Into<String>) -> Result<Vec<Deadlock>> {
        let prefix = prefix.into();
        let mut found = circles(&self.list(prefix.clone()).await?);
        if !found.is_empty() {
            let again = circles(&self.list(prefix).await?);
            found.retain(|circle| again.contains(circle));
        }
        Ok(found)
    }
}

/// Pure: from what was seen to the circles in it, each reported once.
fn circles(locks: &[LockInfo]) -> Vec<Deadlock> {
    let stuck = stuck(locks);
    let steps = steps(locks, &stuck);
    let mut reported = HashSet::new();
    let mut found = Vec::new();
    for start in &stuck {
        // Everyone who is stuck waits for someone who is stuck: whoever follows that comes into a circle.
        let (mut path, mut seen) = (Vec::<&DeadlockEdge>::new(), HashMap::new());
        let mut who = *start;
        while !seen.contains_key(who) && !reported.contains(who) {
            let Some(step) = steps.get(who) else { break };
            seen.insert(who, path.len());
            path.push(step);
            who = &step.held_by;
        }
        if let Some(entered) = seen.get(who) {
            let edges = path[*entered..].iter().copied().cloned().collect();
            found.push(Deadlock { edges });
        }
        reported.extend(seen.into_keys());
    }
    found
}

/// Those who cannot go on, however the others end: all but those who wait for nobody, those who wait only for such, and so on.
fn stuck(locks: &[LockInfo]) -> BTreeSet<&Claimant> {
    let waits = || {
        locks.iter().flat_map(|lock| {
            let waiters = lock.waiters.iter();
            waiters.map(move |waiter| (&waiter.claimant, waiter.mode, lock))
        })
    };
    let mut stuck: BTreeSet<_> = waits().map(|(who, ..)| who).collect();
    loop {
        let still: BTreeSet<_> = waits()
            .filter(|(who, mode, lock)| {
                let mut holders = lock.holders.iter().map(|holder| &holder.claimant);
                let is_stuck = |holder: &&Claimant| *holder != *who && stuck.contains(*holder);
                stuck.contains(*who)
                    && match mode {
                        // Any permit that is given back will do.
                        Mode::Permit { .. } => {
                            !lock.holders.is_empty() && holders.all(|holder| is_stuck(&holder))
                        }
                        Mode::Exclusive | Mode::Shared => holders.any(|holder| is_stuck(&holder)),
                    }
            })
            .map(|(who, ..)| who)
            .collect();
        if still.len() == stuck.len() {
            return stuck;
        }
        stuck = still;
    }
}

/// For each who is stuck, one of those that it waits for and that is stuck itself.
fn steps<'a>(
    locks: &'a [LockInfo],
    stuck: &BTreeSet<&'a Claimant>,
) -> BTreeMap<&'a Claimant, DeadlockEdge> {
    let mut steps = BTreeMap::new();
    for lock in locks {
        for waiter in lock.waiters.iter().map(|waiter| &waiter.claimant) {
            let blocks = |holder: &Claimant| holder != waiter && stuck.contains(holder);
            let holder = lock.holders.iter().find(|holder| blocks(&holder.claimant));
            if let Some(holder) = holder.filter(|_| stuck.contains(waiter)) {
                steps.entry(waiter).or_insert_with(|| DeadlockEdge {
                    who: waiter.clone(),
                    lock: lock.name.clone(),
                    held_by: holder.claimant.clone(),
                    token: holder.token,
                });
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{HolderInfo, WaiterInfo};
    use std::time::Duration;

    fn who(label: &str) -> Claimant {
        Claimant {
            label: label.into(),
            host: "h".into(),
            pid: 1,
        }
    }

    /// `("x", "a b", "c")`: a and b hold x, c waits for it.
    fn locks(edges: &[(&str, &str, &str)], mode: Mode) -> Vec<LockInfo> {
        let lock = |&(name, holders, waiters): &(&str, &str, &str)| LockInfo {
            name: LockName::new(name).unwrap(),
            holders: holders
                .split_whitespace()
                .map(|label| HolderInfo {
                    claimant: who(label),
                    reason: None,
                    mode,
                    held_for: Duration::ZERO,
                    time_left: Duration::ZERO,
                    token: FencingToken::NONE,
                })
                .collect(),
            waiters: waiters
                .split_whitespace()
                .map(|label| WaiterInfo {
                    claimant: who(label),
                    reason: None,
                    mode,
                    waited_for: Duration::ZERO,
                })
                .collect(),
        };
        edges.iter().map(lock).collect()
    }

    fn circles_in(locks: &[LockInfo]) -> Vec<String> {
        let step = |wait: &DeadlockEdge| format!("{}-{}", wait.who.label, wait.lock.as_str());
        let circle = |circle: Deadlock| circle.edges.iter().map(step).collect::<Vec<_>>().join(" ");
        circles(locks).into_iter().map(circle).collect()
    }

    #[test]
    fn circles_are_found_and_lines_are_not() {
        let exclusive = |edges: &[_]| locks(edges, Mode::Exclusive);
        let none: [&str; 0] = [];
        assert_eq!(circles_in(&exclusive(&[])), none);
        assert_eq!(
            circles_in(&exclusive(&[("x", "a", "b"), ("y", "b", "c")])),
            none
        );
        assert_eq!(
            circles_in(&exclusive(&[("x", "a", "a")])),
            none,
            "two tasks"
        );
        assert_eq!(
            circles_in(&exclusive(&[("x", "a", "b"), ("y", "b", "a")])),
            ["a-y b-x"]
        );
        let three = [("x", "a", "b"), ("y", "b", "c d"), ("z", "c", "a")];
        assert_eq!(circles_in(&exclusive(&three)), ["a-z c-y b-x"]);
        let two = [
            ("1", "a", "b"),
            ("2", "b", "a"),
            ("3", "c", "d e"),
            ("4", "d", "c"),
        ];
        assert_eq!(circles_in(&exclusive(&two)), ["a-2 b-1", "c-4 d-3"]);
        // a waits for b as well as for f, who will end; that does not help.
        let mixed = [("1", "b f", "a"), ("2", "a", "b")];
        assert_eq!(circles_in(&locks(&mixed, Mode::Shared)), ["a-1 b-2"]);
    }

    #[test]
    fn a_free_permit_is_a_way_out() {
        let permits = |edges: &[_]| locks(edges, Mode::Permit { of: 2 });
        let out = [("p", "a f", "b"), ("q", "b g", "a")];
        assert!(circles_in(&permits(&out)).is_empty());
        let none = [("p", "a c", "b"), ("q", "b d", "a"), ("r", "a b", "c d")];
        assert_eq!(circles_in(&permits(&none)).len(), 1);
    }
}
