//! The contract between the core and whatever stores the locks.
//!
//! An engine makes single attempts and answers at once. It keeps no deadlines, hides no failures behind retries, and renews
//! nothing by itself: the core does. To write an engine: implement [`Engine`], describe it in a [`Driver`], add that to a
//! [registry](crate::Registry), and run the [conformance suite](crate::conformance) on it. The guide:
//! [writing an engine](https://github.com/leasehold/leasehold/blob/main/docs/writing-an-engine.md).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::claim::{Claim, Claimant, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::condition::ConditionCheck;
use crate::guard::sql::Dialect;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::url::{EngineUrl, invalid};

use self::doctor::Finding;

// What engines share. Which parts of it are used depends on the features.
#[allow(dead_code)]
pub(crate) mod background;
#[allow(dead_code)]
#[cfg(feature = "_tls")]
pub(crate) mod certificates;
#[allow(dead_code, unused_imports, unused_macros)]
pub(crate) mod config;
pub mod doctor;
#[allow(dead_code)]
pub(crate) mod local_expiry;
#[allow(dead_code)]
pub(crate) mod merged_renewals;
#[allow(dead_code)]
#[cfg(feature = "_json")]
pub(crate) mod meta;
#[allow(dead_code)]
pub(crate) mod own_claims;
#[allow(dead_code)]
pub(crate) mod queue_rules;
#[allow(dead_code)]
#[cfg(feature = "_tls")]
pub(crate) mod tls;
#[allow(dead_code)]
pub(crate) mod wakeup;

