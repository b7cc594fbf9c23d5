//! What becomes of locks when handles, processes and sessions end.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::support::claim;
use crate::support::proxy::{Link, Proxy};
use crate::support::times::until;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::engine::{Attempt, Renew, Renewal};
use leasehold::{Effect, ErrorKind, Locks, LossReason};
use zookeeper_client::Client;

#[tokio::test(flavor = "multi_thread")]
async fn dropped_handle_closes_its_session_after_the_last_ttl() {
    let cluster = ZooKeeperCluster::start(1);
    let url = format!("{}?session_timeout=2s", cluster.url());
    let sessions = || cluster.nodes[0].count("global_sessions");
    let locks = Locks::connect(&url).await.unwrap();
    let other = Locks::connect(&url).await.unwrap();
    locks
        .lock("a")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let detached = locks.lock("b").ttl(Duration::from_secs(4)).acquire().await;
    let began = Instant::now();
    detached.unwrap().detach();
    drop(locks);
    let next = other.lock("b").wait_forever().acquire().await.unwrap();
    assert!(
        began.elapsed() >= Duration::from_millis(3_800),
        "freed early"
    );
    until("the session is closed", async || sessions() == 1.0).await;
    next.release().await.unwrap();
    drop(other);
    until("the last session is closed", async || sessions() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_handle_cannot_renew_but_can_release() {
    let cluster = ZooKeeperCluster::start(1);
    let (locks, other) = (
        Locks::connect(cluster.url()).await.unwrap(),
        Locks::connect(cluster.url()).await.unwrap(),
    );
    let id = locks.lock("a").acquire().await.unwrap().detach();
    let resumed = other.resume("a", id).unwrap();
    let refused = resumed.into_lease(Duration::from_secs(30)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.advice().unwrap().contains("leasehold run"));
    other.resume("a", id).unwrap().release().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_session_has_ended_the_next_takes_over() {
    let cluster = ZooKeeperCluster::start(1);
    let url = format!("{}?session_timeout=2s&timeout=3s", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").wait_forever().acquire());
    until("it waits", async || {
        locks.inspect("a").await.unwrap().waiters.len() == 1
    })
    .await;
    // For longer than the session.
    cluster.nodes[0].stop();
    let lost = tokio::time::timeout(Duration::from_secs(10), lease.lost()).await;
    assert!(matches!(
        lost.unwrap(),
        LossReason::Expired { .. } | LossReason::SessionEnded
    ));
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.nodes[0].go_on();
    let next = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    let next = next.unwrap().unwrap().unwrap();
    assert!(next.token() > lease.token());
    next.release().await.unwrap();
}

/// The release is swallowed, and given up, before the connection is known to be lost; the session lives on.
async fn a_place_is_given_up_although_the_release_is_lost(cancels: bool) {
    let ms = Duration::from_millis;
    let cluster = ZooKeeperCluster::with(1, "maxSessionTimeout=20000");
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let through = format!(
        "zookeeper://127.0.0.1:{}?session_timeout=6s&timeout=10s",
        proxy.port
    );
    let gone = Locks::connect(&through).await.unwrap();
    let other = Locks::connect(cluster.url()).await.unwrap();
    let held = other.lock("a").acquire().await.unwrap();
    let asks = gone.lock("a").ttl(ms(300)).wait(ms(500));
    let asks = tokio::spawn(asks.acquire());
    until("it waits", async || {
        other.inspect("a").await.unwrap().waiters.len() == 1
    })
    .await;
    proxy.set(Link::Swallow);
    if cancels {
        asks.abort();
    }
    tokio::time::sleep(ms(2_000)).await;
    proxy.set(Link::Open);
    // Its session is as good as before.
    until("it is connected again", async || {
        gone.lock("b").wait(ms(5_000)).acquire().await.is_ok()
    })
    .await;
    assert_eq!(cluster.nodes[0].count("stale_sessions_expired"), 0.0);
    held.release().await.unwrap();
    until("nobody waits any more", async || {
        other.inspect("a").await.unwrap().waiters.is_empty()
            && other.lock("a").try_acquire().await.unwrap().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_gave_up_while_cut_off_leaves_the_queue() {
    a_place_is_given_up_although_the_release_is_lost(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiter_that_was_cut_off_leaves_the_queue() {
    a_place_is_given_up_although_the_release_is_lost(true).await;
}

/// As after a stop: the connection breaks under a request, and the session goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_fails_no_record() {
    let cluster = ZooKeeperCluster::start(1);
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let url = format!("zookeeper://127.0.0.1:{}?session_timeout=2s", proxy.port);
    let locks = Locks::connect(&url).await.unwrap();
    let store = locks.store().unwrap();
    store.write_if("k", "first", None).await.unwrap();
    let version = store.read("k").await.unwrap().map(|record| record.version);
    let asked = || locks.engine().about().requests.unwrap();
    for write in [false, true] {
        proxy.set(Link::Hang);
        let before = asked();
        let request = {
            let store = store.clone();
            tokio::spawn(async move {
                match write {
                    true => store.write_if("k", "second", version).await.map(drop),
                    false => store.read("k").await.map(drop),
                }
            })
        };
        until("it is on its way", async || asked() > before + 1).await;
        proxy.set(Link::Refuse);
        proxy.set(Link::Open);
        request.await.unwrap().unwrap();
    }
    let record = store.read("k").await.unwrap().unwrap();
    assert_eq!(record.value, b"second");
}

/// A server that is started again with other limits grants the same session less time.
#[tokio::test(flavor = "multi_thread")]
async fn session_granted_less_time_makes_no_lease_longer() {
    let cluster = ZooKeeperCluster::with(1, "maxSessionTimeout=60000");
    let server = &cluster.nodes[0];
    let proxy = Proxy::to(server.port).await;
    let options = "session_timeout=30s&timeout=10s";
    let url = format!("zookeeper://127.0.0.1:{}?{options}", proxy.port);
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("a").ttl(Duration::from_secs(60)).acquire().await;
    let lease = lease.unwrap();
    let shorter = Duration::from_secs(2);
    server.kill();
    server.set_up("maxSessionTimeout=2000");
    server.revive();
    assert!(tokio::task::block_in_place(|| server.serves()));
    until("it is connected again", async || {
        locks.lock("b").try_acquire().await.is_ok()
    })
    .await;
    let other = Locks::connect(format!("{}?{options}", cluster.url()));
    let other = other.await.unwrap();
    proxy.set(Link::Hang);
    let next = other.lock("a").wait(shorter * 10).acquire();
    let next = next.await.unwrap();
    assert!(!lease.is_valid(), "two rely on the lock");
    assert!(next.token() > lease.token());
    next.release().await.unwrap();
}

/// It lasts, with all nodes in it, for as long as anyone uses it.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_does_not_keep_a_session_that_is_given_up() {
    let cluster = ZooKeeperCluster::with(1, "maxSessionTimeout=60000");
    let server = &cluster.nodes[0];
    let connect = async |time: &str| {
        let url = format!("{}?session_timeout={time}&timeout=10s", cluster.url());
        Locks::connect(url).await.unwrap()
    };
    let (locks, holder) = (connect("30s").await, connect("10s").await);
    let ttl = Duration::from_secs(60);
    let lease = locks.lock("a").ttl(ttl).acquire().await.unwrap();
    let held = holder.lock("x").ttl(ttl).acquire().await.unwrap();
    let _others = holder.lock("y").ttl(ttl).acquire().await.unwrap();
    let [first, _second] = ["x", "y"].map(|name| {
        let request = locks.lock(name).wait_forever();
        tokio::spawn(async move { request.acquire().await })
    });
    for name in ["x", "y"] {
        until("it waits", async || {
            holder.inspect(name).await.unwrap().waiters.len() == 1
        })
        .await;
    }
    server.kill();
    server.set_up("maxSessionTimeout=10000");
    server.revive();
    assert!(tokio::task::block_in_place(|| server.serves()));
    lease.lost().await;
    held.release().await.unwrap();
    let entered = tokio::time::timeout(Duration::from_secs(20), first).await;
    assert!(entered.is_ok(), "it waits for itself");
}

/// Those who were granted a lock through it, as the clients of a server are, do not know of it yet.
#[tokio::test(flavor = "multi_thread")]
async fn session_given_up_stays_as_long_as_was_promised() {
    let cluster = ZooKeeperCluster::with(1, "maxSessionTimeout=60000");
    let server = &cluster.nodes[0];
    let connect = async |time: &str| {
        let url = format!("{}?session_timeout={time}&timeout=10s", cluster.url());
        Locks::connect(url).await.unwrap()
    };
    let (locks, other) = (connect("40s").await, connect("10s").await);
    let claim = claim("a", Duration::from_secs(25));
    let attempt = locks.broker().try_acquire(&claim).await.unwrap();
    let Attempt::Granted(grant) = attempt else {
        panic!("{attempt:?}");
    };
    let mut events = locks.engine().about().session_events.unwrap();
    events.mark_unchanged();
    server.kill();
    server.set_up("maxSessionTimeout=10000");
    server.revive();
    assert!(tokio::task::block_in_place(|| server.serves()));
    let given_up = tokio::time::timeout(Duration::from_secs(20), events.changed()).await;
    given_up.expect("it is given up").unwrap();
    let renewed = locks.broker().renew(&[Renew::new(&claim)]).await;
    let lost = Ok(Renewal::Lost(LossReason::SessionEnded));
    assert_eq!(
        format!("{renewed:?}"),
        format!("{:?}", [lost as leasehold::Result<_>])
    );
    let next = other.lock("a").wait(Duration::from_secs(60)).acquire();
    let next = next.await.unwrap();
    assert!(
        locks.broker().clock().now() >= grant.valid_until,
        "two rely on the lock"
    );
    assert!(next.token() > grant.token);
    next.release().await.unwrap();
}

/// How many connections a server takes from one host.
const ROOM: usize = 2;

fn with_little_room() -> ZooKeeperCluster {
    ZooKeeperCluster::with(1, &format!("maxClientCnxns={ROOM}"))
}

/// Takes all of them, once those of others are closed.
async fn all_taken(cluster: &ZooKeeperCluster) -> Vec<Client> {
    let mut clients = Vec::new();
    until("there is room", async || {
        let connector = Client::connector().with_fail_eagerly();
        clients.extend(connector.connect(&cluster.hosts()).await);
        clients.len() == ROOM
    })
    .await;
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_is_told_from_one_that_is_down() {
    let cluster = with_little_room();
    let url = format!("{}?timeout=500ms", cluster.url());
    let taken = all_taken(&cluster).await;
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(error.advice().unwrap().contains("maxClientCnxns"));
    drop(taken);
    until("there is room again", async || {
        Locks::connect(&url).await.is_ok()
    })
    .await;
    cluster.nodes[0].kill();
    let error = Locks::connect(&url).await.unwrap_err();
    assert!(!error.is_busy(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_waits_for_a_full_server() {
    let cluster = with_little_room();
    let url = format!("{}?timeout=500ms", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let server = &cluster.nodes[0];
    let events = locks.engine().about().session_events;
    server.kill();
    let mut events = events.expect("it has sessions");
    let ended = tokio::time::timeout(Duration::from_secs(20), events.changed()).await;
    ended.expect("its session ends").unwrap();
    server.revive();
    assert!(tokio::task::block_in_place(|| server.serves()));
    let taken = all_taken(&cluster).await;
    let waiter = tokio::spawn(locks.lock("a").wait(Duration::from_secs(30)).acquire());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!waiter.is_finished(), "it gave up");
    drop(taken);
    waiter.await.unwrap().unwrap().release().await.unwrap();
}
