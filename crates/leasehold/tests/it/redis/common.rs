//! What the tests of Redis and Redlock share.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::redis_server::RedisServer;
use leasehold::{Claim, ClaimId, LockName, Locks, Ttl};

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const LONG: Duration = ms(20_000);

pub(crate) fn claim(name: &str, ttl: Duration, queues: bool) -> Claim {
    let mut claim = Claim::new(LockName::new(name).unwrap(), ClaimId::random().unwrap());
    claim.ttl = Ttl::new(ttl).unwrap();
    claim.queues = queues;
    claim
}

pub(crate) async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + ms(20_000);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(10)).await;
    }
}

pub(crate) async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    let deadline = Instant::now() + ms(20_000);
    while locks.inspect(name).await.unwrap().waiters.len() < count {
        assert!(Instant::now() < deadline, "{count} wait");
        tokio::time::sleep(ms(5)).await;
    }
}

/// What is beside the lock `x`, quoted as redis-cli quotes it.
pub(crate) fn beside(what: &str) -> String {
    format!(r#""leasehold:\x01{what}\x01{{436}}x""#)
}

pub(crate) fn queued(server: &RedisServer) -> u64 {
    let answer = server.command(&format!("ZCARD {}", beside("queue")));
    answer.trim_start_matches(':').trim_end().parse().unwrap()
}

/// A server with a script that does not end.
pub(crate) async fn get_stuck(server: &RedisServer) -> TcpStream {
    server.command("CONFIG SET lua-time-limit 20");
    let mut stuck = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stuck
        .write_all(b"EVAL \"while true do end\" 0\r\n")
        .unwrap();
    until("the script is known to be slow", || {
        server.command("PING").contains("BUSY")
    })
    .await;
    stuck
}
