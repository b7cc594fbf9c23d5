//! A Redis Cluster: three primaries with a replica each, unless told otherwise.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, Value};

use super::free_port;
use super::redis_server::RedisServer;

pub const SLOTS: u16 = 16384;

/// Far longer than a failover takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct RedisCluster {
    /// The primaries first, as it starts.
    pub nodes: Vec<RedisServer>,
    arguments: Vec<String>,
    password: Option<String>,
    /// Those that stand still: to ask one would take for ever.
    stopped: Mutex<Vec<usize>>,
}

impl RedisCluster {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With more arguments for the servers.
    pub fn with(arguments: &[&str]) -> Self {
        let cluster = Self::apart(6, arguments);
        let share = SLOTS.div_ceil(3);
        for nth in 0..3 {
            let (first, last) = (nth * share, ((nth + 1) * share).min(SLOTS) - 1);
            let node = usize::from(nth);
            let (first, last) = (first.to_string(), last.to_string());
            let _: () = cluster.tell(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        cluster.join();
        for nth in 0..3 {
            let primary = cluster.id(nth);
            cluster.until("the primary is known", || {
                cluster
                    .try_tell::<()>(nth + 3, &["CLUSTER", "REPLICATE", &primary])
                    .is_ok()
            });
        }
        cluster.until("the replicas follow", || {
            (0..3).all(|nth| cluster.replicas_of(nth) == 1)
        });
        cluster.until("all agree", || cluster.agrees());
        cluster
    }

    /// A node that has all slots.
    pub fn of_one() -> Self {
        Self::of_one_with(&[])
    }

    pub fn of_one_with(arguments: &[&str]) -> Self {
        let cluster = Self::apart(1, arguments);
        let _: () = cluster.tell(0, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        cluster.until("it serves", || cluster.agrees());
        cluster
    }

    /// Nodes that know nothing of each other.
    pub fn apart(nodes: usize, arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let mut from = arguments
            .iter()
            .skip_while(|argument| *argument != "--requirepass");
        let mut cluster = Self {
            nodes: Vec::new(),
            password: from.nth(1).cloned(),
            stopped: Mutex::default(),
            arguments,
        };
        for nth in 1..=nodes {
            let node = cluster.spawn();
            cluster.nodes.push(node);
            let _: () = cluster.tell(nth - 1, &["CLUSTER", "SET-CONFIG-EPOCH", &nth.to_string()]);
        }
        cluster
    }

    fn spawn(&self) -> RedisServer {
        // That is ten thousand more than the other port, and may be too much.
        let bus = free_port().to_string();
        let mut all = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            // A host that stalls for less than that causes no failover.
            "--cluster-node-timeout",
            "2000",
            "--cluster-port",
            &bus,
            "--repl-diskless-sync-delay",
            "0",
        ];
        all.extend(self.arguments.iter().map(String::as_str));
        RedisServer::with(&all)
    }

    /// Lets the first node meet all others.
    pub fn join(&self) {
        for nth in 1..self.nodes.len() {
            self.meet(nth);
        }
        self.until("all have met", || {
            (0..self.nodes.len()).all(|nth| {
                let known: String = self.tell(nth, &["CLUSTER", "NODES"]);
                known
                    .lines()
                    .filter(|line| !line.contains("handshake"))
                    .count()
                    == self.nodes.len()
            })
        });
    }

    fn meet(&self, nth: usize) {
        let port = self.nodes[nth].port.to_string();
        let bus: Vec<String> = self.tell(nth, &["CONFIG", "GET", "cluster-port"]);
        let _: () = self.tell(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus[1]]);
    }

    /// One more primary, without slots. Returns its number.
    pub fn add_node(&mut self) -> usize {
        let node = self.spawn();
        self.nodes.push(node);
        self.join();
        self.until("all agree", || self.agrees());
        self.nodes.len() - 1
    }

    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// Only some of the nodes, as a user would.
    pub fn url_with(&self, options: &str) -> String {
        let nodes = self.nodes[..3.min(self.nodes.len())].iter();
        let nodes: Vec<_> = nodes
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        format!("redis+cluster://{}{options}", nodes.join(","))
    }

    pub fn slot(&self, key: &str) -> u16 {
        self.tell(self.any(), &["CLUSTER", "KEYSLOT", key])
    }

    /// The number of the primary that has this slot.
    pub fn owner(&self, slot: u16) -> usize {
        let owners = self.owners(self.any());
        let (_, _, port) = owners
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .unwrap();
        self.nodes
            .iter()
            .position(|node| node.port == *port)
            .unwrap()
    }

    /// The first and the last slot of each range, and the port of its primary, as this node sees it.
    fn owners(&self, node: usize) -> Vec<(u16, u16, u16)> {
        let ranges: Vec<Value> = self.tell(node, &["CLUSTER", "SLOTS"]);
        let mut owners: Vec<_> = ranges
            .into_iter()
            .map(|range| {
                let Value::Array(parts) = range else {
                    panic!("{range:?}")
                };
                let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).unwrap();
                let Value::Array(primary) = &parts[2] else {
                    panic!("{parts:?}")
                };
                (number(&parts[0]), number(&parts[1]), number(&primary[1]))
            })
            .collect();
        owners.sort();
        owners
    }

