//! The primaries of a cluster, a client for each, and the map of the slots.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::route::Route;
use super::slots::Slots;
use crate::engine::doctor::Finding;
use crate::engine::redis::client::Client;
use crate::engine::redis::config::RedisConfig;
use crate::engine::redis::connector::Target;
use crate::engine::redis::failure;
use crate::engine::redis::health;
use crate::engine::redis::listener::Listener;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::url::Server;

/// How often a process that waits looks whether slots have moved: a message may come from a node that it does not know yet.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Nodes {
    /// The nodes that the URL names.
    seeds: Vec<Server>,
    /// How each node is used.
    pub(super) config: RedisConfig,
    listener: Arc<Listener>,
    known: Mutex<Known>,
    /// One reads the map at a time.
    reading: tokio::sync::Mutex<()>,
    /// There as long as the task that looks for moved slots.
    watch: Mutex<Weak<()>>,
    /// Commands to nodes that are no longer there.
    sent: AtomicU64,
}

#[derive(Default)]
struct Known {
    slots: Slots,
    clients: HashMap<Server, Arc<Client>>,
    /// How often the map was read.
    readings: u64,
    numbers: usize,
    /// Whether this process listens, or is about to: set before the nodes are subscribed to that are known by then.
    listens: bool,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

impl Nodes {
    /// Connects to all primaries. Also returns what was found.
    pub(crate) async fn connect(
        seeds: Vec<Server>,
        config: RedisConfig,
        listener: Arc<Listener>,
    ) -> Result<(Arc<Self>, Vec<Finding>)> {
        let nodes = Arc::new(Self {
            seeds,
            config,
            listener,
            known: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            watch: Mutex::default(),
            sent: AtomicU64::new(0),
        });
        nodes.read_map(None, None, 0).await?;
        let uncovered = nodes.known.lock().slots.uncovered();
        if !uncovered.is_empty() {
            let what = format!("no node of the cluster has the slots {uncovered}");
            return Err(failure::unfit(what)
                .advise("give them to nodes (redis-cli --cluster check, --cluster fix)"));
        }
        let findings = nodes.check_primaries().await?;
        Ok((nodes, findings))
    }

    /// Refuses nodes that cannot serve. One that cannot be reached has some of the locks only: it is warned of.
    pub(crate) async fn check_primaries(&self) -> Result<Vec<Finding>> {
        let (mut findings, mut failed) = (Vec::new(), Vec::new());
        let primaries = self.primaries()?;
        for (server, client) in &primaries {
            match health::check_node(client, self.config.wait_replicas).await {
                Ok(more) => findings.extend(more.into_iter().map(|found| found.at(server))),
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    failed.push(error.with_context(server));
                }
                Err(error) => return Err(error.with_context(server)),
            }
        }
        if failed.len() == primaries.len() {
            return Err(no_node(failed));
        }
        findings.extend(failed.iter().map(unreachable));
        Ok(findings)
    }

