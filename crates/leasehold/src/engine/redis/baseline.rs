//! The baselines: SET NX PX with a compare-and-delete, and BLPOP with RPUSH.

use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult, Script};

use super::config::RedisConfig;
use super::failure;
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::error::Result;

/// Whose lock it is.
const ID: &str = "0123456789abcdef0123456789abcdef";

#[derive(Debug)]
pub(super) struct RedisBaseline(pub(super) RedisConfig);

#[async_trait]
impl Baseline for RedisBaseline {
    fn cycle_is(&self) -> &'static str {
        "SET NX PX and EVALSHA of a compare-and-delete"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let connection = connect(&self.0.client()?).await?;
        Ok(Box::new(BaselineCycle::on(
            connection,
            &self.0.prefix,
            name,
        )))
    }

    async fn cycles(&self, names: &[String]) -> Result<Vec<Box<dyn BaselineLock>>> {
        let connection = connect(&self.0.client()?).await?;
        let open = |name| BaselineCycle::on(connection.clone(), &self.0.prefix, name);
        let locks = names.iter().map(|name| Box::new(open(name)) as Box<_>);
        Ok(locks.collect())
    }

    async fn processor_time(&self) -> Result<Option<Duration>> {
        processor_time(&self.0.client()?).await
    }

    fn handoff_is(&self) -> &'static str {
        "BLPOP and RPUSH"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let (client, prefix) = (self.0.client()?, &self.0.prefix);
        Ok(Box::new(Baton::open(&client, prefix, name).await?))
    }
}

pub(crate) async fn connect(client: &Client) -> Result<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    connection.await.map_err(failure::of_request)
}

/// What a server says that it has used.
pub(crate) async fn processor_time(client: &Client) -> Result<Option<Duration>> {
    let mut connection = connect(client).await?;
    let info: RedisResult<String> = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut connection)
        .await;
    let info = info.map_err(failure::of_request)?;
    let seconds = |name| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line?.trim_end().parse::<f64>().ok()
    };
    let used = seconds("used_cpu_user:").zip(seconds("used_cpu_sys:"));
    Ok(used.map(|(user, system)| Duration::from_secs_f64(user + system)))
}

pub(crate) struct BaselineCycle {
    connection: MultiplexedConnection,
    key: String,
    delete: Script,
}

impl BaselineCycle {
    pub(crate) fn on(connection: MultiplexedConnection, prefix: &str, name: &str) -> Self {
        let delete = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
        Self {
            connection,
            key: format!("{prefix}\u{1}raw\u{1}{name}"),
            delete: Script::new(delete),
        }
    }
}

#[async_trait]
impl BaselineLock for BaselineCycle {
    async fn acquire(&mut self) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg((&self.key, ID, "NX", "PX", 30_000));
        let set: RedisResult<()> = set.query_async(&mut self.connection).await;
        set.map_err(failure::of_request)
    }

    async fn release(&mut self) -> Result<()> {
        let mut delete = self.delete.key(&self.key);
        let deleted: RedisResult<()> = delete.arg(ID).invoke_async(&mut self.connection).await;
        deleted.map_err(failure::of_request)
    }
}

pub(crate) struct Baton {
    connection: MultiplexedConnection,
    key: String,
}

impl Baton {
    pub(crate) async fn open(client: &Client, prefix: &str, name: &str) -> Result<Self> {
        let mut connection = connect(client).await?;
        let key = format!("{prefix}\u{1}raw-list\u{1}{name}");
        let first = "if redis.call('SET', KEYS[2], 1, 'NX', 'EX', 600) then redis.call('RPUSH', KEYS[1], 1) end";
        let first: RedisResult<()> = Script::new(first)
            .key(&[key.clone(), format!("{key}-made")])
            .invoke_async(&mut connection)
            .await;
        first.map_err(failure::of_request)?;
        Ok(Self { connection, key })
    }
}

#[async_trait]
impl BaselineLock for Baton {
    async fn acquire(&mut self) -> Result<()> {
        let popped: RedisResult<(String, u8)> = self.connection.blpop(&self.key, 0.0).await;
        popped.map(|_| ()).map_err(failure::of_request)
    }

    async fn release(&mut self) -> Result<()> {
        let pushed: RedisResult<()> = self.connection.rpush(&self.key, 1).await;
        pushed.map_err(failure::of_request)
    }
}
