//! Waiters on Redis and Redlock that are dead or stopped: the others get the lock in time.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::common::{LONG, beside, claim, ms, queued, until_waiting};
use crate::support::deployment::Deployment;
use crate::support::proxy::{Link, Proxy};
use crate::support::redis_server::RedisServer;
use leasehold::engine::Attempt;
use leasehold::{Claimant, ErrorKind, Locks};

/// Each a client of its own that can be cut off from the server, as if it had been killed.
async fn through(server: &RedisServer) -> (Locks, Proxy) {
    let link = Proxy::to(server.port).await;
    let url = format!("redis://127.0.0.1:{}?timeout=500ms", link.port);
    (Locks::connect(url).await.unwrap(), link)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_do_not_say_how_many_permits_there_are() {
    let server = RedisServer::start();
    let (locks, link) = through(&server).await;
    let one = || locks.lock("x").permits(1).ttl(ms(1000));
    let held = one().acquire().await.unwrap();
    let waiting = tokio::spawn(one().wait(LONG).acquire());
    until_waiting(&locks, "x", 1).await;
    let living = Locks::connect(server.url()).await.unwrap();
    let two = || living.lock("x").permits(2);
    let error = two().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    link.set(Link::Refuse);
    assert!(waiting.await.unwrap().is_err());
    held.detach();
    // Nobody lives who could mind; the holder's TTL has to pass.
    tokio::time::sleep(ms(1100)).await;
    let lease = two().try_acquire().await.unwrap();
    assert!(lease.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_come_back_through_another_process_keep_their_order() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let _held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let (dying, link) = through(&server).await;
    let claims = ["a", "b", "c", "d"].map(|label| {
        let mut claim = claim("x", LONG, true);
        claim.claimant = Arc::new(Claimant::new(label, "host", 1));
        claim
    });
    for claim in &claims {
        let attempt = dying.broker().try_acquire(claim).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)));
    }
    let waiting = async || -> Vec<String> {
        let waiters = locks.inspect("x").await.unwrap().waiters.into_iter();
        waiters.map(|waiter| waiter.claimant.label).collect()
    };
    assert_eq!(waiting().await, ["a", "b", "c", "d"]);
    link.set(Link::Refuse);
    let deadline = Instant::now() + LONG;
    while !waiting().await.is_empty() {
        assert!(Instant::now() < deadline, "the server still hears them");
        tokio::time::sleep(ms(5)).await;
    }
    // Another process, which has waited for nobody yet.
    let back = Locks::connect(server.url()).await.unwrap().broker();
    for nth in [2, 3, 0, 1] {
        let attempt = back.try_acquire(&claims[nth]).await.unwrap();
        assert!(matches!(attempt, Attempt::Held(_)));
    }
    assert_eq!(waiting().await, ["a", "b", "c", "d"]);
}

