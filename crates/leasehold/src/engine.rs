//! The contract between the core and whatever stores the locks.
//!
//! An engine makes single attempts and answers at once; it keeps no deadline, retries nothing that
//! the user should hear of, and renews nothing by itself. All of that is the core's. To write an
//! engine: implement [`Engine`], describe it in a [`Driver`], add that to `DRIVERS` below, and
//! run the [conformance suite](crate::conformance) on it.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::claim::{Claim, Claimant, Mode};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::guard::sql::Dialect;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::url::EngineUrl;

#[cfg(any(
    feature = "etcd",
    feature = "zookeeper-tls",
    feature = "postgres",
    feature = "mysql"
))]
pub(crate) mod certificates;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
pub(crate) mod handover;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod lineup;
pub mod memory;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper"))]
pub(crate) mod meta;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(crate) mod overdue;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "bench")]
pub mod raw;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod rows;
#[cfg(all(feature = "sqlite", unix))]
pub mod sqlite;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "postgres",
    feature = "mysql",
    feature = "zookeeper-tls"
))]
pub(crate) mod tls;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod under_way;
#[cfg(feature = "mysql")]
pub(crate) mod vigil;
#[cfg(any(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    all(feature = "sqlite", unix)
))]
pub(crate) mod waiters;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// Stores locks.
///
/// Every future may be dropped at any point. The core then calls [`release`](Engine::release), so
/// an attempt that is carried out late must not outlive a release that was asked for after it, other
/// than by its TTL.
#[async_trait]
pub trait Engine: Debug + Send + Sync + 'static {
    /// The scheme of its URLs.
    fn scheme(&self) -> &'static str;

    /// Where it is: a URL without passwords, for messages.
    fn location(&self) -> String;

    /// What it can do and what it promises.
    fn capabilities(&self) -> Capabilities;

    /// The clock that [`Grant::valid_until`] is told on. Only tests bring one of their own.
    fn clock(&self) -> Clock {
        Clock::machine()
    }

    /// One attempt; never waits. If refused, a claim that [queues](Claim::queues) has a place in the
    /// lock's queue afterwards. Idempotent per claim id: who holds the lock already gets the same token.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt>;

    /// Returns when another attempt is worth while, or with the grant if the lock was handed over.
    /// Returns at once if something has happened since `seen`, so that no wake-up is lost. May wait
    /// for ever: the core looks again after [`Contention::look_again_in`] by itself.
    async fn wait(&self, claim: &Claim, seen: &Contention) -> Result<Wake>;

    /// Grants each claim its whole TTL anew, from now on: as one batch, an answer for each. An error
    /// means unknown, never lost. Never releases, and never takes a lock that is not held.
    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>>;

    /// Gives up the claim, whatever has become of it: held, queued, half taken or unknown.
    async fn release(&self, claim: &Claim) -> Result<Released>;

    /// Holders and waiters, ordered by name.
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>>;

    /// An operator's act: whoever holds the lock loses it. Waiters keep their places.
    async fn break_lock(&self, name: &LockName) -> Result<Released>;

    /// Returns a number other than `seen` once something has happened that may have ended locks of this
    /// client all at once, such as the end of its session. The core then renews them all without delay, and
    /// so hears. An engine that cannot hear of such things never returns.
    async fn disturbed(&self, _seen: u64) -> u64 {
        std::future::pending().await
    }

    /// What its user should know about the way it is set up, found when it was connected.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its guarded records, if it can keep any: see [`guard`](crate::guard).
    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        None
    }

    /// Whose SQL it speaks, if tables of the user's can be fenced in the same database.
    fn dialect(&self) -> Option<Dialect> {
        None
    }

    /// The statement that checks a lease within a transaction of the user's own, with places for the lock's name and the token: see
    /// [`CheckSql`](crate::guard::sql::CheckSql).
    fn check_sql(&self, _claim: &Claim) -> Option<String> {
        None
    }

    /// Carries out statements on tables of the user's: those of a [`FenceTable`](crate::guard::sql::FenceTable), and no others.
    async fn run_sql(&self, _statements: &[String]) -> Result<()> {
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} has no tables", self.scheme()),
        ))
    }

    /// How many commands or transactions it has sent so far, if it can tell.
    fn commands_sent(&self) -> Option<u64> {
        None
    }

    /// The fastest that the store itself could do, for `leasehold bench` to compare with.
    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn raw::RawLimit>> {
        None
    }
}

/// The answer to an attempt. Contention is a value; only failure is an error.
#[derive(Debug, Clone)]
pub enum Attempt {
    /// The claim holds the lock.
    Granted(Grant),
    /// Others do.
    Held(Contention),
}

/// What a granted claim gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Greater than that of every earlier grant of this lock.
    pub token: FencingToken,
    /// Until when the holder may rely on it: counted from before the request left, with
    /// [`Ttl::validity`](crate::Ttl::validity).
    pub valid_until: Moment,
}

/// What an attempt met.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contention {
    /// After this time another attempt is worth while even if nobody wakes us.
    pub look_again_in: Option<Duration>,
    /// Claims that are ahead of this one, holders included, where known.
    pub ahead: Option<usize>,
    /// The engine's own mark of what it saw.
    pub seen: u64,
    /// Why the claim must wait, if not because others hold the lock; for people.
    pub because: Option<String>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Try again.
    Retry,
    /// The lock was handed over to this claim.
    Granted(Grant),
}