#[allow(dead_code)] // what only one of its services uses
#[cfg(feature = "_aws")]
pub(crate) mod aws;
#[cfg(feature = "bench")]
pub mod baseline;
#[allow(dead_code)] // what only one of its stores uses
#[cfg(feature = "_cas")]
pub(crate) mod cas;
#[cfg(feature = "_sql")]
pub(crate) mod sql;
#[cfg(feature = "_wire")]
pub mod wire;

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "http")]
pub mod http;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(all(feature = "sqlite", unix))]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// Stores locks.
///
/// The core makes one call of [`try_acquire`](Engine::try_acquire) or [`release`](Engine::release) for a claim at a time, and awaits
/// it to its end, even if the user has dropped the future. So these two are dropped half-way only if the runtime ends, and a
/// release never overtakes an attempt. All other futures may be dropped at any point.
///
/// The errors of all methods have one of the kinds `Unreachable`, `Denied`, `EngineUnfit`, `Unsupported`, `InvalidConfig` and
/// `Unexpected` of [`ErrorKind`](crate::ErrorKind), and an unknown [effect](crate::Error::of_unknown_effect) unless the engine knows that the
/// request was not carried out.
///
/// One that leaves the work to another engine, and reports who asks:
///
/// ```
/// use std::sync::Arc;
///
/// use leasehold::engine::memory::Memory;
/// use leasehold::engine::{About, Attempt, Engine, LockInfo, Query, Released, Renew, Renewal, Wake};
/// use leasehold::{Claim, LockName, Locks, Result};
///
/// #[derive(Debug)]
/// struct Reporting(Arc<dyn Engine>);
///
/// #[async_trait::async_trait]
/// impl Engine for Reporting {
///     fn about(&self) -> About {
///         self.0.about()
///     }
///     async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
///         println!("{} asks for {}", claim.claimant.label, claim.name);
///         self.0.try_acquire(claim).await
///     }
///     async fn wait(&self, claim: &Claim) -> Result<Wake> {
///         self.0.wait(claim).await
///     }
///     async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
///         self.0.renew(held).await
///     }
///     async fn release(&self, claim: &Claim) -> Result<Released> {
///         self.0.release(claim).await
///     }
///     async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
///         self.0.inspect(query).await
///     }
///     async fn force_release(&self, name: &LockName) -> Result<Released> {
///         self.0.force_release(name).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let locks = Locks::new(Arc::new(Reporting(Arc::new(Memory::default()))));
/// locks.lock("report").acquire().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Engine: Debug + Send + Sync + 'static {
    /// What it is, where it is, and what it promises.
    fn about(&self) -> About;

    /// Makes one attempt, and never waits. If it is refused, a claim that [queues](Claim::queues) has an entry in the lock's queue
    /// afterwards. Idempotent by claim id: a claim that holds the lock already gets the same token, whatever TTL it asks for, and is not
    /// shortened. If it holds the lock in another [mode](Claim::mode), the attempt fails with [`Mode::is_still`](crate::Mode::is_still) and
    /// changes nothing. A claim in the queue waits on with the mode and the TTL that it asked for last, but may lose its position.
    ///
    /// # Errors
    ///
    /// Contention is no error, but [`Attempt::Held`]. After an error of unknown effect the core releases the claim. If the engine has
    /// reached a limit, such as that of its connections, or the connection was lost and another one can be made, say so with
    /// [`Error::because_busy`](crate::Error::because_busy): the core then tries again, for as long as the claim waits.
    ///
    /// # Cancel safety
    ///
    /// The core never drops this future.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt>;

    /// Returns when another attempt is worth while, or with the grant if the lock was handed over. Returns at once if something
    /// has happened since the last attempt, so that no wake-up is lost. May wait forever: the core makes another attempt after
    /// [`Contention::look_again_in`] by itself.
    ///
    /// # Errors
    ///
    /// An error does not end the wait: the core makes another attempt after a short delay.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point. The queue entry stays; a hand-over that nobody knows of is found by the next attempt.
    async fn wait(&self, claim: &Claim) -> Result<Wake>;

    /// Renews each claim for its TTL from now on, or leaves it as it is where more time than that is left: as one batch, with
    /// one answer for each, in the same order. Never releases, never takes a lock that is not held, and never shortens one that is, unless
    /// [`Renew::shorten`] is set.
    ///
    /// # Errors
    ///
    /// An error means that it is unknown whether the claim was renewed; never that it is lost, which is [`Renewal::Lost`]. The core
    /// tries again until the validity ends.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: claims may be renewed or not, and none is lost by it.
    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>>;

    /// Gives up the claim, whatever has become of it: held, queued, half taken or unknown.
    ///
    /// # Errors
    ///
    /// After an error the core releases again, until the TTL has passed. That the claim held nothing is no error, but
    /// [`Released::WasNotHeld`].
    ///
    /// # Cancel safety
    ///
    /// The core never drops this future.
    async fn release(&self, claim: &Claim) -> Result<Released>;

    /// The locks that are held or waited for, ordered by name.
    ///
    /// # Errors
    ///
    /// If the engine cannot be read.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>>;

    /// Takes the lock away from all of its holders. Waiters keep their positions.
    ///
    /// # Errors
    ///
    /// Not to be repeated by the engine if its effect is unknown: the next holder may have the lock already.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: the lock is then taken away or not.
    async fn force_release(&self, name: &LockName) -> Result<Released>;

    /// Frees what it keeps at the store for future locks, such as leases without a lock, so that a process that ends leaves nothing
    /// behind. Locks that are held, and queue entries, stay as they are. The engine can be used afterwards. Returns within a
    /// few seconds, whether it has worked or not: what is left ends with its TTL.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: what is left ends with its TTL.
    async fn close(&self) {}

    /// What its set-up means for locks of this TTL: asks the store for its settings, now. What the store does not tell is
    /// [`Weight::Unknown`](doctor::Weight::Unknown), and so is what cannot be asked. See [`Locks::doctor`](crate::Locks::doctor).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    async fn findings(&self, _ttl: Ttl) -> Vec<Finding> {
        self.about().findings
    }

    /// Its guarded records, if it can keep any: see [`guard`](crate::guard).
    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        None
    }

    /// SQL support, if tables of the user's can be in the same database.
    fn sql(&self) -> Option<Arc<dyn SqlSupport>> {
        None
    }

    /// The condition under which a lock is held with this token, if the user's own writes to the same store can be made to depend on it.
    fn condition_check(&self, _name: &LockName, _token: FencingToken) -> Option<ConditionCheck> {
        None
    }
}

