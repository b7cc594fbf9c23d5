//! A store in memory, whose answers are slow, lost or late as a test likes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::document::Document;
use super::store::{CasStore, Found, Stored, Written};
use crate::engine::queue_rules::CAPABILITIES;
use crate::engine::{Capabilities, TokenSource};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::sync::Mutex;

/// What becomes of the next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It never arrives.
    Lost,
    /// It is carried out, and its answer is lost.
    AnswerLost,
    /// It is carried out so much later, and the client is told nothing.
    Late(Duration),
    /// It is refused because there are too many.
    Throttled,
    /// Something on the way sends it twice, and passes on the second answer.
    Repeated,
}

#[derive(Debug, Default, Clone)]
pub(super) struct TestStore(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    documents: Mutex<HashMap<LockName, Stored>>,
    pub(super) writes: Mutex<VecDeque<Fault>>,
    /// So many reads fail.
    silent: AtomicU64,
    latency: Mutex<Duration>,
    requests: AtomicU64,
    tags: AtomicU64,
    /// Whether a refused write tells what is there.
    tells: std::sync::atomic::AtomicBool,
}

impl TestStore {
    pub(super) fn fail(&self, faults: &[Fault]) {
        self.0.writes.lock().extend(faults);
    }

    pub(super) fn fail_reads(&self, count: u64) {
        self.0.silent.store(count, Ordering::SeqCst);
    }

    pub(super) fn set_latency(&self, latency: Duration) {
        *self.0.latency.lock() = latency;
    }

    pub(super) fn set_tells(&self, tells: bool) {
        self.0.tells.store(tells, Ordering::SeqCst);
    }

    pub(super) fn document(&self, name: &str) -> Option<Document> {
        let documents = self.0.documents.lock();
        let stored = documents.get(&LockName::new(name).unwrap());
        stored.map(|stored| stored.document.clone())
    }

    /// As another program would write it.
    pub(super) fn put(&self, document: Document) {
        let tag = self.0.tags.fetch_add(1, Ordering::SeqCst).to_string();
        let name = LockName::new(&document.name).unwrap();
        let stored = Stored { document, tag };
        self.0.documents.lock().insert(name, stored);
    }

    async fn request(&self) {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        let latency = *self.0.latency.lock();
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
    }

    fn swap(&self, name: &LockName, document: &Document, tag: Option<&str>) -> Written {
        let mut documents = self.0.documents.lock();
        let there = documents.get(name);
        let holds = match (tag, there) {
            (None, None) => true,
            (None, Some(there)) => {
                there.document.is_idle() && there.document.token < document.token
            }
            (Some(tag), Some(there)) => there.tag == tag,
            (Some(_), None) => false,
        };
        if !holds {
            let tells = self.0.tells.load(Ordering::SeqCst);
            return Written::Changed(match there {
                _ if !tells => Found::Untold,
                Some(there) => Found::There(Box::new(there.clone())),
                None => Found::Absent,
            });
        }
        let tag = self.0.tags.fetch_add(1, Ordering::SeqCst).to_string();
        let stored = Stored {
            document: document.clone(),
            tag: tag.clone(),
        };
        documents.insert(name.clone(), stored);
        Written::Done(tag)
    }

    async fn write(
        &self,
        name: &LockName,
        document: &Document,
        tag: Option<&str>,
    ) -> Result<Written> {
        self.request().await;
        let fault = self.0.writes.lock().pop_front();
        match fault {
            None => Ok(self.swap(name, document, tag)),
            Some(Fault::Lost) => Err(silence()),
            Some(Fault::AnswerLost) => {
                self.swap(name, document, tag);
                Err(silence())
            }
            Some(Fault::Late(delay)) => {
                let (store, name, document) = (self.clone(), name.clone(), document.clone());
                let tag = tag.map(str::to_owned);
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    store.swap(&name, &document, tag.as_deref());
                });
                Err(silence())
            }
            Some(Fault::Repeated) => {
                self.swap(name, document, tag);
                Ok(self.swap(name, document, tag))
            }
            Some(Fault::Throttled) => {
                Err(Error::new(ErrorKind::Unreachable, "too many requests").because_busy())
            }
        }
    }
}

fn silence() -> Error {
    Error::new(ErrorKind::Unreachable, "no answer").of_unknown_effect()
}

#[async_trait]
impl CasStore for TestStore {
    fn scheme(&self) -> &'static str {
        "test"
    }

    fn location(&self) -> String {
        "test:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tokens: TokenSource::HybridClock,
            store: false,
            ..CAPABILITIES
        }
    }

    async fn read(&self, name: &LockName) -> Result<Option<Stored>> {
        self.request().await;
        let silent = &self.0.silent;
        if silent.load(Ordering::SeqCst) > 0 {
            silent.fetch_sub(1, Ordering::SeqCst);
            return Err(silence());
        }
        Ok(self.0.documents.lock().get(name).cloned())
    }

    async fn create(&self, name: &LockName, document: &Document) -> Result<Written> {
        self.write(name, document, None).await
    }

    async fn replace(&self, name: &LockName, document: &Document, tag: &str) -> Result<Written> {
        self.write(name, document, Some(tag)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(LockName, Document)>> {
        let documents = self.0.documents.lock();
        let all = documents
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(prefix));
        Ok(all
            .map(|(name, stored)| (name.clone(), stored.document.clone()))
            .collect())
    }

    fn records(&self) -> Option<Arc<dyn GuardedStore>> {
        None
    }

    fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::SeqCst)
    }
}
