//! Which token each claim has proposed: `max(now, greatest seen + 1)`. A claim keeps its proposal, and with it its
//! position in the queues, until a node has passed it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::claim::{ClaimId, fill_with_random};
use crate::engine::redis::protocol::Proposal;
use crate::error::Result;
use crate::sync::Mutex;
use crate::token::{FencingToken, wall_clock_micros};

/// So many attempts of a process are numbered together, in a range that it has chosen at random: by that a node tells them from those of
/// other processes with the same claim. The scripts know the number.
const ATTEMPTS: u64 = 1 << 25;

/// The last range has the number that is noted with a renewal.
const RANGES: u64 = (FencingToken::MAX.get() + 1) / ATTEMPTS - 1;

#[derive(Debug, Default)]
pub(super) struct Proposals(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_claim: HashMap<ClaimId, FencingToken>,
    greatest: u64,
    attempts: Attempts,
}

#[derive(Debug, Default)]
struct Attempts {
    last: u64,
    /// How many are left of the range.
    left: u64,
}

impl Attempts {
    /// A number that is greater than those before; or one of another range, if all of this one are used up. Never zero, which is noted with an offer.
    fn next(&mut self) -> Result<u64> {
        if self.left == 0 {
            let mut bits = [0; 8];
            fill_with_random(&mut bits)?;
            self.last = u64::from_le_bytes(bits) % RANGES * ATTEMPTS;
            self.left = ATTEMPTS - 1;
        }
        self.left -= 1;
        self.last += 1;
        Ok(self.last)
    }
}

impl Proposals {
    /// What the claim proposes, as before or anew, with a number for the attempt.
    pub(super) fn propose(&self, id: ClaimId) -> Result<Proposal> {
        let known = &mut *self.0.lock();
        let now = wall_clock_micros();
        let attempt = known.attempts.next()?;
        let token = match known.by_claim.entry(id) {
            Entry::Occupied(proposed) => *proposed.get(),
            Entry::Vacant(vacant) => *vacant.insert(FencingToken::after(known.greatest, now)?),
        };
        known.greatest = known.greatest.max(token.get());
        Ok(Proposal {
            token,
            now,
            attempt: Some(attempt),
        })
    }

    /// What the claim has proposed; 0 if nothing.
    pub(super) fn of(&self, id: &ClaimId) -> u64 {
        self.0
            .lock()
            .by_claim
            .get(id)
            .map_or(0, |token| token.get())
    }

    /// A node has passed the proposal: the next one is greater.
    pub(super) fn outbid(&self, id: &ClaimId, register: u64) {
        let mut known = self.0.lock();
        known.by_claim.remove(id);
        known.greatest = known.greatest.max(register);
    }

    pub(super) fn forget(&self, id: &ClaimId) {
        self.0.lock().by_claim.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::protocol::RENEWED;

    fn range(attempt: u64) -> u64 {
        attempt / ATTEMPTS
    }

    #[test]
    fn attempts_rise_within_a_range_of_their_own() {
        let (mut one, mut other) = (Attempts::default(), Attempts::default());
        let (first, foreign) = (one.next().unwrap(), other.next().unwrap());
        assert_eq!(one.next().unwrap(), first + 1);
        assert_ne!(range(first), range(foreign));
        one.left = 1;
        let last = one.next().unwrap();
        assert_ne!(range(one.next().unwrap()), range(last));
        for _ in 0..1000 {
            one.left = 0;
            let next = one.next().unwrap();
            assert!(next > 0 && range(next) < range(RENEWED));
        }
    }
}
