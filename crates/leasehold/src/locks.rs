//! [`Locks`]: the handle through which users acquire and inspect locks.

mod broker;
mod request;
mod resumed;

use std::sync::Arc;

use crate::acquire::{self, Wait};
use crate::claim::{Claim, ClaimId, ClaimIds, Claimant, Mode, Ttl, check_text};
use crate::clock::Clock;
use crate::core::Core;
use crate::engine::doctor::Report;
use crate::engine::{About, Capabilities, Engine, Grant, LockInfo, Query, Released, SqlSupport};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Store;
use crate::guard::sql::FenceTable;
use crate::hold::{Hold, Terms};
use crate::lease::Lease;
use crate::name::LockName;
use crate::observe;
use crate::owner::{Entry, Owner};
use crate::registry::Registry;

pub use self::broker::{Broker, Brokered};
pub use self::request::LockRequest;
pub use self::resumed::Resumed;

/// The locks of one engine. Cheap to clone; clones share their connections and the task that renews leases.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Locks;
///
/// let locks = Locks::connect("memory:").await?; // or sqlite:, redis://…, postgres://…
/// let sum = locks
///     .lock("report")
///     .run(async |lease| {
///         println!("only one of us, with fencing token {}", lease.token());
///         6 * 7
///     })
///     .await?;
/// assert_eq!(sum, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Locks {
    core: Arc<Core>,
    claimant: Arc<Claimant>,
    owner: Option<Arc<Owner>>,
    /// Where the ids of claims come from, if they are not random.
    ids: Option<Arc<dyn ClaimIds>>,
}

