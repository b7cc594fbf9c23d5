//! What this process has been granted: while somebody may rely on it, no attempt gives it back.

use std::collections::HashMap;

use crate::claim::ClaimId;
use crate::clock::Moment;
use crate::engine::Grant;
use crate::sync::Mutex;
use crate::token::FencingToken;

#[derive(Debug, Default)]
pub(super) struct Grants(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    by_claim: HashMap<ClaimId, Grant>,
    /// How many there may be before those that have ended are forgotten.
    room: usize,
}

impl Grants {
    pub(super) fn insert(&self, id: ClaimId, grant: Grant, now: Moment) {
        let known = &mut *self.0.lock();
        if known.by_claim.len() >= known.room {
            known.by_claim.retain(|_, grant| grant.valid_until > now);
            known.room = 1024.max(2 * known.by_claim.len());
        }
        let noted = known.by_claim.entry(id).or_insert(grant);
        // An attempt with a short TTL does not shorten the grant.
        if noted.token != grant.token || noted.valid_until < grant.valid_until {
            *noted = grant;
        }
    }

    /// The token that a claim has been granted, if that is still valid.
    pub(super) fn token_of(&self, id: &ClaimId, now: Moment) -> Option<FencingToken> {
        let known = self.0.lock();
        let grant = known.by_claim.get(id)?;
        (grant.valid_until > now).then_some(grant.token)
    }

    pub(super) fn forget(&self, id: &ClaimId) {
        self.0.lock().by_claim.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(seconds))
    }

    fn grant(token: u64, until: u64) -> Grant {
        Grant {
            token: FencingToken::new(token).unwrap(),
            valid_until: at(until),
        }
    }

    #[test]
    fn grant_is_known_until_it_ends() {
        let grants = Grants::default();
        let id = ClaimId::from_bytes([7; 16]);
        let token = |now| grants.token_of(&id, at(now)).map(FencingToken::get);
        grants.insert(id, grant(5, 10), at(0));
        grants.insert(id, grant(5, 2), at(1));
        assert_eq!((token(9), token(10)), (Some(5), None));
        grants.insert(id, grant(6, 8), at(1));
        assert_eq!((token(7), token(8)), (Some(6), None));
        grants.forget(&id);
        assert_eq!(token(7), None);
    }

    #[test]
    fn grants_that_have_ended_take_no_room() {
        let grants = Grants::default();
        for nth in 0..5000_u64 {
            let id = ClaimId::from_bytes(u128::from(nth).to_le_bytes());
            grants.insert(id, grant(1, nth + 1), at(nth));
        }
        assert!(grants.0.lock().by_claim.len() <= 1024);
    }
}
