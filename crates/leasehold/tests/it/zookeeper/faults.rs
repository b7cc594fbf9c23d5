//! Three real servers, sixteen clients, and what can go wrong: nobody enters beside another, tokens rise, and work
//! goes on. Each test prints how much was done and how much was broken.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::crowd::{Crowd, a_turn};
use crate::support::lost_connections;
use crate::support::process::Process;
use crate::support::proxy::{Link, Proxy};
use crate::support::times::ms;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::Registry;
use leasehold::clock::{Clock, Moment};
use leasehold::engine::zookeeper::ZooKeeper;
use leasehold::{Lease, Locks, LossReason};
use nix::sys::signal::Signal;

const TTL: Duration = Duration::from_millis(700);

/// Longer than an election takes, so that a session may outlast one.
const SESSION: Duration = Duration::from_millis(2000);

const OPTIONS: &str = "?session_timeout=2s&timeout=10s";

/// How long work may stand still: an election, dead sessions and a busy machine.
const PATIENCE: Duration = Duration::from_secs(25);

/// After how long of silence a server gives up its leader, or a leader its followers: sooner than a session ends, or later.
const HASTY: &str = "syncLimit=15\ninitLimit=15";
const PATIENT: &str = "syncLimit=100";

fn started(more: &str) -> ZooKeeperCluster {
    tokio::task::block_in_place(|| ZooKeeperCluster::with(3, more))
}

fn leader(cluster: &ZooKeeperCluster) -> usize {
    tokio::task::block_in_place(|| cluster.leader())
}

fn serves(cluster: &ZooKeeperCluster, node: usize) {
    assert!(tokio::task::block_in_place(|| cluster.nodes[node].serves()));
}

