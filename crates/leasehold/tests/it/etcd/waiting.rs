//! Who waits on etcd keeps its position, and comes in as soon as it is its turn, whatever happens to those before it and to the
//! cluster.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::etcd_cluster::EtcdCluster;
use crate::support::process::this_test;
use crate::support::times::{ms, secs};
use leasehold::clock::Clock;
use leasehold::conformance::history::{History, Recorder};
use leasehold::{Lease, Locks, Mode};
use tokio::task::JoinSet;

/// Returns when so many wait.
async fn until_waiting(locks: &Locks, count: usize) {
    let deadline = Instant::now() + secs(20);
    while locks.inspect("x").await.unwrap().waiters.len() != count {
        assert!(Instant::now() < deadline, "{count} do not come to wait");
        tokio::time::sleep(ms(2)).await;
    }
}

/// The queue of the lock, the oldest entry first: its keys, and the revisions that created them.
fn queue(cluster: &EtcdCluster) -> Vec<(String, u64)> {
    let printed = cluster.etcdctl(&["get", "--prefix", "leasehold/x/", "-w", "json"]);
    let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let entries = printed["kvs"].as_array().cloned().unwrap_or_default();
    let mut entries: Vec<_> = entries
        .iter()
        .map(|entry| {
            let key = entry["key"].as_str().unwrap();
            (from_base64(key), entry["create_revision"].as_u64().unwrap())
        })
        .collect();
    entries.sort_by_key(|(_, created)| *created);
    entries
}

/// As etcdctl prints keys in JSON.
fn from_base64(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for digit in text.bytes().filter(|byte| *byte != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit).unwrap();
        bits = (bits << 6) | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    String::from_utf8(bytes).unwrap()
}

const URL: &str = "LEASEHOLD_WAITING_URL";

/// What a process does that other tests start, and kill while it waits.
#[tokio::test]
async fn as_a_process_that_waits() {
    if let Ok(url) = std::env::var(URL) {
        let locks = Locks::connect(&url).await.unwrap();
        let _lease = locks.lock("x").wait_forever().acquire().await.unwrap();
    }
}

struct Waiter(Child);

impl Waiter {
    fn start(url: &str) -> Self {
        let mut program = this_test("etcd::waiting::as_a_process_that_waits");
        program.env(URL, url).stdout(Stdio::null());
        Self(program.spawn().unwrap())
    }
}

/// At once, and without a word.
impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_waiters_cost_no_live_one_its_place() {
    const LIVE: usize = 20;
    let cluster = EtcdCluster::start(1);
    let url = cluster.url();
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("x").ttl(secs(60)).acquire().await.unwrap();
    let first_dead = Waiter::start(&url);
    until_waiting(&locks, 1).await;
    let entered = Arc::new(Mutex::new(Vec::new()));
    let mut live = JoinSet::new();
    let mut second_dead = None;
    for nth in 0..LIVE {
        if nth == LIVE / 2 {
            second_dead = Some(Waiter::start(&url));
            until_waiting(&locks, nth + 2).await;
        }
        // Each has a client of its own, as if it were a process.
        let own = Locks::connect(&url).await.unwrap();
        let entered = Arc::clone(&entered);
        live.spawn(async move {
            let lease = own.lock("x").wait(secs(60)).acquire().await.unwrap();
            entered.lock().unwrap().push(lease.token().get());
            tokio::time::sleep(ms(5)).await;
            lease.release().await.unwrap();
        });
        until_waiting(&locks, nth + 2 + usize::from(second_dead.is_some())).await;
    }
    let positions: Vec<_> = queue(&cluster).into_iter().map(|(_, at)| at).collect();
    drop((first_dead, second_dead));
    let released = Instant::now();
    held.release().await.unwrap();
    live.join_all().await;
    println!(
        "two dead, {LIVE} alive: all in after {:?}",
        released.elapsed()
    );
    // Behind the holder and the first dead one; without the second.
    let mut expected = positions[2..].to_vec();
    expected.remove(LIVE / 2);
    assert_eq!(*entered.lock().unwrap(), expected);
}

/// By hand, or by an operator's script: the waiter is one no longer, and must not enter with the token that it had beside one
/// who has.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_entry_was_deleted_queues_again() {
    let cluster = EtcdCluster::start(3);
    let recorder = Arc::new(Recorder::default());
    let locks = Locks::connect(cluster.url()).await.unwrap();
    for round in 0..6 {
        let held = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
        let mut waiting = JoinSet::new();
        for nth in 0..2 {
            let own = Locks::connect(cluster.url()).await.unwrap();
            let recorder = Arc::clone(&recorder);
            waiting.spawn(async move {
                let lease = own.lock("x").wait(secs(30)).acquire().await.unwrap();
                let token = lease.token().get();
                visit(lease, &recorder, ms(200)).await;
                token
            });
            until_waiting(&locks, nth + 1).await;
        }
        let queue = queue(&cluster);
        let (key, old_token) = &queue[1];
        // One waiter alone and then a plain release, or the whole lock at once.
        if round % 2 == 0 {
            cluster.etcdctl(&["del", key]);
            held.release().await.unwrap();
        } else {
            cluster.etcdctl(&["del", "--prefix", "leasehold/x/"]);
            let _ = held.release().await;
        }
        for token in waiting.join_all().await {
            assert_ne!(token, *old_token, "in round {round}");
        }
    }
    let violations = History::of(recorder.events()).violations();
    assert!(violations.is_empty(), "{}", violations[0]);
}

