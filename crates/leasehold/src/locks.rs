//! The handle that users hold, and the request that they build with it.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{self, Wait};
use crate::claim::{Claim, ClaimId, Claimant, Mode, Ttl, check_text};
use crate::clock::Clock;
use crate::engine::{Capabilities, Engine, Grant, LockInfo, Query, Released, Renew, Renewal};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Store;
use crate::guard::sql::FenceTable;
use crate::hold::{Hold, Terms};
use crate::keep_alive::{self, Keeper};
use crate::lease::{Lease, LeaseState, LeaseView};
use crate::name::LockName;
use crate::observe;
use crate::owner::{Entry, Owner};
use crate::recipe::IdPool;

/// All the locks of one engine. Cheap to clone; clones share connections and the keep-alive.
#[derive(Debug, Clone)]
pub struct Locks {
    core: Arc<Core>,
    claimant: Arc<Claimant>,
    owner: Option<Arc<Owner>>,
    ids: Option<IdPool>,
}

/// What all clones and leases of a handle share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) keeper: Keeper,
}

impl Core {
    /// Says where an error happened.
    pub(crate) fn place(&self, error: Error, operation: &'static str, lock: &LockName) -> Error {
        error.during(operation, self.engine.location()).on(lock)
    }

    /// The guarded records that the engine keeps beside the locks.
    pub(crate) fn store(&self) -> Result<Store> {
        match self.engine.store() {
            Some(records) => Ok(Store::new(records, self.engine.location())),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} keeps no guarded records", self.engine.scheme()),
            )
            .advise("check the token at the resource itself, or use a store on another engine")
            .during("open the store", self.engine.location())),
        }
    }
}