    pub(crate) fn route(&self, slot: usize) -> Route<'_> {
        Route::to(self, slot)
    }

    pub(crate) fn owner(&self, slot: usize) -> Option<Server> {
        self.known.lock().slots.owner(slot).cloned()
    }

    /// How often the map was read so far.
    pub(super) fn readings(&self) -> u64 {
        self.known.lock().readings
    }

    pub(super) fn assign(&self, slot: usize, primary: Server) {
        self.known.lock().slots.assign(slot, primary);
    }

    /// All primaries.
    pub(crate) fn primaries(&self) -> Result<Vec<(Server, Arc<Client>)>> {
        let primaries = self.known.lock().slots.primaries();
        let primaries = primaries.into_iter();
        primaries
            .map(|server| Ok((server.clone(), self.client(&server)?)))
            .collect()
    }

    pub(super) fn client(&self, server: &Server) -> Result<Arc<Client>> {
        let mut known = self.known.lock();
        if let Some(client) = known.clients.get(server) {
            return Ok(Arc::clone(client));
        }
        let config = &self.config;
        let target = config.server.moved_to(server).open(config.tls.as_ref())?;
        known.numbers += 1;
        let client = Client::new(
            Target::Node(Box::new(target)),
            false,
            config.connect_timeout,
            config.timeout,
            self.listener.on_push(known.numbers),
        );
        if known.listens {
            client.listen(&self.listener.channel);
        }
        let client = Arc::new(client);
        known.clients.insert(server.clone(), Arc::clone(&client));
        Ok(client)
    }

    /// Reads the map of the slots, from `first` if it can be reached, and from `last` only if no other can; unless it was read since it had
    /// been read `before` times. Returns whether it has changed.
    pub(super) async fn read_map(
        &self,
        first: Option<&Server>,
        last: Option<&Server>,
        before: u64,
    ) -> Result<bool> {
        let _one_at_a_time = self.reading.lock().await;
        let (asked, readings) = {
            let known = self.known.lock();
            let asked = first.cloned().into_iter();
            let asked = asked.chain(known.slots.primaries());
            let asked = asked.chain(self.seeds.clone());
            let (late, asked): (Vec<_>, Vec<_>) = asked.partition(|server| Some(server) == last);
            (asked.into_iter().chain(late), known.readings)
        };
        if readings > before {
            return Ok(false);
        }
        let mut tried = Vec::new();
        let mut failed = Vec::new();
        for server in asked {
            if tried.contains(&server) {
                continue;
            }
            match self.map_of(&server).await {
                Ok(slots) => return Ok(self.replace_map(slots)),
                Err(error) => failed.push(error.with_context(&server)),
            }
            tried.push(server);
        }
        Err(no_node(failed))
    }

    async fn map_of(&self, server: &Server) -> Result<Slots> {
        let client = self.client(server)?;
        let mut command = redis::cmd("CLUSTER");
        let answer: Result<Value> = client.send(command.arg("SLOTS")).await;
        let answer = answer.map_err(
            |error| match error.to_string().contains("cluster support") {
                true => failure::not_a_cluster(),
                false => error,
            },
        );
        Slots::read(&answer?, server)
            .ok_or_else(|| failure::nonsense(&["CLUSTER SLOTS".to_owned()]))
    }

    fn replace_map(&self, slots: Slots) -> bool {
        let mut known = self.known.lock();
        known.readings += 1;
        let changed = known.slots != slots;
        let primaries = slots.primaries();
        known.slots = slots;
        let mut gone = 0;
        known.clients.retain(|server, client| {
            let stays = primaries.contains(server);
            gone += if stays { 0 } else { client.commands_sent() };
            stays
        });
        self.sent.fetch_add(gone, Ordering::Relaxed);
        changed
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        let known = self.known.lock();
        let now: u64 = known
            .clients
            .values()
            .map(|client| client.commands_sent())
            .sum();
        now + self.sent.load(Ordering::Relaxed)
    }

    /// Lets all nodes know that this process listens, and those that are yet to come. A node that cannot be reached learns it with the next
    /// connection.
    pub(crate) async fn subscribe(&self) -> Result<()> {
        let channel = &self.listener.channel;
        self.known.lock().listens = true;
        let primaries = self.primaries()?;
        let subscribing = primaries.iter().map(async |(_, client)| {
            client.listen(channel);
            client.subscribe(channel).await
        });
        let mut failed = join_all(subscribing)
            .await
            .into_iter()
            .filter_map(Result::err);
        match failed.find(|error| error.kind() != ErrorKind::Unreachable) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Looks for moved slots for as long as somebody waits. Called with every claim that queues.
    pub(crate) fn keep_watch(self: &Arc<Self>) {
        let mut watch = self.watch.lock();
        if watch.strong_count() == 0 {
            let there = Arc::new(());
            *watch = Arc::downgrade(&there);
            let watching = Watching {
                there: Some(there),
                nodes: Arc::downgrade(self),
            };
            tokio::spawn(watching.go_on());
        }
    }

    async fn look_around(&self) {
        let changed = self.read_map(None, None, self.readings()).await;
        // Whoever waits there is alive only as long as this process listens.
        if let Ok(primaries) = self.primaries() {
            join_all(primaries.iter().map(|(_, client)| client.connection())).await;
        }
        if changed.is_ok_and(|changed| changed) {
            self.listener.waiters.wake_all();
        }
    }
}

/// The task that watches.
struct Watching {
    /// Gone when it has ended.
    there: Option<Arc<()>>,
    nodes: Weak<Nodes>,
}

impl Watching {
    async fn go_on(self) {
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let Some(nodes) = self.nodes.upgrade() else {
                return;
            };
            if !nodes.listener.waiters.is_empty() {
                nodes.look_around().await;
            }
        }
    }
}

/// Whoever waits attempts, and starts another one.
impl Drop for Watching {
    fn drop(&mut self) {
        self.there = None;
        if let Some(nodes) = self.nodes.upgrade() {
            nodes.listener.runtime_ended();
        }
    }
}

fn unreachable(error: &Error) -> Finding {
    Finding::warning("unreachable", error.what())
        .means("the locks of a node cannot be had")
        .fix(error.advice().unwrap_or_default())
}

fn no_node(failed: Vec<Error>) -> Error {
    failure::of_all(failed, "no node of the cluster answers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::keys::Keys;
    use crate::url::EngineUrl;

    #[tokio::test]
    async fn node_met_while_others_are_subscribed_to_is_subscribed_to() {
        // Takes connections, and says nothing.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let url = EngineUrl::split(&format!("redis://127.0.0.1:{port}")).unwrap();
        let config = RedisConfig::from_url(&url).unwrap();
        let nodes = Nodes {
            seeds: Vec::new(),
            config,
            listener: Listener::new(&Keys::under("p:".to_owned())).unwrap(),
            known: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            watch: Mutex::default(),
            sent: AtomicU64::new(0),
        };
        let at = |host: &str| Server {
            host: host.to_owned(),
            port,
        };
        nodes.assign(0, at("127.0.0.1"));
        let mut subscribing = std::pin::pin!(nodes.subscribe());
        assert!(futures_util::poll!(&mut subscribing).is_pending());
        let new = nodes.client(&at("localhost")).unwrap();
        assert!(new.listens());
    }
}
