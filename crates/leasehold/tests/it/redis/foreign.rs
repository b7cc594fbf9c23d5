//! Lock keys that this prefix has no notes of, on Redis and Redlock: held under another prefix, taken by another program, or
//! deprived of their notes by accident. Such a lock is held; only its holder, its expiry or a break ends it.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use super::common::{LONG, beside, until_waiting};
use crate::support::deployment::{Deployment, mark};
use crate::support::redis_server::RedisServer;
use leasehold::{ErrorKind, Lease, Locks, Mode};

fn lock_exists(server: &RedisServer) -> bool {
    server.command("EXISTS leasehold:x").contains(":1")
}

/// A connection whose locks begin where those of the default prefix do: `leasehold:x` here is `x` there.
async fn under_shorter_prefix(server: &RedisServer) -> Locks {
    let url = format!("{}?prefix=", server.url());
    Locks::connect(url).await.unwrap()
}

const MANY: [Mode; 2] = [Mode::Shared, Mode::Permit { of: 2 }];

async fn try_acquire(locks: &Locks, name: &str, mode: Mode) -> Option<Lease> {
    let request = locks.lock(name).ttl(LONG);
    request.mode(mode).try_acquire().await.unwrap()
}

/// That nothing has happened to the lock of this lease.
async fn assert_still_held(server: &RedisServer, locks: &Locks, lease: Lease) {
    assert!(lock_exists(server), "the lock's key was deleted");
    let exclusive = try_acquire(locks, "x", Mode::Exclusive).await;
    assert!(exclusive.is_none(), "granted beside {lease:?}");
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    assert!(!lock_exists(server), "the release has ended it");
}

#[tokio::test(flavor = "multi_thread")]
async fn list_under_shorter_prefix_keeps_locks() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    for mode in MANY {
        let lease = try_acquire(&locks, "x", mode).await.unwrap();
        let listed = other.list("").await.unwrap();
        assert_still_held(&server, &locks, lease).await;
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].name.as_str(), "leasehold:x");
        assert_eq!(listed[0].holders.len(), 1, "{listed:?}");
        let left = listed[0].holders[0].time_left;
        assert!(left > Duration::ZERO && left <= LONG, "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_under_shorter_prefix_is_refused() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    for mode in MANY {
        for asked in [Mode::Exclusive, Mode::Shared, mode] {
            let lease = try_acquire(&locks, "x", mode).await.unwrap();
            let second = try_acquire(&other, "leasehold:x", asked).await;
            assert!(second.is_none(), "{asked:?} beside {mode:?}");
            assert_still_held(&server, &locks, lease).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_under_shorter_prefix_enters_after_release() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    let lease = try_acquire(&locks, "x", Mode::Shared).await.unwrap();
    let waiting = tokio::spawn(other.lock("leasehold:x").ttl(LONG).wait(LONG).acquire());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "two hold the lock");
    let token = lease.token();
    lease.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn break_under_shorter_prefix_ends_the_lease() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    let lease = try_acquire(&locks, "x", Mode::Shared).await.unwrap();
    let broken = other.force_release("leasehold:x").await.unwrap();
    assert_eq!(broken, leasehold::engine::Released::Yes);
    assert!(lease.renew().await.is_err());
    assert!(!lease.is_valid());
    let next = try_acquire(&locks, "x", Mode::Exclusive).await;
    assert!(next.is_some());
}

/// What is left of the broken lock is no part of the one that is taken next.
#[tokio::test(flavor = "multi_thread")]
async fn lock_broken_under_another_prefix_does_not_come_back() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    for (mode, renews) in MANY
        .into_iter()
        .flat_map(|mode| [(mode, true), (mode, false)])
    {
        let broken = try_acquire(&locks, "x", mode).await.unwrap();
        other.force_release("leasehold:x").await.unwrap();
        let next = try_acquire(&other, "leasehold:x", mode).await.unwrap();
        if renews {
            assert!(broken.renew().await.is_err(), "it was broken");
        }
        let _ = broken.release().await;
        let third = try_acquire(&locks, "x", Mode::Exclusive).await;
        assert!(third.is_none(), "granted beside {next:?}");
        next.renew().await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_whose_notes_are_gone_stays_held() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    for mode in MANY {
        let request = locks.lock("x").ttl(Duration::from_secs(2));
        let request = match mode {
            Mode::Permit { of } => request.permits(of),
            _ => request.shared(),
        };
        let lease = request.acquire().await.unwrap();
        assert_eq!(
            server.command(&format!("DEL {}", beside("holders"))),
            ":1\r\n"
        );
        for asked in [Mode::Exclusive, Mode::Shared, mode] {
            let second = try_acquire(&locks, "x", asked).await;
            let valid = lease.is_valid();
            assert!(second.is_none() || !valid, "{asked:?} beside {mode:?}");
        }
        assert!(lease.renew().await.is_err(), "it is lost to its holder");
        // Nobody can tell any more whose it was: it ends when it expires.
        let next = locks.lock("x").ttl(LONG).wait(LONG).acquire();
        next.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_value_in_place_of_our_own_is_held() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    let lease = try_acquire(&locks, "x", Mode::Exclusive).await.unwrap();
    server.command("DEL leasehold:x");
    let shared = try_acquire(&other, "leasehold:x", Mode::Shared).await;
    let shared = shared.unwrap();
    for mode in [Mode::Exclusive, Mode::Shared] {
        assert!(try_acquire(&locks, "x", mode).await.is_none());
    }
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
    assert!(lease.renew().await.is_err());
    shared.renew().await.unwrap();
    shared.release().await.unwrap();
}

/// The value of the lock's key can be read under every prefix that reaches it; but it has its queue under one of them.
#[tokio::test(flavor = "multi_thread")]
async fn exclusive_lock_under_another_prefix_is_foreign() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let other = under_shorter_prefix(&server).await;
    let lease = try_acquire(&locks, "x", Mode::Exclusive).await.unwrap();
    let seen = other.inspect("leasehold:x").await.unwrap();
    assert_eq!(seen.holders[0].claimant.label, "another program");
    let waiting = tokio::spawn(other.lock("leasehold:x").ttl(LONG).wait(LONG).acquire());
    until_waiting(&other, "leasehold:x", 1).await;
    lease.release().await.unwrap();
    let began = std::time::Instant::now();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(began.elapsed() < LONG / 2, "it looks now and then");
}

