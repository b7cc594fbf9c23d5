//! An engine whose replies get lost, over one that works.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::claim::Claim;
use crate::engine::{About, Attempt, Engine, LockInfo, Query, Released, Renew, Renewal, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::sync::Mutex;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Renewals are never answered, nor carried out.
    RenewalsHang,
    /// Renewals fail at once and are not carried out.
    RenewalsFail,
    /// Attempts are carried out, but the answer is an error.
    RepliesOfAttemptsAreLost,
}

/// An engine between which and its client things go wrong.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Engine>,
    fault: Mutex<Fault>,
    disturbances: watch::Sender<u64>,
}

impl Faulty {
    /// An engine that works, for now.
    pub fn new(inner: Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            fault: Mutex::new(Fault::None),
            disturbances: watch::Sender::new(0),
        })
    }

    /// From now on this goes wrong.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }

    /// Says that something has happened that may have ended locks.
    pub fn disturb(&self) {
        self.disturbances.send_modify(|count| *count += 1);
    }

    fn fault(&self) -> Fault {
        *self.fault.lock()
    }
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Unreachable, "the connection was cut").of_unknown_effect()
}

#[async_trait]
impl Engine for Faulty {
    fn about(&self) -> About {
        let about = self.inner.about();
        about.session_events(self.disturbances.subscribe())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.inner.try_acquire(claim).await;
        match self.fault() {
            Fault::RepliesOfAttemptsAreLost => Err(cut_off()),
            _ => attempt,
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.inner.wait(claim).await
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        match self.fault() {
            Fault::RenewalsHang => std::future::pending().await,
            Fault::RenewalsFail => held.iter().map(|_| Err(cut_off())).collect(),
            _ => self.inner.renew(held).await,
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.inner.release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.inner.inspect(query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.inner.force_release(name).await
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        self.inner.store()
    }
}
