//! etcd's leases: one for each TTL in whole seconds, and one for all who wait, shared by the claims of this client.
//!
//! A lease is kept alive when the core renews a claim, and while somebody waits; never by itself. So what nobody renews
//! ends. A lease that is no longer used ends with its time, or is revoked when the client ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use super::client::{Client, Refused};
use super::failure;
use super::proto::{Header, RangeRequest};
use crate::claim::Ttl;
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::sync::Mutex;

/// How long a dead waiter holds up those behind it; the server may allow no less than a bit more.
const WAITING_SECONDS: i64 = 2;

/// A process that ends does not wait longer for a cluster that does not answer.
const REVOKING: Duration = Duration::from_secs(1);

/// What a lease is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Purpose {
    /// Claims with a TTL of so many seconds, rounded up.
    Hold(u64),
    /// Claims that wait, and those that had to until they are renewed for the first time.
    Wait,
}

impl Purpose {
    pub(crate) fn of(ttl: Ttl) -> Self {
        Self::with_spare(ttl, Duration::ZERO)
    }

    /// The same, for so much longer.
    pub(crate) fn with_spare(ttl: Ttl, spare: Duration) -> Self {
        let upwards = u64::from(ttl.get().subsec_nanos() > 0);
        Purpose::Hold(ttl.get().as_secs() + upwards + spare.as_secs())
    }

    fn seconds(self) -> i64 {
        match self {
            Purpose::Hold(seconds) => i64::try_from(seconds).unwrap_or(i64::MAX),
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
    watched: AtomicBool,
    /// Keys that were to be moved to it, of which no answer says whether they are.
    unanswered: AtomicUsize,
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
            watched: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
        }
    }

    /// Until when it certainly lives.
    pub(crate) fn promised_until(&self) -> Moment {
        self.promise.lock().until
    }

    /// Whether a claim that joins now would have much less than its TTL.
    pub(crate) fn is_stale(&self, now: Moment) -> bool {
        now.since(self.promise.lock().asked) > self.ttl / 10
    }

    /// When it should be kept alive again.
    pub(crate) fn due(&self) -> Moment {
        self.promise.lock().asked + self.ttl / 3
    }

    /// Whether nobody has watched for its end so far.
    pub(crate) fn be_watched(&self) -> bool {
        !self.watched.swap(true, Ordering::Relaxed)
    }

    /// Nobody does any more.
    pub(crate) fn is_not_watched(&self) {
        self.watched.store(false, Ordering::Relaxed);
    }

    /// A key is about to be moved to it. The lock may be held all the while, by another process too: unless there is an answer,
    /// the lease is never revoked.
    pub(crate) fn awaits_answer(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// What has become of that is known.
    pub(crate) fn is_answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the lock of somebody who relies on it may be under it, unknown to this client.
    pub(crate) fn may_hold_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) > 0
    }

    /// One that has ended.
    #[cfg(test)]
    pub(crate) fn ended(id: i64) -> Self {
        Self::new(id, Duration::ZERO, Moment::from_origin(Duration::ZERO))
    }

    fn kept_alive(&self, asked: Moment) {
        let mut promise = self.promise.lock();
        promise.asked = promise.asked.max(asked);
        promise.until = promise.until.max(asked + validity(self.ttl));
    }
}

fn validity(ttl: Duration) -> Duration {
    Ttl::sticky(ttl).map_or(Duration::ZERO, Ttl::validity)
}

/// What a keep-alive came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptAlive {
    Yes,
    /// The server has no such lease any more, and so none of its keys.
    Gone,
    /// The leader that answered may have been one no longer.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Leases {
    client: Arc<Client>,
    /// A key of ours that need not be there, to ask the quorum for.
    any_key: Vec<u8>,
    ours: Mutex<Ours>,
    /// One grant at a time.
    granting: tokio::sync::Mutex<()>,
}

/// The leases that this client was granted. Whoever uses one has a reference to it, which it got from here: what has no other can
/// be released.
#[derive(Debug, Default)]
struct Ours {
    current: HashMap<Purpose, Arc<Lease>>,
    /// Those that nothing new comes under.
    retired: Vec<Arc<Lease>>,
}

impl Ours {
    fn all(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.current.values().chain(&self.retired)
    }

    /// Takes those out that are of no use to anyone, and of which this says so.
    fn take_unused(&mut self, is_taken: impl Fn(&Lease) -> bool) -> Vec<Arc<Lease>> {
        let mut taken = Vec::new();
        let mut keep = |lease: &Arc<Lease>| {
            let keep = Arc::strong_count(lease) > 1 || !is_taken(lease);
            if !keep {
                taken.push(Arc::clone(lease));
            }
            keep
        };
        self.current.retain(|_, lease| keep(lease));
        self.retired.retain(keep);
        taken
    }
}

impl Leases {
    pub(crate) fn on(client: Arc<Client>, any_key: Vec<u8>) -> Self {
        Self {
            client,
            any_key,
            ours: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
        }
    }

    /// The lease that a key is under, if it is one of this client's.
    pub(crate) fn of(&self, id: i64) -> Option<Arc<Lease>> {
        let ours = self.ours.lock();
        ours.all().find(|lease| lease.id == id).cloned()
    }

