//! What all clones and leases of a handle share.

use std::sync::Arc;

use crate::claims::Claims;
use crate::clock::Clock;
use crate::engine::{About, Engine};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Store;
use crate::name::LockName;
use crate::renewer::Renewer;

/// What all clones and leases of a handle share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Arc<dyn Engine>,
    /// As the engine was when it was connected.
    pub(crate) about: Arc<About>,
    pub(crate) claims: Claims,
    pub(crate) clock: Clock,
    pub(crate) renewer: Renewer,
}

impl Core {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        let about = Arc::new(engine.about());
        let claims = Claims::new(Arc::clone(&engine), Arc::clone(&about));
        Self {
            clock: about.clock.clone(),
            renewer: Renewer::new(claims.clone()),
            engine,
            about,
            claims,
        }
    }

    /// Says what was being done where.
    pub(crate) fn with_context(
        &self,
        error: Error,
        operation: &'static str,
        lock: &LockName,
    ) -> Error {
        error
            .during(operation, &*self.about.location)
            .on(lock.as_user_knows_it())
    }

    /// The guarded records that the engine keeps beside the locks.
    pub(crate) fn store(&self) -> Result<Store> {
        match self.engine.store() {
            Some(records) => Ok(Store::new(records, &*self.about.location)),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} keeps no guarded records", self.about.scheme),
            )
            .advise("check the token at the resource itself, or use a store on another engine")
            .during("open the store", &*self.about.location)),
        }
    }
}