#[tokio::test(flavor = "multi_thread")]
async fn layout_of_an_older_version_is_refused() {
    let server = RedisServer::start();
    let early = Locks::connect(server.url()).await.unwrap();
    server.command(r#"HSET "leasehold:\x01register" 7 1700000000000000"#);
    let refused = [
        Locks::connect(server.url()).await.unwrap_err(),
        // This one was connected before.
        early.lock("x").try_acquire().await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
        assert!(error.to_string().contains("older version"), "{error}");
        assert!(
            error
                .advice()
                .is_some_and(|advice| advice.contains("prefix"))
        );
    }
    assert!(!lock_exists(&server), "nothing is left of the attempt");
    let url = format!("{}?prefix=other:", server.url());
    let others = Locks::connect(url).await.unwrap();
    assert!(others.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_list_under_shorter_prefix_keeps_locks() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let other = format!("{}&prefix=", nodes.url());
    let other = Locks::connect(other).await.unwrap();
    let lease = try_acquire(&locks, "x", Mode::Shared).await.unwrap();
    other.list("").await.unwrap();
    let second = try_acquire(&locks, "x", Mode::Exclusive).await;
    assert!(second.is_none(), "granted beside {lease:?}");
    for node in &nodes.nodes {
        mark(node, "", LONG);
    }
    for mode in [Mode::Exclusive, Mode::Shared] {
        let second = try_acquire(&other, "leasehold:x", mode).await;
        assert!(second.is_none(), "{mode:?} beside a shared lease");
    }
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    let next = locks.lock("x").ttl(LONG).wait(LONG).acquire();
    next.await.unwrap().release().await.unwrap();
}

/// A user that may not write can inspect: inspection is read-only, whatever it finds.
#[tokio::test(flavor = "multi_thread")]
async fn inspection_needs_no_write_permission() {
    let server = RedisServer::start();
    server.command("ACL SETUSER reader on >secret ~* &* +@all -@write");
    let locks = Locks::connect(server.url()).await.unwrap();
    let url = format!("redis://reader:secret@127.0.0.1:{}", server.port);
    let reader = Locks::connect(&url).await.unwrap();
    assert!(reader.inspect("free").await.unwrap().holders.is_empty());
    let alone = locks.lock("alone").acquire().await.unwrap();
    let brief = locks.lock("x").shared().ttl(Duration::from_millis(200));
    brief.acquire().await.unwrap().detach();
    let shared = try_acquire(&locks, "x", Mode::Shared).await.unwrap();
    // The first of the two expires, and nobody has removed its note.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let listed = reader.list("").await.unwrap();
    let listed: Vec<_> = listed
        .iter()
        .map(|lock| (lock.name.as_str(), lock.holders.len()))
        .collect();
    assert_eq!(listed, [("alone", 1), ("x", 1)]);
    let error = reader.lock("y").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    shared.release().await.unwrap();
    alone.release().await.unwrap();
}

/// What a shared lock has left behind is no riddle once another program has taken the lock.
#[tokio::test(flavor = "multi_thread")]
async fn another_programs_lock_in_place_of_a_shared_one() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let shared = locks.lock("x").shared().acquire().await.unwrap();
    shared.detach();
    server.command("SET leasehold:x stranger PX 20000");
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
    server.command("DEL leasehold:x");
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

/// Another program tells nobody, and the one who looked often is gone.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_behind_one_that_has_left_enters_after_another_program() {
    let server = RedisServer::start();
    let stranger = server.command("SET leasehold:x stranger NX PX 60000");
    assert_eq!(stranger, "+OK\r\n");
    let locks = Locks::connect(server.url()).await.unwrap();
    let others = Locks::connect(server.url()).await.unwrap();
    let wait = Duration::from_secs(5);
    let first = tokio::spawn(locks.lock("x").wait(wait).acquire());
    until_waiting(&locks, "x", 1).await;
    let second = tokio::spawn(others.lock("x").wait(LONG).acquire());
    until_waiting(&locks, "x", 2).await;
    let error = first.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(server.command("DEL leasehold:x"), ":1\r\n");
    second.await.unwrap().unwrap().release().await.unwrap();
}
