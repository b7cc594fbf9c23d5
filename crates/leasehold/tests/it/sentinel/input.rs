//! Sentinels and URLs that cannot serve: each says what, where and what to do, and no password is shown.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::free_port;
use crate::support::redis_sentinels::{SERVICE, Sentinels, sentinel, url};
use crate::support::redis_server::RedisServer;
use leasehold::{ErrorKind, Locks};

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn one(port: u16, options: &str) -> String {
    url([port], &format!("{SERVICE}?timeout=1s{options}"))
}

#[tokio::test]
async fn name_that_sentinels_do_not_know_is_refused() {
    let server = RedisServer::start();
    let sentinel = sentinel(server.port, &[]);
    let error = refused(&url([sentinel.port], "orders")).await;
    check(
        &error,
        ErrorKind::InvalidConfig,
        "\"orders\"",
        &at(sentinel.port),
    );
    assert!(error.advice().unwrap().contains(SERVICE), "{error}");
}

#[tokio::test]
async fn sentinels_that_disagree_are_refused() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let sentinels = servers.each_ref().map(|server| sentinel(server.port, &[]));
    let ports = sentinels.each_ref().map(|sentinel| sentinel.port);
    let error = refused(&url(ports, SERVICE)).await;
    check(&error, ErrorKind::Unreachable, "disagree", &at(ports[0]));
    for server in &servers {
        assert!(error.what().contains(&at(server.port)), "{error}");
    }
    // A third decides.
    let third = sentinel(servers[1].port, &[]);
    let decided = url([ports[0], ports[1], third.port], SERVICE);
    let locks = Locks::connect(format!("{decided}?wait_replicas=0"));
    let locks = locks.await.unwrap();
    let [warning] = &locks.warnings()[..] else {
        panic!("one warning: {:?}", locks.warnings());
    };
    assert!(warning.contains(&at(ports[0])), "{warning}");
    locks.lock("x").acquire().await.unwrap().detach();
    assert!(servers[1].command("EXISTS leasehold:x").contains(":1"));
}