/// What an engine is, where it is, and what it promises. Engines make it anew whenever they are asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct About {
    /// The scheme of its URLs.
    pub scheme: &'static str,
    /// Where it is: a URL without passwords, for messages.
    pub location: String,
    /// What it can do and what it promises.
    pub capabilities: Capabilities,
    /// What its user should know about the way it is set up.
    pub warnings: Vec<String>,
    /// What was found when it was connected, good or bad.
    pub findings: Vec<Finding>,
    /// The clock that [`Grant::valid_until`] is counted on.
    pub clock: Clock,
    /// Changes when something has happened that may have ended locks of this client all at once, such as the end of its
    /// session. The core then renews them all without delay, and so learns which are lost.
    pub session_events: Option<watch::Receiver<u64>>,
    /// Whether it offers the lock to the next waiter and passes over one that does not take it up within a second. Elsewhere a waiter whose turn has
    /// come keeps all others waiting until it acts or leaves the queue.
    pub offers: bool,
    /// How many requests or transactions it has made so far, if it counts them.
    #[cfg(any(feature = "bench", feature = "conformance", feature = "_wire"))]
    pub requests: Option<u64>,
}

impl About {
    /// An engine on the machine's clock, without warnings and sessions.
    pub fn new(
        scheme: &'static str,
        location: impl Into<String>,
        capabilities: Capabilities,
    ) -> Self {
        Self {
            scheme,
            location: location.into(),
            capabilities,
            warnings: Vec::new(),
            findings: Vec::new(),
            clock: Clock::machine(),
            session_events: None,
            offers: false,
            #[cfg(any(feature = "bench", feature = "conformance", feature = "_wire"))]
            requests: None,
        }
    }

    /// It [offers](Self::offers) locks to waiters.
    pub fn with_offers(self) -> Self {
        Self {
            offers: true,
            ..self
        }
    }

    /// With these warnings.
    pub fn warnings(self, warnings: impl IntoIterator<Item = String>) -> Self {
        let warnings = warnings.into_iter().collect();
        Self { warnings, ..self }
    }

    /// With what was found when it was connected. What is wrong is a warning too.
    pub fn findings(mut self, findings: impl IntoIterator<Item = Finding>) -> Self {
        self.findings.extend(findings);
        let wrong = self.findings.iter().filter(|finding| finding.is_bad());
        self.warnings = wrong.map(Finding::to_string).collect();
        self
    }

    /// With a clock of its own.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// With sessions that may end.
    pub fn session_events(self, events: watch::Receiver<u64>) -> Self {
        Self {
            session_events: Some(events),
            ..self
        }
    }

    /// With this many requests made so far, for those who measure.
    #[allow(dead_code, unused_mut, unused_variables)] // as the features are
    pub(crate) fn requests(mut self, requests: u64) -> Self {
        #[cfg(any(feature = "bench", feature = "conformance", feature = "_wire"))]
        {
            self.requests = Some(requests);
        }
        self
    }
}

/// What an engine in a database of the user's offers to the transactions of that database.
#[async_trait]
pub trait SqlSupport: Send + Sync {
    /// Whose SQL it speaks.
    fn dialect(&self) -> Dialect;

    /// The statement that checks a lease within a transaction of the user's own, with placeholders for the lock's name and the token: see
    /// [`CheckSql`](crate::guard::sql::CheckSql).
    fn check_lease(&self) -> String;

    /// Executes statements on tables of the user's: those of a [`FenceTable`](crate::guard::sql::FenceTable), and no others.
    ///
    /// # Errors
    ///
    /// If the database refuses one of them; where it has transactions for such statements, none has an effect then.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: the statements may be executed or not, and in part where the database has no transactions for them.
    async fn execute(&self, statements: &[String]) -> Result<()>;
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
#[non_exhaustive]
pub struct Grant {
    /// Greater than that of every earlier grant of this lock.
    pub token: FencingToken,
    /// Until when the holder may rely on it: counted from before the request left, with
    /// [`Ttl::validity`](crate::Ttl::validity).
    pub valid_until: Moment,
}

impl Grant {
    /// A grant with this token, to be relied on until then.
    pub const fn new(token: FencingToken, valid_until: Moment) -> Self {
        Self { token, valid_until }
    }
}

/// What an attempt met.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Contention {
    /// After this time another attempt is worth while even if nobody wakes us.
    pub look_again_in: Option<Duration>,
    /// Claims that are ahead of this one, holders included, where known.
    pub ahead: Option<usize>,
    /// Why the claim must wait, if not because others hold the lock; for people.
    pub because: Option<String>,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// Try again.
    Retry,
    /// The lock was handed over to this claim.
    Granted(Grant),
}

