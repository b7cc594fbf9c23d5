//! A claim on ZooKeeper holds the lock by what stands in the queue, whatever other programs do to its nodes.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::support::claim;
use crate::support::proxy::{Link, Proxy};
use crate::support::times::until;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::engine::Attempt;
use leasehold::{Claim, ErrorKind, Lease, Locks, Mode, Released};
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions};

fn sent(locks: &Locks) -> u64 {
    locks.engine().about().requests.unwrap()
}

/// A session that asks for nothing by itself for as long as these tests take.
async fn connect(cluster: &ZooKeeperCluster) -> Locks {
    let url = format!("{}?session_timeout=10m", cluster.url());
    Locks::connect(url).await.unwrap()
}

fn quiet_cluster() -> ZooKeeperCluster {
    ZooKeeperCluster::with(1, "maxSessionTimeout=600000")
}

async fn cycles(locks: &Locks, count: usize) {
    for _ in 0..count {
        let lease = locks.lock("x").acquire().await.unwrap();
        lease.release().await.unwrap();
    }
}

/// Waits in line, with a watch.
async fn waiting(locks: &Locks) -> JoinHandle<Lease> {
    let before = sent(locks);
    let request = locks.lock("x").wait_forever();
    let waiter = tokio::spawn(async move { request.acquire().await.unwrap() });
    until("it watches", async || sent(locks) >= before + 3).await;
    waiter
}

/// One holds the lock and two wait, each in a session of its own.
struct Line {
    first: Lease,
    second: JoinHandle<Lease>,
    third: JoinHandle<Lease>,
    /// The handle of the third.
    last: Locks,
}

async fn three_in_line(cluster: &ZooKeeperCluster) -> Line {
    let holder = connect(cluster).await;
    let last = connect(cluster).await;
    Line {
        first: holder.lock("x").acquire().await.unwrap(),
        second: waiting(&connect(cluster).await).await,
        third: waiting(&last).await,
        last,
    }
}

/// The lock's node, as its claims see it from outside.
const LOCK: &str = "/leasehold/x";

fn sequential() -> CreateOptions<'static> {
    CreateMode::EphemeralSequential.with_acls(Acls::anyone_all())
}

/// The paths of the claims' nodes, the first in the queue first.
async fn in_queue(client: &Client) -> Vec<String> {
    let mut nodes = client.list_children(LOCK).await.unwrap();
    nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
    let paths = nodes.iter().map(|node| format!("{LOCK}/{node}"));
    paths.collect()
}

