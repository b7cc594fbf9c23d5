//! Other people's clients on the same lock, at the same time: exclusion holds both ways, and nobody is stranded.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::fleets::other::{NAME, OUR_TTL, Other, each_side_is_refused, nothing_is_lost};
use crate::fleets::rslock::Rslock;
use crate::fleets::script;
use crate::support::deployment::mark;
use crate::support::redis_server::RedisServer;
use leasehold::Locks;

/// Not longer than the shortest time that python-redis-lock can say times two, so that a busy machine does not end it.
const THEIR_TTL: Duration = Duration::from_secs(2);

/// Which package.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    RedisPy,
    PythonRedisLock,
    Redlock4,
    Redlock5,
    Rslock,
}

impl Kind {
    /// What it puts before a lock's name.
    fn prefix(self) -> &'static str {
        match self {
            Kind::PythonRedisLock => "lock:",
            _ => "",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::RedisPy => "redis-py",
            Kind::PythonRedisLock => "python-redis-lock",
            Kind::Redlock4 => "redlock4",
            Kind::Redlock5 => "redlock5",
            Kind::Rslock => "rslock",
        }
    }
}

/// Servers, a package, and a lock that both sides know.
struct Fleet {
    kind: Kind,
    servers: Vec<RedisServer>,
    locks: Locks,
}

impl Fleet {
    async fn start(kind: Kind, nodes: usize) -> Self {
        let servers: Vec<_> = (0..nodes).map(|_| RedisServer::start()).collect();
        let url = match servers.as_slice() {
            [one] => format!("{}?prefix={}", one.url(), kind.prefix()),
            many => {
                for server in many {
                    mark(server, "", Duration::from_secs(10));
                }
                let hosts: Vec<_> = many
                    .iter()
                    .map(|s| format!("127.0.0.1:{}", s.port))
                    .collect();
                let hosts = hosts.join(",");
                format!("redlock://{hosts}?prefix=&max_ttl=10s&node_timeout=1s")
            }
        };
        let locks = Locks::connect(url).await.unwrap();
        Self {
            kind,
            servers,
            locks,
        }
    }

    async fn other(&self, ttl: Duration) -> Other {
        let ports: Vec<_> = self.servers.iter().map(|server| server.port).collect();
        let mut other = match self.kind {
            Kind::Rslock => Other::task(Rslock::new(&ports, NAME, ttl)),
            kind => {
                let mut program = match kind {
                    Kind::Redlock4 | Kind::Redlock5 => script::node("redlock", "fleet.mjs"),
                    _ => script::python("fleet.py"),
                };
                let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
                program.arg(kind.name()).arg(ports.join(","));
                program.args([NAME, &ttl.as_secs().to_string()]);
                Other::process(program)
            }
        };
        assert!(other.ask("ping").await);
        other
    }

    async fn until_we_wait(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.locks.inspect(NAME).await.unwrap().waiters.is_empty() {
            assert!(Instant::now() < end, "nobody waits");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whoever waits on one side is let in by the other's release, and when the other's time is over.
    async fn each_side_lets_the_other_in(&self) {
        let long = Duration::from_secs(20);
        let mut other = self.other(long).await;
        assert!(other.ask("try").await);
        let waiting = tokio::spawn(self.locks.lock(NAME).ttl(OUR_TTL).wait_forever().acquire());
        self.until_we_wait().await;
        assert!(other.ask("release").await);
        let released = Instant::now();
        let ours = waiting.await.unwrap().unwrap();
        assert!(released.elapsed() < long / 4, "{:?}", released.elapsed());

        let mut other = self.other(THEIR_TTL).await;
        other.tell("wait").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        ours.release().await.unwrap();
        assert!(other.answer().await);

        // They die with the lock.
        let waiting = tokio::spawn(self.locks.lock(NAME).ttl(OUR_TTL).wait_forever().acquire());
        self.until_we_wait().await;
        other.kill().await;
        let died = Instant::now();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(died.elapsed() < THEIR_TTL * 3, "{:?}", died.elapsed());

        // We die with the lock.
        let short = Duration::from_millis(500);
        self.locks
            .lock(NAME)
            .ttl(short)
            .acquire()
            .await
            .unwrap()
            .detach();
        let mut other = self.other(THEIR_TTL).await;
        assert!(other.ask("wait").await);
        assert!(other.ask("release").await);
    }
}

async fn share_a_lock(kind: Kind, nodes: usize) {
    let fleet = Fleet::start(kind, nodes).await;
    let other = || fleet.other(THEIR_TTL);
    each_side_is_refused(&fleet.locks, other().await).await;
    fleet.each_side_lets_the_other_in().await;
    let others = [other().await, other().await];
    nothing_is_lost(kind.name(), &fleet.locks, others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py() {
    share_a_lock(Kind::RedisPy, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_redis_lock() {
    share_a_lock(Kind::PythonRedisLock, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_without_a_time_limit() {
    for kind in [Kind::RedisPy, Kind::PythonRedisLock] {
        let fleet = Fleet::start(kind, 1).await;
        let mut other = fleet.other(Duration::ZERO).await;
        assert!(other.ask("try").await);
        let refused = fleet.locks.lock(NAME).try_acquire().await;
        assert!(refused.unwrap().is_none());
        let waiting = tokio::spawn(fleet.locks.lock(NAME).wait_forever().acquire());
        fleet.until_we_wait().await;
        assert!(other.ask("release").await);
        let released = Instant::now();
        drop(waiting.await.unwrap().unwrap());
        assert!(released.elapsed() < Duration::from_secs(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_on_one_node() {
    share_a_lock(Kind::Redlock4, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_on_five_nodes() {
    share_a_lock(Kind::Redlock4, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_5_on_one_node() {
    share_a_lock(Kind::Redlock5, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_5_on_five_nodes() {
    share_a_lock(Kind::Redlock5, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rslock_on_one_node() {
    share_a_lock(Kind::Rslock, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rslock_on_five_nodes() {
    share_a_lock(Kind::Rslock, 5).await;
}