/// One claim in a batch of renewals.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Renew<'a> {
    /// The claim, with the TTL that it is to have from now on.
    pub claim: &'a Claim,
    /// Its token; unknown to a process that knows nothing but the claim id.
    pub token: Option<FencingToken>,
    /// Whether the claim ends after its TTL even if more time is left. Only the core's own last renewal, that of
    /// `hold_at_least`, may do so: any other one could cut the lock from under a holder that relies on the time left. After it nobody relies
    /// on the claim, and its end holds for every client, also for one that has just connected.
    pub shorten: bool,
}

impl<'a> Renew<'a> {
    /// The renewal of a claim of which nothing but its id is known.
    pub const fn new(claim: &'a Claim) -> Self {
        Self {
            claim,
            token: None,
            shorten: false,
        }
    }
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

impl Released {
    /// `Yes` if it was held.
    pub(crate) const fn from_held(was_held: bool) -> Self {
        match was_held {
            true => Released::Yes,
            false => Released::WasNotHeld,
        }
    }
}

/// Which locks to inspect.
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

/// One lock, for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// Who holds it, the longest first.
    pub holders: Vec<HolderInfo>,
    /// Who waits, in the order of the queue.
    pub waiters: Vec<WaiterInfo>,
}

impl LockInfo {
    /// A lock that nobody holds or waits for.
    pub const fn new(name: LockName) -> Self {
        Self {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        }
    }
}

/// A holder, for people to read: without its claim id.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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

impl HolderInfo {
    /// A holder without a reason, which has just begun and is about to expire; set the other fields as they are.
    pub const fn new(claimant: Claimant, mode: Mode, token: FencingToken) -> Self {
        Self {
            claimant,
            reason: None,
            mode,
            held_for: Duration::ZERO,
            time_left: Duration::ZERO,
            token,
        }
    }
}

/// A waiter, for people to read: without its claim id.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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

impl WaiterInfo {
    /// A waiter without a reason, which has just begun to wait; set the other fields as they are.
    pub const fn new(claimant: Claimant, mode: Mode) -> Self {
        Self {
            claimant,
            reason: None,
            mode,
            waited_for: Duration::ZERO,
        }
    }
}

/// What an engine can do and what it promises, as data: it chooses the cases of the conformance
/// suite and is shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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

impl Capabilities {
    /// What most engines of this crate can do, each with a reach and with losses that it survives: every mode, in the order of arrival, and guarded records.
    pub(crate) const FULL: Self = Self {
        shared: true,
        permits: true,
        fairness: Fairness::Fifo,
        store: true,
        ..Self::new(Reach::Network, Safety::Correctness)
    };

    /// The least that an engine can do: exclusive locks that end with their TTL, random order, tokens of the
    /// [hybrid clock](TokenSource::HybridClock), no guarded records, and nothing that it survives. Set the other fields as they are.
    pub const fn new(reach: Reach, safety: Safety) -> Self {
        Self {
            shared: false,
            permits: false,
            fairness: Fairness::Random,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach,
            safety,
            store: false,
            survives: &[],
        }
    }
}

/// Who gets a released lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// Whoever has waited longest.
    Fifo,
    /// Nobody knows.
    Random,
}

/// Where an engine's tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenSource {
    /// `max(last + 1, now)`, decided where the lock is decided.
    HybridClock,
    /// The number that the store gave to the write that made the claim.
    StoreRevision,
}

/// When a lock ends whose holder has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// With the claim's own TTL.
    Ttl,
    /// With the session of the process that held it; a lock cannot outlive it, whatever its TTL. In a
    /// process that lives, a claim that is not renewed ends with its TTL.
    Session,
    /// With the claim's own TTL, which each client counts on its own clock, from when it first saw the last renewal: the store has no clock. One
    /// that has just connected counts a dead holder's whole TTL anew, so a process that makes a single attempt never outwaits it.
    Observed,
}

/// Among whom a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
pub enum Safety {
    /// Double work is rare: fine for a cron job.
    Efficiency,
    /// Two never hold the lock at once within its validity.
    Correctness,
}

/// Something that may happen without breaking what was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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

