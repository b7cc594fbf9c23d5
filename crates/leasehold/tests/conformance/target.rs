//! The store of one engine, as the recipes use it.

use std::sync::Arc;

use leasehold::conformance::Fixture;
use leasehold::{ErrorKind, Locks, Result};

pub(crate) struct Target(Arc<dyn Fixture>);

impl Target {
    pub(crate) fn new(store: Arc<dyn Fixture>) -> Arc<Self> {
        Arc::new(Self(store))
    }

    /// What leads other processes here, if anything does.
    pub(crate) fn address(&self) -> Option<String> {
        self.0.address()
    }

    /// A client of its own.
    pub(crate) async fn connect(&self) -> Locks {
        Locks::new(self.0.connect().await)
    }

    /// What a recipe gave, if the engine has what it needs; if not, this checks that it says so.
    pub(crate) fn with_store<T: std::fmt::Debug>(locks: &Locks, made: Result<T>) -> Option<T> {
        if locks.capabilities().store {
            return Some(made.unwrap());
        }
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("guarded records"), "{error}");
        None
    }
}
