//! Makes connections to a server, or to whichever takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, PushInfo, PushKind, RedisResult, Value};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::connection::{Connection, Traffic, incomplete};
use super::failure;
use super::listener::runtime_ended;
use super::sentinel::sentinels::Sentinels;
use super::sentinel::watch::Watch;
use super::server_time::ServerTime;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// How long after a connection that could not be made another one is tried.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// Where connections lead.
pub(crate) enum Target {
    Server(Box<redis::Client>),
    /// The one that the sentinels name.
    Primary(Arc<Sentinels>),
    /// One of a cluster.
    Node(Box<redis::Client>),
}

impl From<redis::Client> for Target {
    fn from(client: redis::Client) -> Self {
        Target::Server(Box::new(client))
    }
}

/// Makes the connections.
pub(super) struct Connector {
    pub(super) target: Target,
    /// Whether restarts of the server must be noticed.
    pub(super) needs_run: bool,
    pub(super) config: AsyncConnectionConfig,
    pub(super) on_push: Arc<dyn Fn(PushInfo) + Send + Sync>,
    /// What each new connection subscribes to.
    pub(super) channel: Mutex<Option<String>>,
    /// The last connection: which run of the server it was made to, and its number there.
    pub(super) last: Mutex<Option<(String, i64)>>,
    pub(super) traffic: Arc<Traffic>,
}

impl Connector {
    pub(super) async fn connect_or_try_again(&self) -> Result<Connection> {
        let connected = match self.connect().await {
            // A server that has just been started again.
            Err(error) if !error.is_busy() && error.kind() == ErrorKind::Unreachable => {
                tokio::time::sleep(RECONNECT_DELAY).await;
                self.connect().await
            }
            connected => connected,
        };
        // Until now the server took those who wait for dead, or what it told them was lost.
        if connected.is_ok() && self.channel.lock().is_some() {
            (self.on_push)(messages_were_missed());
        }
        connected
    }

    async fn connect(&self) -> Result<Connection> {
        let sentinels = match &self.target {
            Target::Server(client) => return self.connect_to(client, false).await,
            Target::Node(client) => return self.connect_to(client, true).await,
            Target::Primary(sentinels) => sentinels,
        };
        let primary = sentinels.primary().await?;
        let connected = self
            .connect_to(&sentinels.open_primary(&primary)?, true)
            .await;
        let mut connection = connected.map_err(|error| sentinels.not_there(&primary, error))?;
        // What the sentinels know of it may be out of date.
        let replication: String = ask(&mut connection.inner, "replication").await?;
        if !replication.contains("role:master") {
            return Err(failure::no_longer_primary().with_context(&primary));
        }
        let watch = Watch {
            sentinels: Arc::clone(sentinels),
            primary,
            ended: Arc::downgrade(&connection.ended),
            on_push: Arc::clone(&self.on_push),
        };
        tokio::spawn(watch.until_another_is_named());
        Ok(connection)
    }

    async fn connect_to(&self, client: &redis::Client, replaceable: bool) -> Result<Connection> {
        let (ended, is_heard) = (Arc::default(), Arc::default());
        let hearing = Hearing {
            ended: Arc::clone(&ended),
            is_heard: Arc::clone(&is_heard),
            on_push: Arc::clone(&self.on_push),
        };
        let config = self.config.clone().set_push_sender(move |push: PushInfo| {
            hearing.hear(push);
            Ok::<_, std::convert::Infallible>(())
        });
        let mut connection = open(client, &config).await?;
        let mut who = redis::pipe();
        who.ignore_errors().cmd("INFO").arg("server");
        who.cmd("CLIENT").arg("ID");
        let told: RedisResult<Vec<RedisResult<Value>>> = who.query_async(&mut connection).await;
        let mut told = told.map_err(failure::of_connect)?.into_iter();
        let info = told.next().ok_or_else(incomplete)?;
        let info = info.and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
        let info = info.map_err(failure::of_connect)?;
        let number = told.next().and_then(Result::ok);
        let number = number.and_then(|number| redis::from_redis_value(number).ok());
        let run = field(&info, "run_id:").to_owned();
        let time = match field(&info, "server_time_usec:").parse() {
            Ok(micros) => micros,
            Err(_) => ask_time(&mut connection)
                .await
                .map_err(failure::of_connect)?,
        };
        if run.is_empty() && self.needs_run {
            return Err(without_run());
        }
        let channel = self.channel.lock().clone();
        if let Some(channel) = channel {
            let subscribed = connection.subscribe(channel).await;
            subscribed.map_err(failure::of_connect)?;
        }
        // Not before it is subscribed: waiters without a subscriber are dead.
        self.end_last(&mut connection, &run, number).await;
        is_heard.store(true, Ordering::Release);
        Ok(Connection {
            inner: connection,
            run,
            replaceable,
            asking: false,
            time: Arc::new(ServerTime::new(time)),
            ended,
            traffic: Arc::clone(&self.traffic),
        })
    }

