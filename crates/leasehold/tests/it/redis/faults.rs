//! One real server, sixteen clients, and what can go wrong.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use super::common::until_waiting;
use crate::support::bent_clock::BentClock;
use crate::support::crowd::Crowd;
use crate::support::deployment::mark;
use crate::support::lost_connections;
use crate::support::proxy::{Link, Proxy};
use crate::support::redis_server::RedisServer;
use leasehold::clock::Clock;
use leasehold::{Effect, ErrorKind, Lease, LeaseState, Locks, Released};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A primary and its replica, with a link between them that can be cut.
pub(super) async fn replicated() -> (RedisServer, RedisServer, Proxy) {
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
async fn uncopied_grant_lost_lets_two_in_with_rising_tokens() {
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
async fn wait_replicas_refuses_an_uncopied_grant() {
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
async fn clients_survive_script_flush_and_restart() {
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
        let began = Instant::now();
        if stranger_takes_it {
            assert!(
                server
                    .command("SET leasehold:x stranger NX PX 700")
                    .contains("OK")
            );
        }
        while let Some(done) = waiting.join_next().await {
            done.unwrap().unwrap();
        }
        let took = began.elapsed();
        println!(
            "foreign DEL, then SET: {stranger_takes_it}; the queue of 3 was through after {took:?}"
        );
        assert!(took < ms(5000), "{took:?}");
        assert!(!stranger_takes_it || took > ms(500), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn max_ttl_delays_grants_after_an_empty_restart() {
    let server = RedisServer::start();
    let url = format!("{}?max_ttl=3s", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let start = std::time::Instant::now();
    let young = locks.lock("x").ttl(Duration::from_secs(3)).try_acquire();
    let young = young.await.unwrap_err();
    assert_eq!(young.kind(), leasehold::ErrorKind::Unreachable, "{young}");
    assert!(young.to_string().contains("just been started"), "{young}");
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

/// What comes back with the snapshot is no proof that nothing was forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn max_ttl_delays_grants_after_an_old_snapshot() {
    let server = RedisServer::start();
    let max_ttl = ms(1500);
    let locks = Locks::connect(format!("{}?max_ttl=1500ms", server.url()))
        .await
        .unwrap();
    let first = locks.lock("y").ttl(max_ttl).wait(ms(15_000)).acquire();
    first.await.unwrap().release().await.unwrap();
    server.save();
    let held = locks.lock("x").ttl(max_ttl).acquire().await.unwrap();
    let (token, valid_until) = (held.token(), held.valid_until());
    held.detach();
    server.kill();
    server.revive();
    let restarted = Instant::now();
    let next = locks.lock("x").ttl(max_ttl).wait(ms(15_000)).acquire();
    let next = next.await.unwrap();
    assert!(Clock::machine().now() > valid_until, "two hold the lock");
    assert!(restarted.elapsed() >= max_ttl, "too soon");
    assert!(next.token() > token);
}

/// The snapshot has a lock that was broken after it was taken.
#[tokio::test(flavor = "multi_thread")]
async fn max_ttl_renews_no_broken_claim_after_a_restart() {
    let server = RedisServer::start();
    let max_ttl = ms(8000);
    mark(&server, "leasehold:", max_ttl);
    let url = format!("{}?max_ttl=8s", server.url());
    let locks = Locks::connect(url).await.unwrap();
    let held = locks.lock("x").ttl(max_ttl).acquire().await.unwrap();
    let first = locks.resume("x", held.detach()).unwrap();
    assert!(first.renew(max_ttl).await.unwrap().is_some());
    server.save();
    locks.force_release("x").await.unwrap();
    let second = locks.lock("x").ttl(max_ttl).acquire().await.unwrap();
    let valid_until = second.valid_until();
    second.detach();
    server.kill();
    server.revive();
    // Until the connection has been made anew.
    let deadline = Instant::now() + ms(20_000);
    while let Err(error) = locks.inspect("x").await {
        assert!(Instant::now() < deadline, "{error}");
    }
    match first.renew(max_ttl).await {
        Ok(None) => panic!("the snapshot has it"),
        Ok(Some(_)) => assert!(Clock::machine().now() > valid_until, "two hold the lock"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert_eq!(error.effect(), Effect::Unknown, "not lost");
            assert!(error.to_string().contains("restarted"), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_replicas_does_not_count_an_uncopied_renewal() {
    let (primary, _replica, link) = replicated().await;
    let url = format!("{}?wait_replicas=1&timeout=4s", primary.url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = once_copied(&locks).await;
    let resumed = locks.resume("x", lease.claim_id()).unwrap();
    assert!(resumed.renew(ms(30_000)).await.unwrap().is_some());
    link.set(Link::Hang);
    let error = resumed.renew(ms(30_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "not lost");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert!(lease.renew().await.is_err());
    assert_eq!(lease.state(), LeaseState::Uncertain);
    link.set(Link::Open);
    until_renewed(&lease).await;
    lease.release().await.unwrap();
}

/// The primary says that it is lost: that is so, copied or not.
#[tokio::test(flavor = "multi_thread")]
async fn wait_replicas_tells_of_a_loss_without_replicas() {
    let (primary, _replica, link) = replicated().await;
    let url = format!("{}?wait_replicas=1&timeout=600ms", primary.url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = once_copied(&locks).await;
    link.set(Link::Hang);
    let plain = Locks::connect(primary.url()).await.unwrap();
    plain.force_release("x").await.unwrap();
    let error = lease.renew().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    assert!(!lease.is_valid());
}

async fn until_renewed(lease: &Lease) {
    let deadline = Instant::now() + ms(10_000);
    while let Err(error) = lease.renew().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(ms(20)).await;
    }
}

/// A lock is never relied on for longer than a server that has forgotten it grants nothing.
#[tokio::test(flavor = "multi_thread")]
async fn with_max_ttl_a_renewal_is_relied_on_no_longer_either() {
    let server = RedisServer::start();
    let locks = Locks::connect(format!("{}?max_ttl=1s", server.url()))
        .await
        .unwrap();
    let held = locks.lock("x").ttl(ms(1000)).wait(ms(15_000)).acquire();
    let id = held.await.unwrap().detach();
    let resumed = locks.resume("x", id).unwrap();
    let grant = resumed.renew(ms(60_000)).await.unwrap().unwrap();
    let relied_on = resumed.remaining(&grant);
    assert!(relied_on <= ms(1000), "{relied_on:?}");
    server.kill();
    server.revive();
    let next = locks.lock("x").ttl(ms(1000)).wait(ms(15_000)).acquire();
    next.await.unwrap().release().await.unwrap();
    assert_eq!(resumed.remaining(&grant), ms(0), "two hold the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn uncopied_grant_that_cannot_be_released_is_unknown() {
    let (primary, _replica, link) = replicated().await;
    let url = format!("{}?wait_replicas=1&timeout=20s", primary.url());
    let locks = Locks::connect(&url).await.unwrap();
    once_copied(&locks).await.release().await.unwrap();
    link.set(Link::Hang);
    let request = locks.lock("y");
    let attempt = tokio::spawn(async move { request.try_acquire().await });
    until("it is granted, and waits for the replica", || {
        primary.command("EXISTS leasehold:y").contains(":1")
    })
    .await;
    // Nobody is there any more to release it.
    primary.kill();
    let error = attempt.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

/// A connection that is being made belongs to a runtime; whoever waits for it on another one must not be the worse for that.
#[test]
fn runtime_that_ends_while_connecting_fails_nobody_else() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (short, long) = (runtime(), runtime());
    let server = RedisServer::start();
    let (link, locks) = long.block_on(async {
        let link = Proxy::to(server.port).await;
        let url = format!(
            "redis://127.0.0.1:{}?timeout=5s&connect_timeout=5s",
            link.port
        );
        let locks = Locks::connect(url).await.unwrap();
        link.set(Link::Refuse);
        assert!(locks.inspect("x").await.is_err());
        link.set(Link::Hang);
        (link, locks)
    });
    let show = || {
        let locks = locks.clone();
        async move { locks.inspect("x").await }
    };
    short.spawn(show());
    std::thread::sleep(Duration::from_millis(200));
    let waiting = long.spawn(show());
    std::thread::sleep(Duration::from_millis(200));
    short.shutdown_background();
    link.set(Link::Open);
    long.block_on(waiting).unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_lost_in_silence_is_replaced() {
    let server = RedisServer::start();
    let link = Proxy::to(server.port).await;
    let through = format!("redis://127.0.0.1:{}?timeout=1s", link.port);
    lost_connections::are_replaced(&[link], &through, &server.url()).await;
}

/// What is still on its way over the old one would be carried out after what was sent since.
#[tokio::test(flavor = "multi_thread")]
async fn connection_that_is_left_is_closed_by_the_server() {
    let server = RedisServer::start();
    let link = Proxy::to(server.port).await;
    let through = format!("redis://127.0.0.1:{}?timeout=500ms", link.port);
    let locks = Locks::connect(&through).await.unwrap();
    let connections = || server.command("CLIENT LIST").matches(" addr=").count();
    let before = connections();
    link.lose_connections();
    let error = locks.inspect("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    locks.inspect("x").await.unwrap();
    until("the old one is closed", || connections() == before).await;
}

/// Without a restart, so that clients go on with what they know of the server's clock.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_although_the_register_is_lost() {
    for options in ["", "?max_ttl=60s"] {
        let (server, clock) = BentClock::server();
        let url = format!("{}{options}", server.url());
        let start = || mark(&server, "leasehold:", ms(60_000));
        start();
        let early = Locks::connect(&url).await.unwrap();
        clock.step_to(3600);
        let late = Locks::connect(&url).await.unwrap();
        let first = late.lock("x").acquire().await.unwrap();
        let token = first.token();
        first.release().await.unwrap();
        assert_eq!(server.command("FLUSHALL"), "+OK\r\n");
        start();
        let second = early.lock("x").acquire().await.unwrap();
        assert!(second.token() > token, "{options}: the token fell");
        second.release().await.unwrap();
    }
}

/// Waits for the lock, and begins anew if an answer is lost, or the server is not there for a moment.
async fn reachable_again(locks: Locks, ttl: Duration) -> Lease {
    loop {
        match locks.lock("x").ttl(ttl).wait(ms(60_000)).acquire().await {
            Ok(lease) => return lease,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
        }
        tokio::time::sleep(ms(10)).await;
    }
}

/// What the server remembers may be of long ago, and the lock held by one of whom it knows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn max_ttl_hands_nothing_over_after_a_restart() {
    let server = RedisServer::start();
    let max_ttl = ms(30_000);
    mark(&server, "leasehold:", max_ttl);
    let url = format!("{}?max_ttl=30s", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("x").ttl(max_ttl).acquire().await.unwrap();
    let others = Locks::connect(&url).await.unwrap();
    let waiting = tokio::spawn(reachable_again(others, max_ttl));
    until_waiting(&locks, "x", 1).await;
    server.save();
    server.kill();
    server.revive();
    until("the waiter listens again", || {
        server.command("PUBSUB CHANNELS").contains("leasehold")
    })
    .await;
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.resume("x", held.detach()).unwrap();
    assert_eq!(
        held.release().await.unwrap(),
        Released::Yes,
        "of the snapshot"
    );
    tokio::time::sleep(ms(2000)).await;
    assert!(!waiting.is_finished(), "it was let in: {:?}", waiting.await);
    waiting.abort();
}

/// What it was told is lost with the connection. Someone else of its process notices.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_looks_again_after_a_connection_was_lost_in_silence() {
    let server = RedisServer::start();
    let ttl = ms(60_000);
    mark(&server, "leasehold:", ttl);
    let link = Proxy::to(server.port).await;
    // With max_ttl it is told by messages alone.
    let through = format!("redis://127.0.0.1:{}?timeout=500ms&max_ttl=60s", link.port);
    let through = Locks::connect(&through).await.unwrap();
    let direct = format!("{}?max_ttl=60s", server.url());
    let direct = Locks::connect(&direct).await.unwrap();
    let held = direct.lock("x").ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(reachable_again(through.clone(), ttl));
    until_waiting(&direct, "x", 1).await;
    // Time for that answer.
    tokio::time::sleep(ms(300)).await;
    link.lose_connections();
    held.release().await.unwrap();
    assert!(through.inspect("x").await.is_err(), "nothing is heard");
    through.inspect("x").await.unwrap();
    let next = tokio::time::timeout(ms(20_000), waiting).await;
    let next = next.expect("it does not look").unwrap();
    next.release().await.unwrap();
}
