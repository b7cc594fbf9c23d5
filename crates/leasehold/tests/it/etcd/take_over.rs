//! A claim that another process renews by its id is moved to that process's lease. Whatever becomes of the two processes and of their
//! requests meanwhile: each has what it was granted.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::claim;
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::proxy::{Link, Proxy};
use crate::support::requests::{Gate, Requests, Which};
use crate::support::times::{ms, secs, until};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold::engine::{Attempt, Grant, Renew, Renewal, Wake};
use leasehold::{Claim, ErrorKind, LeaseState, Locks, LossReason, Ttl};

/// Two processes that renew one claim, of which one dies: what either was granted, it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_does_not_cut_what_another_process_has_renewed() {
    let cluster = EtcdCluster::start(1);
    let [first, second, third] = cluster.connect().await;
    let lease = first.lock("x").ttl(secs(2)).acquire().await.unwrap();
    let resumed = second.resume("x", lease.claim_id()).unwrap();
    let renewed = resumed.renew(secs(30)).await.unwrap();
    assert!(renewed.is_some());
    // As often as the renewer of the lease does, and once more.
    tokio::time::sleep(secs(2)).await;
    lease.renew().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
    lease.detach();
    drop(first);
    tokio::time::sleep(secs(5)).await;
    let next = third.lock("x").try_acquire().await.unwrap();
    assert!(next.is_none(), "granted within the thirty seconds");
    resumed.release().await.unwrap();
    let next = third.lock("x").try_acquire().await.unwrap();
    assert!(next.is_some(), "released");
}

/// The holder's renewer, and another process that knows the claim id and renews for any time: both succeed, and nobody enters.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_renew_one_claim_do_not_lose_it() {
    let cluster = EtcdCluster::start(3);
    let [first, second, third] = cluster.connect().await;
    let lease = first.lock("x").ttl(secs(3)).acquire().await.unwrap();
    let resumed = second.resume("x", lease.claim_id()).unwrap();
    let end = Instant::now() + secs(6);
    let mut renewed = 0;
    while Instant::now() < end {
        let ttl = ms(fastrand::u64(300..5000));
        match resumed.renew(ttl).await {
            Ok(grant) => assert!(grant.is_some(), "lost after {renewed}"),
            // The other one was just doing the same.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
        }
        renewed += 1;
        assert!(lease.is_valid(), "after {renewed}: {:?}", lease.state());
        let next = third.lock("x").try_acquire().await.unwrap();
        assert!(next.is_none(), "granted after {renewed} renewals");
        tokio::time::sleep(ms(fastrand::u64(..200))).await;
    }
    println!("{renewed} renewals");
    lease.release().await.unwrap();
    let next = third.lock("x").try_acquire().await.unwrap();
    assert!(next.is_some(), "released");
}

/// More requests than a renewal by claim id takes.
const REQUESTS: usize = 18;

/// What becomes of a renewal half-way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HalfWay {
    /// It is dropped when it sends a request.
    Dropped,
    /// A request does not arrive, nor does anything after it.
    Lost,
    /// A request arrives, and no answer.
    Unanswered,
}

/// Another process, which knows the claim's id alone.
struct Other {
    network: Requests,
    locks: Locks,
}

impl Other {
    async fn connect(cluster: &EtcdCluster) -> Self {
        let network = Requests::to(cluster.client_port(0)).await;
        let url = format!("etcd://127.0.0.1:{}?timeout=1s", network.port);
        let locks = Locks::connect(url).await.unwrap();
        Self { network, locks }
    }

    /// Does the work; that happens to its nth request. Returns whether it has succeeded.
    async fn interrupted_at<T>(
        &self,
        nth: usize,
        half_way: HalfWay,
        work: impl Future<Output = leasehold::Result<T>>,
    ) -> bool {
        let nth = Which::Nth(nth);
        self.network.set(match half_way {
            HalfWay::Dropped | HalfWay::Lost => Gate::Until(nth),
            HalfWay::Unanswered => Gate::UnansweredFrom(nth),
        });
        let dropped = async {
            match half_way {
                HalfWay::Dropped => self.network.is_met(secs(60)).await,
                _ => std::future::pending().await,
            }
        };
        let succeeded = tokio::select! {
            _ = dropped => false,
            done = work => done.is_ok(),
        };
        self.network.set(Gate::Open);
        succeeded
    }
}