#[tokio::test]
async fn sentinel_that_asks_for_a_password_is_told_so() {
    let server = RedisServer::start();
    let line = format!("requirepass {PASSWORD}");
    let sentinel = sentinel(server.port, &[&line]);
    let port = sentinel.port;
    for options in ["", "&sentinel_password=wrong"] {
        let error = refused(&one(port, options)).await;
        check(&error, ErrorKind::Denied, "sentinel", &at(port));
        let advice = error.advice().unwrap();
        assert!(advice.contains("sentinel_password"), "{error}");
    }
    let options = format!("&wait_replicas=0&sentinel_password={PASSWORD}");
    let locks = Locks::connect(one(port, &options)).await.unwrap();
    assert!(!locks.location().contains(PASSWORD), "{}", locks.location());
    assert!(!format!("{locks:?}").contains(PASSWORD));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

/// The rights that the documentation names are enough.
#[tokio::test]
async fn user_with_just_the_rights_it_needs_at_sentinels() {
    let server = RedisServer::start();
    let user = format!("user app on >{PASSWORD} +@connection +sentinel|get-master-addr-by-name");
    let sentinel = sentinel(server.port, &["user default off", &user]);
    let options = format!("&wait_replicas=0&sentinel_user=app&sentinel_password={PASSWORD}");
    let locks = Locks::connect(one(sentinel.port, &options)).await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
    let unknown = format!("orders?sentinel_user=app&sentinel_password={PASSWORD}");
    let error = refused(&url([sentinel.port], &unknown)).await;
    check(
        &error,
        ErrorKind::InvalidConfig,
        "\"orders\"",
        &at(sentinel.port),
    );
}

#[tokio::test]
async fn password_of_the_primary_is_not_that_of_sentinels() {
    let server = RedisServer::with(&["--requirepass", PASSWORD]);
    let line = format!("sentinel auth-pass {SERVICE} {PASSWORD}");
    let sentinel = sentinel(server.port, &[&line]);
    let rest = format!("{}/{SERVICE}?wait_replicas=0", at(sentinel.port));
    let error = refused(&format!("redis+sentinel://{rest}")).await;
    check(
        &error,
        ErrorKind::Denied,
        &at(server.port),
        &at(sentinel.port),
    );
    let url = format!("redis+sentinel://:{PASSWORD}@{rest}");
    let locks = Locks::connect(url).await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn ordinary_server_in_place_of_a_sentinel_is_refused() {
    let server = RedisServer::start();
    let error = refused(&one(server.port, "")).await;
    check(
        &error,
        ErrorKind::EngineUnfit,
        "not a sentinel",
        &at(server.port),
    );
    let sentinel = sentinel(server.port, &[]);
    let error = refused(&format!("redis://{}", at(sentinel.port))).await;
    check(
        &error,
        ErrorKind::EngineUnfit,
        "a sentinel",
        &at(sentinel.port),
    );
    assert!(error.advice().unwrap().contains("redis+sentinel://"));
}

#[tokio::test]
async fn sentinels_that_do_not_answer_are_named() {
    let ports = [free_port(), free_port()];
    let error = refused(&url(ports, SERVICE)).await;
    check(&error, ErrorKind::Unreachable, "no sentinel", &at(ports[0]));
    assert!(error.what().contains(&at(ports[1])), "{error}");
}

#[tokio::test]
async fn primary_that_cannot_be_reached_is_named() {
    let nobody = free_port();
    let sentinel = sentinel(nobody, &[]);
    let error = refused(&one(sentinel.port, "")).await;
    check(
        &error,
        ErrorKind::Unreachable,
        &at(nobody),
        &at(sentinel.port),
    );
    assert!(error.advice().unwrap().contains("announce"), "{error}");
}

/// A failover may be under way: an acquire that waits goes on until its deadline.
#[tokio::test]
async fn primary_that_has_gone_is_waited_for() {
    let server = RedisServer::start();
    let sentinel = sentinel(server.port, &[]);
    let locks = Locks::connect(one(sentinel.port, "&wait_replicas=0")).await;
    let locks = locks.unwrap();
    server.kill();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    check(&error, ErrorKind::Unreachable, "", &at(sentinel.port));
    let waiting = tokio::spawn(locks.lock("a").wait(Duration::from_secs(60)).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    server.revive();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn replica_in_place_of_the_primary_is_refused() {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = RedisServer::with(&["--replicaof", &of]);
    let sentinel = sentinel(replica.port, &[]);
    let error = refused(&one(sentinel.port, "")).await;
    check(
        &error,
        ErrorKind::Unreachable,
        "no longer the primary",
        &at(sentinel.port),
    );
}

#[tokio::test]
async fn primary_without_replicas_grants_nothing_by_default() {
    let server = RedisServer::start();
    let sentinel = sentinel(server.port, &[]);
    let locks = Locks::connect(one(sentinel.port, "")).await;
    let locks = locks.unwrap();
    let error = locks.lock("a").acquire().await.unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        "0 of 1 replicas",
        &at(sentinel.port),
    );
    assert!(server.command("EXISTS leasehold:a").contains(":0"));
}

#[tokio::test]
async fn sentinel_that_is_down_is_warned_of() {
    let all = tokio::task::spawn_blocking(Sentinels::start).await.unwrap();
    let gone = &all.sentinels[2];
    gone.stop(nix::sys::signal::Signal::SIGKILL);
    let locks = Locks::connect(all.url()).await.unwrap();
    let warnings = locks.warnings();
    let [warning] = &warnings[..] else {
        panic!("one warning: {warnings:?}");
    };
    assert!(warning.contains(&at(gone.port)), "{warning}");
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    let table = [
        ("redis+sentinel:", "names its servers"),
        ("redis+sentinel:///mymaster", "names its servers"),
        ("redis+sentinel://a,b,c", "not the name"),
        ("redis+sentinel://a,b,c/", "not the name"),
        ("redis+sentinel://a,b,c/x/2", "not the name"),
        ("redis+sentinel://a,b,a/x", "twice"),
        ("redis+sentinel://a:x/x", "not a port"),
        ("redis+sentinel://a/x?db=y", "db=y"),
        ("redis+sentinel://a/x?wait_replicas=y", "wait_replicas=y"),
        ("redis+sentinel://a/x?max_ttl=60s", "failover"),
        ("redis+sentinel://a/x?quorum=2", "quorum"),
        ("rediss+sentinel://a/x?colour=red", "colour"),
    ];
    for (url, says) in table {
        let error = refused(url).await;
        check(&error, ErrorKind::InvalidConfig, says, "");
    }
    let wrong = format!("redis+sentinel://a:x/x?sentinel_password={PASSWORD}");
    check(
        &refused(&wrong).await,
        ErrorKind::InvalidConfig,
        "not a port",
        "",
    );
}