    /// The same, if a key under it is certainly there by what this client knows of the claim: not by a move that was not answered, which may be
    /// that of a lock which another process holds.
    pub(crate) fn known_to_have(&self, id: i64) -> Option<Arc<Lease>> {
        self.of(id).filter(|lease| !lease.may_hold_unanswered())
    }

    /// The lease for this, if there is one that certainly lives.
    pub(crate) fn current(&self, purpose: Purpose) -> Option<Arc<Lease>> {
        let now = Clock::machine().now();
        let lease = self.ours.lock().current.get(&purpose).cloned();
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
        let reply = self.client.grant(purpose.seconds()).await?;
        let ttl = u64::try_from(reply.message.ttl).map_err(|_| failure::nonsense())?;
        let lease = Lease::new(reply.message.id, Duration::from_secs(ttl), reply.sent);
        let lease = Arc::new(lease);
        let mut ours = self.ours.lock();
        let before = ours.current.insert(purpose, Arc::clone(&lease));
        ours.retired.extend(before);
        Ok(lease)
    }

    /// The lease for this with its whole time before it, counted from now or later.
    pub(crate) async fn renewed(&self, purpose: Purpose) -> Result<Arc<Lease>> {
        let start = Clock::machine().now();
        loop {
            let lease = self.get(purpose).await?;
            if lease.promise.lock().asked >= start {
                return Ok(lease);
            }
            match self.keep_alive(&lease).await? {
                KeptAlive::Yes => return Ok(lease),
                KeptAlive::Gone => {}
                KeptAlive::Unknown => return Err(changing_leaders()),
            }
        }
    }

    /// Keeps it alive. A leader that was stopped and has been replaced may answer before it finds out, so the promise
    /// counts only if a quorum, asked afterwards, still knows no other.
    ///
    /// A new leader may answer before it carries out what the one before has left in its log, which may be the revocation of this lease. So the
    /// promise is for keys that are seen or put under the lease after this has returned, and for no others.
    pub(crate) async fn keep_alive(&self, lease: &Lease) -> Result<KeptAlive, Refused> {
        let kept = self.client.keep_alive(lease.id).await?;
        if kept.message.ttl <= 0 {
            self.retire(lease.id);
            return Ok(KeptAlive::Gone);
        }
        if !self.is_still(&kept.message.header).await? {
            return Ok(KeptAlive::Unknown);
        }
        lease.kept_alive(kept.sent);
        Ok(KeptAlive::Yes)
    }

    /// How long a lease lasts whenever it is kept alive; `None` if there is none. As a leader knows it that a quorum still follows
    /// afterwards.
    pub(crate) async fn granted(&self, id: i64) -> Result<Option<Duration>> {
        let lease = self.client.time_left(id).await?.message;
        match self.is_still(&lease.header).await? {
            true => Ok(u64::try_from(lease.granted_ttl)
                .ok()
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs)),
            false => Err(changing_leaders()),
        }
    }

    /// Whether a quorum still knows no later term than the one this was answered in.
    async fn is_still(&self, answered: &Option<Header>) -> Result<bool, Refused> {
        let nothing = RangeRequest {
            key: self.any_key.clone(),
            keys_only: true,
            ..RangeRequest::default()
        };
        let quorum = self.client.ask_quorum(nothing).await?;
        Ok(term(answered) == term(&quorum.message.header))
    }

    /// A request that names these is about to leave. Whoever sends it may be dropped before there is an answer.
    pub(crate) fn in_flight<'a>(
        &self,
        named: impl IntoIterator<Item = &'a Arc<Lease>>,
    ) -> InFlight<'_> {
        InFlight {
            leases: self,
            named: named.into_iter().cloned().collect(),
        }
    }

    /// It is used no more and ends with its time, with whatever may yet arrive under it.
    pub(crate) fn retire(&self, id: i64) {
        let mut ours = self.ours.lock();
        let Ours { current, retired } = &mut *ours;
        current.retain(|_, lease| {
            let keep = lease.id != id;
            if !keep {
                retired.push(Arc::clone(lease));
            }
            keep
        });
        // Those that have ended by themselves.
        let now = Clock::machine().now();
        ours.take_unused(|lease| lease.promised_until() < now);
    }

    /// Revokes all that no claim of this client is under, and no request names that is in flight or was not answered.
    pub(crate) async fn revoke_unused(&self) {
        let unused = self
            .ours
            .lock()
            .take_unused(|lease| !lease.may_hold_unanswered());
        let revoke = unused.iter().map(|lease| self.client.revoke(lease.id));
        // If that fails, they end with their time.
        let _ = tokio::time::timeout(REVOKING, join_all(revoke)).await;
    }
}

/// A request that puts keys under these leases. Unless there is an answer, they are used no more: what may be under them must not live on because they are
/// kept alive for others.
#[must_use]
pub(crate) struct InFlight<'a> {
    leases: &'a Leases,
    named: Vec<Arc<Lease>>,
}

impl InFlight<'_> {
    /// There is an answer, or none is to be expected any more.
    pub(crate) fn answered(mut self) {
        self.named.clear();
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let named = self.named.drain(..);
        named.for_each(|lease| self.leases.retire(lease.id));
    }
}

fn term(header: &Option<Header>) -> u64 {
    header.as_ref().map_or(0, |header| header.raft_term)
}

fn changing_leaders() -> crate::Error {
    let what = "the cluster is changing its leader";
    crate::Error::new(crate::ErrorKind::Unreachable, what).of_unknown_effect()
}
