//! Other people's clients on the same lock, at the same time: exclusion holds both ways, and nobody is stranded.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

#[path = "fleets/other.rs"]
mod other;
#[path = "fleets/rslock.rs"]
mod rslock;
#[path = "fleets/script.rs"]
mod script;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{FencingToken, Locks};
use other::{Kind, Other};
use support::redis_server::RedisServer;

/// Not longer than the shortest time that python-redis-lock can say times two, so that a busy machine does not end it.
const THEIR_TTL: Duration = Duration::from_secs(2);
const OUR_TTL: Duration = Duration::from_secs(5);
const ROUNDS: usize = 40;

/// Servers, a package, and a lock that both sides know.
struct Fleet {
    kind: Kind,
    servers: Vec<RedisServer>,
    locks: Locks,
}

const NAME: &str = "the-lock";

impl Fleet {
    async fn start(kind: Kind, nodes: usize) -> Self {
        let servers: Vec<_> = (0..nodes).map(|_| RedisServer::start()).collect();
        let url = match servers.as_slice() {
            [one] => format!("{}?prefix={}", one.url(), kind.prefix()),
            many => {
                for server in many {
                    server.command(r#"HSET "\x01register" mark 10000"#);
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
        let mut other = Other::start(self.kind, &ports, NAME, ttl);
        assert!(other.ask("ping").await);
        other
    }

    async fn until_we_wait(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.locks.show(NAME).await.unwrap().waiters.is_empty() {
            assert!(Instant::now() < end, "nobody waits");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Who wants it while the other side holds it is refused.
    async fn each_side_is_refused(&self) {
        let mut other = self.other(THEIR_TTL).await;
        assert!(other.ask("try").await);
        let ours = self.locks.lock(NAME).ttl(OUR_TTL).try_acquire().await;
        assert!(ours.unwrap().is_none());
        let shown = self.locks.show(NAME).await.unwrap();
        assert_eq!(shown.holders[0].claimant.owner, "another program");
        assert!(other.ask("release").await);

        let ours = self.locks.lock(NAME).ttl(OUR_TTL).try_acquire().await;
        let ours = ours.unwrap().expect("free");
        assert!(!other.ask("try").await);
        ours.release().await.unwrap();
        assert!(other.ask("try").await);
        assert!(other.ask("release").await);
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

    /// Two of each side at once: nothing that one has written under the lock is lost.
    async fn nothing_is_lost(&self) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letters").display().to_string();
        std::fs::write(&path, "").unwrap();
        let mut others = [self.other(THEIR_TTL).await, self.other(THEIR_TTL).await];
        for other in &mut others {
            other.tell(&format!("contend {ROUNDS} t {path}")).await;
        }
        let tokens = Arc::new(Mutex::new(Vec::new()));
        let ours: Vec<_> = (0..2)
            .map(|_| tokio::spawn(contend(self.locks.clone(), path.clone(), tokens.clone())))
            .collect();
        for task in ours {
            task.await.unwrap();
        }
        for other in &mut others {
            assert!(other.answer().await);
        }
        let letters = std::fs::read_to_string(&path).unwrap();
        let count = |letter| letters.chars().filter(|there| *there == letter).count();
        assert_eq!(
            (count('o'), count('t')),
            (2 * ROUNDS, 2 * ROUNDS),
            "{letters}"
        );
        let turns = letters
            .as_bytes()
            .windows(2)
            .filter(|pair| pair[0] != pair[1]);
        let turns = turns.count();
        println!(
            "{:?}: {} rounds, the lock changed sides {turns} times",
            self.kind,
            letters.len()
        );
        assert!(turns >= 6, "one side after the other: {letters}");
        let tokens = tokens.lock().unwrap();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }
}

async fn contend(locks: Locks, path: String, tokens: Arc<Mutex<Vec<FencingToken>>>) {
    for _ in 0..ROUNDS {
        let lease = locks.lock(NAME).ttl(OUR_TTL).wait_forever().acquire().await;
        let lease = lease.unwrap();
        tokens.lock().unwrap().push(lease.token());
        add_letter(&path, "o").await;
        lease.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Loses what another writes meanwhile.
async fn add_letter(path: &str, letter: &str) {
    let seen = std::fs::read_to_string(path).unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    std::fs::write(path, seen + letter).unwrap();
}

async fn share_a_lock(kind: Kind, nodes: usize) {
    let fleet = Fleet::start(kind, nodes).await;
    fleet.each_side_is_refused().await;
    fleet.each_side_lets_the_other_in().await;
    fleet.nothing_is_lost().await;
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
