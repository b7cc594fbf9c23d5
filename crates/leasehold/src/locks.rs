//! The handle that users hold.

mod request;
mod resumed;

use std::sync::Arc;

use crate::acquire::{self, Wait};
use crate::claim::{Claim, ClaimId, Claimant, Mode, Ttl, check_text};
use crate::clock::Clock;
use crate::engine::{Capabilities, Engine, Grant, LockInfo, Query, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Store;
use crate::guard::sql::FenceTable;
use crate::hold::{Hold, Terms};
use crate::keep_alive::Keeper;
use crate::lease::Lease;
use crate::name::LockName;
use crate::observe;
use crate::owner::{Entry, Owner};
use crate::recipe::IdPool;

pub use self::request::LockRequest;
pub use self::resumed::Resumed;

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
