//! What engines share that keep holders and waiters in one queue, in the order in which a replicated store accepted them.

use std::time::Duration;

use crate::claim::{Claimant, Mode};
use crate::engine::{Capabilities, HolderInfo, LockInfo, Survives, TokenSource, WaiterInfo};
use crate::name::LockName;
use crate::token::FencingToken;

/// What they can do and what they promise.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    tokens: TokenSource::StoreRevision,
    survives: &[
        Survives::ClientKilled,
        Survives::EngineRestart,
        Survives::PowerLoss,
        Survives::NodeLoss,
        Survives::ClockStep,
    ],
    ..Capabilities::FULL
};

/// Where a claim is in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Position {
    /// It holds the lock.
    Holds,
    /// It waits until one of these claims, counted from the head of the queue, has gone; then it must look again. For an exclusive or shared claim that is one, so
    /// that a release wakes one waiter; for a permit, as many as there are permits.
    Behind(Vec<usize>),
}

/// The position of a claim of this mode behind those ahead of it, the oldest first.
pub(crate) fn position(ahead: &[Mode], mine: Mode) -> Position {
    let blocks = |other: &Mode| match mine {
        Mode::Exclusive => true,
        Mode::Shared => *other != Mode::Shared,
        Mode::Permit { .. } => !matches!(other, Mode::Permit { .. }),
    };
    if let Some(last) = ahead.iter().rposition(blocks) {
        return Position::Behind(vec![last]);
    }
    match mine {
        // While all of the `of` nearest are there, there is no permit left.
        Mode::Permit { of } if ahead.len() >= of as usize => {
            Position::Behind((ahead.len() - of as usize..ahead.len()).collect())
        }
        _ => Position::Holds,
    }
}

/// How many at the head of the queue hold the lock.
pub(crate) fn holders(queue: &[Mode]) -> usize {
    (0..queue.len())
        .take_while(|&nth| position(&queue[..nth], queue[nth]) == Position::Holds)
        .count()
}

/// A claim in the queue, for people.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) claimant: Claimant,
    pub(crate) reason: Option<String>,
    pub(crate) mode: Mode,
    /// It has not taken the lock, though it may be its turn.
    pub(crate) waits: bool,
    /// For how long it has waited, or held the lock.
    pub(crate) age: Duration,
    pub(crate) time_left: Duration,
    pub(crate) token: FencingToken,
}

/// A lock with this queue.
pub(crate) fn describe(name: LockName, queue: Vec<Described>) -> LockInfo {
    let modes: Vec<_> = queue.iter().map(|claim| claim.mode).collect();
    let may_hold = holders(&modes);
    let queue = queue.into_iter().enumerate();
    let (holders, waiters): (Vec<_>, Vec<_>) =
        queue.partition(|(nth, claim)| *nth < may_hold && !claim.waits);
    LockInfo {
        name,
        holders: holders
            .into_iter()
            .map(|(_, claim)| HolderInfo {
                claimant: claim.claimant,
                reason: claim.reason,
                mode: claim.mode,
                held_for: claim.age,
                time_left: claim.time_left,
                token: claim.token,
            })
            .collect(),
        waiters: waiters
            .into_iter()
            .map(|(_, claim)| WaiterInfo {
                claimant: claim.claimant,
                reason: claim.reason,
                mode: claim.mode,
                waited_for: claim.age,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive, Permit, Shared};
    use proptest::prelude::*;

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Exclusive), Just(Shared), Just(Permit { of: 3 })]
    }

    proptest! {
        /// The rule of all engines: the head of the queue is let in for as long as it fits.
        #[test]
        fn holders_are_those_let_in_while_they_fit(queue in prop::collection::vec(mode(), 0..12)) {
            let mut admitted = 0;
            while admitted < queue.len() && queue[admitted].fits(queue[..admitted].iter().copied()) {
                admitted += 1;
            }
            prop_assert_eq!(holders(&queue), admitted);
        }

        /// No wake-up is missed: as long as all that a claim watches are there, it cannot hold the lock, whoever else goes.
        #[test]
        fn position_is_kept_until_a_watched_one_goes(
            queue in prop::collection::vec(mode(), 1..12),
            gone in prop::collection::vec(any::<bool>(), 12),
        ) {
            let (mine, ahead) = queue.split_last().unwrap();
            if let Position::Behind(watched) = position(ahead, *mine) {
                let left: Vec<_> = (0..ahead.len())
                    .filter(|nth| watched.contains(nth) || !gone[*nth])
                    .map(|nth| ahead[nth])
                    .collect();
                prop_assert_ne!(position(&left, *mine), Position::Holds);
            }
        }

        /// Who holds the lock goes on holding it when others go.
        #[test]
        fn holder_stays_one_when_others_go(ahead in prop::collection::vec(mode(), 0..12), mine in mode(), goes in 0usize..12) {
            if position(&ahead, mine) == Position::Holds && goes < ahead.len() {
                let mut left = ahead.clone();
                left.remove(goes);
                prop_assert_eq!(position(&left, mine), Position::Holds);
            }
        }
    }
}
