//! The raw limits: SET NX PX with a compare-and-delete, and BLPOP with RPUSH.

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, Script};

use super::failure;
use super::settings::Settings;
use crate::engine::raw::{RawLimit, RawLock};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Raw {
    settings: Settings,
}

impl Raw {
    pub(super) fn on(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
        }
    }
}

async fn connect(server: &ConnectionInfo) -> Result<MultiplexedConnection> {
    let client = Client::open(server.clone()).map_err(failure::of_request)?;
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    connection.await.map_err(failure::of_request)
}

impl RawCycle {
    pub(crate) async fn open(server: &ConnectionInfo, prefix: &str, name: &str) -> Result<Self> {
        let delete = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
        Ok(Self {
            connection: connect(server).await?,
            key: format!("{prefix}\u{1}raw\u{1}{name}"),
            delete: Script::new(delete),
        })
    }
}

impl RawBaton {
    pub(crate) async fn open(server: &ConnectionInfo, prefix: &str, name: &str) -> Result<Self> {
        let mut baton = Self {
            connection: connect(server).await?,
            key: format!("{prefix}\u{1}raw-list\u{1}{name}"),
        };
        // Whoever comes first puts the baton there.
        let mut first = redis::cmd("SET");
        first
            .arg(format!("{}-made", baton.key))
            .arg(1)
            .arg("NX")
            .arg("EX")
            .arg(600);
        let first: bool = first
            .query_async(&mut baton.connection)
            .await
            .map_err(failure::of_request)?;
        if first {
            baton.release().await?;
        }
        Ok(baton)
    }
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "SET NX PX and EVALSHA of a compare-and-delete"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let Settings { server, prefix, .. } = &self.settings;
        Ok(Box::new(RawCycle::open(server, prefix, name).await?))
    }

    fn handoff_is(&self) -> &'static str {
        "BLPOP and RPUSH"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let Settings { server, prefix, .. } = &self.settings;
        Ok(Box::new(RawBaton::open(server, prefix, name).await?))
    }
}

pub(crate) struct RawCycle {
    connection: MultiplexedConnection,
    key: String,
    delete: Script,
}

#[async_trait]
impl RawLock for RawCycle {
    async fn acquire(&mut self) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(&self.key)
            .arg("0123456789abcdef0123456789abcdef")
            .arg("NX")
            .arg("PX")
            .arg(30_000);
        set.query_async(&mut self.connection)
            .await
            .map_err(failure::of_request)
    }

    async fn release(&mut self) -> Result<()> {
        let call = &mut self.delete.key(&self.key);
        let call = call.arg("0123456789abcdef0123456789abcdef");
        let deleted = call.invoke_async::<i64>(&mut self.connection).await;
        deleted.map(|_| ()).map_err(failure::of_request)
    }
}

pub(crate) struct RawBaton {
    connection: MultiplexedConnection,
    key: String,
}

#[async_trait]
impl RawLock for RawBaton {
    async fn acquire(&mut self) -> Result<()> {
        let mut pop = redis::cmd("BLPOP");
        pop.arg(&self.key).arg(0);
        let popped: redis::RedisResult<redis::Value> = pop.query_async(&mut self.connection).await;
        popped.map(|_| ()).map_err(failure::of_request)
    }

    async fn release(&mut self) -> Result<()> {
        let mut push = redis::cmd("RPUSH");
        push.arg(&self.key).arg(1);
        push.query_async(&mut self.connection)
            .await
            .map_err(failure::of_request)
    }
}