    /// What is still on its way over the connection before this one must not be carried out after what is sent over this one, so the server
    /// closes that. Users without the right to do so have to do without.
    async fn end_last(
        &self,
        connection: &mut MultiplexedConnection,
        run: &str,
        number: Option<i64>,
    ) {
        let this = number.map(|number| (run.to_owned(), number));
        let last = std::mem::replace(&mut *self.last.lock(), this);
        // Another run has given the same number to someone else.
        if let Some((_, number)) = last.filter(|(of, _)| !run.is_empty() && of == run) {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(number);
            let _: RedisResult<Value> = kill.query_async(connection).await;
        }
    }
}

/// Hears what a server sends by itself. Dropped with the task that reads from the connection, which ends without a word if its runtime does.
struct Hearing {
    ended: Arc<AtomicBool>,
    /// Whether somebody may wait for what comes, and has not been told of the end.
    is_heard: Arc<AtomicBool>,
    on_push: Arc<dyn Fn(PushInfo) + Send + Sync>,
}

impl Hearing {
    fn hear(&self, push: PushInfo) {
        if push.kind == PushKind::Disconnection {
            self.ended.store(true, Ordering::Release);
            self.is_heard.store(false, Ordering::Release);
        }
        (self.on_push)(push);
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        if self.is_heard.load(Ordering::Acquire) {
            self.hear(runtime_ended());
        }
    }
}

/// Opens a connection.
pub(super) async fn open(
    client: &redis::Client,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection> {
    let connecting = client.get_multiplexed_async_connection_with_config(config);
    match connecting.await {
        Ok(connection) => Ok(connection),
        Err(cause) if cause.is_connection_dropped() && is_full(client).await => {
            Err(failure::too_many_connections().caused_by(cause))
        }
        Err(cause) => Err(failure::of_connect(cause)),
    }
}

/// What those who wait are told when they may have missed a message.
pub(super) fn messages_were_missed() -> PushInfo {
    PushInfo {
        kind: PushKind::Disconnection,
        data: Vec::new(),
    }
}

async fn ask(connection: &mut MultiplexedConnection, section: &str) -> Result<String> {
    let mut info = redis::cmd("INFO");
    let told: RedisResult<String> = info.arg(section).query_async(connection).await;
    told.map_err(failure::of_connect)
}

/// Whether the server takes no more connections: it says so before it is asked anything, and closes. A client that
/// has asked already sees only that it is closed.
async fn is_full(client: &redis::Client) -> bool {
    let ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr() else {
        return false;
    };
    let greeting = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        let mut said = [0; 64];
        let length = stream.read(&mut said).await.ok()?;
        Some(said[..length].starts_with(b"-ERR max number of clients"))
    };
    let greeting = tokio::time::timeout(RECONNECT_DELAY, greeting).await;
    greeting.ok().flatten().unwrap_or(false)
}

/// In microseconds.
pub(super) async fn ask_time(connection: &mut MultiplexedConnection) -> RedisResult<u64> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
    Ok(seconds * 1_000_000 + micros)
}

/// What INFO says behind this name; empty if it does not.
fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let found = info.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_default().trim_end()
}

/// A mark without a run would fit every run.
fn without_run() -> Error {
    failure::unfit("the server does not tell its run_id, so that its restarts would not be noticed")
        .advise("connect to the Redis server itself, not through a proxy that answers INFO")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_tells_its_run_or_is_unfit_for_a_mark() {
        let run_in = |info| field(info, "run_id:");
        assert_eq!(run_in("# Server\r\nrun_id:0a1b\r\ntcp_port:1\r\n"), "0a1b");
        for without in ["", "# Server\r\nredis_version:7.0.0\r\n", "run_id:\r\n"] {
            assert_eq!(run_in(without), "");
        }
        let error = without_run();
        assert_eq!(error.kind(), ErrorKind::EngineUnfit);
        assert!(
            error
                .advice()
                .is_some_and(|advice| advice.contains("proxy"))
        );
    }
}
