//! What attempts, releases and clients leave behind on Redis and Redlock: nothing.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use super::common::{LONG, claim, ms};
use crate::support::deployment::Deployment;
use crate::support::redis_server::RedisServer;
use leasehold::engine::{Attempt, Engine};
use leasehold::{Claim, Effect, ErrorKind, Locks};

/// How often something stands in what an engine says of itself.
fn mentions(engine: &Arc<dyn Engine>, what: &str) -> usize {
    format!("{engine:?}").matches(what).count()
}

/// A claim that waits for `x`, which somebody holds: from its first refusal on, the process listens.
async fn waiting_claim(engine: &Arc<dyn Engine>) -> Claim {
    let waiter = claim("x", LONG, true);
    let refused = engine.try_acquire(&waiter).await;
    assert!(matches!(refused, Ok(Attempt::Held(_))), "{refused:?}");
    assert_eq!(mentions(engine, "Mailbox {"), 1);
    waiter
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_fail_leave_nothing_in_this_process() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let holder = locks.lock("x").acquire().await.unwrap();
    let waiter = waiting_claim(engine).await;
    engine.release(&waiter).await.unwrap();
    server.command("RPUSH leasehold:bad x");
    for _ in 0..50 {
        let error = engine
            .try_acquire(&claim("bad", LONG, true))
            .await
            .unwrap_err();
        assert_eq!(error.effect(), Effect::None, "the core does not release it");
    }
    assert_eq!(mentions(engine, "Mailbox {"), 0);
    holder.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_fails_leaves_nothing_in_this_process() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let holder = locks.lock("x").acquire().await.unwrap();
    let waiter = waiting_claim(engine).await;
    server.kill();
    assert!(engine.release(&waiter).await.is_err());
    assert_eq!(mentions(engine, "Mailbox {"), 0);
    holder.detach();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_left_leaves_nothing_in_this_process() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let holder = locks.lock("x").acquire().await.unwrap();
    let waiter = waiting_claim(engine).await;
    locks.broker().leave_queue(&waiter).await.unwrap();
    assert_eq!(mentions(engine, "Mailbox {"), 0);
    holder.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_in_quarantine_leave_nothing_in_this_process() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let engine = locks.engine();
    for _ in 0..50 {
        let error = engine
            .try_acquire(&claim("x", ms(1000), false))
            .await
            .unwrap_err();
        assert_eq!(error.effect(), Effect::None, "{error}");
    }
    assert_eq!(mentions(engine, "FencingToken("), 0);
}

/// The text of a reply to a command that answers with a list of one, or with one text.
fn last_line(reply: &str) -> &str {
    reply.lines().last().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_come_and_go_leave_the_register_alone() {
    let server = RedisServer::start();
    let holder = Locks::connect(server.url()).await.unwrap();
    let held = holder.lock("held").ttl(LONG).acquire().await.unwrap();
    for nth in 0..50 {
        let locks = Locks::connect(server.url()).await.unwrap();
        let lease = locks.lock(format!("x{nth}")).acquire().await.unwrap();
        let error = locks.lock("held").wait(ms(1)).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        lease.release().await.unwrap();
        locks.flush().await;
    }
    held.release().await.unwrap();
    assert_eq!(last_line(&server.command("DBSIZE")), ":1");
}