async fn visit(lease: Lease, recorder: &Recorder, stay: Duration) {
    let now = || Clock::machine().now();
    let visit = recorder.enter("x", Mode::Exclusive, lease.token(), now());
    tokio::time::sleep(stay).await;
    recorder.leave(visit, now());
    lease.release().await.unwrap();
}

/// What clients met that took one lock in turn.
#[derive(Debug, Default)]
struct Met {
    visits: usize,
    longest_wait: Duration,
    /// Since when the lock is free, after this visit; unknown if the next began before the release was answered.
    free: Option<(usize, Instant)>,
    /// The longest time from a release to the entry of the next.
    longest_free: Duration,
    errors: BTreeMap<String, usize>,
}

impl Met {
    /// Returns which visit it is.
    fn entered(&mut self, asked: Instant) -> usize {
        if let Some((last, since)) = self.free.take()
            && last == self.visits
        {
            self.longest_free = self.longest_free.max(since.elapsed());
        }
        self.visits += 1;
        self.longest_wait = self.longest_wait.max(asked.elapsed());
        self.visits
    }

    fn released(&mut self, visit: usize) {
        self.free = Some((visit, Instant::now()));
    }

    fn failed(&mut self, error: &leasehold::Error) {
        let what = format!("{:?}: {}", error.kind(), error.what());
        *self.errors.entry(what).or_default() += 1;
    }
}

/// Clients that take one lock in turn, until they are told to end.
struct Contenders {
    met: Arc<Mutex<Met>>,
    end: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Contenders {
    async fn start(count: usize, cluster: &EtcdCluster) -> Self {
        let (met, end) = (Arc::<Mutex<Met>>::default(), Arc::<AtomicBool>::default());
        let mut clients = JoinSet::new();
        for _ in 0..count {
            let locks = Locks::connect(cluster.url()).await.unwrap();
            clients.spawn(contend(locks, Arc::clone(&met), Arc::clone(&end)));
        }
        Self { met, end, clients }
    }

    async fn end(self) -> Met {
        self.end.store(true, Ordering::SeqCst);
        self.clients.join_all().await;
        std::mem::take(&mut self.met.lock().unwrap())
    }
}

async fn contend(locks: Locks, met: Arc<Mutex<Met>>, end: Arc<AtomicBool>) {
    while !end.load(Ordering::SeqCst) {
        let asked = Instant::now();
        let request = locks.lock("x").ttl(secs(10)).wait(secs(60));
        match request.acquire().await {
            Ok(lease) => {
                let visit = met.lock().unwrap().entered(asked);
                tokio::time::sleep(ms(fastrand::u64(..=3))).await;
                match lease.release().await {
                    Ok(_) => met.lock().unwrap().released(visit),
                    Err(error) => met.lock().unwrap().failed(&error),
                }
            }
            Err(error) => met.lock().unwrap().failed(&error),
        }
    }
}

/// Tells for how long the host has taken the processor away at a time.
struct Stalls(Arc<Mutex<Duration>>);

impl Stalls {
    fn measure() -> Self {
        let longest = Arc::<Mutex<Duration>>::default();
        let noted = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            while let Some(longest) = noted.upgrade() {
                let before = Instant::now();
                std::thread::sleep(ms(5));
                let late = before.elapsed().saturating_sub(ms(5));
                let mut longest = longest.lock().unwrap();
                *longest = longest.max(late);
            }
        });
        Self(longest)
    }

    fn longest(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

/// While the leader is moved on and on, members refuse what they are asked, drop it or answer late.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_moves_fails_nobody() {
    let cluster = EtcdCluster::start(3);
    let stalls = Stalls::measure();
    let contenders = Contenders::start(8, &cluster).await;
    let end = Instant::now() + secs(12);
    let mut moves = 0;
    while Instant::now() < end {
        tokio::task::block_in_place(|| cluster.move_leader());
        moves += 1;
    }
    let (met, stalled) = (contenders.end().await, stalls.longest());
    println!("{moves} moves, stalled for {stalled:?}: {met:?}");
    assert!(moves >= 5 && met.visits > 100);
    assert_eq!(met.errors, BTreeMap::new());
    assert!(met.longest_wait < secs(10) + stalled * 4);
    assert!(met.longest_free < secs(5) + stalled * 4);
}

/// A member tells of a deletion a moment before it shows it to those who read. On a busy machine the moment can be long
/// enough: a waiter that believed such a read missed its turn for 15 s, one in some thousand times.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_told_early_is_not_deaf() {
    let cluster = EtcdCluster::start(3);
    let busy = Arc::new(AtomicBool::new(true));
    for _ in 0..3 {
        let busy = Arc::clone(&busy);
        std::thread::spawn(move || while busy.load(Ordering::Relaxed) {});
    }
    let stalls = Stalls::measure();
    let contenders = Contenders::start(4, &cluster).await;
    tokio::time::sleep(secs(15)).await;
    let (met, stalled) = (contenders.end().await, stalls.longest());
    busy.store(false, Ordering::Relaxed);
    println!("stalled for {stalled:?}: {met:?}");
    assert!(met.visits > 100);
    assert_eq!(met.errors, BTreeMap::new());
    assert!(met.longest_wait < secs(10) + stalled * 4);
    assert!(met.longest_free < secs(5) + stalled * 4);
}