impl Locks {
    /// Connects to the engine that the URL names, such as `sqlite:` or `memory:`.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Ok(Self::new(crate::url::connect(url.as_ref()).await?))
    }

    /// The locks of an engine that was made by hand.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            core: Arc::new(Core {
                clock: engine.clock(),
                keeper: Keeper::new(Arc::clone(&engine)),
                engine,
            }),
            claimant: Arc::new(Claimant::this_process()),
            owner: None,
            ids: None,
        }
    }

    /// A handle for one owner, which may take a lock again that it holds: a counted lease of the
    /// same grant and token, released with the last.
    ///
    /// The owner is this handle and its clones, whatever the label: give each independent piece of work a
    /// handle of its own, since two tasks that share one do not exclude each other.
    pub fn owner(&self, label: impl Into<String>) -> Result<Self> {
        let owner = label.into();
        check_text("owner", &owner, 255)?;
        Ok(Self {
            core: Arc::clone(&self.core),
            claimant: Arc::new(Claimant {
                owner,
                ..(*self.claimant).clone()
            }),
            owner: Some(Arc::default()),
            ids: self.ids.clone(),
        })
    }

    /// A handle that asks in someone else's name, such as that of the process that has started this one: people are shown
    /// them as one, and so is a [circle](Self::deadlocks) that they are in together.
    pub fn on_behalf_of(&self, claimant: Claimant) -> Result<Self> {
        check_text("owner", &claimant.owner, 255)?;
        check_text("host", &claimant.host, 255)?;
        Ok(Self {
            claimant: Arc::new(claimant),
            ..self.clone()
        })
    }

    /// A handle whose claims are signed with ids from a pool, instead of 128 random bits each.
    pub fn ids_from(&self, pool: &IdPool) -> Self {
        Self {
            ids: Some(pool.clone()),
            ..self.clone()
        }
    }

    /// The same handle, but of nobody in particular: it never takes a lock again that it holds.
    pub(crate) fn of_nobody(&self) -> Self {
        Self {
            owner: None,
            ..self.clone()
        }
    }

    /// The clock that leases count on.
    pub(crate) fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// In whose name it asks.
    pub fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// Asks for a lock; the request ends in [`acquire`](LockRequest::acquire),
    /// [`try_acquire`](LockRequest::try_acquire) or [`run`](LockRequest::run).
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest {
            locks: self.clone(),
            name: LockName::new(name),
            mode: Mode::Exclusive,
            ttl: Ttl::DEFAULT.get(),
            wait: Wait::UpTo(LockRequest::DEFAULT_WAIT),
            owner: None,
            reason: None,
            terms: Terms::default(),
        }
    }

    /// Takes up a claim of which nothing but the id is known: one that was
    /// [detached](Lease::detach), or that another process has made.
    pub fn resume(&self, name: impl AsRef<str>, id: ClaimId) -> Result<Resumed> {
        Ok(Resumed {
            core: Arc::clone(&self.core),
            claim: Claim {
                name: LockName::new(name)?,
                id,
                mode: Mode::Exclusive,
                ttl: Ttl::DEFAULT,
                queues: false,
                claimant: Arc::clone(&self.claimant),
                reason: None,
            },
        })
    }

    /// Holders and waiters of one lock. A lock that nobody holds or waits for has none.
    pub async fn show(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = LockName::new(name)?;
        let found = self.core.engine.inspect(&Query::Name(name.clone())).await;
        let found = found.map_err(|error| self.core.place(error, "show", &name))?;
        let free = || LockInfo {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        };
        Ok(found.into_iter().next().unwrap_or_else(free))
    }

    /// All locks in use whose names begin with `prefix`, ordered by name.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<LockInfo>> {
        let query = Query::Prefix(prefix.into());
        let locks = self.core.engine.inspect(&query).await;
        locks.map_err(|error| error.during("list locks", self.core.engine.location()))
    }

    /// Takes the lock away from whoever holds it. The next token is still greater.
    pub async fn break_lock(&self, name: impl AsRef<str>) -> Result<Released> {
        let name = LockName::new(name)?;
        let broken = self.core.engine.break_lock(&name).await;
        broken.map_err(|error| self.core.place(error, "break", &name))
    }

    /// The guarded records that the engine keeps beside the locks.
    pub fn store(&self) -> Result<Store> {
        self.core.store()
    }

    /// Installs a column and a trigger on a table of the user's, in the database that keeps the locks, so that it refuses stale tokens:
    /// see [`guard::sql`](crate::guard::sql). For a `column` of `None`, `fencing_token`.
    pub async fn fence_table(&self, table: &str, column: Option<&str>) -> Result<()> {
        let fence = self.fence_of(table, column)?;
        self.run_sql("fence a table", fence.install_statements())
            .await
    }

    /// Takes both away again.
    pub async fn unfence_table(&self, table: &str, column: Option<&str>) -> Result<()> {
        let fence = self.fence_of(table, column)?;
        self.run_sql("unfence a table", fence.uninstall_statements())
            .await
    }

    fn fence_of(&self, table: &str, column: Option<&str>) -> Result<FenceTable> {
        let engine = &self.core.engine;
        let Some(dialect) = engine.dialect() else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} has no tables that could be fenced", engine.scheme()),
            )
            .advise("use the URL of the database that has the table: postgres: or mysql:")
            .during("fence a table", engine.location()));
        };
        let fence = FenceTable::new(dialect, table)?;
        match column {
            Some(column) => fence.column(column),
            None => Ok(fence),
        }
    }

    async fn run_sql(&self, what: &'static str, statements: Vec<String>) -> Result<()> {
        let engine = &self.core.engine;
        let done = engine.run_sql(&statements).await;
        done.map_err(|error| error.during(what, engine.location()))
    }

    /// Returns when the releases that dropped leases and dropped acquires have left to the background
    /// are done: for a program that is about to exit.
    pub async fn settle(&self) {
        self.core.keeper.settle().await;
    }

    /// What the engine can do and what it promises.
    pub fn capabilities(&self) -> Capabilities {
        self.core.engine.capabilities()
    }

    /// What to know about the way the engine is set up, found when it was connected.
    pub fn warnings(&self) -> Vec<String> {
        self.core.engine.warnings()
    }

    /// The engine's URL, without passwords.
    pub fn location(&self) -> String {
        self.core.engine.location()
    }

    /// The engine itself.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.core.engine
    }
}

/// A request for a lock, to be completed and sent.
#[derive(Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest {
    pub(crate) locks: Locks,
    pub(crate) name: Result<LockName>,
    mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) owner: Option<String>,
    reason: Option<String>,
    terms: Terms,
}

impl LockRequest {
    /// How long [`acquire`](Self::acquire) waits if nothing else is said.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

    /// For how long the lock is granted, unless renewed: how long others wait if this process
    /// dies. 30 s if nothing is said; 10 ms to 24 h.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for it; zero for a single attempt.
    pub fn wait(mut self, time: Duration) -> Self {
        self.wait = Wait::UpTo(time);
        self
    }

    /// Waits however long it takes.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// As one reader of many; a writer asks without this.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// As one of up to `of` holders at a time. All who use the lock say the same number.
    pub fn permits(mut self, of: u32) -> Self {
        self.mode = Mode::Permit { of };
        self
    }

