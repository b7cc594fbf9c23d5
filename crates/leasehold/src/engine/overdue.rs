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
    /// When the listener looks by itself; `None` if not before it is told. It is woken only for what ends sooner: to be woken
    /// costs as much as a good part of a request, and most claims are gone long before their time.
    looks_at: Option<Moment>,
}

impl Overdue {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim ends then, and not when was said before.
    pub(crate) fn ends_at(&self, claim: &Claim, end: Moment) {
        self.insert(&mut self.ends(), claim, end);
    }

    /// The same, but only for a claim whose time is not over yet; says whether it was one.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code))]
    pub(crate) fn postpone(&self, claim: &Claim, end: Moment) -> bool {
        let mut ends = self.ends();
        let known = ends.by_claim.contains_key(&claim.id);
        if known {
            self.insert(&mut ends, claim, end);
        }
        known
    }

    fn insert(&self, ends: &mut Ends, claim: &Claim, end: Moment) {
        ends.insert(claim, end);
        if ends.looks_at.is_none_or(|looks_at| end < looks_at) {
            self.sooner.notify_one();
        }
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
    #[cfg(feature = "zookeeper")]
    pub(crate) fn claims(&self) -> Vec<Claim> {
        self.ends().by_time.values().cloned().collect()
    }

    /// Returns the next claim whose time is over, when it is. It is forgotten then. For one listener.
    pub(crate) async fn next(&self, clock: &Clock) -> Claim {
        loop {
            let Some(first) = self.ends().look() else {
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
    /// When the first one ends; the listener will look then.
    fn look(&mut self) -> Option<Moment> {
        self.looks_at = self.by_time.first_key_value().map(|(key, _)| key.0);
        self.looks_at
    }

    fn insert(&mut self, claim: &Claim, end: Moment) {
        self.forget(&claim.id);
        self.entries += 1;
        let key = (end, self.entries);
        self.by_time.insert(key, claim.clone());
        self.by_claim.insert(claim.id, key);
    }

    fn forget(&mut self, id: &ClaimId) {
        if let Some(key) = self.by_claim.remove(id) {
            self.by_time.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claimant, Mode, Ttl};
    use crate::name::LockName;
    use std::sync::Arc;
    use std::time::Duration;

    fn claim(nth: u8) -> Claim {
        Claim {
            name: LockName::new("x").unwrap(),
            id: ClaimId::from_bytes([nth; 16]),
            mode: Mode::Exclusive,
            ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
            queues: false,
            claimant: Arc::new(Claimant::this_process()),
            reason: None,
        }
    }

    #[tokio::test]
    async fn what_ends_sooner_is_heard_of_in_time_and_what_ends_later_too() {
        let (overdue, clock) = (Overdue::default(), Clock::machine());
        let start = clock.now();
        let after = |millis| start + Duration::from_millis(millis);
        overdue.ends_at(&claim(1), after(60_000));
        let listener = async {
            let mut ended = Vec::new();
            while ended.len() < 3 {
                ended.push(overdue.next(&clock).await.id);
            }
            ended
        };
        let others = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            // Gone before its time, while the listener sleeps until then.
            overdue.forget(&claim(1).id);
            overdue.ends_at(&claim(4), after(90));
            overdue.ends_at(&claim(2), after(60));
            overdue.ends_at(&claim(3), after(120));
            assert!(overdue.postpone(&claim(4), after(150)));
        };
        let both = async { tokio::join!(listener, others).0 };
        let ended = tokio::time::timeout(Duration::from_secs(20), both).await;
        assert_eq!(ended.unwrap(), [2, 3, 4].map(|nth| claim(nth).id));
    }
}
