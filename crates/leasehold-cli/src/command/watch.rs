//! `leasehold watch`: locks as they change.

use std::collections::BTreeMap;

use console::Term;
use leasehold::{HolderInfo, LockInfo, WaiterInfo};
use serde::Serialize;

use super::Context;
use crate::args::WatchArgs;
use crate::exit::Outcome;
use crate::output::lock::{HolderJson, WaiterJson};
use crate::output::{self, age::age, table};

pub(super) async fn watch(context: Context, args: WatchArgs) -> Outcome {
    let locks = context.connect().await?;
    let term = Term::stdout();
    let redraws = term.is_term() && !context.json;
    let mut before = Vec::new();
    loop {
        let now = locks.list(args.prefix.as_str()).await?;
        if redraws {
            redraw(&term, &now, &locks.location())?;
        } else {
            for event in changes(&before, &now) {
                match context.json {
                    true => output::json_line(&event)?,
                    false => output::line(&event.describe())?,
                }
            }
        }
        before = now;
        output::check_stdout()?;
        tokio::time::sleep(args.interval).await;
    }
}

/// Clears the screen and draws the list from its top left corner.
fn redraw(term: &Term, locks: &[LockInfo], engine: &str) -> Outcome<()> {
    let (height, width) = term.size();
    let mut lines = vec![format!(
        "{engine}: {} locks in use (Ctrl-C ends)",
        locks.len()
    )];
    lines.extend(table::of_locks(locks).lines(usize::from(width)));
    let room = usize::from(height).saturating_sub(2).max(2);
    if lines.len() > room {
        let more = lines.len() - room;
        lines.truncate(room);
        lines.push(format!("… and {more} more"));
    }
    output::bytes(format!("\x1b[H\x1b[2J{}\n", lines.join("\n")).as_bytes())
}

/// A change, printed as one line.
#[derive(Debug, Serialize)]
struct Event<'a> {
    event: &'static str,
    lock: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiter: Option<WaiterJson<'a>>,
    #[serde(skip)]
    description: String,
}

impl<'a> Event<'a> {
    fn of_holder(event: &'static str, lock: &'a str, holder: &'a HolderInfo) -> Self {
        let (who, time) = (table::who(&holder.claimant), age(holder.held_for));
        Self {
            event,
            lock,
            holder: Some(HolderJson::of(holder)),
            waiter: None,
            description: format!("{who}, held for {time}, token {}", holder.token),
        }
    }

    fn of_waiter(event: &'static str, lock: &'a str, waiter: &'a WaiterInfo) -> Self {
        let (who, time) = (table::who(&waiter.claimant), age(waiter.waited_for));
        Self {
            event,
            lock,
            holder: None,
            waiter: Some(WaiterJson::of(waiter)),
            description: format!("{who}, waited for {time}"),
        }
    }

    fn describe(&self) -> String {
        format!(
            "{:<8}  {}  {}",
            self.event,
            table::printable(self.lock),
            self.description
        )
    }
}

/// The changes: what ended first, then what began.
fn changes<'a>(before: &'a [LockInfo], now: &'a [LockInfo]) -> Vec<Event<'a>> {
    let (before, now) = (Seen::of(before), Seen::of(now));
    let ended = absent(&before.holders, &now.holders);
    let left = absent(&before.waiters, &now.waiters);
    let acquired = absent(&now.holders, &before.holders);
    let waiting = absent(&now.waiters, &before.waiters);
    let ended = ended.map(|(key, holder)| Event::of_holder("ended", key.0, holder));
    let left = left.map(|(key, waiter)| Event::of_waiter("left", key.0, waiter));
    let acquired = acquired.map(|(key, holder)| Event::of_holder("acquired", key.0, holder));
    let waiting = waiting.map(|(key, waiter)| Event::of_waiter("waiting", key.0, waiter));
    ended.chain(left).chain(acquired).chain(waiting).collect()
}

/// The entries of `these` that `those` lacks.
fn absent<'m, K: Ord, V>(
    these: &'m BTreeMap<K, V>,
    those: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = (&'m K, &'m V)> {
    these.iter().filter(|(key, _)| !those.contains_key(key))
}

/// Holders by token; waiters, which have none, by claimant, numbered where a process waits more than once.
#[derive(Debug, Default)]
struct Seen<'a> {
    holders: BTreeMap<(&'a str, u64), &'a HolderInfo>,
    waiters: BTreeMap<(&'a str, &'a str, &'a str, u32, usize), &'a WaiterInfo>,
}

impl<'a> Seen<'a> {
    fn of(locks: &'a [LockInfo]) -> Self {
        let mut seen = Self::default();
        for lock in locks {
            let name = lock.name.as_str();
            for holder in &lock.holders {
                seen.holders.insert((name, holder.token.get()), holder);
            }
            for waiter in &lock.waiters {
                let who = &waiter.claimant;
                let mut nth = 0;
                let key = |nth| (name, who.label.as_str(), who.host.as_str(), who.pid, nth);
                while seen.waiters.contains_key(&key(nth)) {
                    nth += 1;
                }
                seen.waiters.insert(key(nth), waiter);
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{Claimant, FencingToken, LockName, Mode};

    fn lock(name: &str, tokens: &[u64], waiting: &[u32]) -> LockInfo {
        let claimant = |pid| Claimant::new("test", "here", pid);
        let holder = |token: &u64| {
            let token = FencingToken::new(*token).unwrap();
            HolderInfo::new(claimant(1), Mode::Exclusive, token)
        };
        let waiter = |pid: &u32| WaiterInfo::new(claimant(*pid), Mode::Exclusive);
        let mut lock = LockInfo::new(LockName::new(name).unwrap());
        lock.holders = tokens.iter().map(holder).collect();
        lock.waiters = waiting.iter().map(waiter).collect();
        lock
    }

    #[test]
    fn only_changes_are_reported() {
        let before = [lock("a", &[1], &[7, 7]), lock("b", &[2], &[])];
        let now = [lock("a", &[3], &[7]), lock("b", &[2], &[8])];
        let events = changes(&before, &now);
        let reported: Vec<_> = events
            .iter()
            .map(|event| (event.event, event.lock))
            .collect();
        assert_eq!(
            reported,
            [
                ("ended", "a"),
                ("left", "a"),
                ("acquired", "a"),
                ("waiting", "b")
            ]
        );
        assert!(changes(&now, &now).is_empty());
    }
}
