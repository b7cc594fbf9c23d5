//! Claims that this process must end itself when their time is over: for engines whose store ends locks only with a
//! session that many claims share.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};

/// What ends when, unless it is renewed.
#[derive(Debug, Default)]
pub(crate) struct Overdue {
    ends: Mutex<Ends>,
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Ends {
    by_time: BTreeMap<(Moment, u64), Claim>,
    by_claim: HashMap<ClaimId, (Moment, u64)>,
    entries: u64,
}

impl Overdue {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim ends then, and not when was said before.
    pub(crate) fn ends_at(&self, claim: &Claim, end: Moment) {
        let mut ends = self.ends();
        let key = ends.insert(claim, end);
        if ends.by_time.first_key_value().map(|(first, _)| *first) == Some(key) {
            self.sooner.notify_one();
        }
    }

    /// The same, but only for a claim whose time is not over yet; says whether it was one.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code))]
    pub(crate) fn postpone(&self, claim: &Claim, end: Moment) -> bool {
        let mut ends = self.ends();
        let known = ends.by_claim.contains_key(&claim.id);
        if known {
            ends.insert(claim, end);
            // It may be sooner than before.
            self.sooner.notify_one();
        }
        known
    }

    /// It has ended already.
    pub(crate) fn forget(&self, id: &ClaimId) {
        self.ends().forget(id);
    }

    /// Whether the claim is known here and its time is not over.
    pub(crate) fn knows(&self, id: &ClaimId) -> bool {
        self.ends().by_claim.contains_key(id)
    }

    /// All that are known.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        self.ends().by_time.values().cloned().collect()
    }

    /// Returns the next claim whose time is over, when it is. It is forgotten then. For one listener.
    pub(crate) async fn next(&self, clock: &Clock) -> Claim {
        loop {
            let first = self.ends().by_time.first_key_value().map(|(key, _)| key.0);
            let Some(first) = first else {
                self.sooner.notified().await;
                continue;
            };
            if first <= clock.now() {
                let mut ends = self.ends();
                if let Some(entry) = ends.by_time.first_entry()
                    && entry.key().0 <= clock.now()
                {
                    let claim = entry.remove();
                    ends.by_claim.remove(&claim.id);
                    return claim;
                }
                continue;
            }
            tokio::select! {
                () = clock.sleep_until(first) => {}
                () = self.sooner.notified() => {}
            }
        }
    }
}

impl Ends {
    fn insert(&mut self, claim: &Claim, end: Moment) -> (Moment, u64) {
        self.forget(&claim.id);
        self.entries += 1;
        let key = (end, self.entries);
        self.by_time.insert(key, claim.clone());
        self.by_claim.insert(claim.id, key);
        key
    }

    fn forget(&mut self, id: &ClaimId) {
        if let Some(key) = self.by_claim.remove(id) {
            self.by_time.remove(&key);
        }
    }
}
