//! Guarded records: a key each, written on condition of its last revision.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::client::{Client, Haste};
use super::failure;
use super::keys::Keys;
use super::proto::{PutRequest, RangeRequest, Request, TxnRequest};
use super::protocol::{absent, delete, unchanged};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::guard::by_version::{CompareAndSet, Loaded, Sealed, Swap};
use crate::guard::{Key, Version};
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct Records {
    client: Arc<Client>,
    keys: Keys,
    lifetimes: Arc<Lifetimes>,
}

impl Records {
    pub(super) fn on(client: Arc<Client>, keys: Keys, lifetimes: Arc<Lifetimes>) -> Self {
        Self {
            client,
            keys,
            lifetimes,
        }
    }
}

/// The server's leases that end records. Nobody keeps them alive, so all that are written within a tenth of their time share one, which
/// lasts for a tenth longer.
#[derive(Debug, Default)]
pub(super) struct Lifetimes(Mutex<HashMap<i64, Ending>>);

#[derive(Debug, Clone, Copy)]
struct Ending {
    lease: i64,
    shared_until: Moment,
}

impl Lifetimes {
    /// A lease that lasts for at least so long.
    async fn lease(&self, client: &Client, lifetime: Duration) -> Result<i64> {
        let spare = lifetime / 10;
        let seconds = (lifetime + spare).as_nanos().div_ceil(1_000_000_000);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).min(LONGEST);
        let now = Clock::machine().now();
        let shared = {
            let mut all = self.0.lock();
            all.retain(|_, ending| ending.shared_until > now);
            all.get(&seconds).copied()
        };
        if let Some(ending) = shared {
            return Ok(ending.lease);
        }
        let granted = client.grant(seconds).await?;
        let ending = Ending {
            lease: granted.message.id,
            shared_until: granted.sent + spare,
        };
        self.0.lock().insert(seconds, ending);
        Ok(ending.lease)
    }

    fn forget(&self, lease: i64) {
        self.0.lock().retain(|_, ending| ending.lease != lease);
    }
}

/// What the server allows a lease to be, in seconds.
const LONGEST: i64 = 9_000_000_000;

#[async_trait]
impl CompareAndSet for Records {
    type Mark = i64;

    async fn load(&self, key: &Key) -> Result<Option<Loaded<i64>>> {
        let range = RangeRequest {
            key: self.keys.record(key),
            ..RangeRequest::default()
        };
        let found = self.client.range(range).await?.message.kvs;
        Ok(found.into_iter().next().map(|found| Loaded {
            bytes: found.value,
            version: Version::new(found.mod_revision.unsigned_abs()),
            mark: found.mod_revision,
        }))
    }

    async fn swap(&self, key: &Key, new: Sealed, expected: Option<i64>) -> Result<Swap> {
        let key = self.keys.record(key);
        let condition = match expected {
            Some(revision) => unchanged(&key, revision),
            None => absent(&key),
        };
        let lease = match new.lifetime {
            None | Some(Duration::ZERO) => 0,
            Some(lifetime) => self.lifetimes.lease(&self.client, lifetime).await?,
        };
        let change = match new.lifetime {
            Some(Duration::ZERO) => Request::DeleteRange(delete(&key)),
            _ => Request::Put(PutRequest {
                key,
                value: new.bytes,
                lease,
                ..PutRequest::default()
            }),
        };
        let txn = TxnRequest {
            compare: vec![condition],
            success: vec![change.into()],
            failure: Vec::new(),
        };
        let reply = match self.client.txn(txn, Haste::Once).await {
            Err(refused) if failure::is_lease_gone(&refused.said) => {
                // Revoked by hand. Nothing was written; the next try makes another.
                self.lifetimes.forget(lease);
                return Err(refused.into());
            }
            reply => reply?,
        };
        Ok(match reply.message.succeeded {
            true => {
                let revision = reply.message.header.map_or(0, |header| header.revision);
                Swap::Done(Version::new(revision.unsigned_abs()))
            }
            false if reply.maybe_applied => Swap::MaybeApplied,
            false => Swap::Changed,
        })
    }
}
