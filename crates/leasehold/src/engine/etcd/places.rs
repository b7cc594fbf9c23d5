//! The claims of this client: where each stands, by what was last heard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::leases::Lease;
use crate::claim::{Claim, ClaimId};
use crate::clock::Moment;

/// Where a claim's key is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) claim: Claim,
    /// The revision that made it: its place in the line, and its token.
    pub(crate) created: i64,
    /// The revision that last changed it: who goes by it changes nothing that another process has changed since.
    pub(crate) modified: i64,
    pub(crate) lease: Arc<Lease>,
    pub(crate) stands: Stands,
    /// Whether its key says that it holds the lock.
    pub(crate) written: bool,
    /// It was surely not its turn then, on our clock.
    pub(crate) not_before: Moment,
    /// When it began to wait, or was granted: by the wall clock, for people.
    pub(crate) since: u64,
}

/// Whether it holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stands {
    /// It does.
    Holds,
    /// It waits, behind these keys; by what the store was at this revision.
    Behind { watch: Vec<Vec<u8>>, revision: i64 },
}

impl Stands {
    /// It has a place, and nobody has looked how it stands.
    pub(crate) const UNKNOWN: Stands = Stands::Behind {
        watch: Vec::new(),
        revision: 0,
    };
}

#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<HashMap<ClaimId, Place>>,
    /// One request for a claim at a time: a release must not overtake the attempt that it takes back.
    under_way: Mutex<HashMap<ClaimId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Places {
    fn known(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, id: &ClaimId) -> Option<Place> {
        self.known().get(id).cloned()
    }

    pub(crate) fn note(&self, place: Place) {
        self.known().insert(place.claim.id, place);
    }

    /// Changes what is known of a claim, if it is still known.
    pub(crate) fn change(&self, id: &ClaimId, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.known().get_mut(id) {
            change(place);
        }
    }

    /// A claim's key was moved to this lease; unless it has been changed since, by taking the lock.
    pub(crate) fn moved(&self, id: &ClaimId, modified: i64, lease: &Arc<Lease>) {
        self.change(id, |place| {
            if place.modified < modified {
                place.modified = modified;
                place.lease = Arc::clone(lease);
            }
        });
    }

    pub(crate) fn forget(&self, id: &ClaimId) -> Option<Place> {
        self.known().remove(id)
    }

    pub(crate) fn waiting(&self) -> Vec<Place> {
        let known = self.known();
        let waiting = known.values().filter(|place| place.stands != Stands::Holds);
        waiting.cloned().collect()
    }

    pub(crate) fn anyone_waits(&self) -> bool {
        let known = self.known();
        known.values().any(|place| place.stands != Stands::Holds)
    }

    pub(crate) fn anyone_waits_outside(&self, lease: i64) -> bool {
        let known = self.known();
        known
            .values()
            .any(|place| place.lease.id != lease && place.stands != Stands::Holds)
    }

    /// Whether no other claim of this client waits before this one for the same lock.
    pub(crate) fn is_foremost(&self, place: &Place) -> bool {
        let known = self.known();
        !known.values().any(|other| {
            other.created < place.created
                && other.claim.name == place.claim.name
                && other.stands != Stands::Holds
        })
    }

    /// Whether a lock is held under this lease.
    pub(crate) fn any_held_under(&self, lease: i64) -> bool {
        let known = self.known();
        known
            .values()
            .any(|place| place.lease.id == lease && place.stands == Stands::Holds)
    }

    /// Returns when no other request for the claim is under way.
    pub(crate) async fn turn(&self, id: ClaimId) -> Turn<'_> {
        let mine = Arc::clone(self.under_way().entry(id).or_default());
        let held = Some(mine.lock_owned().await);
        Turn {
            places: self,
            id,
            held,
        }
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<tokio::sync::Mutex<()>>>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it lives, no other request for the claim is made.
pub(crate) struct Turn<'a> {
    places: &'a Places,
    id: ClaimId,
    held: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut under_way = self.places.under_way();
        self.held = None;
        if let Some(last) = under_way.get(&self.id)
            && Arc::strong_count(last) == 1
        {
            under_way.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claimant, Mode, Ttl};
    use crate::name::LockName;
    use std::time::Duration;

    fn place(modified: i64) -> Place {
        Place {
            claim: Claim {
                name: LockName::new("x").unwrap(),
                id: ClaimId::from_bytes([7; 16]),
                mode: Mode::Exclusive,
                ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
                queues: true,
                claimant: Arc::new(Claimant::this_process()),
                reason: None,
            },
            created: 1,
            modified,
            lease: Arc::new(Lease::unknown(1)),
            stands: Stands::Holds,
            written: true,
            not_before: Moment::from_origin(Duration::ZERO),
            since: 1,
        }
    }

    /// The answer to a move may be heard after that to the write that followed it.
    #[test]
    fn what_is_heard_late_changes_nothing() {
        let places = Places::default();
        let waiting = Arc::new(Lease::unknown(2));
        places.note(place(11));
        let id = place(11).claim.id;
        places.moved(&id, 10, &waiting);
        assert_eq!(places.of(&id).unwrap().modified, 11);
        assert_eq!(places.of(&id).unwrap().lease.id, 1);
        places.moved(&id, 12, &waiting);
        assert_eq!(places.of(&id).unwrap().modified, 12);
        assert_eq!(places.of(&id).unwrap().lease.id, 2);
    }
}