/// One claim in a batch of renewals.
#[derive(Debug, Clone, Copy)]
pub struct Renew<'a> {
    /// The claim, with the TTL that it is to have from now on.
    pub claim: &'a Claim,
    /// Its token; unknown to a process that knows nothing but the claim id.
    pub token: Option<FencingToken>,
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Held for another TTL, with the same token.
    Renewed(Grant),
    /// Not held.
    Lost(LossReason),
}

/// Why a lease can no longer be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// Its validity ran out before a renewal succeeded; with what the last renewal said.
    Expired {
        /// Why the last renewal failed, if one did.
        last_failure: Option<Arc<str>>,
    },
    /// The engine no longer knows the claim: it expired there, or an operator broke the lock.
    Gone,
    /// The session that the lock depended on has ended.
    SessionEnded,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// It was released.
    Released,
}

impl std::fmt::Display for LossReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LossReason::Expired { last_failure: None } => {
                f.write_str("its time ran out before it was renewed (was the process stopped?)")
            }
            LossReason::Expired {
                last_failure: Some(failure),
            } => write!(f, "its time ran out while renewals failed: {failure}"),
            LossReason::Gone => {
                f.write_str("the engine no longer has it: it expired there, or someone broke it")
            }
            LossReason::SessionEnded => f.write_str("the engine ended the session"),
            LossReason::MaxHold => f.write_str("it was held for as long as max_hold allows"),
            LossReason::Released => f.write_str("it was released"),
        }
    }
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// It was held, and is no longer.
    Yes,
    /// There was nothing to release; that is no failure.
    WasNotHeld,
}

/// Which locks to tell of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// One lock.
    Name(LockName),
    /// All that begin with this; the empty text for all.
    Prefix(String),
}

impl Query {
    /// Whether the query asks for this lock.
    pub fn asks_for(&self, name: &LockName) -> bool {
        match self {
            Query::Name(asked) => asked == name,
            Query::Prefix(prefix) => name.as_str().starts_with(prefix),
        }
    }
}

/// One lock as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// Who holds it, the longest first.
    pub holders: Vec<HolderInfo>,
    /// Who waits, in the order of the queue.
    pub waiters: Vec<WaiterInfo>,
}

/// A holder as people see it; never with its claim id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    /// Who.
    pub claimant: Claimant,
    /// Why, if it was said.
    pub reason: Option<String>,
    /// How.
    pub mode: Mode,
    /// For how long already.
    pub held_for: Duration,
    /// When it expires unless renewed.
    pub time_left: Duration,
    /// Its fencing token.
    pub token: FencingToken,
}

/// A waiter as people see it; never with its claim id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterInfo {
    /// Who.
    pub claimant: Claimant,
    /// Why, if it was said.
    pub reason: Option<String>,
    /// How.
    pub mode: Mode,
    /// For how long already.
    pub waited_for: Duration,
}

/// What an engine can do and what it promises, as data: it chooses the cases of the conformance
/// suite and is shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it has [`Mode::Shared`].
    pub shared: bool,
    /// Whether it has [`Mode::Permit`].
    pub permits: bool,
    /// Who gets the lock next.
    pub fairness: Fairness,
    /// Where tokens come from.
    pub tokens: TokenSource,
    /// When a lock ends whose holder has died.
    pub expiry: Expiry,
    /// Among whom a lock excludes.
    pub reach: Reach,
    /// What it may be trusted with.
    pub safety: Safety,
    /// Whether it keeps guarded records: [`Engine::store`].
    pub store: bool,
    /// Which losses exclusion and tokens survive.
    pub survives: &'static [Survives],
}

/// Who gets a released lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fairness {
    /// Whoever has waited longest.
    Fifo,
    /// Nobody knows.
    Random,
}

/// Where an engine's tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    /// `max(last + 1, now)`, decided where the lock is decided.
    HybridClock,
    /// The number that the store gave to the write that made the claim.
    StoreRevision,
}

/// When a lock ends whose holder has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// With the claim's own TTL.
    Ttl,
    /// With the session of the process that held it; a lock cannot outlive it, whatever its TTL. In a
    /// process that lives, a claim that is not renewed ends with its TTL.
    Session,
}

/// Among whom a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// All who reach the store.
    Network,
}

/// What an engine may be trusted with, as long as nothing happens that it does not survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Safety {
    /// Double work is rare: fine for a cron job.
    Efficiency,
    /// Two never hold the lock at once within its validity.
    Correctness,
}

/// Something that may happen without breaking what was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survives {
    /// A client is killed at any instant.
    ClientKilled,
    /// The engine restarts.
    EngineRestart,
    /// The machine loses power.
    PowerLoss,
    /// A minority of nodes is lost.
    NodeLoss,
    /// The wall clock steps, either way.
    ClockStep,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Engine>>> + Send>>;

/// How to reach an engine by URL.
#[derive(Debug)]
pub struct Driver {
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// The options that may stand behind the `?`, each with a word of explanation.
    pub options: &'static [(&'static str, &'static str)],
    /// An example of a URL.
    pub example: &'static str,
    /// Connects.
    pub connect: fn(EngineUrl) -> Connecting,
}

/// Every engine that was compiled in.
pub static DRIVERS: &[Driver] = &[
    memory::DRIVER,
    #[cfg(all(feature = "sqlite", unix))]
    sqlite::DRIVER,
    #[cfg(feature = "redis")]
    redis::DRIVER,
    #[cfg(feature = "redis")]
    redlock::DRIVER,
    #[cfg(feature = "etcd")]
    etcd::DRIVER,
    #[cfg(feature = "zookeeper")]
    zookeeper::DRIVER,
    #[cfg(feature = "postgres")]
    postgres::DRIVER,
    #[cfg(feature = "mysql")]
    mysql::DRIVER,
];
