//! How the end of a lease is noticed: a key of its own under each lease is watched, whatever number of locks is under it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use super::client::Refused;
use super::failure;
use super::leases::{Lease, Purpose};
use super::listener::Notice;
use super::proto::PutRequest;
use super::protocol;
use crate::error::Result;

/// After something has failed.
const AGAIN: Duration = Duration::from_millis(500);

/// A lease that is shorter is kept alive so often that its end is noticed soon enough.
const WORTH_WATCHING: Duration = Duration::from_secs(3);

impl Shared {
    /// The lease for claims of this TTL. From then on its end is noticed.
    pub(super) async fn lease_to_hold(self: &Arc<Self>, purpose: Purpose) -> Result<Arc<Lease>> {
        let lease = self.leases.get(purpose).await?;
        self.watch_lease(&lease);
        Ok(lease)
    }

    /// The same, with its whole time before it.
    pub(super) async fn renewed_to_hold(self: &Arc<Self>, purpose: Purpose) -> Result<Arc<Lease>> {
        let lease = self.leases.renewed(purpose).await?;
        self.watch_lease(&lease);
        Ok(lease)
    }

    fn watch_lease(self: &Arc<Self>, lease: &Arc<Lease>) {
        if lease.ttl > WORTH_WATCHING && lease.be_watched() {
            let watching = Watching(Arc::downgrade(lease));
            let watch = watch(Arc::downgrade(self), lease.id);
            tokio::spawn(async move {
                let _watching = watching;
                watch.await;
            });
        }
    }

    /// Whether the key is there that lives as long as the lease.
    async fn lives(&self, lease: i64) -> Result<bool> {
        let look = protocol::one(&self.keys.session(lease));
        Ok(!self.client.range(look).await?.message.kvs.is_empty())
    }

    pub(super) async fn open_session(&self, lease: i64) -> Result<(), Refused> {
        let put = PutRequest {
            key: self.keys.session(lease),
            lease,
            ..PutRequest::default()
        };
        self.client.put(put).await.map(|_| ())
    }

    fn lease_ended(&self, lease: i64) {
        self.leases.retire(lease);
        if self.claims.any_held_under(lease) {
            self.session_events.send_modify(|count| *count += 1);
        }
    }
}

/// While it lives, somebody watches for the end of the lease. Whoever does may end with the runtime.
struct Watching(Weak<Lease>);

impl Drop for Watching {
    fn drop(&mut self) {
        let lease = self.0.upgrade().into_iter();
        lease.for_each(|lease| lease.is_not_watched());
    }
}

/// Says that all locks are to be looked at when the lease ends under them. It does not use the lease.
async fn watch(shared: Weak<Shared>, lease: i64) {
    while let Some(shared) = shared.upgrade() {
        match shared.open_session(lease).await {
            Ok(()) => break,
            Err(refused) if failure::is_lease_gone(&refused.said) => return,
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    while let Some(here) = shared.upgrade() {
        let mut watch = here.listener.watch(here.keys.session(lease));
        drop(here);
        let lives = loop {
            match (watch.next().await, shared.upgrade()) {
                (_, None) => return,
                (Notice::Deleted { .. }, _) => break Ok(false),
                (Notice::Interrupted, _) => break Ok(true),
                // It may have ended before anyone watched.
                (Notice::Opened { .. }, Some(shared)) => match shared.lives(lease).await {
                    Ok(true) => {}
                    other => break other,
                },
            }
        };
        if matches!(lives, Ok(false)) {
            let shared = shared.upgrade().into_iter();
            return shared.for_each(|shared| shared.lease_ended(lease));
        }
        tokio::time::sleep(AGAIN).await;
    }
}