/// For a [`Driver`]: the connection that is being made, to an engine of any kind.
pub fn connecting<E: Engine>(
    connect: impl Future<Output = Result<E>> + Send + 'static,
) -> Connecting {
    Box::pin(async { Ok(Arc::new(connect.await?) as Arc<dyn Engine>) })
}

/// Awaits a connection; an error says where to it was being made.
pub(crate) async fn connect_to<T>(
    location: String,
    connecting: impl Future<Output = Result<T>>,
) -> Result<T> {
    let connected = connecting.await;
    connected.map_err(|error| error.during("connect", location))
}

/// How to reach an engine by URL. A [`Registry`](crate::Registry) finds it by the scheme.
///
/// ```
/// use leasehold::Registry;
/// use leasehold::engine::memory::Memory;
/// use leasehold::engine::{Driver, connecting};
///
/// const MINE: Driver = Driver::new(&["mine"], "mine://host:7000?timeout=1s", |url| {
///     connecting(async move {
///         let server = url.server(7000)?;
///         let timeout = url.duration("timeout")?;
///         println!("{server}, {timeout:?}, {:?}", url.user);
///         Ok(Memory::default()) // here: connect to the server
///     })
/// })
/// .options(&[("timeout", "how long to wait for an answer")]);
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let registry = Registry::builtin().with(MINE);
/// registry.connect("mine://me@db.internal?timeout=500ms").await?;
/// assert!(registry.connect("mine://db.internal?colour=red").await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Driver {
    /// The schemes of its URLs, in lower case.
    pub schemes: &'static [&'static str],
    /// The options that may stand behind the `?`, each with a word of explanation.
    pub options: &'static [(&'static str, &'static str)],
    /// An example of a URL.
    pub example: &'static str,
    /// Connects.
    pub connect: fn(EngineUrl) -> Connecting,
    /// The baseline to compare it with.
    #[cfg(feature = "bench")]
    pub baseline: Option<baseline::Connect>,
}

impl Driver {
    /// A driver for URLs of these schemes, with no options. `connect` is usually a closure that calls [`connecting`].
    pub const fn new(
        schemes: &'static [&'static str],
        example: &'static str,
        connect: fn(EngineUrl) -> Connecting,
    ) -> Self {
        Self {
            schemes,
            options: &[],
            example,
            connect,
            #[cfg(feature = "bench")]
            baseline: None,
        }
    }

    /// The options that its URLs may have, each with a word of explanation. Any other is refused.
    pub const fn options(mut self, options: &'static [(&'static str, &'static str)]) -> Self {
        self.options = options;
        self
    }

    /// Takes a URL of this engine apart, and checks the names of its options.
    ///
    /// # Errors
    ///
    /// `ErrorKind::InvalidConfig` if the URL is not well formed, has the scheme of another engine or an option that this one
    /// does not know.
    pub fn parse(&self, url: &str) -> Result<EngineUrl> {
        let url = EngineUrl::split(url).map_err(|error| error.advise_if_none(self.like()))?;
        if !self.schemes.contains(&&*url.scheme) {
            return Err(
                invalid(format!("{:?} is the scheme of another engine", url.scheme))
                    .advise(self.like()),
            );
        }
        self.check(url)
    }

    /// A URL of one of its schemes: are its options known?
    pub(crate) fn check(&self, mut url: EngineUrl) -> Result<EngineUrl> {
        // The URLs of every engine have this one.
        if let Some(names) = url.options.remove("accept") {
            url.accepted = doctor::parse_accepted(&names)?;
        }
        let knows = |name: &&String| self.options.iter().any(|(known, _)| known == name);
        if let Some(unknown) = url.options.keys().find(|name| !knows(name)) {
            let accept = ("accept", "findings of `leasehold doctor` that you know of");
            let options = self.options.iter().chain([&accept]);
            let known: Vec<_> = options
                .map(|(name, meaning)| format!("{name} ({meaning})"))
                .collect();
            let error = invalid(format!("{}: URLs have no option {unknown:?}", url.scheme));
            return Err(error.advise(format!("the known ones are {}", known.join(", "))));
        }
        url.example = self.example;
        Ok(url)
    }

    fn like(&self) -> String {
        format!("write it like {}", self.example)
    }
}
