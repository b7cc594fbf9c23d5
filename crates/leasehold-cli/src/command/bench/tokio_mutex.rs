//! The baseline within one process: the runtime's own mutex.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::engine::baseline::{Baseline, BaselineLock};
use tokio::sync::{Mutex, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(super) struct TokioMutex {
    shared: Arc<Mutex<()>>,
}

struct TokioMutexLock {
    mutex: Arc<Mutex<()>>,
    held: Option<OwnedMutexGuard<()>>,
}

#[async_trait]
impl Baseline for TokioMutex {
    fn cycle_is(&self) -> &'static str {
        "tokio Mutex"
    }

    async fn cycle(&self, _name: &str) -> Result<Box<dyn BaselineLock>> {
        Ok(Box::new(TokioMutexLock {
            mutex: Arc::default(),
            held: None,
        }))
    }

    fn handoff_is(&self) -> &'static str {
        "tokio Mutex"
    }

    async fn handoff(&self, _name: &str) -> Result<Box<dyn BaselineLock>> {
        Ok(Box::new(TokioMutexLock {
            mutex: Arc::clone(&self.shared),
            held: None,
        }))
    }
}

#[async_trait]
impl BaselineLock for TokioMutexLock {
    async fn acquire(&mut self) -> Result<()> {
        self.held = Some(Arc::clone(&self.mutex).lock_owned().await);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.held = None;
        Ok(())
    }
}
