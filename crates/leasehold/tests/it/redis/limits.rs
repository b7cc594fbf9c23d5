//! Servers that are full, busy with a script, or restarted: clients of Redis and Redlock wait for them, and go on when they can.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::common::{LONG, get_stuck, ms, queued, until, until_waiting};
use crate::support::bent_clock::BentClock;
use crate::support::deployment::Deployment;
use crate::support::redis_server::RedisServer;
use leasehold::{Effect, ErrorKind, Lease, Locks};

/// Connections that do nothing but take a place.
fn take_all_connections(server: &RedisServer, count: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        BufReader::new(&stream)
            .read_line(&mut String::new())
            .unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_more_connections_is_waited_for() {
    let server = RedisServer::with(&["--maxclients", "10"]);
    let locks = Locks::connect(server.url()).await.unwrap();
    let taken = take_all_connections(&server, 9);
    let error = Locks::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.is_busy(), "{error:?}");
    assert!(error.to_string().contains("connections"), "{error}");
    // One that had a connection, and loses it to another.
    let mut taken = taken;
    taken[0]
        .write_all(b"CLIENT KILL TYPE normal SKIPME yes\r\n")
        .unwrap();
    drop(taken);
    let taken = take_all_connections(&server, 9);
    let more = take_all_connections(&server, 1);
    // Until it has noticed: a request over the connection that is gone may have been carried out, and is not repeated.
    let deadline = Instant::now() + ms(10_000);
    while !matches!(locks.inspect("x").await, Err(error) if error.is_busy()) {
        assert!(Instant::now() < deadline, "it still has a connection");
        tokio::time::sleep(ms(10)).await;
    }
    let waiting = tokio::spawn(locks.lock("x").wait(LONG).acquire());
    tokio::time::sleep(ms(500)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    drop((taken, more));
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_busy_with_a_script_are_waited_for() {
    let nodes = Deployment::with(3, LONG, "node_timeout=2s");
    nodes.has_stood_a_while();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let _stuck = [
        get_stuck(&nodes.nodes[0]).await,
        get_stuck(&nodes.nodes[1]).await,
    ];
    let error = locks
        .lock("x")
        .ttl(ms(5000))
        .try_acquire()
        .await
        .unwrap_err();
    assert!(error.is_busy(), "{error:?}");
    let waiting = tokio::spawn(locks.lock("x").ttl(ms(5000)).wait(LONG).acquire());
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    assert!(nodes.nodes[0].command("SCRIPT KILL").contains("OK"));
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(nodes.nodes[1].command("SCRIPT KILL").contains("OK"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_busy_with_a_script_is_waited_for() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let _stuck = get_stuck(&server).await;
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert!(error.is_busy(), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
    let waiting = tokio::spawn(locks.lock("x").wait(LONG).acquire());
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    assert!(server.command("SCRIPT KILL").contains("OK"));
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_node_is_listened_to_later() {
    let nodes = Deployment::with(3, LONG, "node_timeout=2s");
    nodes.has_stood_a_while();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let others = Locks::connect(nodes.url()).await.unwrap();
    let stuck = get_stuck(&nodes.nodes[0]).await;
    let waiting = tokio::spawn(others.lock("x").ttl(LONG).wait(LONG).acquire());
    until("it waits", || queued(&nodes.nodes[1]) == 1).await;
    assert!(nodes.nodes[0].command("SCRIPT KILL").contains("OK"));
    drop(stuck);
    until("it listens", || {
        let channels = nodes.nodes[0].command("PUBSUB CHANNELS");
        channels.contains("leasehold")
    })
    .await;
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_busy_node_would_not_release_it_releases_later() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=2s");
    nodes.has_stood_a_while();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let lease = locks.lock("x").ttl(ms(60_000)).acquire().await.unwrap();
    let holds = |node: &RedisServer| node.command("EXISTS leasehold:x").contains(":1");
    until("all have voted", || nodes.nodes.iter().all(holds)).await;
    let stuck = get_stuck(&nodes.nodes[0]).await;
    lease.release().await.unwrap();
    // In the background it has been refused there, too.
    locks.flush().await;
    tokio::time::sleep(ms(200)).await;
    assert!(nodes.nodes[0].command("SCRIPT KILL").contains("OK"));
    drop(stuck);
    until("it is free everywhere", || !nodes.nodes.iter().any(holds)).await;
}

#[test]
fn a_node_is_looked_after_on_whatever_runtime_is_there() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let nodes = Deployment::with(3, LONG, "node_timeout=500ms");
    nodes.has_stood_a_while();
    let first = runtime();
    let locks = first.block_on(Locks::connect(nodes.url())).unwrap();
    nodes.nodes[0].stop();
    let held = first.block_on(async { locks.lock("a").ttl(ms(1000)).acquire().await });
    held.unwrap().detach();
    // Its time-out may come later than the quorum.
    std::thread::sleep(ms(1500));
    first.shutdown_timeout(ms(1000));
    nodes.nodes[0].go_on();
    nodes.nodes[1].kill();
    let second = runtime();
    let lease: Option<Lease> = second.block_on(async {
        let deadline = Instant::now() + ms(10_000);
        loop {
            let request = locks.lock("b").ttl(ms(1000));
            match request.try_acquire().await {
                Ok(lease) => return lease,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(ms(50)).await;
        }
    });
    assert!(lease.is_some());
    drop((lease, locks));
    second.shutdown_timeout(ms(1000));
}

/// Seen without its mark while its clock was ahead.
#[tokio::test(flavor = "multi_thread")]
async fn clock_set_back_does_not_prolong_the_quarantine() {
    let clock = BentClock::off_by(3600);
    let server = RedisServer::within(&[], &clock.environment());
    let locks = Locks::connect(format!("{}?max_ttl=2s", server.url()))
        .await
        .unwrap();
    let request = || locks.lock("x").ttl(ms(1000));
    assert!(request().try_acquire().await.is_err(), "in quarantine");
    clock.step_to(0);
    let lease = request().wait(LONG).acquire().await.unwrap();
    lease.release().await.unwrap();

    let nodes = Deployment::with(3, ms(2000), "node_timeout=1s");
    nodes.mark(&nodes.nodes[0]);
    nodes.nodes[1].kill();
    let behind = &nodes.nodes[2];
    let run = behind.run_id();
    behind.command(&format!(
        r#"ZADD "leasehold:\x01register" -9000000000000000 blank:{run}"#
    ));
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let request = locks.lock("x").ttl(ms(1000)).wait(LONG);
    request.acquire().await.unwrap().release().await.unwrap();
}

/// Who waits needs one more.
#[tokio::test(flavor = "multi_thread")]
async fn one_more_connection_for_a_waiter_is_waited_for() {
    let server = RedisServer::with(&["--maxclients", "10"]);
    let locks = Locks::connect(server.url()).await.unwrap();
    let others = Locks::connect(server.url()).await.unwrap();
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let taken = take_all_connections(&server, 8);
    let waiting = tokio::spawn(others.lock("x").ttl(LONG).wait(LONG).acquire());
    tokio::time::sleep(ms(500)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    drop(taken);
    until_waiting(&locks, "x", 1).await;
    holder.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
