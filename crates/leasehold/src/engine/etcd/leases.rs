//! etcd's leases: one for each TTL in whole seconds, and one for all who wait, shared by the claims of this client.
//!
//! A lease is kept alive when the core renews a claim, and while somebody waits; never by itself. So what nobody renews
//! ends. Nothing is ever revoked: a lease that is no longer used ends with its time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::cluster::{Cluster, Refused};
use super::failure;
use super::proto::{Header, RangeRequest};
use crate::claim::Ttl;
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// How long a dead waiter holds up those behind it; the server may allow no less than a bit more.
const WAITING_SECONDS: i64 = 2;

/// What a lease is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Purpose {
    /// Claims with a TTL of so many seconds, rounded up.
    Hold(i64),
    /// Claims that wait, and those that had to until they are renewed for the first time.
    Wait,
}

impl Purpose {
    pub(crate) fn of(ttl: Ttl) -> Self {
        let up = u64::from(ttl.get().subsec_nanos() > 0);
        Purpose::Hold((ttl.get().as_secs() + up) as i64)
    }

    fn seconds(self) -> i64 {
        match self {
            Purpose::Hold(seconds) => seconds,
            Purpose::Wait => WAITING_SECONDS,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// As the server granted it, which may be longer than was asked for.
    pub(crate) ttl: Duration,
    promise: Mutex<Promise>,
    guarded: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    asked: Moment,
    until: Moment,
}

impl Lease {
    fn new(id: i64, ttl: Duration, asked: Moment) -> Self {
        let until = asked + validity(ttl);
        Self {
            id,
            ttl,
            promise: Mutex::new(Promise { asked, until }),
            guarded: AtomicBool::new(false),
        }
    }

    fn promise(&self) -> MutexGuard<'_, Promise> {
        self.promise.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when it surely lives.
    pub(crate) fn promised_until(&self) -> Moment {
        self.promise().until
    }

    /// Whether a claim that joins now would have much less than its TTL.
    pub(crate) fn is_stale(&self, now: Moment) -> bool {
        now.since(self.promise().asked) > self.ttl / 10
    }

    /// When it should be kept alive again.
    pub(crate) fn due(&self) -> Moment {
        self.promise().asked + self.ttl / 3
    }

    /// Whether nobody has watched for its end so far.
    pub(crate) fn be_guarded(&self) -> bool {
        !self.guarded.swap(true, Ordering::Relaxed)
    }

    /// One of which nothing is known but that a key is under it.
    pub(crate) fn unknown(id: i64) -> Self {
        Self::new(id, Duration::ZERO, Moment::from_origin(Duration::ZERO))
    }

    fn kept_alive(&self, asked: Moment) {
        let mut promise = self.promise();
        promise.asked = promise.asked.max(asked);
        promise.until = promise.until.max(asked + validity(self.ttl));
    }
}

fn validity(ttl: Duration) -> Duration {
    Ttl::new(ttl).map_or(Duration::ZERO, Ttl::validity)
}

/// What a keep-alive came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptAlive {
    Yes,
    /// The server has no such lease any more, and so none of its keys.
    Gone,
    /// The leader that answered may have been one no longer.
    Doubtful,
}

#[derive(Debug)]
pub(crate) struct Leases {
    cluster: Arc<Cluster>,
    /// A key of ours that need not be there, to ask the quorum for.
    any_key: Vec<u8>,
    current: Mutex<HashMap<Purpose, Arc<Lease>>>,
    /// One grant at a time.
    granting: tokio::sync::Mutex<()>,
}

impl Leases {
    pub(crate) fn on(cluster: Arc<Cluster>, any_key: Vec<u8>) -> Self {
        Self {
            cluster,
            any_key,
            current: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Purpose, Arc<Lease>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease for this, if there is one that surely lives.
    pub(crate) fn current(&self, purpose: Purpose) -> Option<Arc<Lease>> {
        let now = Clock::machine().now();
        let lease = self.all().get(&purpose).cloned();
        lease.filter(|lease| lease.promised_until() > now)
    }

    /// The lease for this, made if there is none.
    pub(crate) async fn get(&self, purpose: Purpose) -> Result<Arc<Lease>> {
        if let Some(lease) = self.current(purpose) {
            return Ok(lease);
        }
        let _one_at_a_time = self.granting.lock().await;
        if let Some(lease) = self.current(purpose) {
            return Ok(lease);
        }
        let reply = self.cluster.grant(purpose.seconds()).await?;
        let ttl = u64::try_from(reply.message.ttl).map_err(|_| failure::nonsense())?;
        let lease = Lease::new(reply.message.id, Duration::from_secs(ttl), reply.sent);
        let lease = Arc::new(lease);
        self.all().insert(purpose, Arc::clone(&lease));
        Ok(lease)
    }

    /// The lease for this with its whole time before it.
    pub(crate) async fn renewed(&self, purpose: Purpose) -> Result<Arc<Lease>> {
        if let Some(lease) = self.current(purpose) {
            match self.keep_alive(&lease).await? {
                KeptAlive::Yes => return Ok(lease),
                KeptAlive::Gone => {}
                KeptAlive::Doubtful => return Err(changing_leaders()),
            }
        }
        self.get(purpose).await
    }

    /// Keeps it alive. A leader that was stopped and has been replaced may answer before it finds out, so the promise
    /// counts only if a quorum, asked afterwards, still knows no other.
    pub(crate) async fn keep_alive(&self, lease: &Lease) -> Result<KeptAlive, Refused> {
        let kept = self.cluster.keep_alive(lease.id).await?;
        if kept.message.ttl <= 0 {
            self.retire(lease.id);
            return Ok(KeptAlive::Gone);
        }
        let nothing = RangeRequest {
            key: self.any_key.clone(),
            keys_only: true,
            ..RangeRequest::default()
        };
        let quorum = self.cluster.ask_quorum(nothing).await?;
        if term(&kept.message.header) != term(&quorum.message.header) {
            return Ok(KeptAlive::Doubtful);
        }
        lease.kept_alive(kept.sent);
        Ok(KeptAlive::Yes)
    }

    /// It is used no more and ends with its time, with whatever may yet arrive under it.
    pub(crate) fn retire(&self, id: i64) {
        self.all().retain(|_, lease| lease.id != id);
    }
}

fn term(header: &Option<Header>) -> u64 {
    header.as_ref().map_or(0, |header| header.raft_term)
}

fn changing_leaders() -> crate::Error {
    let what = "the cluster is changing its leader";
    crate::Error::new(crate::ErrorKind::Unreachable, what).of_unknown_effect()
}
