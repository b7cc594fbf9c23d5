//! One server, asked over a connection that is made anew when it has ended.

use std::borrow::Borrow;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use redis::{AsyncConnectionConfig, FromRedisValue, PushInfo, Script};

use super::connection::Connection;
use super::connector::{Connector, Target};
use super::protocol::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// One server, or whichever takes its place.
pub(crate) struct Client {
    connector: Arc<Connector>,
    /// The connection, or the task that makes it: one for all who wait for it.
    current: Mutex<Option<Connecting>>,
    /// Whose turn it is to send something.
    turn: tokio::sync::Mutex<()>,
}

/// `None` if the runtime has ended.
type Connecting = Shared<BoxFuture<'static, Option<Result<Arc<Connection>>>>>;

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects at the first request; whatever the server sends by itself goes to `on_push`. With `needs_run` only to a server
    /// that tells its runs apart.
    pub(crate) fn new(
        target: impl Into<Target>,
        needs_run: bool,
        connect_timeout: Duration,
        timeout: Duration,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout))
            .set_response_timeout(Some(timeout))
            // Never full, so that commands leave in the order in which they are given.
            .set_pipeline_buffer_size(1 << 16);
        let connector = Connector {
            target: target.into(),
            needs_run,
            config,
            on_push: Arc::new(on_push),
            channel: Mutex::default(),
            last: Mutex::default(),
            traffic: Arc::default(),
        };
        Self {
            connector: Arc::new(connector),
            current: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The current connection, or a new one. If there is none to be had, nothing has been asked of the server.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>> {
        // Once more if it was being made on another runtime, which has ended.
        for _ in 0..2 {
            let connecting = {
                let mut current = self.current.lock();
                match current.as_ref().map(|known| (known.peek(), known)) {
                    Some((Some(Some(Ok(connection))), _)) if !connection.has_ended() => {
                        return Ok(Arc::clone(connection));
                    }
                    Some((None, connecting)) => connecting.clone(),
                    _ => current.insert(self.connect()).clone(),
                }
            };
            if let Some(connected) = connecting.await {
                return connected;
            }
        }
        Err(Error::new(
            ErrorKind::Unreachable,
            "the runtime ends on which a connection was being made",
        )
        .because_busy())
    }

    /// Runs to completion when the caller is dropped: the next caller finds the connection made.
    fn connect(&self) -> Connecting {
        let connector = Arc::clone(&self.connector);
        let connecting = tokio::spawn(async move { connector.connect_or_try_again().await });
        let connected = connecting.map(|connected| Some(connected.ok()?.map(Arc::new)));
        connected.boxed().shared()
    }

    /// Counts the commands that are sent, also by others on behalf of this client.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.connector.traffic.sent)
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        self.connector.traffic.sent.load(Ordering::Relaxed)
    }

    /// How many answers have come.
    pub(crate) fn answers(&self) -> u64 {
        self.connector.traffic.answers.load(Ordering::Relaxed)
    }

    /// For those who have waited in vain, and for long enough: if nothing was heard since there were so many answers, another connection is
    /// made for the next request.
    pub(crate) fn leave_if_silent(&self, answers: u64) {
        if self.answers() == answers
            && let Some(Some(Some(Ok(connection)))) = self.current.lock().as_ref().map(Shared::peek)
        {
            connection.ended.store(true, Ordering::Release);
        }
    }

    /// Sends one command.
    pub(crate) async fn send<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T> {
        self.connection().await?.send(command).await
    }

    /// Calls a script, in turn.
    pub(crate) async fn call<T: FromRedisValue>(&self, call: &Call) -> Result<T> {
        self.in_turn(async |connection| connection.call(call).await)
            .await
    }

    /// Asks over the connection. While that is being made all who ask wait in their order, and what they ask is carried out in that order.
    pub(crate) async fn in_turn<T>(
        &self,
        ask: impl AsyncFnOnce(Arc<Connection>) -> Result<T>,
    ) -> Result<T> {
        let turn = self.turn.lock().await;
        let connection = self.connection().await?;
        // Without tokio's budget, so that it has been sent when it was polled.
        let mut asking = pin!(tokio::task::unconstrained(ask(connection)));
        match futures_util::poll!(&mut asking) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                drop(turn);
                asking.await
            }
        }
    }

    /// Calls one script many times in one round trip; an answer for each.
    pub(crate) async fn call_all<T: FromRedisValue>(
        &self,
        calls: &[impl Borrow<Call>],
    ) -> Vec<Result<T>> {
        match self.connection().await {
            Ok(connection) => connection.call_all(calls).await,
            Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Loads the scripts that the server does not know, so that no call needs a second try, which later ones could overtake.
    pub(crate) async fn load_scripts(&self, scripts: &[&LazyLock<Script>]) -> Result<()> {
        let mut exists = redis::cmd("SCRIPT");
        exists.arg("EXISTS");
        for script in scripts {
            exists.arg(script.get_hash());
        }
        let connection = self.connection().await?;
        let known: Vec<bool> = connection.send(&exists).await?;
        for (script, _) in scripts.iter().zip(known).filter(|(_, known)| !known) {
            let loaded = connection.load(script).await;
            loaded.map_err(|cause| connection.failure(cause))?;
        }
        Ok(())
    }

    /// Subscribes to a channel over each connection to come.
    pub(crate) fn listen(&self, channel: &str) {
        *self.connector.channel.lock() = Some(channel.to_owned());
    }

    #[cfg(test)]
    pub(super) fn listens(&self) -> bool {
        self.connector.channel.lock().is_some()
    }

    /// Subscribes to a channel: now, and over each connection to come.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<()> {
        let connection = self.connection().await?;
        let mut inner = connection.inner.clone();
        let subscribed = connection.ask(1, inner.subscribe(channel)).await;
        subscribed.map_err(|cause| connection.failure(cause))?;
        self.listen(channel);
        if connection.has_ended() {
            // The next one may have been made without the subscription.
            self.current.lock().take();
        }
        Ok(())
    }
}
