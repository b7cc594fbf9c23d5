//! Claims that wait through one process on behalf of others, as a server's do: those that nobody waits for any more hold up nobody, and those that come
//! back through another process keep their places.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::claim;
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::requests::{Gate, Requests, Which};
use crate::support::times::{ms, secs, until};
use leasehold::engine::{Attempt, Renew};
use leasehold::{Broker, Brokered, Claim, Lease, Locks, Mode, Released, Wait};

fn queueing(ttl: Duration) -> Claim {
    let mut claim = claim("x", ttl);
    claim.queues = true;
    claim
}

async fn hold(locks: &Locks) -> Lease {
    locks.lock("x").ttl(secs(60)).acquire().await.unwrap()
}

async fn queue(broker: &Broker, claim: &Claim) {
    let attempt = broker.try_acquire(claim).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
}

async fn waiters(locks: &Locks) -> usize {
    locks.inspect("x").await.unwrap().waiters.len()
}

/// Waits as a server does for its client, and returns when it entered.
async fn enters(broker: Broker, claim: Claim) -> Instant {
    let waited = broker.acquire(&claim, Wait::UpTo(secs(50)), |_| {}).await;
    let waited = waited.unwrap();
    assert!(matches!(waited, Brokered::Granted(_)), "{waited:?}");
    Instant::now()
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_leaves_the_queue_holds_up_nobody() {
    let cluster = EtcdCluster::start(1);
    let [one, two] = cluster.connect().await;
    let held = hold(&one).await;
    let (first, second) = (queueing(secs(30)), queueing(secs(30)));
    queue(&two.broker(), &first).await;
    two.broker().leave_queue(&first).await.unwrap();
    assert_eq!(waiters(&one).await, 0);
    let waiting = tokio::spawn(enters(two.broker(), second.clone()));
    until("it waits", async || waiters(&one).await == 1).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let took = waiting.await.unwrap() - released;
    assert!(took < secs(1), "{took:?}");
    two.broker().release(&second).await.unwrap();
    let next = one.lock("x").try_acquire().await.unwrap();
    assert!(next.is_some(), "nobody holds it");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_leaves_at_its_turn_keeps_nothing() {
    let cluster = EtcdCluster::start(1);
    let [one, two] = cluster.connect().await;
    let held = hold(&one).await;
    let first = queueing(secs(30));
    queue(&two.broker(), &first).await;
    held.release().await.unwrap();
    two.broker().leave_queue(&first).await.unwrap();
    let next = one.lock("x").wait(secs(3)).acquire().await;
    assert!(next.is_ok(), "{next:?}");
}

/// The process lives on, and goes on keeping its lease alive for others that wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_fails_to_leave_the_queue_ends() {
    let cluster = EtcdCluster::start(1);
    let [one] = cluster.connect().await;
    let network = Requests::to(cluster.client_port(0)).await;
    let url = format!("etcd://127.0.0.1:{}?timeout=1s", network.port);
    let two = Locks::connect(url).await.unwrap();
    let _held = hold(&one).await;
    let first = queueing(secs(30));
    queue(&two.broker(), &first).await;
    network.set(Gate::Shut);
    assert!(two.broker().leave_queue(&first).await.is_err());
    network.set(Gate::Open);
    until("it has left", async || waiters(&one).await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_the_queue_takes_nothing_from_a_holder() {
    let cluster = EtcdCluster::start(1);
    let [one, two] = cluster.connect().await;
    let first = queueing(secs(30));
    let attempt = two.broker().try_acquire(&first).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
    for broker in [two.broker(), one.broker()] {
        broker.leave_queue(&first).await.unwrap();
        tokio::time::sleep(ms(500)).await;
        let next = one.lock("x").try_acquire().await.unwrap();
        assert!(next.is_none(), "two hold the lock");
    }
}

/// Its process lives and keeps its place, but the task that waits does not run.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_not_polled_does_not_hold_up_its_process() {
    let cluster = EtcdCluster::start(1);
    let [one, two] = cluster.connect().await;
    let held = hold(&one).await;
    let mut asleep = Box::pin(two.lock("x").wait_forever().acquire());
    let polled = tokio::time::timeout(ms(500), &mut asleep).await;
    assert!(polled.is_err());
    let second = queueing(secs(30));
    let waiting = tokio::spawn(enters(two.broker(), second));
    until("both wait", async || waiters(&one).await == 2).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let took = waiting.await.unwrap() - released;
    assert!(took < secs(20), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_come_back_by_another_process_in_order() {
    let cluster = EtcdCluster::start(1);
    let [holder, one, other] = cluster.connect().await;
    let held = hold(&holder).await;
    let (first, second) = (queueing(secs(30)), queueing(secs(30)));
    queue(&one.broker(), &first).await;
    queue(&one.broker(), &second).await;
    for claim in [&second, &first] {
        let before = other.engine().about().requests.unwrap();
        queue(&other.broker(), claim).await;
        let asked = other.engine().about().requests.unwrap() - before;
        assert!(asked < 10, "{asked} requests");
    }
    // Its leases end, with all that is under them.
    drop(one);
    tokio::time::sleep(secs(4)).await;
    let waiting = [&first, &second].map(|claim| {
        let (broker, claim) = (other.broker(), claim.clone());
        tokio::spawn(async move {
            let entered = enters(broker.clone(), claim.clone()).await;
            tokio::time::sleep(ms(50)).await;
            broker.release(&claim).await.unwrap();
            entered
        })
    });
    assert_eq!(waiters(&holder).await, 2);
    held.release().await.unwrap();
    let [first, second] = waiting;
    assert!(first.await.unwrap() < second.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_came_back_elsewhere_is_not_given_up() {
    let cluster = EtcdCluster::start(1);
    let [holder, one, other] = cluster.connect().await;
    let held = hold(&holder).await;
    let first = queueing(secs(30));
    queue(&one.broker(), &first).await;
    // Nor does one that does not queue take it along.
    other.broker().leave_queue(&first).await.unwrap();
    assert_eq!(waiters(&holder).await, 1);
    queue(&other.broker(), &first).await;
    one.broker().leave_queue(&first).await.unwrap();
    assert_eq!(waiters(&holder).await, 1);
    let waiting = tokio::spawn(enters(other.broker(), first));
    held.release().await.unwrap();
    waiting.await.unwrap();
}

/// A claim that has waited through the first process, holds the lock through the second, and was renewed through the first, which has no answer
/// to that and still remembers its place in the queue.
async fn held_elsewhere_and_renewed_here(network: &Requests, here: &Locks, other: &Locks) -> Claim {
    let held = hold(other).await;
    let claim = queueing(secs(60));
    queue(&here.broker(), &claim).await;
    queue(&other.broker(), &claim).await;
    let waiting = tokio::spawn(enters(other.broker(), claim.clone()));
    held.release().await.unwrap();
    waiting.await.unwrap();
    // Of all requests of a renewal by claim id, only the one that moves its key names it.
    network.set(Gate::UnansweredFrom(Which::Naming(claim.id.reveal())));
    let renewed = here.broker().renew(&[Renew::new(&claim)]).await;
    assert!(renewed[0].is_err(), "{renewed:?}");
    assert!(network.is_met(secs(0)).await, "its key was not moved");
    claim
}

/// The time in which a claim of the shortest TTL would end, or a deletion that has failed be repeated, many times over.
async fn is_held_for_a_while(locks: &Locks) {
    let end = Instant::now() + secs(3);
    while Instant::now() < end {
        let next = locks.lock("x").try_acquire().await.unwrap();
        assert!(next.is_none(), "two hold the lock");
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_after_a_lost_renewal_ends_no_holder() {
    let cluster = EtcdCluster::start(1);
    let [other, third] = cluster.connect().await;
    let network = Requests::to(cluster.client_port(0)).await;
    let url = format!("etcd://127.0.0.1:{}?timeout=1s", network.port);
    let here = Locks::connect(url).await.unwrap();
    let claim = held_elsewhere_and_renewed_here(&network, &here, &other).await;
    network.set(Gate::Open);
    until("it has left", async || {
        here.broker().leave_queue(&claim).await.is_ok()
    })
    .await;
    is_held_for_a_while(&third).await;
    let released = other.broker().release(&claim).await.unwrap();
    assert_eq!(released, Released::Yes);
}

/// It is deleted later then, in the background.
#[tokio::test(flavor = "multi_thread")]
async fn failed_leave_after_a_lost_renewal_ends_no_holder() {
    let cluster = EtcdCluster::start(1);
    let [other, third] = cluster.connect().await;
    let network = Requests::to(cluster.client_port(0)).await;
    let url = format!("etcd://127.0.0.1:{}?timeout=1s", network.port);
    let here = Locks::connect(url).await.unwrap();
    let claim = held_elsewhere_and_renewed_here(&network, &here, &other).await;
    network.set(Gate::Shut);
    assert!(here.broker().leave_queue(&claim).await.is_err());
    network.set(Gate::Open);
    is_held_for_a_while(&third).await;
    let released = other.broker().release(&claim).await.unwrap();
    assert_eq!(released, Released::Yes);
}

/// It is its turn, but nobody takes the lock for it, while another permit is in use.
#[tokio::test(flavor = "multi_thread")]
async fn idle_permit_behind_a_holder_holds_up_nobody() {
    let cluster = EtcdCluster::start(1);
    let [one, two, three] = cluster.connect().await;
    let permit = |locks: &Locks| locks.lock("x").permits(2).ttl(secs(60));
    let _held = permit(&one).acquire().await.unwrap();
    let leaves = permit(&one).acquire().await.unwrap();
    let mut idle = queueing(secs(60));
    idle.mode = Mode::Permit { of: 2 };
    queue(&two.broker(), &idle).await;
    let waiting = tokio::spawn(permit(&three).wait(secs(40)).acquire());
    until("both wait", async || waiters(&one).await == 2).await;
    leaves.release().await.unwrap();
    let entered = waiting.await.unwrap();
    assert!(entered.is_ok(), "{entered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn break_in_a_hand_over_costs_nobody_its_place() {
    let cluster = EtcdCluster::start(1);
    let [one, two] = cluster.connect().await;
    let held = hold(&one).await;
    let next = queueing(secs(30));
    queue(&two.broker(), &next).await;
    held.release().await.unwrap();
    let shown = one.inspect("x").await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (0, 1));
    let broken = one.force_release("x").await.unwrap();
    assert_eq!(broken, Released::WasNotHeld);
    let attempt = two.broker().try_acquire(&next).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
}

/// Of permits, one may be in use behind one whose turn has come.
#[tokio::test(flavor = "multi_thread")]
async fn permit_behind_an_idle_one_is_shown_and_broken() {
    let cluster = EtcdCluster::start(1);
    let [one, two] = cluster.connect().await;
    let mode = Mode::Permit { of: 2 };
    let held = [(); 2].map(|()| one.lock("x").permits(2).ttl(secs(60)).acquire());
    let held = futures_util::future::join_all(held).await;
    let [mut idle, mut next] = [(); 2].map(|()| queueing(secs(60)));
    (idle.mode, next.mode) = (mode, mode);
    queue(&two.broker(), &idle).await;
    queue(&two.broker(), &next).await;
    for held in held {
        held.unwrap().release().await.unwrap();
    }
    let attempt = two.broker().try_acquire(&next).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
    let shown = one.inspect("x").await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
    assert_eq!(one.force_release("x").await.unwrap(), Released::Yes);
    let shown = one.inspect("x").await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn break_whose_first_answer_was_lost_is_told() {
    let cluster = EtcdCluster::start(1);
    let [one] = cluster.connect().await;
    let network = Requests::to(cluster.client_port(0)).await;
    let hosts = format!("127.0.0.1:{},{}", network.port, cluster.host(0));
    let operator = Locks::connect(format!("etcd://{hosts}?attempt_timeout=1s"));
    let operator = operator.await.unwrap();
    let held = hold(&one).await;
    let key = held.claim_id().reveal();
    network.set(Gate::UnansweredFrom(Which::Naming(key)));
    let broken = operator.force_release("x").await.unwrap();
    assert!(network.is_met(secs(0)).await, "it was answered at once");
    assert_eq!(broken, Released::Yes);
}
