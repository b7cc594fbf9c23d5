//! The floor within one process: the runtime's own mutex.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::Result;
use leasehold::engine::raw::{RawLimit, RawLock};
use tokio::sync::{Mutex, OwnedMutexGuard};

#[derive(Debug, Default)]
pub(super) struct Floor {
    shared: Arc<Mutex<()>>,
}

struct FloorLock {
    mutex: Arc<Mutex<()>>,
    held: Option<OwnedMutexGuard<()>>,
}

#[async_trait]
impl RawLimit for Floor {
    fn cycle_is(&self) -> &'static str {
        "tokio Mutex"
    }

    async fn cycle(&self, _name: &str) -> Result<Box<dyn RawLock>> {
        Ok(Box::new(FloorLock {
            mutex: Arc::default(),
            held: None,
        }))
    }

    fn handoff_is(&self) -> &'static str {
        "tokio Mutex"
    }

    async fn handoff(&self, _name: &str) -> Result<Box<dyn RawLock>> {
        Ok(Box::new(FloorLock {
            mutex: Arc::clone(&self.shared),
            held: None,
        }))
    }
}

#[async_trait]
impl RawLock for FloorLock {
    async fn acquire(&mut self) -> Result<()> {
        self.held = Some(Arc::clone(&self.mutex).lock_owned().await);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.held = None;
        Ok(())
    }
}
