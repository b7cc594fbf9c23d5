//! How a claim ends: released, its time over, or its lease gone.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Client;
use super::cluster::{Haste, Refused};
use super::failure;
use super::leases::{Lease, Purpose};
use super::line;
use super::places::{Place, Stands};
use super::proto::*;
use super::watching::News;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::Released;
use crate::error::Result;

/// After a deletion has failed.
const AGAIN: Duration = Duration::from_millis(500);

/// A lease that is shorter is kept alive so often that its end is heard of soon enough.
const WORTH_A_GUARD: Duration = Duration::from_secs(3);

impl Client {
    /// Not before the attempt that may be under way has come to its end.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Released> {
        let _turn = self.places.turn(claim.id).await;
        let place = self.places.forget(&claim.id);
        let released = self.delete(claim, place).await;
        match &released {
            Ok(_) => self.overdue.forget(&claim.id),
            // If nobody asks again, it ends with its TTL.
            Err(_) => {
                let end = Clock::machine().now() + claim.ttl.get();
                self.overdue.ends_at(claim, end);
            }
        }
        released
    }

    async fn delete(&self, claim: &Claim, place: Option<Place>) -> Result<Released> {
        let key = self.keys.claim(claim);
        let delete = line::delete(&key);
        let Some(place) = place else {
            return self.delete_unknown(claim, &key).await;
        };
        let reply = self.cluster.delete(delete).await?;
        let still_ours = reply.in_doubt && Clock::machine().now() < place.lease.promised_until();
        let was_there = reply.message.deleted > 0 || still_ours;
        match place.stands {
            Stands::Holds if was_there => Ok(Released::Yes),
            _ => Ok(Released::WasNotHeld),
        }
    }

    /// Whether it was held, the line tells.
    async fn delete_unknown(&self, claim: &Claim, key: &[u8]) -> Result<Released> {
        let whole = line::whole(&self.keys.line(&claim.name));
        let txn = TxnRequest {
            compare: Vec::new(),
            success: vec![
                Request::Range(whole).into(),
                Request::DeleteRange(line::delete(key)).into(),
            ],
            failure: Vec::new(),
        };
        let reply = self.cluster.txn(txn, Haste::Urgent).await?.message;
        let line = reply.range(0).map_or(&[][..], |range| &range.kvs);
        let nth = line.iter().position(|entry| entry.key == key);
        let held = nth.is_some_and(|nth| {
            let mode = super::entry::mode(&line[nth]);
            line::would_stand(mode, &line[..nth], 0) == Stands::Holds
        });
        Ok(match held {
            true => Released::Yes,
            false => Released::WasNotHeld,
        })
    }

    /// A claim whose time is over: it ends, unless another process has renewed it.
    async fn end(&self, claim: Claim) {
        let _turn = self.places.turn(claim.id).await;
        if self.overdue.knows(&claim.id) {
            return;
        }
        let place = self.places.forget(&claim.id);
        let key = self.keys.claim(&claim);
        let compare = place
            .iter()
            .map(|place| line::unchanged(&key, place.modified));
        let txn = TxnRequest {
            compare: compare.collect(),
            success: vec![Request::DeleteRange(line::delete(&key)).into()],
            failure: Vec::new(),
        };
        if self.cluster.txn(txn, Haste::Urgent).await.is_err() {
            if let Some(place) = place {
                self.places.note(place);
            }
            let soon = Clock::machine().now() + AGAIN;
            self.overdue.ends_at(&claim, soon);
        }
    }

    /// The lease for claims of this TTL. From then on its end is heard of.
    pub(super) async fn lease_to_hold(self: &Arc<Self>, purpose: Purpose) -> Result<Arc<Lease>> {
        let lease = self.leases.get(purpose).await?;
        self.guard(&lease);
        Ok(lease)
    }

    /// A key of its own that is watched tells of the end of a lease, whatever number of locks is under it.
    pub(super) fn guard(self: &Arc<Self>, lease: &Arc<Lease>) {
        if lease.ttl > WORTH_A_GUARD && lease.be_guarded() {
            tokio::spawn(guard(Arc::downgrade(self), Arc::clone(lease)));
        }
    }

    /// Whether the key is there that lives as long as the lease.
    async fn lives(&self, lease: &Lease) -> Result<bool> {
        let look = line::one(&self.keys.session(lease.id));
        Ok(!self.cluster.range(look).await?.message.kvs.is_empty())
    }

    async fn open_session(&self, lease: &Lease) -> Result<(), Refused> {
        let put = PutRequest {
            key: self.keys.session(lease.id),
            lease: lease.id,
            ..PutRequest::default()
        };
        self.cluster.put(put).await.map(|_| ())
    }

    fn lease_ended(&self, lease: &Lease) {
        self.leases.retire(lease.id);
        if self.places.any_held_under(lease.id) {
            self.disturbances.send_modify(|count| *count += 1);
        }
    }
}

/// Says that all locks are to be looked at when the lease ends under them.
async fn guard(client: Weak<Client>, lease: Arc<Lease>) {
    while let Some(client) = client.upgrade() {
        match client.open_session(&lease).await {
            Ok(()) => break,
            Err(Refused::Answer(said)) if failure::is_lease_gone(&said) => return,
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    while let Some(here) = client.upgrade() {
        let mut watch = here.watching.watch(here.keys.session(lease.id));
        drop(here);
        let lives = loop {
            match (watch.news().await, client.upgrade()) {
                (_, None) => return,
                (News::Gone, _) => break Ok(false),
                (News::Blind, _) => break Ok(true),
                // It may have ended before anyone watched.
                (News::Stands { .. }, Some(client)) => match client.lives(&lease).await {
                    Ok(true) => {}
                    other => break other,
                },
            }
        };
        if matches!(lives, Ok(false)) {
            return client
                .upgrade()
                .into_iter()
                .for_each(|client| client.lease_ended(&lease));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Ends the claims of this client whose time is over. Ends with the client.
pub(super) async fn end_overdue(client: Arc<Client>) {
    let clock = Clock::machine();
    loop {
        let claim = client.overdue.next(&clock).await;
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.end(claim).await });
    }
}
