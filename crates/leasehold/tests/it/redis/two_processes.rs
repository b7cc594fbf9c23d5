//! Claims that are asked for again, through the same process or another, as by servers behind a load balancer: what one attempt gives up takes nothing
//! away that the claim has got by another.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::common::{LONG, claim, ms, until};
use super::faults::replicated;
use crate::support::deployment::Deployment;
use crate::support::proxy::Link;
use crate::support::redis_server::RedisServer;
use leasehold::clock::Clock;
use leasehold::engine::{Attempt, Grant};
use leasehold::{Claim, Locks};

fn take(server: &RedisServer, time: u64) {
    server.command(&format!("SET leasehold:x stranger PX {time}"));
}

fn is_free(server: &RedisServer) -> bool {
    server.command("EXISTS leasehold:x").contains(":0")
}

fn votes_for(server: &RedisServer, claim: &Claim) -> bool {
    server
        .command("GET leasehold:x")
        .contains(&claim.id.reveal())
}

fn votes_for_token(server: &RedisServer, grant: Grant) -> bool {
    let token = format!(":{}:", grant.token.get());
    server.command("GET leasehold:x").contains(&token)
}

async fn granted(locks: &Locks, claim: &Claim) -> Grant {
    match locks.broker().try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        held => panic!("{held:?}"),
    }
}

async fn nobody_enters_beside(grant: Grant, locks: &Locks) {
    let other = locks.lock("x").ttl(ms(5000)).try_acquire().await.unwrap();
    let is_valid = grant.valid_until > Clock::machine().now();
    assert!(is_valid, "the host stood still");
    assert!(other.is_none(), "two hold the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_that_leaves_a_queue_takes_no_votes_away() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let one = Locks::connect(url).await.unwrap();
    let other = Locks::connect(nodes.url()).await.unwrap();
    let claim = claim("x", LONG, false);
    // Two nodes vote for it, and one of these cannot be reached from the first process.
    take(&nodes.nodes[2], 300);
    let grant = granted(&other, &claim).await;
    until("the third node is free", || is_free(&nodes.nodes[2])).await;
    proxies[1].set(Link::Refuse);
    let _ = one.broker().leave_queue(&claim).await;
    tokio::time::sleep(ms(100)).await;
    nobody_enters_beside(grant, &other).await;
    assert!(votes_for(&nodes.nodes[0], &claim));
}

/// The first attempt has been answered with the lock, and the second finds too few of its votes.
#[tokio::test(flavor = "multi_thread")]
async fn redlock_claim_asked_again_keeps_its_votes() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let one = Locks::connect(url).await.unwrap();
    let other = Locks::connect(nodes.url()).await.unwrap();
    let claim = claim("x", LONG, false);
    take(&nodes.nodes[2], 300);
    let grant = granted(&one, &claim).await;
    until("the third node is free", || is_free(&nodes.nodes[2])).await;
    proxies[1].set(Link::Refuse);
    let _ = one.broker().leave_queue(&claim).await;
    assert!(votes_for_token(&nodes.nodes[0], grant), "its vote is gone");
    let _ = one.broker().try_acquire(&claim).await;
    assert!(votes_for_token(&nodes.nodes[0], grant), "its vote is gone");
    // What is told later to the node that did not answer takes nothing away either.
    let before = nodes.nodes[1].calls("script|exists");
    proxies[1].set(Link::Open);
    until("it has recovered", || {
        nodes.nodes[1].calls("script|exists") > before
    })
    .await;
    tokio::time::sleep(ms(100)).await;
    assert!(votes_for_token(&nodes.nodes[1], grant), "its vote is gone");
    until("the third node is free", || is_free(&nodes.nodes[2])).await;
    nobody_enters_beside(grant, &other).await;
}

/// A vote of each of two processes, which both know of, on the only nodes that are there.
#[tokio::test(flavor = "multi_thread")]
async fn redlock_votes_split_by_two_processes_end() {
    let ttl = ms(2000);
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let one = Locks::connect(nodes.url()).await.unwrap();
    let other = Locks::connect(nodes.url()).await.unwrap();
    let claim = claim("x", ttl, true);
    let (id, renewed) = (claim.id.reveal(), (1_u64 << 53) - 1);
    let now = leasehold::wall_clock_micros();
    for (node, token) in [(0, now), (1, now + 1)] {
        let value = format!("{id}={renewed}:2000:{token}:{now}:10:{{}}");
        let node: &RedisServer = &nodes.nodes[node];
        node.command(&format!("SET leasehold:x {value} PX 2000"));
        assert!(votes_for(node, &claim));
    }
    nodes.nodes[2].kill();
    let wait = |locks: &Locks| {
        let request = locks.lock("x").ttl(ttl).claim_id(claim.id).wait(LONG);
        async move { request.acquire().await }
    };
    let later = async {
        // Each looks when the other's votes would be half over.
        tokio::time::sleep(ttl / 2).await;
        wait(&other).await
    };
    let entered = async {
        tokio::select! {
            lease = wait(&one) => lease,
            lease = later => lease,
        }
    };
    // Twice the TTL is enough on a machine that does nothing else.
    let entered = tokio::time::timeout(5 * ttl, entered).await;
    entered.expect("the lock is shut").unwrap().detach();
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_node_that_recovers_keeps_votes_given_meanwhile() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let one = Locks::connect(url).await.unwrap();
    let other = Locks::connect(nodes.url()).await.unwrap();
    let claim = claim("x", LONG, false);
    take(&nodes.nodes[0], 300);
    take(&nodes.nodes[2], 3000);
    proxies[1].set(Link::Refuse);
    // Held, and one node is left out: it is told later that this attempt has come to nothing.
    let refused = one.broker().try_acquire(&claim).await.unwrap();
    assert!(matches!(refused, Attempt::Held(_)), "{refused:?}");
    until("the first node is free", || is_free(&nodes.nodes[0])).await;
    let grant = granted(&other, &claim).await;
    let before = nodes.nodes[1].calls("evalsha");
    proxies[1].set(Link::Open);
    until("it has been told", || {
        nodes.nodes[1].calls("evalsha") > before
    })
    .await;
    assert!(votes_for(&nodes.nodes[1], &claim), "its vote is gone");
    until("the third node is free", || is_free(&nodes.nodes[2])).await;
    nobody_enters_beside(grant, &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_that_is_not_copied_releases_nothing() {
    let (primary, _replica, link) = replicated().await;
    let url = format!("{}?wait_replicas=1&timeout=600ms", primary.url());
    let one = Locks::connect(&url).await.unwrap();
    let other = Locks::connect(&url).await.unwrap();
    let claim = claim("x", LONG, false);
    let broker = other.broker();
    let grant = loop {
        // A replica that has just connected may take a moment to acknowledge.
        if let Ok(Attempt::Granted(grant)) = broker.try_acquire(&claim).await {
            break grant;
        }
    };
    link.set(Link::Hang);
    assert!(one.broker().leave_queue(&claim).await.is_err());
    let plain = Locks::connect(primary.url()).await.unwrap();
    nobody_enters_beside(grant, &plain).await;
}