/// Runs this for a renewal that is interrupted at each of its requests, all at once, with a TTL in seconds. At least one must be, and one not.
async fn at_each_request(run: impl AsyncFn(usize, HalfWay, u64) -> bool) {
    for half_way in [HalfWay::Dropped, HalfWay::Lost, HalfWay::Unanswered] {
        // On a busy host all claims may have expired before they are renewed: then they get more time.
        for seconds in [4, 8, 16, 32] {
            let all = (1..=REQUESTS).map(|nth| run(nth, half_way, seconds));
            let all: Vec<_> = all.collect::<FuturesUnordered<_>>().collect().await;
            let succeeded = all.iter().filter(|succeeded| **succeeded).count();
            println!("{half_way:?}: {succeeded} of {REQUESTS} succeeded");
            if (1..REQUESTS).contains(&succeeded) {
                break;
            }
            assert!(seconds < 32, "{half_way:?}: {succeeded}");
        }
    }
}

/// Whoever renews by claim id may fail, give up and end at any moment: the holder has what it was granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_fails_half_way_does_not_end_the_lock() {
    let cluster = EtcdCluster::start(1);
    let [holder, third] = cluster.connect().await;
    at_each_request(async |nth, half_way, _| {
        let name = format!("{half_way:?}{nth}");
        let lease = holder.lock(&name).ttl(secs(60)).acquire().await.unwrap();
        let second = Other::connect(&cluster).await;
        let resumed = second.locks.resume(&name, lease.claim_id()).unwrap();
        let renewal = resumed.renew(secs(60));
        let succeeded = second.interrupted_at(nth, half_way, renewal).await;
        second.locks.flush().await;
        second.locks.engine().close().await;
        let next = third.lock(&name).try_acquire().await.unwrap();
        assert!(next.is_none(), "{name}: granted while {:?}", lease.state());
        assert!(lease.is_valid());
        // What was under way is done, and the holder can go on.
        until("it is renewed", async || lease.renew().await.is_ok()).await;
        lease.release().await.unwrap();
        succeeded
    })
    .await;
}

/// Whoever renews by claim id, fails and lives on: the lock ends all the same if its holder does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_fails_half_way_does_not_keep_the_lock() {
    let cluster = EtcdCluster::start(1);
    let [third] = cluster.connect().await;
    at_each_request(async |nth, half_way, ttl| {
        let name = format!("{half_way:?}{nth}");
        let [holder] = cluster.connect().await;
        let lease = holder.lock(&name).ttl(secs(ttl)).acquire().await.unwrap();
        let second = Other::connect(&cluster).await;
        // Locks of its own, whose leases it keeps alive: as long as the claim's, and a bit longer.
        let mut others = Vec::new();
        for seconds in ttl..=ttl + 4 {
            let other = second.locks.lock(format!("{name}-{seconds}"));
            others.push(other.ttl(secs(seconds)).acquire().await.unwrap());
        }
        let resumed = second.locks.resume(&name, lease.claim_id()).unwrap();
        // Or it would take its claim back.
        lease.detach();
        drop(holder);
        let renewal = resumed.renew(secs(ttl));
        let succeeded = second.interrupted_at(nth, half_way, renewal).await;
        let next = third.lock(&name).wait(secs(ttl + 16)).acquire().await;
        assert!(next.is_ok(), "{name}: it is held by nobody");
        for other in others {
            other.release().await.unwrap();
        }
        succeeded
    })
    .await;
}

/// Its process takes it back, as it may at any time; then the one that renews by claim id finds it under a lease that is not its own, and fails.
#[tokio::test(flavor = "multi_thread")]
async fn failed_renewal_of_a_claim_taken_back_does_not_end_it() {
    let cluster = EtcdCluster::start(1);
    let [holder, third] = cluster.connect().await;
    at_each_request(async |nth, half_way, _| {
        let name = format!("{half_way:?}{nth}");
        let lease = holder.lock(&name).ttl(secs(4)).acquire().await.unwrap();
        let second = Other::connect(&cluster).await;
        let resumed = second.locks.resume(&name, lease.claim_id()).unwrap();
        until("it is renewed by id", async || {
            matches!(resumed.renew(secs(1)).await, Ok(Some(_)))
        })
        .await;
        until("it is taken back", async || lease.renew().await.is_ok()).await;
        let renewal = resumed.renew(secs(1));
        let succeeded = second.interrupted_at(nth, half_way, renewal).await;
        // The one that has renewed it by id ends it meanwhile, by its own reckoning.
        tokio::time::sleep(secs(9)).await;
        let next = third.lock(&name).try_acquire().await.unwrap();
        // On a machine that stood still its time may be over.
        let state = lease.state();
        assert_ne!(state, LeaseState::Lost(LossReason::Gone), "{name}");
        assert!(next.is_none() || !lease.is_valid(), "{name}: {state:?}");
        lease.release().await.unwrap();
        succeeded
    })
    .await;
}