    fn living(&self) -> Vec<usize> {
        let stopped = self.stopped.lock().unwrap().clone();
        let alive = |nth: &usize| !stopped.contains(nth) && self.connect(*nth).is_ok();
        (0..self.nodes.len()).filter(alive).collect()
    }

    fn any(&self) -> usize {
        self.living()[0]
    }

    /// Whether all that live see the same, and serve.
    pub fn agrees(&self) -> bool {
        let living = self.living();
        let first = self.owners(living[0]);
        living.iter().all(|nth| {
            let state: String = self.tell(*nth, &["CLUSTER", "INFO"]);
            state.contains("cluster_state:ok") && self.owners(*nth) == first
        })
    }

    pub fn replicas_of(&self, node: usize) -> usize {
        let told: String = self.tell(node, &["INFO", "replication"]);
        match told.contains("role:master") {
            true => told.matches("state=online").count(),
            false => 0,
        }
    }

    /// Lets a node stand still.
    pub fn stop(&self, node: usize) {
        self.stopped.lock().unwrap().push(node);
        self.nodes[node].stop();
    }

    /// Waits until others have taken over what a node had that is gone.
    pub fn failed_over(&self, lost: usize) {
        let port = self.nodes[lost].port;
        self.until("the failover", || {
            let owners = self.owners(self.any());
            owners.iter().all(|(_, _, owner)| *owner != port) && self.agrees()
        });
    }

    /// Brings back a node that was lost; it follows the one that has taken its place.
    pub fn bring_back(&self, lost: usize) {
        self.nodes[lost].revive();
        self.until("it follows", || {
            let told: RedisResult<String> = self.try_tell(lost, &["INFO", "replication"]);
            told.is_ok_and(|told| told.contains("master_link_status:up"))
        });
        self.until("all agree", || self.agrees());
    }

    /// Begins to move a slot: `finish_move` ends it.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let (from, slot) = (self.owner(slot), slot.to_string());
        let (source, target) = (self.id(from), self.id(to));
        let _: () = self.tell(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        let _: () = self.tell(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    }

    /// Moves so many of the keys in a slot. Returns how many there were.
    pub fn move_keys(&self, slot: u16, to: usize, count: usize) -> usize {
        let from = self.owner(slot);
        let count = count.to_string();
        let keys: Vec<Vec<u8>> = self.tell(
            from,
            &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count],
        );
        if !keys.is_empty() {
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(self.nodes[to].port)
                .arg("")
                .arg(0)
                .arg(5000);
            migrate.arg("KEYS").arg(&keys);
            let moved: RedisResult<Value> = migrate.query(&mut self.connect(from).unwrap());
            moved.unwrap();
        }
        keys.len()
    }

    pub fn finish_move(&self, slot: u16, to: usize) {
        while self.move_keys(slot, to, 100) > 0 {}
        let (from, target, slot) = (self.owner(slot), self.id(to), slot.to_string());
        let mut order = vec![to, from];
        order.extend(
            self.living()
                .into_iter()
                .filter(|nth| ![to, from].contains(nth)),
        );
        for nth in order {
            // A replica learns it from its primary.
            let _ = self.try_tell::<()>(nth, &["CLUSTER", "SETSLOT", &slot, "NODE", &target]);
        }
    }

    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to);
        self.finish_move(slot, to);
        self.until("the slot has moved", || {
            self.owner(slot) == to && self.agrees()
        });
    }

    fn id(&self, nth: usize) -> String {
        self.tell(nth, &["CLUSTER", "MYID"])
    }

    fn connect(&self, nth: usize) -> RedisResult<Connection> {
        let login = self
            .password
            .as_ref()
            .map_or(String::new(), |password| format!(":{password}@"));
        let url = format!("redis://{login}127.0.0.1:{}", self.nodes[nth].port);
        let connection =
            redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(2))?;
        connection.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(connection)
    }

    pub fn tell<T: redis::FromRedisValue>(&self, nth: usize, words: &[&str]) -> T {
        let told = self.try_tell(nth, words);
        told.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn try_tell<T: redis::FromRedisValue>(&self, nth: usize, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        loop {
            let told = self.connect(nth).and_then(|mut it| command.query(&mut it));
            match told {
                // A signal, as when a child process of the tests has ended; the client does not read on by itself.
                Err(error) if is_interrupted(&error) => {}
                told => return told,
            }
        }
    }

    pub fn until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < deadline, "{what}: not in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn is_interrupted(error: &redis::RedisError) -> bool {
    type Shared = std::sync::Arc<dyn std::error::Error + Send + Sync>;
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<Shared>());
    let cause = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::Interrupted)
}

#[test]
fn interruption_is_recognized() {
    let of = |kind| redis::RedisError::from(std::io::Error::from(kind));
    assert!(is_interrupted(&of(std::io::ErrorKind::Interrupted)));
    assert!(!is_interrupted(&of(std::io::ErrorKind::TimedOut)));
}