/// Another program holds the lock; a waiter whose node was deleted stands behind it, and enters once it has gone.
async fn enters_after(client: &Client, theirs: &str, waiter: JoinHandle<Lease>) {
    until("it has queued again", async || {
        in_queue(client).await.len() == 2 || waiter.is_finished()
    })
    .await;
    assert!(!waiter.is_finished(), "it entered beside another");
    let (_, stat) = client.get_data(theirs).await.unwrap();
    client.delete(theirs, None).await.unwrap();
    let lease = waiter.await.unwrap();
    assert!(lease.token().get() > stat.czxid as u64);
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_deleted_together_with_the_holder_queues_again() {
    let cluster = quiet_cluster();
    let holder = connect(&cluster).await;
    let _held = holder.lock("x").acquire().await.unwrap();
    let waiter = waiting(&connect(&cluster).await).await;
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    let mut together = client.new_multi_writer();
    for node in in_queue(&client).await {
        together.add_delete(&node, None).unwrap();
    }
    let prefix = format!("{LOCK}/0a1b__lock__");
    together.add_create(&prefix, b"", &sequential()).unwrap();
    together.commit().await.unwrap();
    until("the other program is in the queue", async || {
        in_queue(&client).await[0].starts_with(&prefix)
    })
    .await;
    let theirs = in_queue(&client).await.swap_remove(0);
    enters_after(&client, &theirs, waiter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_deleted_before_a_release_queues_again() {
    let cluster = quiet_cluster();
    let holder = connect(&cluster).await;
    let held = holder.lock("x").acquire().await.unwrap();
    held.release().await.unwrap();
    // The second holder has waited, and hands over when it goes.
    let first = holder.lock("x").acquire().await.unwrap();
    let second = waiting(&connect(&cluster).await).await;
    first.release().await.unwrap();
    let held = second.await.unwrap();
    let waiter = waiting(&connect(&cluster).await).await;
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    let nodes = in_queue(&client).await;
    client.delete(&nodes[1], None).await.unwrap();
    let prefix = format!("{LOCK}/0a1b__lock__");
    let theirs = client.create(&prefix, b"", &sequential()).await.unwrap();
    held.release().await.unwrap();
    enters_after(&client, &format!("{prefix}{}", theirs.1), waiter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_others_make_in_one_transaction_are_seen() {
    let cluster = quiet_cluster();
    let locks = connect(&cluster).await;
    let uses = 6;
    cycles(&locks, uses).await;
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    let mut anew = client.new_multi_writer();
    anew.add_delete(LOCK, None).unwrap();
    let lock = CreateMode::Persistent.with_acls(Acls::anyone_all());
    anew.add_create(LOCK, b"", &lock).unwrap();
    for _ in 0..uses {
        let prefix = format!("{LOCK}/0a1b__lock__");
        anew.add_create(&prefix, b"", &sequential()).unwrap();
    }
    anew.commit().await.unwrap();
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
    let request = locks.lock("x").wait(Duration::from_millis(300));
    assert!(request.acquire().await.is_err(), "it entered beside others");
}

/// Its numbers begin at nought, and come to where ours had ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_made_anew_is_not_taken_for_the_old_one() {
    let cluster = quiet_cluster();
    for uses in 1..6 {
        let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
        cycles(&locks, uses).await;
        let client = Client::connect(&cluster.hosts()).await.unwrap();
        client.delete("/leasehold/x", None).await.unwrap();
        cycles(&other, uses - 1).await;
        let held = other.lock("x").acquire().await.unwrap();
        let waiter = waiting(&locks).await;
        let shown = locks.inspect("x").await.unwrap();
        assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
        assert!(!waiter.is_finished(), "two are in after {uses} uses");
        held.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        client.delete("/leasehold/x", None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_in_the_middle_hands_nothing_over() {
    let cluster = quiet_cluster();
    let Line {
        first,
        second,
        third,
        last,
    } = three_in_line(&cluster).await;
    let before = sent(&last);
    second.abort();
    // It looks, and watches the first.
    until("it has looked", async || sent(&last) >= before + 2).await;
    assert!(first.is_valid() && !third.is_finished());
    first.release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_write_into_a_node_hands_nothing_over() {
    let cluster = quiet_cluster();
    let locks = connect(&cluster).await;
    cycles(&locks, 1).await;
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = "/leasehold/x/0a1b__lock__";
    let (_, sequence) = client.create(prefix, b"theirs", &options).await.unwrap();
    let theirs = format!("{prefix}{sequence}");
    let waiter = waiting(&locks).await;
    let before = sent(&locks);
    client.set_data(&theirs, b"more", None).await.unwrap();
    until("it watches again", async || sent(&locks) > before).await;
    let shown = locks.inspect("x").await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
    assert!(!waiter.is_finished());
    client.delete(&theirs, None).await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

/// Its session lives on, with others in it that wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_fails_to_leave_the_queue_ends() {
    let cluster = quiet_cluster();
    let holder = connect(&cluster).await;
    let _held = holder.lock("x").acquire().await.unwrap();
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let options = "session_timeout=10m&timeout=500ms";
    let url = format!("zookeeper://127.0.0.1:{}?{options}", proxy.port);
    let server = Locks::connect(url).await.unwrap();
    let mut first = claim("x", Duration::from_secs(30));
    first.queues = true;
    server.broker().try_acquire(&first).await.unwrap();
    proxy.set(Link::Hang);
    assert!(server.broker().leave_queue(&first).await.is_err());
    proxy.set(Link::Open);
    until("it has left", async || {
        holder.inspect("x").await.unwrap().waiters.is_empty()
    })
    .await;
}

/// A handle whose answers can be lost. Its session lives on meanwhile.
async fn connect_through(proxy: &Proxy) -> Locks {
    let options = "session_timeout=10m&timeout=500ms";
    let url = format!("zookeeper://127.0.0.1:{}?{options}", proxy.port);
    Locks::connect(url).await.unwrap()
}

/// Each of these attempts is carried out, and not answered.
async fn unanswered(proxy: &Proxy, server: &Locks, claim: &Claim, attempts: usize) {
    proxy.set(Link::HangBack);
    for _ in 0..attempts {
        let attempt = server.broker().try_acquire(claim).await;
        assert!(attempt.is_err(), "{attempt:?}");
    }
    proxy.set(Link::Open);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_asked_again_in_another_mode_is_refused() {
    let cluster = quiet_cluster();
    let readers = connect(&cluster).await;
    cycles(&readers, 1).await;
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let server = connect_through(&proxy).await;
    let mut asked = claim("x", Duration::from_secs(30));
    asked.queues = true;
    asked.mode = Mode::Shared;
    unanswered(&proxy, &server, &asked, 1).await;
    until("it holds the lock", async || {
        readers.inspect("x").await.unwrap().holders.len() == 1
    })
    .await;
    let reader = readers.lock("x").shared().acquire().await.unwrap();
    let mut exclusive = asked.clone();
    exclusive.mode = Mode::Exclusive;
    let attempt = server.broker().try_acquire(&exclusive).await;
    assert!(
        !matches!(attempt, Ok(Attempt::Granted(_))),
        "beside a reader"
    );
    assert_eq!(attempt.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let shown = readers.inspect("x").await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (2, 0));
    // In the mode that it was granted in, it is as before.
    let attempt = server.broker().try_acquire(&asked).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
    let released = server.broker().release(&asked).await.unwrap();
    assert_eq!(released, Released::Yes);
    reader.release().await.unwrap();
    assert!(readers.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_unanswered_twice_leaves_nothing_behind() {
    let cluster = quiet_cluster();
    let other = connect(&cluster).await;
    cycles(&other, 1).await;
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let server = connect_through(&proxy).await;
    let mut asked = claim("x", Duration::from_secs(30));
    asked.queues = true;
    unanswered(&proxy, &server, &asked, 2).await;
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    until("both were carried out", async || {
        in_queue(&client).await.len() == 2
    })
    .await;
    let attempt = server.broker().try_acquire(&asked).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)), "{attempt:?}");
    let released = server.broker().release(&asked).await.unwrap();
    assert_eq!(released, Released::Yes);
    assert!(other.lock("x").try_acquire().await.unwrap().is_some());
}

/// As when the client of a server has died meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn unanswered_claim_asked_for_by_nobody_ends() {
    let cluster = quiet_cluster();
    let other = connect(&cluster).await;
    cycles(&other, 1).await;
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let server = connect_through(&proxy).await;
    let mut asked = claim("x", Duration::from_secs(2));
    asked.queues = true;
    unanswered(&proxy, &server, &asked, 1).await;
    let next = other.lock("x").wait(Duration::from_secs(20)).acquire();
    next.await.unwrap().release().await.unwrap();
}
