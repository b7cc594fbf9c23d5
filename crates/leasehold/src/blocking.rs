//! The same API without async: for programs that have no runtime.
//!
//! The functions fail as their async counterparts do, and with
//! [`ErrorKind::InvalidConfig`] if they are called from async code. What has no counterpart here, such as guarded records and
//! recipes, is reached with [`Locks::as_async`] and [`wait_for`].
//!
//! ```
//! use std::time::Duration;
//! use leasehold::blocking::Locks;
//!
//! let locks = Locks::connect("memory:")?;
//! let lease = locks.lock("report").wait(Duration::from_secs(5)).acquire()?;
//! println!("fencing token {}", lease.token());
//! lease.release()?;
//! # Ok::<(), leasehold::Error>(())
//! ```

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::acquire::Wait;
use crate::claim::{ClaimId, Mode, Ttl};
use crate::engine::{Capabilities, LockInfo, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::LeaseState;
use crate::lease::LeaseView;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// One thread of its own renews the leases of all blocking handles of the process.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if Handle::try_current().is_ok() {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "leasehold::blocking was called from async code",
        )
        .advise("use leasehold::Locks there"));
    }
    let _one_at_a_time = STARTING.lock();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("leasehold")
        .enable_all()
        .build()
        .map_err(|cause| {
            Error::new(ErrorKind::Unexpected, "no thread could be started").caused_by(cause)
        })?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Waits for a future of the async API, for what this module has no function of its own for:
///
/// ```
/// use leasehold::blocking::{Locks, wait_for};
///
/// let locks = Locks::connect("memory:")?;
/// let store = locks.as_async().store()?;
/// wait_for(store.write_if("colour", "red", None))?;
/// assert_eq!(wait_for(store.read("colour"))?.unwrap().value, b"red");
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors
///
/// Those of the future, and [`ErrorKind::InvalidConfig`] if it is called from async code.
pub fn wait_for<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(work)
}

/// The locks of one engine; see [`crate::Locks`].
///
/// ```
/// use leasehold::blocking::Locks;
///
/// # fn main() -> leasehold::Result<()> {
/// let locks = Locks::connect("memory:")?; // or sqlite:, redis://…, postgres://…
/// let steps = locks.lock("report").run(|lease| {
///     // Nothing can interrupt blocking work: ask before each step that counts.
///     (1..=3).take_while(|_| lease.is_valid()).count()
/// })?;
/// assert_eq!(steps, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Locks(crate::Locks);

impl Locks {
    /// See [`crate::Locks::connect`].
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        wait_for(crate::Locks::connect(url)).map(Self)
    }

    /// The locks of an engine that a typed configuration connects to:
    ///
    /// ```
    /// use leasehold::blocking::Locks;
    /// # #[cfg(feature = "sqlite")] {
    /// use leasehold::engine::sqlite::SqliteConfig;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("locks.db");
    /// let locks = Locks::connect_engine(SqliteConfig::new(path).connect())?;
    /// locks.lock("report").acquire()?.release()?;
    /// # }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the configuration.
    pub fn connect_engine(
        engine: impl Future<Output = Result<Arc<dyn crate::engine::Engine>>>,
    ) -> Result<Self> {
        wait_for(engine).map(Self::new)
    }

    /// See [`crate::Locks::new`].
    pub fn new(engine: Arc<dyn crate::engine::Engine>) -> Self {
        Self(crate::Locks::new(engine))
    }

    /// See [`crate::Locks::reentrant`].
    pub fn reentrant(&self, label: impl Into<String>) -> Result<Self> {
        self.0.reentrant(label).map(Self)
    }

    /// See [`crate::Locks::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest(self.0.lock(name))
    }

    /// See [`crate::Locks::inspect`].
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        wait_for(self.0.inspect(name))
    }

    /// See [`crate::Locks::list`].
    pub fn list(&self, prefix: impl Into<String>) -> Result<Vec<LockInfo>> {
        wait_for(self.0.list(prefix))
    }

    /// See [`crate::Locks::force_release`].
    pub fn force_release(&self, name: impl AsRef<str>) -> Result<Released> {
        wait_for(self.0.force_release(name))
    }

    /// See [`crate::Locks::capabilities`].
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    /// See [`crate::Locks::flush`].
    pub fn flush(&self) -> Result<()> {
        wait_for(async {
            self.0.flush().await;
            Ok(())
        })
    }

    /// The same locks for async code: for guarded records and recipes, with [`wait_for`].
    pub fn as_async(&self) -> &crate::Locks {
        &self.0
    }
}

