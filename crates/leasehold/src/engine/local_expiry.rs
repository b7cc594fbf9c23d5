//! When claims expire that this process must end itself: for engines whose store ends a lock only with a lease or session that many claims share.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::claim::{Claim, ClaimId};
use crate::clock::Moment;
use crate::name::LockName;

/// Which claim: whoever chooses its id may use it for several locks.
pub(crate) type Key = (LockName, ClaimId);

pub(crate) fn key(claim: &Claim) -> Key {
    (claim.name.clone(), claim.id)
}

/// Claims, by when they expire unless they are renewed.
#[derive(Default)]
pub(crate) struct LocalExpiry {
    by_time: BTreeMap<(Moment, u64), Claim>,
    by_claim: HashMap<Key, (Moment, u64)>,
    entries: u64,
    /// When the task that ends claims wakes by itself; `None` if it sleeps until it is woken. It is woken only for a claim that expires sooner than that: waking
    /// a task is not cheap compared to a request, and most claims are released long before they expire.
    looks_at: Option<Moment>,
    sooner: Arc<Notify>,
}

impl LocalExpiry {
    /// The claim expires at `end`, whatever was set before.
    pub(crate) fn ends_at(&mut self, claim: &Claim, end: Moment) {
        self.forget(claim);
        self.entries += 1;
        let at = (end, self.entries);
        self.by_time.insert(at, claim.clone());
        self.by_claim.insert(key(claim), at);
        if self.looks_at.is_none_or(|looks_at| end < looks_at) {
            self.sooner.notify_one();
        }
    }

    /// The claim expires at `end`, or when it would have before, if that is later.
    pub(crate) fn ends_no_sooner_than(&mut self, claim: &Claim, end: Moment) {
        let before = self.by_claim.get(&key(claim));
        if before.is_none_or(|(before, _)| *before < end) {
            self.ends_at(claim, end);
        }
    }

    /// The claim has ended in another way.
    pub(crate) fn forget(&mut self, claim: &Claim) {
        if let Some(at) = self.by_claim.remove(&key(claim)) {
            self.by_time.remove(&at);
        }
    }

    /// Whether the claim is here, and so has not expired.
    pub(crate) fn knows(&self, claim: &Claim) -> bool {
        self.by_claim.contains_key(&key(claim))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// Removes the next claim that has expired, and returns it.
    pub(crate) fn take_due(&mut self, now: Moment) -> Option<Claim> {
        let first = self.by_time.first_entry()?;
        let due = (first.key().0 <= now).then(|| first.remove())?;
        self.by_claim.remove(&key(&due));
        Some(due)
    }

    /// Until when the task may sleep, and what wakes it if a claim expires sooner.
    pub(crate) fn look(&mut self) -> (Option<Moment>, Arc<Notify>) {
        self.looks_at = self.by_time.first_key_value().map(|(key, _)| key.0);
        (self.looks_at, Arc::clone(&self.sooner))
    }
}
