//! Which claims are being renewed. A renewal plants its claim on nodes that lack it, so a release of that claim comes after it.

use std::collections::HashMap;
use std::pin::pin;

use tokio::sync::Notify;

use crate::claim::ClaimId;
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(super) struct Renewing {
    /// How many renewals of each claim are in flight.
    by_claim: Mutex<HashMap<ClaimId, usize>>,
    done: Notify,
}

/// Renewals in flight, until it is dropped: nothing more of them is sent then.
#[derive(Debug)]
pub(super) struct InFlight<'a> {
    renewing: &'a Renewing,
    ids: Vec<ClaimId>,
}

impl Renewing {
    pub(super) fn begin(&self, ids: impl Iterator<Item = ClaimId>) -> InFlight<'_> {
        let ids: Vec<_> = ids.collect();
        let mut by_claim = self.by_claim.lock();
        for id in &ids {
            *by_claim.entry(*id).or_default() += 1;
        }
        InFlight {
            renewing: self,
            ids,
        }
    }

    /// Returns once no renewal of the claim is in flight.
    pub(super) async fn none_of(&self, id: &ClaimId) {
        loop {
            let mut done = pin!(self.done.notified());
            done.as_mut().enable();
            if !self.by_claim.lock().contains_key(id) {
                return;
            }
            done.await;
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut by_claim = self.renewing.by_claim.lock();
        for id in &self.ids {
            if let Some(count) = by_claim.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    by_claim.remove(id);
                }
            }
        }
        drop(by_claim);
        self.renewing.done.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn release_waits_for_the_last_renewal_of_its_claim() {
        let (one, other) = (ClaimId::from_bytes([1; 16]), ClaimId::from_bytes([2; 16]));
        let renewing = Renewing::default();
        let first = renewing.begin([one, other].into_iter());
        let second = renewing.begin([one].into_iter());
        let mut waits = Box::pin(renewing.none_of(&one));
        assert!((&mut waits).now_or_never().is_none());
        drop(first);
        assert!((&mut waits).now_or_never().is_none());
        assert!(renewing.none_of(&other).now_or_never().is_some());
        drop(second);
        assert!(waits.now_or_never().is_some());
        assert!(renewing.by_claim.lock().is_empty());
    }
}
