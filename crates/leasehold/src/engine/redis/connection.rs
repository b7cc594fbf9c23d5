//! A connection to a server, and the scripts called over it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind, Value};

use super::connector::ask_time;
use super::failure;
use super::protocol::Call;
use super::server_time::ServerTime;
use crate::error::{Error, ErrorKind, Result};

/// One connection. It ends with the run of the server that it was made to, so it knows for good which run that is; and
/// what is sent over it is carried out in that run, or not at all.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(super) inner: MultiplexedConnection,
    pub(super) run: String,
    /// Whether another server may take the place of this one.
    pub(super) replaceable: bool,
    /// Whether the server is to answer for slots that are on their way to it.
    pub(super) asking: bool,
    pub(super) time: Arc<ServerTime>,
    pub(super) ended: Arc<AtomicBool>,
    pub(super) traffic: Arc<Traffic>,
}

/// What went over all connections to a server.
#[derive(Default)]
pub(super) struct Traffic {
    /// How many commands.
    pub(super) sent: Arc<AtomicU64>,
    pub(super) answers: AtomicU64,
}

impl Connection {
    /// The same, to a node that another one has named for a slot that is on its way there.
    pub(crate) fn asking(&self) -> Self {
        Self {
            asking: true,
            ..self.clone()
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Awaits the answer to so many commands, and remembers if the connection has ended, or may have: one that is lost in silence, as when a
    /// firewall forgets it, is known only by that. If others are answered meanwhile, it is the server that is slow.
    pub(super) async fn ask<T>(
        &self,
        commands: usize,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let Traffic { sent, answers } = &*self.traffic;
        sent.fetch_add(commands as u64, Ordering::Relaxed);
        let before = answers.load(Ordering::Relaxed);
        let answer = self.note_end(answer.await);
        match &answer {
            Err(cause) if cause.is_timeout() => {
                if answers.load(Ordering::Relaxed) == before {
                    self.ended.store(true, Ordering::Release);
                }
            }
            Err(cause) if cause.is_unrecoverable_error() => {}
            _ => {
                answers.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
    }

    /// Remembers if an answer says that the connection has ended.
    fn note_end<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        if answer.as_ref().is_err_and(|error| self.ends_with(error)) {
            self.ended.store(true, Ordering::Release);
        }
        answer
    }

    /// A server that has become a replica, or that has stood still for a while, may no longer be the one to ask.
    fn ends_with(&self, error: &RedisError) -> bool {
        let replaced = || is_read_only(error) || error.is_timeout();
        error.is_unrecoverable_error() || self.replaceable && replaced()
    }

    pub(super) fn failure(&self, cause: RedisError) -> Error {
        match self.replaceable && is_read_only(&cause) {
            true => failure::no_longer_primary().caused_by(cause),
            false => failure::of_request(cause),
        }
    }

    async fn query<T: FromRedisValue>(&self, command: &redis::Cmd) -> RedisResult<T> {
        if !self.asking {
            let mut inner = self.inner.clone();
            return self.ask(1, command.query_async(&mut inner)).await;
        }
        let answers = self.send_all([command.clone()]).await?;
        let answer = answers.into_iter().next().ok_or_else(incomplete_cause)?;
        Ok(redis::from_redis_value(self.note_end(answer)?)?)
    }

    pub(super) async fn load(&self, script: &Script) -> RedisResult<()> {
        let mut inner = self.inner.clone();
        let loaded = self.ask(1, script.load_async(&mut inner)).await;
        loaded.map(|_| ())
    }

    pub(crate) async fn send<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T> {
        let answer = self.query(command).await;
        answer.map_err(|cause| self.failure(cause))
    }

    /// By the server's clock, in microseconds; never ahead of it.
    pub(crate) fn server_time(&self) -> u64 {
        self.time.estimate()
    }

    /// The least that a token is to be which is proposed to this server: see `ServerTime`.
    pub(crate) fn least_token(&self) -> u64 {
        self.time.least_token()
    }

    /// As `call`; asks the server for its time in the same round trip if that was long ago.
    pub(crate) async fn call_and_keep_time<T: FromRedisValue>(&self, call: &Call) -> Result<T> {
        if !self.time.is_to_be_asked() {
            return self.call(call).await;
        }
        let mut connection = self.inner.clone();
        let asked = self.ask(1, ask_time(&mut connection));
        let (answer, time) = futures_util::join!(self.call(call), asked);
        if let Ok(micros) = time {
            self.time.is_now(micros);
        }
        answer
    }

    /// Calls a script by its hash; loads it if the server does not know it.
    pub(crate) async fn call<T: FromRedisValue>(&self, call: &Call) -> Result<T> {
        let command = call.command(&self.run);
        let mut answer: RedisResult<T> = self.query(&command).await;
        if answer.as_ref().is_err_and(is_unknown_script) {
            let loaded = self.load(call.script).await;
            loaded.map_err(|cause| self.failure(cause))?;
            answer = self.query(&command).await;
        }
        answer.map_err(|cause| self.failure(cause))
    }

    /// Calls one script many times in one round trip; an answer for each.
    pub(crate) async fn call_all<T: FromRedisValue>(
        &self,
        calls: &[impl Borrow<Call>],
    ) -> Vec<Result<T>> {
        let commands = || {
            calls
                .iter()
                .map(|call| call.borrow().command(&self.run).into_owned())
        };
        let mut answers = self.send_all(commands()).await;
        let unknown = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_unknown_script);
        if let (Ok(told), Some(first)) = (&answers, calls.first())
            && told.iter().any(unknown)
        {
            answers = match self.load(first.borrow().script).await {
                Ok(()) => self.send_all(commands()).await,
                Err(failure) => Err(failure),
            };
        }
        match answers {
            Ok(answers) if answers.len() == calls.len() => answers
                .into_iter()
                .map(|answer| {
                    let value = self.note_end(answer);
                    let value = value.map_err(|cause| self.failure(cause))?;
                    redis::from_redis_value(value)
                        .map_err(|cause| failure::of_request(cause.into()))
                })
                .collect(),
            Ok(_) => calls.iter().map(|_| Err(incomplete())).collect(),
            Err(cause) => {
                let failure = self.failure(cause);
                calls.iter().map(|_| Err(failure.clone())).collect()
            }
        }
    }

    /// Sends many commands in one round trip; an answer for each.
    async fn send_all(
        &self,
        commands: impl IntoIterator<Item = redis::Cmd>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for command in commands {
            if self.asking {
                pipeline.cmd("ASKING").ignore();
            }
            pipeline.add_command(command);
        }
        let mut inner = self.inner.clone();
        let answers = pipeline.query_async(&mut inner);
        self.ask(pipeline.len(), answers).await
    }
}

fn incomplete_cause() -> RedisError {
    (redis::ErrorKind::Parse, "too few answers").into()
}

pub(super) fn incomplete() -> Error {
    Error::new(ErrorKind::Unexpected, "the server gave too few answers").of_unknown_effect()
}

/// Also from within a script of an older server.
fn is_read_only(error: &RedisError) -> bool {
    let read_only = redis::ErrorKind::Server(ServerErrorKind::ReadOnly);
    error.kind() == read_only || error.to_string().contains("READONLY ")
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}
