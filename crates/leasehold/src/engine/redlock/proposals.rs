//! Which token each claim has proposed: `max(now, greatest seen + 1)`. A claim keeps its proposal, and with it its
//! place in the queues, until a node has passed it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::claim::ClaimId;
use crate::error::Result;
use crate::token::{FencingToken, wall_clock_micros};

#[derive(Debug, Default)]
pub(super) struct Proposals(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_claim: HashMap<ClaimId, FencingToken>,
    greatest: u64,
}

impl Proposals {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the claim proposes: as before, or anew.
    pub(super) fn propose(&self, id: ClaimId) -> Result<FencingToken> {
        let mut known = self.known();
        if let Some(token) = known.by_claim.get(&id) {
            return Ok(*token);
        }
        let token = FencingToken::after(known.greatest, wall_clock_micros())?;
        known.greatest = token.get();
        known.by_claim.insert(id, token);
        Ok(token)
    }

    /// What the claim has proposed; 0 if nothing.
    pub(super) fn of(&self, id: &ClaimId) -> u64 {
        self.known().by_claim.get(id).map_or(0, |token| token.get())
    }

    /// A node has passed the proposal: the next one is greater.
    pub(super) fn outbid(&self, id: &ClaimId, register: u64) {
        let mut known = self.known();
        known.by_claim.remove(id);
        known.greatest = known.greatest.max(register);
    }

    pub(super) fn forget(&self, id: &ClaimId) {
        self.known().by_claim.remove(id);
    }
}
