//! Real clusters of three, sixteen clients, and what can go wrong: nobody enters beside another, tokens rise, and work
//! goes on. Each test prints how much was done and how much was broken.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::crowd::{Crowd, a_turn};
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::etcd_links::Links;
use crate::support::lost_connections;
use crate::support::process::stop_past_leases;
use crate::support::proxy::Proxy;
use crate::support::times::{ms, secs};
use leasehold::clock::Clock;
use leasehold::conformance::Stalls;
use leasehold::{LeaseState, Locks, LossReason};

/// The shortest that etcd's leases can be.
const TTL: Duration = Duration::from_secs(1);

/// An election, the leases that the new leader gives their whole time again, and a busy machine.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed_and_comes_back() {
    let _turn = a_turn().await;
    let cluster = EtcdCluster::start(3);
    let crowd = Crowd::start(&cluster.url(), TTL).await;
    let faults = 3;
    for _ in 0..faults {
        crowd.goes_on(20, SOON).await;
        let leader = cluster.leader();
        cluster.kill(leader);
        crowd.goes_on(20, SOON).await;
        cluster.revive(leader);
    }
    crowd.goes_on(50, SOON).await;
    crowd.ends_well("leaders killed", faults).await;
}

/// When it goes on it believes for a moment that it still leads. Before 3.4.31 and 3.5.13 it then revokes leases that the new leader
/// keeps alive (etcd-io/etcd#15247), and their locks are free; no client can help that, and `warnings` says so.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_stopped_for_longer_than_the_ttl() {
    const EXPIRED: &str = "etcd_debugging_server_lease_expired_total";
    let _turn = a_turn().await;
    let cluster = EtcdCluster::start(3);
    let crowd = Crowd::start(&cluster.url(), TTL).await;
    let warnings = Locks::connect(cluster.url()).await.unwrap().warnings();
    let is_old = warnings.iter().any(|warning| warning.contains("3.5.13"));
    let faults = 3;
    let mut wrongly_revoked = 0;
    for _ in 0..faults {
        crowd.goes_on(20, SOON).await;
        let leader = cluster.leader();
        let before = cluster.metric_of(leader, EXPIRED);
        cluster.stop(leader);
        tokio::time::sleep(TTL * 2).await;
        crowd.goes_on(20, SOON).await;
        cluster.go_on(leader);
        crowd.goes_on(20, SOON).await;
        if cluster.leader() != leader {
            wrongly_revoked += cluster.metric_of(leader, EXPIRED) - before;
        }
    }
    crowd.goes_on(50, SOON).await;
    let violations = crowd.end("leaders stopped", faults, Vec::new()).await;
    println!(
        "old server: {is_old}, leases revoked by leaders that had been replaced: {wrongly_revoked}"
    );
    if let Some(violation) = violations.first() {
        assert!(is_old && wrongly_revoked > 0, "{violation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_restarted_one_after_another() {
    let _turn = a_turn().await;
    let cluster = EtcdCluster::start(3);
    let crowd = Crowd::start(&cluster.url(), TTL).await;
    let faults = 6;
    for nth in 0..faults {
        crowd.goes_on(10, SOON).await;
        cluster.kill(nth % 3);
        cluster.revive(nth % 3);
    }
    crowd.goes_on(50, SOON).await;
    crowd.ends_well("restarted in turn", faults).await;
}

/// A member and the clients that know no other, first a follower and then the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_member_is_cut_off_with_its_clients() {
    let _turn = a_turn().await;
    let links = Links::between(3);
    let cluster = EtcdCluster::linked_by(&links);
    let leader = cluster.leader();
    for alone in [(leader + 1) % 3, cluster.leader()] {
        let others = [(alone + 1) % 3, (alone + 2) % 3].map(|nth| cluster.host(nth));
        let others = format!("etcd://{}", others.join(","));
        let outside = Crowd::of(8, &cluster.url_of(alone), TTL).await;
        let inside = Crowd::of(8, &others, TTL).await;
        let holder = Locks::connect(cluster.url_of(alone)).await.unwrap();
        let held = holder.lock("z").ttl(secs(3)).acquire().await.unwrap();
        let waiter = Locks::connect(&others).await.unwrap();
        let waiting = tokio::spawn(waiter.lock("z").ttl(secs(3)).wait(secs(30)).acquire());
        outside.goes_on(10, SOON).await;
        inside.goes_on(10, SOON).await;

        links.cut_off(alone);
        inside.goes_on(30, SOON).await;
        let stalls = Stalls::watch();
        let next = async {
            let next = waiting.await.unwrap().unwrap();
            (next, Clock::machine().now())
        };
        let lost = async {
            let reason = held.lost().await;
            (reason, Clock::machine().now())
        };
        let ((next, granted), (reason, heard)) = tokio::join!(next, lost);
        assert!(matches!(reason, LossReason::Expired { .. }), "{reason:?}");
        assert!(held.valid_until() < granted, "granted while it was valid");
        // Both are polled by this task; after a stall, in either order.
        let late = heard.since(granted);
        let stalled = stalls.longest().max(Duration::from_millis(5));
        assert!(late < stalled, "heard of it {late:?} late");
        assert!(next.token() > held.token());
        next.release().await.unwrap();

        links.heal(alone);
        outside.goes_on(10, SOON).await;
        inside.goes_on(10, SOON).await;
        let theirs = Arc::clone(&outside.notes);
        let violations = outside.end("a member cut off, its clients", 1, Vec::new());
        assert!(violations.await.is_empty());
        let violations = inside.end("a member cut off", 1, theirs.recorder.events());
        let violations = violations.await;
        assert!(violations.is_empty(), "{}", violations[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_stopped_past_their_leases() {
    let _turn = a_turn().await;
    let cluster = EtcdCluster::start(3);
    stop_past_leases(&cluster.url(), TTL, ms(800), SOON).await;
}

fn lease_of(cluster: &EtcdCluster, prefix: &str) -> String {
    let printed = cluster.etcdctl(&["get", "--prefix", prefix, "-w", "json"]);
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let lease = printed["kvs"][0]["lease"].as_i64().unwrap();
    format!("{lease:x}")
}

/// The holder hears of it also where the stream had to be opened anew, at another member, and where the lease was made
/// while there was no leader.
#[tokio::test(flavor = "multi_thread")]
async fn revoked_lease_is_noticed_after_a_leader_change() {
    let _turn = a_turn().await;
    let cluster = EtcdCluster::start(3);
    let ttl = secs(60);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let before = locks.lock("before").ttl(ttl).acquire().await.unwrap();
    let leader = cluster.leader();
    cluster.kill(leader);
    let during = locks.lock("during").ttl(ttl + secs(1)).wait(SOON);
    let during = during.acquire().await.unwrap();
    cluster.revive(leader);
    // Until the streams stand again.
    tokio::time::sleep(secs(2)).await;
    assert_eq!(before.state(), LeaseState::Held);
    for (lease, name) in [(&before, "before"), (&during, "during")] {
        let id = lease_of(&cluster, &format!("leasehold/{name}/"));
        cluster.etcdctl(&["lease", "revoke", &id]);
        let revoked = Instant::now();
        let heard = tokio::time::timeout(secs(15), lease.lost()).await;
        assert_eq!(heard.expect(name), LossReason::Gone);
        println!("revoked, {name}: heard of after {:?}", revoked.elapsed());
        assert!(revoked.elapsed() < secs(10), "{:?}", revoked.elapsed());
    }
}

/// The lease of those who wait lives on for others: what was asked for must be taken back, however long that takes.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_gave_up_unanswered_leaves_the_queue() {
    let cluster = EtcdCluster::start(1);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let held = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    let stays = locks.lock("x").wait(secs(60));
    let stays = tokio::spawn(async move { stays.acquire().await.unwrap() });
    let waiters = async || locks.inspect("x").await.unwrap().waiters.len();
    let deadline = Instant::now() + SOON;
    while waiters().await != 1 {
        assert!(Instant::now() < deadline, "it queues");
    }
    cluster.stop(0);
    let leaves = locks.lock("x").ttl(ms(400)).wait_forever().acquire();
    assert!(tokio::time::timeout(ms(100), leaves).await.is_err());
    // Longer than its TTL.
    tokio::time::sleep(ms(1000)).await;
    cluster.go_on(0);
    // What was sent may still be carried out.
    tokio::time::sleep(secs(3)).await;
    let deadline = Instant::now() + SOON;
    while waiters().await != 1 {
        assert!(Instant::now() < deadline, "it left its queue entry behind");
        tokio::time::sleep(ms(50)).await;
    }
    held.release().await.unwrap();
    stays.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_lost_in_silence_is_replaced() {
    let cluster = EtcdCluster::start(1);
    let link = Proxy::to(cluster.client_port(0)).await;
    let through = format!("etcd://127.0.0.1:{}", link.port);
    lost_connections::are_replaced(&[link], &through, &cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_all_members_lost_in_silence_are_replaced() {
    let cluster = EtcdCluster::start(3);
    let mut links = Vec::new();
    for nth in 0..3 {
        links.push(Proxy::to(cluster.client_port(nth)).await);
    }
    let hosts = links.iter().map(|link| format!("127.0.0.1:{}", link.port));
    let through = format!("etcd://{}", hosts.collect::<Vec<_>>().join(","));
    lost_connections::are_replaced(&links, &through, &cluster.url()).await;
}
