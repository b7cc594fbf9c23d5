//! A waiter that hangs with its connection open holds up those behind it for an offer, not for a TTL.

use std::time::Duration;

use leasehold::{Claimant, Lease, Locks};
use tokio::task::JoinHandle;

use crate::support::deployment::Deployment;
use crate::support::proxy::{Link, Proxy};
use crate::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(30);

/// A few offers, with time to spare on a busy machine; far less than the TTL.
const SOON: Duration = Duration::from_secs(12);

/// Queues for the lock, and returns once it is in the queue.
async fn queue(url: &str, place: usize) -> JoinHandle<leasehold::Result<Lease>> {
    queue_with(Locks::connect(url).await.unwrap(), place).await
}

async fn queue_with(locks: Locks, place: usize) -> JoinHandle<leasehold::Result<Lease>> {
    let waiting = tokio::spawn(locks.lock("x").ttl(TTL).wait_forever().acquire());
    while locks.inspect("x").await.unwrap().waiters.len() < place {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The listener may have been told of after the first attempt.
    tokio::time::sleep(Duration::from_millis(200)).await;
    waiting
}

async fn is_served(waiting: JoinHandle<leasehold::Result<Lease>>) {
    let served = tokio::time::timeout(SOON, waiting).await;
    let lease = served.expect("the lock stays free").unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hung_waiters_do_not_stop_the_third() {
    let server = RedisServer::start();
    let (one, two) = (Proxy::to(server.port).await, Proxy::to(server.port).await);
    let held = Locks::connect(server.url()).await.unwrap();
    let held = held.lock("x").ttl(TTL).acquire().await.unwrap();
    let at = |proxy: &Proxy| format!("redis://127.0.0.1:{}", proxy.port);
    let first = queue(&at(&one), 1).await;
    let second = queue(&at(&two), 2).await;
    let third = queue(&server.url(), 3).await;
    one.set(Link::Hang);
    two.set(Link::Hang);
    held.release().await.unwrap();
    is_served(third).await;
    first.abort();
    second.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_leaves_behind_a_hung_one_tells_the_next() {
    let server = RedisServer::start();
    let hung = Proxy::to(server.port).await;
    let held = Locks::connect(server.url()).await.unwrap();
    let held = held.lock("x").ttl(TTL).acquire().await.unwrap();
    let first = queue(&format!("redis://127.0.0.1:{}", hung.port), 1).await;
    let second = queue(&server.url(), 2).await;
    let third = queue(&server.url(), 3).await;
    hung.set(Link::Hang);
    held.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    second.abort();
    is_served(third).await;
    first.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_two_hung_waiters_do_not_stop_the_third() {
    let nodes = Deployment::start(3);
    nodes.has_stood_a_while();
    let (mut proxies, one) = nodes.through_proxies().await;
    let (more, two) = nodes.through_proxies().await;
    proxies.extend(more);
    let held = Locks::connect(nodes.url()).await.unwrap();
    let held = held.lock("x").ttl(TTL).acquire().await.unwrap();
    let first = queue(&one, 1).await;
    let second = queue(&two, 2).await;
    let third = queue(&nodes.url(), 3).await;
    for proxy in &proxies {
        proxy.set(Link::Hang);
    }
    held.release().await.unwrap();
    is_served(third).await;
    first.abort();
    second.abort();
}

/// A lock that is cut short, by `hold_at_least`, ends without a release that would offer it to anyone.
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_cut_short_does_not_stay_with_a_hung_waiter() {
    let server = RedisServer::start();
    let hung = Proxy::to(server.port).await;
    let held = Locks::connect(server.url()).await.unwrap();
    let held = held.lock("x").ttl(TTL);
    let held = held.hold_at_least(Duration::from_secs(3)).acquire();
    let held = held.await.unwrap();
    let first = queue(&format!("redis://127.0.0.1:{}", hung.port), 1).await;
    let second = queue(&server.url(), 2).await;
    hung.set(Link::Hang);
    held.release().await.unwrap();
    is_served(second).await;
    first.abort();
}

/// Only the first and the last in the queue were told that the lock ends sooner.
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_cut_short_is_noticed_by_whoever_stays() {
    let server = RedisServer::start();
    let held = Locks::connect(server.url()).await.unwrap();
    let held = held.lock("x").ttl(TTL);
    let held = held.hold_at_least(Duration::from_secs(5)).acquire();
    let held = held.await.unwrap();
    let first = queue(&server.url(), 1).await;
    let second = queue(&server.url(), 2).await;
    let third = queue(&server.url(), 3).await;
    held.release().await.unwrap();
    first.abort();
    third.abort();
    is_served(second).await;
}

/// Those who are to look when an offer is over must not all be of one process that hangs, nor of one host.
#[tokio::test(flavor = "multi_thread")]
async fn hung_host_that_has_most_of_the_queue_does_not_stop_the_others() {
    for of_one_process in [true, false] {
        let server = RedisServer::start();
        let hung = Proxy::to(server.port).await;
        let held = Locks::connect(server.url()).await.unwrap();
        let held = held.lock("x").ttl(TTL).acquire().await.unwrap();
        let there = format!("redis://127.0.0.1:{}", hung.port);
        let one = Locks::connect(&there).await.unwrap();
        let on_hung_host = async || {
            let locks = match of_one_process {
                true => one.clone(),
                false => Locks::connect(&there).await.unwrap(),
            };
            let who = Claimant::new("waiter", "hung.example", 1);
            locks.on_behalf_of(who).unwrap()
        };
        let first = queue_with(on_hung_host().await, 1).await;
        let second = queue(&server.url(), 2).await;
        let third = queue_with(on_hung_host().await, 3).await;
        let fourth = queue_with(on_hung_host().await, 4).await;
        hung.set(Link::Hang);
        held.release().await.unwrap();
        is_served(second).await;
        for waiter in [first, third, fourth] {
            waiter.abort();
        }
    }
}