/// Before each request of a process that renews by claim id: one request more arrives, now or late, and nothing after it.
#[tokio::test(flavor = "multi_thread")]
async fn renewal_during_a_take_over_keeps_its_time() {
    let cluster = EtcdCluster::start(1);
    let [third] = cluster.connect().await;
    let run = async |nth, late: Duration| {
        let name = format!("{nth} after {late:?}");
        // With a lease of its own.
        let [holder] = cluster.connect().await;
        let lease = holder.lock(&name).ttl(secs(12)).acquire().await.unwrap();
        let acquired = tokio::time::Instant::now();
        let held = holder.resume(&name, lease.claim_id()).unwrap();
        let second = Other::connect(&cluster).await;
        let resumed = second.locks.resume(&name, lease.claim_id()).unwrap();
        lease.detach();
        tokio::time::sleep_until(acquired + secs(8) - late).await;
        second.network.set(Gate::Until(Which::Nth(nth)));
        let renewal = tokio::spawn(async move { resumed.renew(secs(3)).await });
        let half_way = second.network.is_met(ms(1500)).await;
        tokio::time::sleep(late).await;
        let grant = held.renew(secs(12)).await.unwrap().expect("it is held");
        second.network.set(Gate::Last);
        tokio::time::sleep(secs(10)).await;
        let next = third.lock(&name).try_acquire().await.unwrap();
        let left = held.remaining(&grant);
        assert!(next.is_none() || left.is_zero(), "{name}: {left:?} left");
        renewal.abort();
        half_way
    };
    let all: FuturesUnordered<_> = (1..=REQUESTS)
        .flat_map(|nth| [run(nth, secs(0)), run(nth, secs(5))])
        .collect();
    let all: Vec<_> = all.collect().await;
    let half_way = all.iter().filter(|half_way| **half_way).count();
    assert!((1..all.len()).contains(&half_way), "{half_way} half-way");
}

/// The claim's time is over, and its end has been asked for but not answered.
#[tokio::test(flavor = "multi_thread")]
async fn renewal_of_a_claim_that_is_being_ended_is_refused() {
    let cluster = EtcdCluster::start(1);
    let [third] = cluster.connect().await;
    let port = cluster.client_port(0);
    let (hangs, open) = (Proxy::to(port).await, Proxy::to(port).await);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", hangs.port, open.port);
    let url = format!("etcd://{hosts}?attempt_timeout=2s");
    let locks = Locks::connect(url).await.unwrap();
    let start = tokio::time::Instant::now();
    let at = |millis| tokio::time::sleep_until(start + ms(millis));
    let left = locks.lock("x").ttl(secs(6)).acquire().await.unwrap();
    let resumed = locks.resume("x", left.claim_id()).unwrap();
    left.detach();
    // Keeps the lease alive that both are under.
    let kept = locks.lock("y").ttl(secs(6)).acquire().await.unwrap();
    at(4900).await;
    hangs.set(Link::Hang);
    // Once this has waited for two seconds, requests go to the other endpoint; that for the end of the claim has gone to this one.
    locks.inspect("y").await.unwrap();
    at(7000).await;
    let renewed = resumed.renew(secs(6)).await.unwrap();
    at(8300).await;
    let next = third.lock("x").try_acquire().await.unwrap();
    let left = renewed.map(|grant| resumed.remaining(&grant));
    assert!(next.is_none() || left.is_none(), "{left:?} left");
    drop(next);
    let next = third.lock("x").wait(secs(20)).acquire().await;
    assert!(next.is_ok(), "nobody holds it");
    kept.release().await.unwrap();
}