/// Waiters that nobody listens for any more, ahead of all others.
fn queue_of_the_dead(server: &RedisServer, count: u64) {
    let script = r#"EVAL "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, 'dead' .. i) redis.call('HSET', KEYS[2], 'dead' .. i, '4:dead1:1:1000:0:0:0:{}') end" 2"#;
    let (queue, waiters) = (beside("queue"), beside("waiters"));
    server.command(&format!("{script} {queue} {waiters} {count}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_dead_waiters_do_not_hold_the_server_up() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let holder = locks.lock("x").acquire().await.unwrap();
    queue_of_the_dead(&server, 5000);
    let waiting = tokio::spawn(locks.lock("x").wait(LONG).acquire());
    until_waiting(&locks, "x", 1).await;
    let (scripts, struck) = (server.calls("evalsha"), server.calls("zrem"));
    let began = Instant::now();
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let took = began.elapsed();
    let scripts = server.calls("evalsha") - scripts;
    let struck = server.calls("zrem") - struck;
    println!("{struck} dead waiters passed over by {scripts} scripts in {took:?}");
    assert!(struck / scripts <= 200, "{struck} by {scripts} scripts");
    assert_eq!(queued(&server), 0);
    assert!(took < ms(5000), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_waiters_are_struck_while_the_lock_is_held() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let holder = locks.lock("x").acquire().await.unwrap();
    queue_of_the_dead(&server, 60);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let request = locks.lock("x").wait_forever();
        waiting.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    until_waiting(&locks, "x", 60).await;
    assert!(queued(&server) <= 90, "{} in the queue", queued(&server));
    holder.release().await.unwrap();
    waiting.join_all().await;
    assert_eq!(queued(&server), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_writer_keeps_no_reader_out_beside_another() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let reader = || locks.lock("x").shared().ttl(LONG);
    let first = reader().acquire().await.unwrap();
    queue_of_the_dead(&server, 1);
    // Long before the first one's TTL ends.
    let second = reader().wait(LONG / 3).acquire().await.unwrap();
    queue_of_the_dead(&server, 1);
    let third = reader().try_acquire().await.unwrap();
    assert!(third.is_some() && first.is_valid() && second.is_valid());
}

/// Listens, and does nothing of what it is told: a program that was stopped, or one that watches.
fn listen(server: &RedisServer, how: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(ms(5000))).unwrap();
    stream.write_all(format!("{how}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    assert_eq!(line, "*3\r\n");
    stream
}

/// How long somebody has waited once the holder has released the lock, which is well before the holder's TTL would have
/// ended.
async fn handed_over(locks: &Locks, before: impl FnOnce(), behind: impl FnOnce()) -> Duration {
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    before();
    let waiting = tokio::spawn(locks.lock("x").ttl(LONG).wait(LONG).acquire());
    until_waiting(locks, "x", 1).await;
    behind();
    let began = Instant::now();
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let took = began.elapsed();
    println!("handed over after {took:?}");
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn listener_to_all_channels_keeps_no_dead_waiter_alive() {
    let server = RedisServer::start();
    let _watcher = listen(&server, "PSUBSCRIBE *");
    let locks = Locks::connect(server.url()).await.unwrap();
    let dead = || queue_of_the_dead(&server, 20);
    let took = handed_over(&locks, dead, || ()).await;
    assert!(took < ms(5000), "{took:?}");
    assert_eq!(queued(&server), 0);
}

/// One more who waits for the lock: its place, where it listens, and the token that it has proposed, if any.
fn enqueue(server: &RedisServer, place: u64, channel: &str, proposed: u64) {
    let length = channel.len();
    let (queue, waiters) = (beside("queue"), beside("waiters"));
    server.command(&format!("ZADD {queue} {place} {channel}{place}"));
    server.command(&format!(
        r#"HSET {waiters} {channel}{place} {length}:{channel}1:1:20000:0:{proposed}:0:{{}}"#
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_waiter_behind_a_stopped_one_is_passed_over() {
    let server = RedisServer::start();
    let _stopped = listen(&server, "SUBSCRIBE stopped");
    let locks = Locks::connect(server.url()).await.unwrap();
    let before = || {
        enqueue(&server, 1, "stopped", 0);
        enqueue(&server, 2, "dead", 0);
        enqueue(&server, 3, "dead", 0);
    };
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    before();
    let waiting = tokio::spawn(locks.lock("x").ttl(LONG).wait(LONG).acquire());
    until_waiting(&locks, "x", 2).await;
    // Joining strikes some of the dead; all of them are to be there.
    before();
    let began = Instant::now();
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let took = began.elapsed();
    println!("handed over after {took:?}");
    assert!(took < ms(5000), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_lives_among_many_dead_is_found() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let dead_around = || {
        queue_of_the_dead(&server, 300);
        // Behind whoever has joined so far.
        (0..10).for_each(|nth| enqueue(&server, 9_000_000_000_000_000 + nth, "dead", 0));
    };
    let took = handed_over(&locks, || (), dead_around).await;
    assert!(took < ms(5000), "{took:?}");
}

/// What it has proposed is behind, so that no node can grant it, and it does not propose anew.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_waiter_with_an_old_proposal_blocks_nobody() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let servers = &nodes.nodes;
    let _stopped: Vec<_> = servers
        .iter()
        .map(|node| listen(node, "SUBSCRIBE stopped"))
        .collect();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let ahead = || {
        for node in servers {
            enqueue(node, 1, "stopped", 1);
        }
    };
    let took = handed_over(&locks, || (), ahead).await;
    assert!(took < ms(5000), "{took:?}");
}