    /// A label that tells people who holds the lock.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.owner = Some(label.into());
        self
    }

    /// The keep-alive ends after this time, whatever the work does: the lease is then lost.
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.terms.max_hold = Some(time);
        self
    }

    /// The lock stays taken for this long even if it is released sooner, so that a second host whose
    /// clock is late does not do the same work again.
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.terms.hold_at_least = Some(time);
        self
    }

    /// Tells people why the lock is held.
    pub fn reason(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(text.into());
        self
    }

    /// Obtains the lock, waiting for it if need be; `ErrorKind::TimedOut` if it was not obtained in
    /// time. Dropping the future gives up the place in the queue.
    pub async fn acquire(self) -> Result<Lease> {
        let wait = self.wait;
        let queues = wait != Wait::UpTo(Duration::ZERO);
        let (locks, claim, terms) = self.claim(queues).await?;
        let start = locks.core.clock.now();
        match locks.obtain(&claim, terms, wait).await? {
            Some(lease) => Ok(lease),
            None => {
                let waited = locks.core.clock.now().since(start);
                Err(acquire::timed_out(&locks.core, &claim, waited, None).await)
            }
        }
    }

    /// Obtains the lock if it is free; `None` if it is not.
    pub async fn try_acquire(self) -> Result<Option<Lease>> {
        let (locks, claim, terms) = self.claim(false).await?;
        let wait = Wait::UpTo(Duration::ZERO);
        locks.obtain(&claim, terms, wait).await
    }

    /// Obtains the lock, does the work, and releases it. If the lease is lost, the work is dropped
    /// where it stands and the error says so (`ErrorKind::LeaseLost`).
    pub async fn run<W, F>(self, work: W) -> Result<F::Output>
    where
        W: FnOnce(LeaseView) -> F,
        F: Future,
    {
        let lease = self.acquire().await?;
        let view = lease.view();
        let done = tokio::select! {
            biased;
            reason = lease.lost() => return Err(view.lost_error(&reason)),
            done = work(lease.view()) => done,
        };
        if let LeaseState::Lost(reason) = lease.state() {
            return Err(view.lost_error(&reason));
        }
        // The work is done and was done in time: a release that fails is finished in the background.
        let _ = lease.release().await;
        Ok(done)
    }

    /// Its name, if it is one.
    pub(crate) fn named(self) -> Result<(LockName, Self)> {
        let name = self.name?;
        let request = Self {
            name: Ok(name.clone()),
            ..self
        };
        Ok((name, request))
    }

    /// For what only one may do at a time.
    pub(crate) fn must_be_exclusive(&self, what: &str) -> Result<()> {
        match self.mode {
            Mode::Exclusive => Ok(()),
            mode => Err(invalid(&format!("{what} cannot be in {mode} mode"))
                .advise("leave out shared and permits")),
        }
    }

    /// The same request for another lock.
    pub(crate) fn alike(&self, name: LockName) -> Self {
        Self {
            locks: self.locks.clone(),
            name: Ok(name),
            mode: self.mode,
            ttl: self.ttl,
            wait: self.wait,
            owner: self.owner.clone(),
            reason: self.reason.clone(),
            terms: self.terms,
        }
    }

    /// Checks everything that can be checked without the engine.
    async fn claim(self, queues: bool) -> Result<(Locks, Claim, Terms)> {
        let name = self.name?;
        let id = match &self.locks.ids {
            Some(pool) => pool.next().await,
            None => ClaimId::random(),
        };
        let checked = || {
            let ttl = Ttl::new(self.ttl)?;
            let able = self.locks.capabilities();
            match self.mode {
                Mode::Permit { of: 0 } => {
                    return Err(invalid("a lock cannot have 0 permits").advise("use 1 or more"));
                }
                Mode::Permit { .. } if !able.permits => return Err(unsupported("permits")),
                Mode::Shared if !able.shared => return Err(unsupported("shared mode")),
                _ => {}
            }
            if self.terms.max_hold.is_some_and(|max| max < Ttl::MIN.get()) {
                return Err(invalid("max_hold is too short").advise("use 10ms or more"));
            }
            if self
                .terms
                .hold_at_least
                .is_some_and(|least| least > Ttl::MAX.get())
            {
                return Err(invalid("hold_at_least is too long").advise("use 24h or less"));
            }
            if let Some(reason) = &self.reason {
                check_text("reason", reason, 1024)?;
            }
            let claimant = match self.owner {
                Some(owner) => {
                    check_text("owner", &owner, 255)?;
                    Arc::new(Claimant {
                        owner,
                        ..(*self.locks.claimant).clone()
                    })
                }
                None => Arc::clone(&self.locks.claimant),
            };
            Ok(Claim {
                name: name.clone(),
                id: id?,
                mode: self.mode,
                ttl,
                queues,
                claimant,
                reason: self.reason.map(Arc::from),
            })
        };
        match checked() {
            Ok(claim) => Ok((self.locks, claim, self.terms)),
            Err(error) => Err(self.locks.core.place(error, "acquire", &name)),
        }
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this engine has no {what}"))
        .advise("use an engine that has: see docs/guarantees.md")
}

