//! The inbox of a process: a list on the server into which the scripts put offers, popped over a connection of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisResult};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::listener::Listener;
use super::{connector, failure};
use crate::error::{Error, Result};

/// How long one pop waits: a connection that is lost in silence is noticed after that, and some networks forget one on which nothing happens.
const POP: Duration = Duration::from_secs(5);

/// How much longer than that the answer may take.
const GRACE: Duration = Duration::from_secs(2);

/// Pops what comes, as long as it lives.
#[derive(Debug)]
pub(crate) struct Inbox {
    client: redis::Client,
    connect_timeout: Duration,
    /// Counts the commands that are sent.
    sent: Arc<AtomicU64>,
    task: Mutex<Option<Popping>>,
}

/// The task that pops; ends with its connection, or with the runtime that it was started on.
#[derive(Debug)]
struct Popping {
    task: JoinHandle<()>,
    ended: Arc<OnceLock<End>>,
}

/// Why it has ended.
#[derive(Debug)]
enum End {
    /// The connection is lost, the runtime has ended, or nobody listens.
    Lost,
    /// The server does not let this user pop, or not now.
    Refused(Error),
}

impl Popping {
    fn goes_on(&self) -> bool {
        self.ended.get().is_none()
    }

    fn refused(&self) -> Option<Error> {
        match self.ended.get() {
            Some(End::Refused(error)) => Some(error.clone()),
            _ => None,
        }
    }
}

/// Dropped when the task ends.
struct Ending {
    ended: Arc<OnceLock<End>>,
    listener: Weak<Listener>,
}

/// What was popped last may be lost: all attempt, and the first of them opens it again.
impl Drop for Ending {
    fn drop(&mut self) {
        let runtime_ended = self.ended.set(End::Lost).is_ok();
        match self.listener.upgrade() {
            Some(listener) if runtime_ended => listener.runtime_ended(),
            Some(listener) => listener.waiters.wake_all(),
            None => {}
        }
    }
}

impl Drop for Popping {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inbox {
    /// Not opened yet.
    pub(crate) fn new(
        client: redis::Client,
        connect_timeout: Duration,
        sent: Arc<AtomicU64>,
    ) -> Self {
        Self {
            client,
            connect_timeout,
            sent,
            task: Mutex::default(),
        }
    }

    /// Opens it, unless it is open; returns whether it was not. No claim queues before: an offer that nobody hears of costs others time.
    pub(crate) async fn open(&self, listener: &Arc<Listener>) -> Result<bool> {
        let mut task = self.task.lock().await;
        if task.as_ref().is_some_and(Popping::goes_on) {
            return Ok(false);
        }
        // Told once; whoever comes next tries again.
        if let Some(refused) = task.take().and_then(|popping| popping.refused()) {
            return Err(refused);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(None);
        let connection = connector::open(&self.client, &config).await?;
        let ended = Arc::new(OnceLock::new());
        let ending = Ending {
            ended: Arc::clone(&ended),
            listener: Arc::downgrade(listener),
        };
        let sent = Arc::clone(&self.sent);
        let popping = tokio::spawn(async move {
            let end = pop_all(connection, &ending.listener, &sent).await;
            let _ = ending.ended.set(end);
        });
        *task = Some(Popping {
            task: popping,
            ended,
        });
        Ok(true)
    }
}

async fn pop_all(
    mut connection: MultiplexedConnection,
    listener: &Weak<Listener>,
    sent: &AtomicU64,
) -> End {
    loop {
        match pop(&mut connection, listener).await {
            Ok(()) => sent.fetch_add(1, Ordering::Relaxed),
            Err(end) => return end,
        };
    }
}

async fn pop(
    connection: &mut MultiplexedConnection,
    listener: &Weak<Listener>,
) -> std::result::Result<(), End> {
    let mut pop = redis::cmd("BLPOP");
    let channel = |listener: &Listener| listener.channel.clone();
    let channel = listener.upgrade().as_deref().map(channel);
    pop.arg(channel.ok_or(End::Lost)?).arg(POP.as_secs());
    let popping = pop.query_async(connection);
    let popped: RedisResult<Option<(Vec<u8>, Vec<u8>)>> =
        match tokio::time::timeout(POP + GRACE, popping).await {
            Ok(popped) => popped,
            Err(_) => return Err(End::Lost),
        };
    let popped = popped.map_err(|cause| match cause.kind() {
        // It was told to stop, as when the server becomes a replica.
        _ if cause.code() == Some("UNBLOCKED") => End::Lost,
        ErrorKind::Server(_) | ErrorKind::Extension => End::Refused(failure::of_connect(cause)),
        _ => End::Lost,
    })?;
    if let Some((_, message)) = popped {
        let listener = listener.upgrade().ok_or(End::Lost)?;
        listener.hear(0, &message, true);
    }
    Ok(())
}
