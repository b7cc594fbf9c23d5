//! The same API without async: for programs that have no runtime.
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

use std::ops::Deref;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::engine::{Capabilities, LockInfo, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::LeaseView;

/// One thread of its own renews the leases of all blocking handles of the process.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    static STARTING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    if Handle::try_current().is_ok() {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "leasehold::blocking was called from async code",
        )
        .advise("use leasehold::Locks there"));
    }
    let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
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

fn wait_for<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(work)
}

/// All the locks of one engine; see [`crate::Locks`].
#[derive(Debug, Clone)]
pub struct Locks(crate::Locks);

impl Locks {
    /// See [`crate::Locks::connect`].
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        wait_for(crate::Locks::connect(url)).map(Self)
    }

    /// See [`crate::Locks::new`].
    pub fn new(engine: Arc<dyn crate::engine::Engine>) -> Self {
        Self(crate::Locks::new(engine))
    }

    /// See [`crate::Locks::owner`].
    pub fn owner(&self, label: impl Into<String>) -> Result<Self> {
        self.0.owner(label).map(Self)
    }

    /// See [`crate::Locks::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest(self.0.lock(name))
    }

    /// See [`crate::Locks::show`].
    pub fn show(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        wait_for(self.0.show(name))
    }

    /// See [`crate::Locks::list`].
    pub fn list(&self, prefix: impl Into<String>) -> Result<Vec<LockInfo>> {
        wait_for(self.0.list(prefix))
    }

    /// See [`crate::Locks::break_lock`].
    pub fn break_lock(&self, name: impl AsRef<str>) -> Result<Released> {
        wait_for(self.0.break_lock(name))
    }

    /// See [`crate::Locks::capabilities`].
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// A request for a lock; see [`crate::LockRequest`].
#[derive(Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest(crate::LockRequest);

impl LockRequest {
    /// See [`crate::LockRequest::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`crate::LockRequest::wait`].
    pub fn wait(self, time: Duration) -> Self {
        Self(self.0.wait(time))
    }

    /// See [`crate::LockRequest::wait_forever`].
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// See [`crate::LockRequest::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// See [`crate::LockRequest::permits`].
    pub fn permits(self, of: u32) -> Self {
        Self(self.0.permits(of))
    }

    /// See [`crate::LockRequest::owner`].
    pub fn owner(self, label: impl Into<String>) -> Self {
        Self(self.0.owner(label))
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

    /// Obtains the lock, does the work, and releases it. Blocking work cannot be cancelled from outside:
    /// ask [`is_valid`](LeaseView::is_valid) before each step that counts. If the lease was lost by the end,
    /// the error says so.
    pub fn run<T>(self, work: impl FnOnce(&LeaseView) -> T) -> Result<T> {
        let lease = self.acquire()?;
        let done = work(&lease);
        if let crate::LeaseState::Lost(reason) = lease.state() {
            return Err(lease.lost_error(&reason));
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
    /// See [`crate::Lease::release`].
    pub fn release(self) -> Result<Released> {
        wait_for(self.0.release())
    }

    /// See [`crate::LeaseView::renew`].
    pub fn renew(&self) -> Result<Duration> {
        wait_for(self.0.renew())
    }
}

impl Deref for Lease {
    type Target = LeaseView;

    fn deref(&self) -> &LeaseView {
        &self.0
    }
}