async fn crowd(cluster: &ZooKeeperCluster) -> Crowd {
    Crowd::start(&format!("{}{OPTIONS}", cluster.url()), TTL).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed_and_revived() {
    let _turn = a_turn().await;
    let cluster = started(HASTY);
    let crowd = crowd(&cluster).await;
    for _ in 0..3 {
        crowd.goes_on(20, PATIENCE).await;
        let old = leader(&cluster);
        cluster.nodes[old].kill();
        crowd.goes_on(20, PATIENCE).await;
        cluster.nodes[old].revive();
        serves(&cluster, old);
    }
    crowd.goes_on(50, PATIENCE).await;
    crowd.ends_well("leaders killed", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_stopped_and_goes_on() {
    let _turn = a_turn().await;
    let cluster = started(HASTY);
    let crowd = crowd(&cluster).await;
    for stopped_for in [ms(400), SESSION, SESSION * 2] {
        crowd.goes_on(20, PATIENCE).await;
        let old = leader(&cluster);
        cluster.nodes[old].stop();
        tokio::time::sleep(stopped_for).await;
        cluster.nodes[old].go_on();
        crowd.goes_on(20, PATIENCE).await;
        serves(&cluster, old);
    }
    crowd.goes_on(50, PATIENCE).await;
    crowd.ends_well("leaders stopped", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_restarted_one_after_another() {
    let _turn = a_turn().await;
    let cluster = started(HASTY);
    let crowd = crowd(&cluster).await;
    for node in 0..3 {
        crowd.goes_on(20, PATIENCE).await;
        cluster.nodes[node].kill();
        tokio::time::sleep(ms(fastrand::u64(..500))).await;
        cluster.nodes[node].revive();
        serves(&cluster, node);
    }
    crowd.goes_on(50, PATIENCE).await;
    crowd.ends_well("all restarted in turn", 3).await;
}

/// Asks again while there is no quorum.
async fn patiently(locks: Locks, name: &'static str) -> Lease {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let request = locks.lock(name).ttl(SESSION).wait(PATIENCE);
        match request.acquire().await {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(ms(20)).await;
    }
}

/// A holder at the one server, and the next in line at the others: from when to when each relies on the lock.
struct Relay {
    ended: Moment,
    next_entered: Moment,
}

impl Relay {
    /// The fault is brought about once the one holds and the other waits.
    async fn run(holder: &Locks, next: &Locks, fault: impl FnOnce()) -> Self {
        let lease = holder.lock("relay").ttl(SESSION * 5).acquire().await;
        let lease = lease.unwrap();
        let waiting = tokio::spawn(patiently(next.clone(), "relay"));
        while next.inspect("relay").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(10)).await;
        }
        let began = Clock::machine().now();
        fault();
        let relied_on = async {
            let mut ended = lease.valid_until();
            while lease.is_valid() {
                ended = lease.valid_until();
                tokio::time::sleep(ms(5)).await;
            }
            ended
        };
        let next = async {
            let next = waiting.await.unwrap();
            (next, Clock::machine().now())
        };
        let (ended, (next, next_entered)) = tokio::join!(relied_on, next);
        println!("the next entered after {:?}", next_entered.since(began));
        assert!(next.token() > lease.token());
        next.release().await.unwrap();
        Self {
            ended,
            next_entered,
        }
    }

    fn is_in_turn(&self) {
        let (ended, next) = (self.ended, self.next_entered);
        assert!(ended <= next, "{:?} beside each other", ended.since(next));
        println!("the next entered {:?} after", next.since(ended));
    }
}

/// The one is cut off from the others; it goes on answering its clients for longer than a session lasts.
async fn is_cut_off(cluster: &ZooKeeperCluster, one: usize, by: Link, what: &str) {
    let others: Vec<_> = (0..3).filter(|node| *node != one).collect();
    let here = format!("{}{OPTIONS}", cluster.url_of(&[one]));
    let there = format!("{}{OPTIONS}", cluster.url_of(&others));
    let mut urls = vec![&*here; 5];
    urls.resize(15, &*there);
    let crowd = Crowd::at(&urls, TTL).await;
    let (holder, next) = (
        Locks::connect(&here).await.unwrap(),
        Locks::connect(&there).await.unwrap(),
    );
    crowd.goes_on(20, PATIENCE).await;
    let relay = Relay::run(&holder, &next, || cluster.link(one, by)).await;
    relay.is_in_turn();
    crowd.goes_on(20, PATIENCE).await;
    cluster.link(one, Link::Refuse);
    tokio::time::sleep(ms(100)).await;
    cluster.link(one, Link::Open);
    serves(cluster, one);
    let lease = patiently(holder, "relay").await;
    lease.release().await.unwrap();
    crowd.goes_on(50, PATIENCE).await;
    crowd.ends_well(what, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_cut_off_with_its_clients() {
    let _turn = a_turn().await;
    // The first is never elected while the others are there.
    let cluster = ZooKeeperCluster::linked(&[PATIENT, HASTY, HASTY]).await;
    assert_ne!(leader(&cluster), 0);
    is_cut_off(&cluster, 0, Link::Hang, "a follower cut off").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_cut_off_with_its_clients() {
    let _turn = a_turn().await;
    let cluster = ZooKeeperCluster::linked(&[HASTY, HASTY, PATIENT]).await;
    let leads = leader(&cluster);
    if leads != 2 {
        // Of two that know the same, the last is elected.
        cluster.nodes[leads].kill();
        assert_eq!(leader(&cluster), 2);
        cluster.nodes[leads].revive();
        serves(&cluster, leads);
    }
    is_cut_off(&cluster, 2, Link::Forsake, "the leader cut off").await;
}

/// The leader learns which sessions live from answers to its pings. A follower that does not get these passes on
/// writes all the same, and the leader carries them out for a session that it is about to end.
#[tokio::test(flavor = "multi_thread")]
async fn late_follower_makes_no_lease_longer() {
    let _turn = a_turn().await;
    let cluster = ZooKeeperCluster::linked(&[PATIENT, PATIENT, PATIENT]).await;
    assert_ne!(leader(&cluster), 0);
    let here = format!("{}{OPTIONS}", cluster.url_of(&[0]));
    let there = format!("{}{OPTIONS}", cluster.url_of(&[1, 2]));
    let (first, next) = (
        Locks::connect(&here).await.unwrap(),
        Locks::connect(&there).await.unwrap(),
    );
    // The lock's node is there, and the session is an old one.
    let lease = first.lock("late").acquire().await.unwrap();
    lease.release().await.unwrap();
    tokio::time::sleep(SESSION).await;
    cluster.link(0, Link::HangBack);
    tokio::time::sleep(SESSION * 3 / 4).await;
    let asked = tokio::spawn(first.lock("late").ttl(SESSION * 5).wait(PATIENCE).acquire());
    tokio::time::sleep(ms(100)).await;
    let waiting = tokio::spawn(patiently(next.clone(), "late"));
    tokio::time::sleep(ms(100)).await;
    cluster.link(0, Link::HangThere);
    let relied_on = async {
        // Not to rely on it at all is in order.
        let lease = tokio::time::timeout(SESSION, asked).await.ok()?;
        let lease = lease.unwrap().ok()?;
        let mut ended = lease.valid_until();
        while lease.is_valid() {
            ended = lease.valid_until();
            tokio::time::sleep(ms(5)).await;
        }
        Some(ended)
    };
    let next = async {
        let next = waiting.await.unwrap();
        (Clock::machine().now(), next)
    };
    let (ended, (next_entered, next)) = tokio::join!(relied_on, next);
    println!(
        "heard late: relied on {}, the next entered",
        match ended {
            Some(ended) if ended < next_entered => "until before",
            Some(_) => "until after",
            None => "never before",
        }
    );
    if let Some(ended) = ended {
        Relay {
            ended,
            next_entered,
        }
        .is_in_turn();
    }
    next.release().await.unwrap();
    cluster.link(0, Link::Open);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_stopped_past_their_sessions() {
    let _turn = a_turn().await;
    let cluster = started(HASTY);
    let url = format!("{}{OPTIONS}", cluster.url());
    let crowd = Crowd::of(13, &url, TTL).await;
    let processes: Vec<_> = (0..3).map(|_| Process::start(&url, TTL)).collect();
    crowd.goes_on(50, PATIENCE).await;
    let mut faults = 0;
    for (nth, process) in processes.iter().cycle().take(4).enumerate() {
        match nth % 2 {
            0 => process.stop_inside(PATIENCE).await,
            _ => process.signal(Signal::SIGSTOP),
        }
        faults += 1;
        tokio::time::sleep(SESSION + ms(fastrand::u64(..300))).await;
        process.signal(Signal::SIGCONT);
    }
    crowd.goes_on(50, PATIENCE).await;
    let (mut events, mut lost) = (Vec::new(), 0);
    for process in processes {
        let (more, more_lost) = tokio::task::block_in_place(|| process.end());
        events.extend(more);
        lost += more_lost;
    }
    let what = format!("clients stopped past their sessions ({lost} inside)");
    let violations = crowd.end(&what, faults, events).await;
    assert!(violations.is_empty(), "{}", violations[0]);
    assert!(lost > 0, "nobody was stopped inside");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_servers_end_is_heard_of_at_once() {
    let _turn = a_turn().await;
    // Renewals come every five seconds or so.
    let cluster = started("maxSessionTimeout=60000");
    let url = format!("{}?session_timeout=30s", cluster.url());
    let engine = ZooKeeper::connect(&Registry::builtin().parse(&url).unwrap()).await;
    let engine = Arc::new(engine.unwrap());
    let locks = Locks::new(engine.clone());
    let ttl = Duration::from_secs(60);
    let lease = locks.lock("a").ttl(ttl).acquire().await.unwrap();
    let began = Instant::now();
    engine.end_session().await;
    let lost = tokio::time::timeout(ms(3000), lease.lost()).await;
    assert_eq!(
        lost.expect("heard of long before"),
        LossReason::SessionEnded
    );
    println!("heard of the end after {:?}", began.elapsed());
    assert!(!lease.is_valid());
    let again = locks.lock("a").ttl(ttl).acquire().await.unwrap();
    assert!(again.token() > lease.token());
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_lost_in_silence_is_replaced() {
    let cluster = tokio::task::block_in_place(|| ZooKeeperCluster::start(1));
    let link = Proxy::to(cluster.nodes[0].port).await;
    let through = format!("zookeeper://127.0.0.1:{}?session_timeout=6s", link.port);
    lost_connections::are_replaced(&[link], &through, &cluster.url()).await;
}
