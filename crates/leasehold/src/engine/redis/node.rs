//! One server: a connection that mends itself, and the scripts called over it.

use std::borrow::Borrow;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ConnectionInfo, FromRedisValue, PushInfo, RedisError, RedisResult, Script,
    ServerErrorKind, Value,
};

use super::failure;
use super::keys::LockKeys;
use crate::error::{Error, ErrorKind, Result};

/// The head, the way that most calls go, what the scripts share, and the rest.
macro_rules! script {
    ($($quick:literal,)? ; $rest:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(
                include_str!("scripts/head.lua"),
                $(include_str!(concat!("scripts/", $quick)),)?
                include_str!("scripts/common.lua"),
                include_str!(concat!("scripts/", $rest)),
            ))
        })
    };
}

pub(crate) static ACQUIRE: LazyLock<Script> = script!("acquire.quick.lua", ; "acquire.lua");
pub(crate) static RENEW: LazyLock<Script> = script!("renew.quick.lua", ; "renew.lua");
pub(crate) static RELEASE: LazyLock<Script> = script!("release.quick.lua", ; "release.lua");
pub(crate) static BREAK: LazyLock<Script> = script!(; "break.lua");
pub(crate) static YIELD: LazyLock<Script> = script!(; "yield.lua");
pub(crate) static MARK: LazyLock<Script> = script!(; "mark.lua");
pub(crate) static SHOW: LazyLock<Script> = script!(; "show.lua");

/// One call of a script.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) lock: LockKeys,
    pub(crate) arguments: Vec<String>,
}

impl Call {
    fn command(&self, script: &Script) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(script.get_hash())
            .arg(self.lock.keys.len())
            .arg(&self.lock.keys[..]);
        command.arg(&self.lock.stripe).arg(&self.arguments[..]);
        command
    }
}

pub(crate) struct Node {
    connection: ConnectionManager,
    sent: AtomicU64,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Node {
    /// Connects at the first request; whatever the server sends by itself goes to `heard`.
    pub(crate) fn new(
        server: ConnectionInfo,
        connect_timeout: Duration,
        timeout: Duration,
        heard: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Self> {
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(connect_timeout))
            .set_response_timeout(Some(timeout))
            .set_number_of_retries(1)
            // Never full, so that commands leave in the order in which they are given.
            .set_pipeline_buffer_size(1 << 16)
            .set_automatic_resubscription()
            .set_push_sender(move |push| {
                heard(push);
                Ok::<_, std::convert::Infallible>(())
            });
        let client = Client::open(server).map_err(failure::of_request)?;
        let connection = client.get_connection_manager_lazy(config);
        Ok(Self {
            connection: connection.map_err(failure::of_request)?,
            sent: AtomicU64::new(0),
        })
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Sends one command.
    pub(crate) async fn send<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        command
            .query_async(&mut self.connection.clone())
            .await
            .map_err(failure::of_request)
    }

    /// Makes the scripts known, so that no call needs a second try, which later ones could overtake.
    pub(crate) async fn load_scripts(&self) -> Result<()> {
        let scripts = [&ACQUIRE, &RENEW, &RELEASE, &YIELD, &BREAK, &MARK, &SHOW];
        let mut ask = redis::cmd("SCRIPT");
        ask.arg("EXISTS");
        for script in scripts {
            ask.arg(script.get_hash());
        }
        // A node that was only slow knows them all.
        let known: Vec<bool> = self.send(&ask).await?;
        let connection = &mut self.connection.clone();
        for (script, _) in scripts.iter().zip(known).filter(|(_, known)| !known) {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let loaded = script.load_async(connection).await;
            loaded.map_err(failure::of_request)?;
        }
        Ok(())
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> Result<()> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.connection
            .clone()
            .subscribe(channel)
            .await
            .map_err(failure::of_request)
    }

    /// Calls a script by its hash; loads it if the server does not know it.
    pub(crate) async fn call<T: FromRedisValue>(&self, script: &Script, call: &Call) -> Result<T> {
        self.call_command(script, &call.command(script)).await
    }

    /// Sends an EVALSHA of this script; loads it if the server does not know it.
    pub(crate) async fn call_command<T: FromRedisValue>(
        &self,
        script: &Script,
        command: &redis::Cmd,
    ) -> Result<T> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let connection = &mut self.connection.clone();
        let mut answer: RedisResult<T> = command.query_async(connection).await;
        if answer.as_ref().is_err_and(is_unknown_script) {
            script
                .load_async(connection)
                .await
                .map_err(failure::of_request)?;
            answer = command.query_async(connection).await;
        }
        answer.map_err(failure::of_request)
    }

    /// Calls a script many times in one go; an answer for each.
    pub(crate) async fn call_all<T: FromRedisValue>(
        &self,
        script: &Script,
        calls: &[impl Borrow<Call>],
    ) -> Vec<Result<T>> {
        let mut answers = self.send_all(script, calls).await;
        let unknown = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_unknown_script);
        if answers
            .as_ref()
            .is_ok_and(|answers| answers.iter().any(unknown))
        {
            let loaded = script.load_async(&mut self.connection.clone()).await;
            answers = match loaded {
                Ok(_) => self.send_all(script, calls).await,
                Err(failure) => Err(failure),
            };
        }
        match answers {
            Ok(answers) if answers.len() == calls.len() => answers
                .into_iter()
                .map(|answer| {
                    let value = answer.map_err(failure::of_request)?;
                    redis::from_redis_value(value)
                        .map_err(|cause| failure::of_request(cause.into()))
                })
                .collect(),
            Ok(_) => calls.iter().map(|_| Err(incomplete())).collect(),
            Err(failure) => calls
                .iter()
                .map(|_| Err(failure::of_request(failure.clone())))
                .collect(),
        }
    }

    async fn send_all(
        &self,
        script: &Script,
        calls: &[impl Borrow<Call>],
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        self.sent.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for call in calls {
            pipeline.add_command(call.borrow().command(script));
        }
        pipeline.query_async(&mut self.connection.clone()).await
    }
}

fn incomplete() -> Error {
    Error::new(ErrorKind::Unexpected, "the server gave too few answers").of_unknown_effect()
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}
