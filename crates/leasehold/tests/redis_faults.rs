//! One real server, sixteen clients, and what can go wrong.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Lease, Locks};
use support::crowd::Crowd;
use support::proxy::{Link, Proxy};
use support::redis_server::RedisServer;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A primary and its replica, with a link between them that can be cut.
async fn replicated() -> (RedisServer, RedisServer, Proxy) {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let link = Proxy::to(primary.port).await;
    let port = link.port.to_string();
    let replica = tokio::task::spawn_blocking(move || {
        RedisServer::with(&["--replicaof", "127.0.0.1", &port])
    });
    let replica = replica.await.unwrap();
    until("the replica follows", || {
        replica
            .command("INFO replication")
            .contains("master_link_status:up")
            && primary.command("INFO replication").contains("state=online")
    })
    .await;
    (primary, replica, link)
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + ms(10_000);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_lost_before_its_write_was_copied_lets_two_in_and_the_token_still_rises() {
    let (primary, replica, link) = replicated().await;
    let first = Locks::connect(primary.url()).await.unwrap();
    assert!(!first.warnings().is_empty(), "it says what replicas mean");
    link.set(Link::Hang);
    let old = first.lock("x").ttl(ms(10_000)).acquire().await.unwrap();
    primary.kill();
    replica.command("REPLICAOF NO ONE");
    let second = Locks::connect(replica.url()).await.unwrap();
    let new = second.lock("x").ttl(ms(10_000)).acquire().await.unwrap();
    assert!(
        old.is_valid() && new.is_valid(),
        "the overlap was to be shown"
    );
    assert!(new.token() > old.token());
    println!(
        "a failover lost a lock: 2 operations, 1 fault, both hold it, tokens {} and {}",
        old.token(),
        new.token()
    );
    old.detach();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_wait_replicas_a_grant_that_was_not_copied_is_refused_and_leaves_nothing() {
    let (primary, replica, link) = replicated().await;
    let url = format!("{}?wait_replicas=1&timeout=1s", primary.url());
    let locks = Locks::connect(&url).await.unwrap();
    let copied = once_copied(&locks).await;
    assert!(replica.command("EXISTS leasehold:x").contains(":1"));
    copied.release().await.unwrap();
    link.set(Link::Hang);
    let error = locks.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("replicas"), "{error}");
    assert!(primary.command("EXISTS leasehold:x").contains(":0"));
    link.set(Link::Open);
    once_copied(&locks).await.release().await.unwrap();
}

/// A replica that has just connected may take a moment to acknowledge.
async fn once_copied(locks: &Locks) -> Lease {
    let deadline = Instant::now() + ms(5000);
    loop {
        match locks.lock("x").acquire().await {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_was_long_on_its_way_is_void() {
    let server = RedisServer::start();
    let link = Proxy::to(server.port).await;
    let direct = Locks::connect(server.url()).await.unwrap();
    let far = format!("redis://127.0.0.1:{}", link.port);
    let far = Locks::connect(&far).await.unwrap();
    let holder = direct.lock("x").ttl(ms(1000)).acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let lease = far.lock("x").wait(ms(10_000)).acquire().await.unwrap();
        assert!(lease.is_valid());
        lease.token()
    });
    tokio::time::sleep(ms(100)).await;
    link.set(Link::Hang);
    holder.release().await.unwrap();
    // It is offered to the one that does not hear of it; then the next one gets it.
    let next = direct.lock("x").wait(ms(3000)).acquire().await.unwrap();
    // Until the waiter has asked again by itself.
    tokio::time::sleep(ms(600)).await;
    link.set(Link::Open);
    tokio::time::sleep(ms(1000)).await;
    assert!(!waiting.is_finished(), "two hold the lock");
    let token = next.token();
    next.release().await.unwrap();
    assert!(waiting.await.unwrap() > token);
}

/// A restart forgets who holds the lock: exclusion is not promised then. Tokens rise all the same.
#[tokio::test(flavor = "multi_thread")]
async fn clients_go_on_when_scripts_are_forgotten_and_when_the_server_is_restarted() {
    let server = RedisServer::start();
    let crowd = Crowd::start(&format!("{}?timeout=500ms", server.url()), ms(500)).await;
    let mut faults = 0;
    for _ in 0..5 {
        crowd.goes_on(50, ms(3000)).await;
        server.command("SCRIPT FLUSH");
        faults += 1;
    }
    crowd.goes_on(50, ms(3000)).await;
    let before_the_restart = crowd.notes.recorder.events();
    server.kill();
    server.revive();
    crowd.goes_on(200, ms(5000)).await;
    let violations = crowd
        .end("scripts forgotten, restarted", faults + 1, Vec::new())
        .await;
    let history = leasehold::conformance::history::History::of(before_the_restart);
    assert_eq!(history.violations(), []);
    for violation in violations {
        let overlap = matches!(
            violation,
            leasehold::conformance::history::Violation::Overlap { .. }
        );
        assert!(overlap, "{violation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_programs_do_not_strand_the_queue() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    for stranger_takes_it in [false, true] {
        let holder = locks.lock("x").ttl(ms(1000)).acquire().await.unwrap();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..3 {
            // Each a process of its own, as far as the server can tell.
            let locks = Locks::connect(server.url()).await.unwrap();
            waiting.spawn(async move {
                let lease = locks
                    .lock("x")
                    .ttl(ms(1000))
                    .wait(ms(8000))
                    .acquire()
                    .await?;
                lease.release().await
            });
        }
        tokio::time::sleep(ms(100)).await;
        holder.detach();
        server.command("DEL leasehold:x");
        if stranger_takes_it {
            assert!(
                server
                    .command("SET leasehold:x stranger NX PX 700")
                    .contains("OK")
            );
        }
        let began = Instant::now();
        while let Some(done) = waiting.join_next().await {
            done.unwrap().unwrap();
        }
        let took = began.elapsed();
        println!(
            "foreign DEL, then SET: {stranger_takes_it}; the queue of 3 was through after {took:?}"
        );
        assert!(took < ms(1000 + 700), "{took:?}");
        assert!(!stranger_takes_it || took > ms(500), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_max_ttl_a_server_that_restarted_empty_grants_nothing_too_soon() {
    let server = RedisServer::start();
    let url = format!("{}?max_ttl=3s", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let start = std::time::Instant::now();
    let young = locks.lock("x").ttl(Duration::from_secs(3)).try_acquire();
    let young = young.await.unwrap_err();
    assert_eq!(young.kind(), leasehold::ErrorKind::Unreachable, "{young}");
    assert!(young.to_string().contains("without its memory"), "{young}");
    // Once it has stood for as long, it grants at once.
    let held = locks
        .lock("x")
        .ttl(Duration::from_secs(3))
        .wait(Duration::from_secs(15));
    let held = held.acquire().await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(2), "too soon");
    let token = held.token();
    held.detach();

    server.kill();
    server.revive();
    let restarted = std::time::Instant::now();
    let next = Locks::connect(&url).await.unwrap();
    let next = next
        .lock("x")
        .ttl(Duration::from_secs(3))
        .wait(Duration::from_secs(15));
    let next = next.acquire().await.unwrap();
    assert!(restarted.elapsed() >= Duration::from_secs(3), "too soon");
    assert!(next.token() > token);

    let long = locks.lock("y").ttl(Duration::from_secs(4)).try_acquire();
    let long = long.await.unwrap_err();
    assert_eq!(long.kind(), leasehold::ErrorKind::InvalidConfig, "{long}");
}
