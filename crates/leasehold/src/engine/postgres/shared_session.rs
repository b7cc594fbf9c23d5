//! The listener's connection, lent to calls, one at a time: a process that waits needs no second connection.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::sync::Mutex;

/// How long a call waits for the session. A new connection would take longer.
const SOON: Duration = Duration::from_millis(10);

/// The session, while there is one.
#[derive(Debug, Default)]
pub(crate) struct SharedSession(Mutex<Option<Lent>>);

#[derive(Debug, Clone)]
struct Lent {
    client: Arc<ClientWrapper>,
    turn: Arc<Turn<()>>,
}

/// The session, for one call.
#[derive(Debug)]
pub(crate) struct Borrowed {
    pub(crate) client: Arc<ClientWrapper>,
    _turn: OwnedMutexGuard<()>,
}

impl SharedSession {
    /// The listener has a session that listens.
    pub(crate) fn lend(&self, client: &Arc<ClientWrapper>) {
        *self.0.lock() = Some(Lent {
            client: Arc::clone(client),
            turn: Arc::default(),
        });
    }

    /// The session is not lent any more: it has ended, or does not answer.
    pub(crate) fn withdraw(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn is_open(&self) -> bool {
        let lent = self.0.lock();
        lent.as_ref().is_some_and(|lent| !lent.client.is_closed())
    }

    /// The session, for one call; `None` if there is none, or other calls use it for too long.
    pub(crate) async fn borrow(&self) -> Option<Borrowed> {
        let Lent { client, turn } = self.0.lock().clone()?;
        let turn = tokio::time::timeout(SOON, turn.lock_owned()).await.ok()?;
        (!client.is_closed()).then_some(Borrowed {
            client,
            _turn: turn,
        })
    }
}