async fn renew(locks: &Locks, claim: &Claim) -> leasehold::Result<Renewal> {
    locks.engine().renew(&[Renew::new(claim)]).await.remove(0)
}

fn left(locks: &Locks, grant: &Grant) -> Duration {
    grant.valid_until.since(locks.engine().about().clock.now())
}

/// The one for longer has its answer, and then the other moves the key.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_renewals_at_once_the_shorter_does_not_win() {
    let cluster = EtcdCluster::start(1);
    let [third] = cluster.connect().await;
    let network = Requests::to(cluster.client_port(0)).await;
    let url = format!("etcd://127.0.0.1:{}?attempt_timeout=5s", network.port);
    let locks = Locks::connect(url).await.unwrap();
    let long = claim("x", secs(9));
    let attempt = locks.engine().try_acquire(&long).await.unwrap();
    assert!(matches!(attempt, Attempt::Granted(_)));
    // There is a lease for the shorter one already.
    let brief = locks.lock("y").ttl(secs(5)).acquire().await.unwrap();
    brief.release().await.unwrap();
    let mut short = long.clone();
    short.ttl = Ttl::new(secs(5)).unwrap();
    tokio::time::sleep(ms(4500)).await;
    // Each sends three requests: both keep a lease alive, ask the quorum and look, or move. The longer one is always a request ahead.
    network.set(Gate::Until(Which::Nth(1)));
    let steps = async {
        while network.is_met(secs(2)).await {
            tokio::time::sleep(ms(50)).await;
            network.set(Gate::Until(Which::Nth(2)));
        }
    };
    let longer = async {
        let renewed = renew(&locks, &long).await.unwrap();
        (renewed, tokio::time::Instant::now())
    };
    let shorter = async {
        tokio::time::sleep(ms(20)).await;
        renew(&locks, &short).await
    };
    let ((longer, answered), shorter, ()) = tokio::join!(longer, shorter, steps);
    network.set(Gate::Open);
    println!("{longer:?}, {shorter:?}");
    let Renewal::Renewed(grant) = longer else {
        panic!("it is held");
    };
    tokio::time::sleep_until(answered + ms(7500)).await;
    let next = third.lock("x").try_acquire().await.unwrap();
    let left = left(&locks, &grant);
    assert!(next.is_none() || left.is_zero(), "{left:?} left");
}

/// It has taken the lock, but does not hear that; another process renews the claim for longer. Then its own process dies.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_whose_key_was_moved_does_not_cut_its_time() {
    let cluster = EtcdCluster::start(1);
    let [holder, second, third] = cluster.connect().await;
    let held = holder.lock("x").ttl(secs(60)).acquire().await.unwrap();
    let network = Requests::to(cluster.client_port(0)).await;
    let url = format!("etcd://127.0.0.1:{}?attempt_timeout=1s", network.port);
    let waiter = Locks::connect(url).await.unwrap();
    let mut claim = claim("x", secs(2));
    claim.queues = true;
    let attempt = waiter.engine().try_acquire(&claim).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(_)));
    let acquire = async {
        loop {
            if let Wake::Granted(grant) = waiter.engine().wait(&claim).await.unwrap() {
                return grant;
            }
            if let Attempt::Granted(grant) = waiter.engine().try_acquire(&claim).await.unwrap() {
                return grant;
            }
        }
    };
    let resumed = second.resume("x", claim.id).unwrap();
    let other = async {
        // Until it is heard who is ahead.
        tokio::time::sleep(secs(1)).await;
        // The next request that names its key takes the lock.
        let key = claim.id.reveal();
        network.set(Gate::UnansweredFrom(Which::Naming(key)));
        held.release().await.unwrap();
        assert!(network.is_met(secs(20)).await);
        let mut grant = None;
        until("it is renewed by id", async || {
            grant = resumed.renew(secs(30)).await.unwrap();
            grant.is_some()
        })
        .await;
        // The first answer is given up by then, and the request made again.
        tokio::time::sleep(ms(1300)).await;
        network.set(Gate::Open);
        grant.unwrap()
    };
    let (entered, grant) = tokio::join!(acquire, other);
    assert_eq!(entered.token, grant.token);
    network.set(Gate::Shut);
    drop(second);
    tokio::time::sleep(secs(6)).await;
    let next = third.lock("x").try_acquire().await.unwrap();
    assert!(next.is_none(), "granted within the thirty seconds");
}