impl Locks {
    async fn obtain(&self, claim: &Claim, terms: Terms, wait: Wait) -> Result<Option<Lease>> {
        observe::acquiring(&*self.core.engine, claim, async {
            match &self.owner {
                // A permit is one of many: each request takes another, whoever asks.
                Some(owner) if !matches!(claim.mode, Mode::Permit { .. }) => {
                    self.obtain_as(owner, claim, terms, wait).await
                }
                _ => Ok(self
                    .obtain_anew(claim, terms, wait)
                    .await?
                    .map(|(lease, _)| lease)),
            }
        })
        .await
    }

    async fn obtain_anew(
        &self,
        claim: &Claim,
        terms: Terms,
        wait: Wait,
    ) -> Result<Option<(Lease, Arc<Hold>)>> {
        let grant = acquire::acquire(&self.core, claim, wait).await?;
        Ok(grant.map(|grant| self.hold(claim.clone(), grant, terms)))
    }

    fn hold(&self, claim: Claim, grant: Grant, terms: Terms) -> (Lease, Arc<Hold>) {
        let now = self.core.clock.now();
        let hold = Arc::new(Hold::new(claim, grant, terms, now));
        self.core.keeper.keep(Arc::clone(&hold));
        (Lease::new(Arc::clone(&self.core), Arc::clone(&hold)), hold)
    }

    async fn obtain_as(
        &self,
        owner: &Owner,
        claim: &Claim,
        terms: Terms,
        wait: Wait,
    ) -> Result<Option<Lease>> {
        let start = self.core.clock.now();
        let Some(mut entry) = owner.enter(&claim.name, wait, &self.core.clock).await else {
            return Ok(None);
        };
        if let Some(hold) = entry.held(self.core.clock.now()) {
            let lease = Lease::new(Arc::clone(&self.core), Arc::clone(&hold));
            return match Entry::may_join(hold.claim.mode, claim.mode) {
                Ok(()) => Ok(Some(lease)),
                Err(error) => Err(self.core.place(error, "acquire", &claim.name)),
            };
        }
        let wait = match wait {
            Wait::UpTo(time) => Wait::UpTo(time.saturating_sub(self.core.clock.now().since(start))),
            Wait::Forever => Wait::Forever,
        };
        let obtained = self.obtain_anew(claim, terms, wait).await?;
        Ok(obtained.map(|(lease, hold)| {
            entry.remember(&hold);
            lease
        }))
    }
}

/// A claim that this process knows by its id alone.
#[derive(Debug)]
pub struct Resumed {
    core: Arc<Core>,
    claim: Claim,
}

impl Resumed {
    /// Renews it once for `ttl`; `None` if it is no longer held.
    pub async fn renew(&self, ttl: Duration) -> Result<Option<Grant>> {
        let renewal = async {
            let claim = Claim {
                ttl: Ttl::new(ttl)?,
                ..self.claim.clone()
            };
            let sent = self.core.clock.now();
            let renew = Renew {
                claim: &claim,
                token: None,
            };
            Ok(
                match keep_alive::renew_one(&*self.core.engine, renew).await? {
                    Renewal::Renewed(grant) => Some(Grant {
                        valid_until: grant.valid_until.min(sent + claim.ttl.validity()),
                        ..grant
                    }),
                    Renewal::Lost(_) => None,
                },
            )
        };
        let renewed: Result<_> = renewal.await;
        renewed.map_err(|error| self.core.place(error, "renew", &self.claim.name))
    }

    /// Renews it and keeps it alive from now on; `None` if it is no longer held.
    pub async fn into_lease(self, ttl: Duration) -> Result<Option<Lease>> {
        let Some(grant) = self.renew(ttl).await? else {
            return Ok(None);
        };
        let claim = Claim {
            ttl: Ttl::new(ttl)?,
            ..self.claim
        };
        let now = self.core.clock.now();
        let hold = Arc::new(Hold::new(claim, grant, Terms::default(), now));
        self.core.keeper.keep(Arc::clone(&hold));
        Ok(Some(Lease::new(self.core, hold)))
    }

    /// Releases it.
    pub async fn release(&self) -> Result<Released> {
        let released = self.core.engine.release(&self.claim).await;
        released.map_err(|error| self.core.place(error, "release", &self.claim.name))
    }

    /// For how long a grant can be relied on, by the clock as it stands now.
    pub fn remaining(&self, grant: &Grant) -> Duration {
        grant.valid_until.since(self.core.clock.now())
    }
}
