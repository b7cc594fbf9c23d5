//! What a store brings, so that locks can be kept in it: to write a document on condition of what is there.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use super::document::Document;
use crate::engine::Capabilities;
use crate::engine::doctor::Finding;
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::condition::ConditionCheck;
use crate::name::LockName;
use crate::token::FencingToken;

/// A document, and what the store calls this state of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) document: Document,
    pub(crate) tag: String,
}

/// What a conditional write came to.
#[derive(Debug)]
pub(crate) enum Written {
    /// It is there, with this tag.
    Done(String),
    /// Something else is there.
    Changed(Found),
}

/// What a store says of what is there.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing: it must be read.
    Untold,
    Absent,
    There(Box<Stored>),
}

/// Locks as documents of one store. Each call is one request, which is sent once.
#[async_trait]
pub(crate) trait CasStore: Debug + Send + Sync + 'static {
    /// The scheme of its URLs.
    fn scheme(&self) -> &'static str;

    /// A URL without passwords.
    fn location(&self) -> String;

    fn capabilities(&self) -> Capabilities;

    /// What was found when it was connected.
    fn found(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// As [`Engine::findings`](crate::engine::Engine::findings).
    async fn findings(&self) -> Vec<Finding> {
        self.found()
    }

    /// What is there at this moment; never an earlier state.
    async fn read(&self, name: &LockName) -> Result<Option<Stored>>;

    /// Writes where nothing is; or, if the store can tell, in the place of a document that nobody holds or waits for and whose token is lower.
    async fn create(&self, name: &LockName, document: &Document) -> Result<Written>;

    /// Writes in the place of what has this tag.
    async fn replace(&self, name: &LockName, document: &Document, tag: &str) -> Result<Written>;

    /// All locks whose names begin with this, in any order.
    async fn list(&self, prefix: &str) -> Result<Vec<(LockName, Document)>>;

    /// Its guarded records, if there is room for any.
    fn records(&self) -> Option<Arc<dyn GuardedStore>>;

    /// As [`Engine::condition_check`](crate::engine::Engine::condition_check).
    fn condition_check(&self, _name: &LockName, _token: FencingToken) -> Option<ConditionCheck> {
        None
    }

    /// How many requests it has sent.
    fn requests(&self) -> u64;
}