impl Locks {
    /// Connects to the engine that the URL names, such as `sqlite:` or `redis://10.0.0.7`. To connect to an engine that is not part of
    /// this crate, use a [`Registry`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the URL is not well formed, names an engine that is not compiled in, or has an option
    /// that the engine does not know; and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Ok(Self::new(Registry::builtin().connect(url.as_ref()).await?))
    }

    /// The locks of an engine that was connected before, for example with its typed configuration.
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            core: Arc::new(Core::new(engine)),
            claimant: Arc::new(Claimant::this_process()),
            owner: None,
            ids: None,
        }
    }

    /// A handle that can acquire a lock again while it holds it: it then gets another lease of the same grant, with the same
    /// token. The lock is released with the last of these leases.
    ///
    /// The handle and its clones are one owner, whatever the label. Give each independent piece of work a handle of its own,
    /// since two tasks that share one do not exclude each other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let locks = leasehold::Locks::connect("memory:").await?;
    /// let import = locks.reentrant("import")?;
    /// let outer = import.lock("orders").acquire().await?;
    /// let inner = import.lock("orders").acquire().await?;
    /// assert_eq!(inner.token(), outer.token());
    /// assert!(locks.lock("orders").try_acquire().await?.is_none());
    /// # inner.release().await?;
    /// # outer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the label is empty, longer than 255 bytes, or has control characters.
    pub fn reentrant(&self, label: impl Into<String>) -> Result<Self> {
        let label = label.into();
        check_text("label", &label, 255)?;
        Ok(Self {
            core: Arc::clone(&self.core),
            claimant: Arc::new(Claimant {
                label,
                ..(*self.claimant).clone()
            }),
            owner: Some(Arc::default()),
            ids: self.ids.clone(),
        })
    }

    /// A handle that makes claims on behalf of another process, such as the parent of this one. Inspection shows both as
    /// one claimant, and [`deadlocks`](Self::deadlocks) finds cycles that involve both.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the label or the host is empty, longer than 255 bytes, or has control characters.
    pub fn on_behalf_of(&self, claimant: Claimant) -> Result<Self> {
        check_text("label", &claimant.label, 255)?;
        check_text("host", &claimant.host, 255)?;
        Ok(Self {
            claimant: Arc::new(claimant),
            ..self.clone()
        })
    }

    pub(crate) fn with_ids(&self, ids: Arc<dyn ClaimIds>) -> Self {
        Self {
            ids: Some(ids),
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

    /// The claimant of the requests made with this handle.
    pub fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// A request for a lock; send it with [`acquire`](LockRequest::acquire), [`try_acquire`](LockRequest::try_acquire) or
    /// [`run`](LockRequest::run), which also report a name that is not valid.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest {
            locks: self.clone(),
            name: LockName::new(name),
            mode: Mode::Exclusive,
            ttl: Ok(Ttl::DEFAULT),
            wait: Wait::UpTo(LockRequest::DEFAULT_WAIT),
            label: None,
            reason: None,
            terms: Terms::default(),
            id: None,
        }
    }

    /// Continues with a claim that is known by its id: one that was [detached](Lease::detach), or that another process has
    /// made. This does not contact the engine.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] if the name cannot be used.
    pub fn resume(&self, name: impl AsRef<str>, id: ClaimId) -> Result<Resumed> {
        Ok(Resumed {
            core: Arc::clone(&self.core),
            claim: Claim {
                claimant: Arc::clone(&self.claimant),
                ..Claim::new(LockName::new(name)?, id)
            },
        })
    }

    /// The holders and waiters of one lock, without their claim ids. A free lock has none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] if the name cannot be used; and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = LockName::new(name)?;
        let found = self.core.engine.inspect(&Query::Name(name.clone())).await;
        let found = found.map_err(|error| self.core.with_context(error, "inspect", &name))?;
        let found = found.into_iter().next();
        Ok(found.unwrap_or_else(|| LockInfo::new(name)))
    }

    /// All locks that are held or waited for and whose names begin with `prefix`, ordered by name.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn list(&self, prefix: impl Into<String>) -> Result<Vec<LockInfo>> {
        let query = Query::Prefix(prefix.into());
        let locks = self.core.engine.inspect(&query).await;
        let mut locks =
            locks.map_err(|error| error.during("list locks", &*self.core.about.location))?;
        // Those that recipes keep beside a user's lock are nobody's to take or to break.
        locks.retain(|lock| !lock.name.is_beside());
        Ok(locks)
    }

    /// Takes the lock away from its holders, and returns [`Released::WasNotHeld`] if there are none. The holders notice at their next
    /// renewal, within a third of their TTL; until then two holders may work at once. The next token is still greater, and waiters
    /// keep their positions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] if the name cannot be used; and the [engine errors](crate::Error#engine-errors). If the effect
    /// is unknown, [`inspect`](Self::inspect) before you repeat it: the next holder may have the lock already.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be taken away.
    pub async fn force_release(&self, name: impl AsRef<str>) -> Result<Released> {
        let name = LockName::new(name)?;
        let broken = self.core.engine.force_release(&name).await;
        broken.map_err(|error| self.core.with_context(error, "force-release", &name))
    }

    /// The guarded records that the engine stores beside the locks: see [`guard`](crate::guard).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine has no guarded records.
    pub fn store(&self) -> Result<Store> {
        self.core.store()
    }

    /// Installs a column and a trigger on a table of yours, in the database that stores the locks, so that the table refuses
    /// stale tokens: see [`guard::sql`](crate::guard::sql). The column is `fencing_token` unless another is given. It can be called
    /// again at any time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine is not a database; [`ErrorKind::InvalidConfig`] if the table or the column cannot be
    /// used; [`ErrorKind::Denied`] if this user may not change the table; and the other
    /// [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the table may or may not be fenced; on MySQL possibly only in part. Call it again.
    pub async fn fence_table(&self, table: &str, column: Option<&str>) -> Result<()> {
        let sql = self.sql()?;
        let fence = fence(&*sql, table, column)?;
        let done = sql.execute(&fence.install_statements()).await;
        done.map_err(|error| error.during("fence a table", &*self.core.about.location))
    }

    /// Removes the column and the trigger that [`fence_table`](Self::fence_table) has installed.
    ///
    /// # Errors
    ///
    /// Those of [`fence_table`](Self::fence_table).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, they may or may not be removed; on MySQL possibly only some of them.
    pub async fn unfence_table(&self, table: &str, column: Option<&str>) -> Result<()> {
        let sql = self.sql()?;
        let fence = fence(&*sql, table, column)?;
        let done = sql.execute(&fence.uninstall_statements()).await;
        done.map_err(|error| error.during("unfence a table", &*self.core.about.location))
    }

    fn sql(&self) -> Result<Arc<dyn SqlSupport>> {
        self.core.engine.sql().ok_or_else(|| {
            let About {
                scheme, location, ..
            } = &*self.core.about;
            Error::new(
                ErrorKind::Unsupported,
                format!("{scheme} has no tables that could be fenced"),
            )
            .advise("use the URL of the database that has the table: postgres: or mysql:")
            .during("fence a table", location)
        })
    }

    /// Waits until the releases that are left to the background are done: those of dropped leases, and of dropped or failed acquires.
    /// Then frees what the engine keeps at the store for future locks. Call it before the program exits; the handle can still be used
    /// afterwards.
    ///
    /// If the engine cannot be reached, this returns when leasehold stops retrying those releases, after their TTL or a minute,
    /// whichever is longer: use a timeout.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the background tasks continue. What the engine still keeps at the store expires by itself.
    pub async fn flush(&self) {
        self.core.renewer.flush().await;
        self.core.engine.close().await;
    }

    /// What the engine supports and guarantees.
    pub fn capabilities(&self) -> Capabilities {
        self.core.about.capabilities
    }

    /// Warnings about the configuration of the engine, for people to read. Empty if there is nothing to report.
    pub fn warnings(&self) -> Vec<String> {
        self.core.engine.about().warnings
    }

    /// What this set-up guarantees to locks of this TTL: asks the engine for its settings, and tries it with locks of its own, one of which is
    /// left to expire. Takes a few seconds.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use leasehold::engine::doctor::Verdict;
    /// use leasehold::{Locks, Ttl};
    ///
    /// let locks = Locks::connect("memory:").await?;
    /// let report = locks.doctor(Ttl::DEFAULT).await;
    /// assert_eq!(report.verdict, Verdict::Correctness);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, locks of the doctor's own may be held until their TTL is over.
    pub async fn doctor(&self, ttl: Ttl) -> Report {
        Report::on(&*self.core.engine, ttl).await
    }

    /// As [`doctor`](Self::doctor), but only asks the engine for its settings, and takes no locks: for what is looked at again and again.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: it only reads.
    pub async fn check_settings(&self, ttl: Ttl) -> Report {
        Report::of_settings(&*self.core.engine, ttl).await
    }

    /// The engine's URL, without passwords.
    pub fn location(&self) -> String {
        self.core.about.location.clone()
    }

    /// The engine itself.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.core.engine
    }
}

impl Locks {
    async fn obtain(&self, claim: &Claim, terms: Terms, wait: Wait) -> Result<Option<Lease>> {
        let obtaining = async {
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
        };
        observe::acquiring(&self.core.about, claim, obtaining, |lease| lease.token()).await
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
        self.core.renewer.keep(Arc::clone(&hold));
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
            return match Entry::may_join(hold.claim.mode, claim.mode, terms) {
                Ok(()) => Ok(Some(lease)),
                Err(error) => Err(self.core.with_context(error, "acquire", &claim.name)),
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

fn fence(sql: &dyn SqlSupport, table: &str, column: Option<&str>) -> Result<FenceTable> {
    let fence = FenceTable::new(sql.dialect(), table)?;
    match column {
        Some(column) => fence.column(column),
        None => Ok(fence),
    }
}