/// A request for a lock; see [`crate::LockRequest`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest(crate::LockRequest);

impl LockRequest {
    /// See [`crate::LockRequest::ttl`].
    pub fn ttl(self, ttl: impl TryInto<Ttl, Error: Into<Error>>) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::LockRequest::wait`].
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`crate::LockRequest::wait_forever`].
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// See [`crate::LockRequest::mode`].
    pub fn mode(self, mode: Mode) -> Self {
        Self(self.0.mode(mode))
    }

    /// See [`crate::LockRequest::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// See [`crate::LockRequest::permits`].
    pub fn permits(self, of: u32) -> Self {
        Self(self.0.permits(of))
    }

    /// See [`crate::LockRequest::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// See [`crate::LockRequest::max_hold`].
    pub fn max_hold(self, time: Duration) -> Self {
        Self(self.0.max_hold(time))
    }

    /// See [`crate::LockRequest::hold_at_least`].
    pub fn hold_at_least(self, time: Duration) -> Self {
        Self(self.0.hold_at_least(time))
    }

    /// See [`crate::LockRequest::reason`].
    pub fn reason(self, text: impl Into<String>) -> Self {
        Self(self.0.reason(text))
    }

    /// See [`crate::LockRequest::acquire`].
    pub fn acquire(self) -> Result<Lease> {
        wait_for(self.0.acquire()).map(Lease)
    }

    /// See [`crate::LockRequest::try_acquire`].
    pub fn try_acquire(self) -> Result<Option<Lease>> {
        Ok(wait_for(self.0.try_acquire())?.map(Lease))
    }

    /// Obtains the lock, does the work, and releases the lock. Blocking work cannot be interrupted: call
    /// [`is_valid`](LeaseView::is_valid) before each step that counts.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire); [`ErrorKind::LeaseLost`] if the lease was lost by the end of the work.
    pub fn run<T>(self, work: impl FnOnce(&LeaseView) -> T) -> Result<T> {
        let lease = self.acquire()?;
        let view = lease.view();
        let done = work(&view);
        if let LeaseState::Lost(reason) = view.state() {
            return Err(view.lost_error(&reason));
        }
        // The work is done and was done in time: a release that fails is finished in the background.
        let _ = lease.release();
        Ok(done)
    }
}

/// A held lock; see [`crate::Lease`]. Dropping it releases it in the background.
#[derive(Debug)]
#[must_use = "a lease is released when it is dropped"]
pub struct Lease(crate::Lease);

impl Lease {
    /// See [`crate::Lease::view`].
    pub fn view(&self) -> LeaseView {
        self.0.view()
    }

    /// See [`crate::Lease::name`].
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// See [`crate::Lease::token`].
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// See [`crate::Lease::claim_id`].
    pub fn claim_id(&self) -> ClaimId {
        self.0.claim_id()
    }

    /// See [`crate::Lease::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// See [`crate::Lease::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// See [`crate::Lease::state`].
    pub fn state(&self) -> LeaseState {
        self.0.state()
    }

    /// See [`crate::Lease::detach`].
    pub fn detach(self) -> ClaimId {
        self.0.detach()
    }

    /// See [`crate::Lease::release`].
    pub fn release(self) -> Result<Released> {
        wait_for(self.0.release())
    }

    /// See [`crate::Lease::renew`].
    pub fn renew(&self) -> Result<Duration> {
        wait_for(self.0.renew())
    }
}
