//! How a claim ends: it is released, or its time is over.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::claim::{OwnClaim, QueueEntry};
use super::client::Haste;
use super::proto::{KeyValue, RangeRequest};
use super::protocol;
use super::value;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::Released;
use crate::engine::own_claims::Ending;
use crate::error::Result;

/// After a deletion has failed.
const AGAIN: Duration = Duration::from_millis(500);

/// A deletion that is under way. If it does not come to its end, since it has failed or its runtime has ended, it is tried again.
struct EndsAgain<'a> {
    shared: &'a Shared,
    claim: &'a Claim,
}

impl Drop for EndsAgain<'_> {
    fn drop(&mut self) {
        self.shared.end_again(self.claim);
    }
}

impl Shared {
    pub(super) async fn release(&self, claim: &Claim) -> Result<Released> {
        let (known, ending) = self.claims.released(claim);
        let _again = EndsAgain {
            shared: self,
            claim,
        };
        let released = self.delete(claim, known).await;
        if released.is_ok() {
            self.claims.ended(claim, &ending);
        }
        released
    }

    async fn delete(&self, claim: &Claim, known: Option<OwnClaim>) -> Result<Released> {
        let key = self.keys.claim(claim);
        let held = match known {
            Some(OwnClaim::Held(entry)) => {
                let reply = self.client.delete(protocol::delete(&key)).await?;
                let lives = Clock::machine().now() < entry.lease.promised_until();
                reply.message.deleted > 0 || reply.maybe_applied && lives
            }
            Some(OwnClaim::Queued { .. }) => {
                self.client.delete(protocol::delete(&key)).await?;
                false
            }
            // The queue shows it.
            Some(OwnClaim::Ending(_)) | None => {
                let delete = protocol::look_and_delete(&self.keys.queue(&claim.name), &key);
                let reply = self.client.txn(delete, Haste::Urgent).await?.message;
                let queue = reply.range(0).map_or(&[][..], |range| &range.kvs);
                matches!(protocol::find(queue, &key), Some((_, true)))
            }
        };
        Ok(Released::from_held(held))
    }

    /// Deletes the key of a claim that is being ended, as it was then: the claim may join the queue again. One whose time is over stays if
    /// another process has renewed it, and one that leaves the queue if another process may have taken the lock for it.
    pub(super) async fn end(&self, claim: &Claim, ending: &Ending<QueueEntry>) -> Result<()> {
        let key = self.keys.claim(claim);
        let released = ending.entry.is_none();
        let mut known = ending.entry.as_ref().map(|entry| entry.modified);
        loop {
            if let Some(modified) = known {
                let delete = protocol::delete_unchanged(&key, modified);
                if self
                    .client
                    .txn(delete, Haste::Urgent)
                    .await?
                    .message
                    .succeeded
                {
                    break;
                }
            }
            let look = RangeRequest {
                keys_only: false,
                ..protocol::one(&key)
            };
            let own = self.client.range(look).await?.message.kvs;
            let ours = |own: &&KeyValue| released || self.may_end(own, ending.leaves_queue);
            let Some(own) = own.first().filter(ours) else {
                break;
            };
            if !self.claims.is_ending(claim, ending) {
                return Ok(());
            }
            known = Some(own.mod_revision);
        }
        self.claims.ended(claim, ending);
        Ok(())
    }

    /// Whether a key is this client's to delete although it was changed. A renewal of this client's may have changed it, and was too late.
    fn may_end(&self, own: &KeyValue, leaves_queue: bool) -> bool {
        let Some(lease) = self.leases.of(own.lease) else {
            return false;
        };
        !leaves_queue || value::waits(own) || !lease.may_hold_unanswered()
    }

    pub(super) fn end_again(&self, claim: &Claim) {
        let soon = Clock::machine().now() + AGAIN;
        self.claims.end_again_at(claim, soon);
    }
}

/// Ends the claims of this client whose time is over. Ends with the client.
pub(super) async fn end_expired(shared: Arc<Shared>) {
    loop {
        let claim = shared.claims.next_expired().await;
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Some(ending) = shared.claims.expired(&claim) {
                let _again = EndsAgain {
                    shared: &shared,
                    claim: &claim,
                };
                let _ = shared.end(&claim, &ending).await;
            }
        });
    }
}
