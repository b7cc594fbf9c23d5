//! What the core does by itself, whatever the engine; on a paused clock, so that a lease of 30 s
//! takes milliseconds.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::deadline;
use async_trait::async_trait;
use futures_util::FutureExt;
use leasehold::clock::Clock;
use leasehold::engine::memory::Memory;
use leasehold::engine::{
    About, Attempt, Contention, Engine, LockInfo, Query, Renew, Renewal, Wake,
};
use leasehold::recipe::ElectionEvent;
use leasehold::{
    Claim, ClaimId, Effect, Error, ErrorKind, LeaseState, LockName, Locks, LossReason, Released,
    Result,
};
use tokio::time::{Instant, sleep, timeout};

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Counts what the core asks for, and fails when told to.
#[derive(Debug)]
struct Watched {
    inner: Memory,
    batches: AtomicUsize,
    renewals: AtomicUsize,
    releases: AtomicUsize,
    fails: AtomicBool,
    denies: AtomicBool,
    /// How many attempts are still to be refused because the engine is busy.
    busy: AtomicUsize,
    /// How many grants are still to be answered after their TTL.
    late_grants: AtomicUsize,
    /// How long an answer to an attempt is on its way, in milliseconds.
    attempts_take: AtomicU64,
    /// How long a renewal is on its way, in milliseconds.
    renewals_arrive_after: AtomicU64,
    /// How long an answer to a renewal is on its way, in milliseconds.
    renewals_take: AtomicU64,
    /// After how many milliseconds the next renewal fails, if it is to fail.
    next_renewal_fails_after: AtomicU64,
    /// How long a release takes, in milliseconds.
    releases_take: AtomicU64,
    /// Whether waiters are neither woken nor told when to look.
    silent: AtomicBool,
    /// How late a hand-over is heard of.
    late: Duration,
}

impl Watched {
    fn new() -> Arc<Self> {
        Self::on(Clock::tokio(), Duration::ZERO)
    }

    fn on(clock: Clock, late: Duration) -> Arc<Self> {
        deadline::begin();
        Arc::new(Self {
            inner: Memory::with_clock(clock),
            batches: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            denies: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            late_grants: AtomicUsize::new(0),
            attempts_take: AtomicU64::new(0),
            renewals_arrive_after: AtomicU64::new(0),
            renewals_take: AtomicU64::new(0),
            next_renewal_fails_after: AtomicU64::new(0),
            releases_take: AtomicU64::new(0),
            silent: AtomicBool::new(false),
            late,
        })
    }

    fn locks(self: &Arc<Self>) -> Locks {
        Locks::new(Arc::<Self>::clone(self))
    }

    fn batches(&self) -> usize {
        self.batches.load(Ordering::SeqCst)
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    fn fails(&self) -> bool {
        self.fails.load(Ordering::SeqCst)
    }
}

/// Counts down; whether there was anything left.
fn one_less(counter: &AtomicUsize) -> bool {
    let less = |left: usize| left.checked_sub(1);
    let counted = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    counted.is_ok()
}

fn cut() -> Error {
    Error::new(ErrorKind::Unreachable, "the cable is cut").of_unknown_effect()
}

#[async_trait]
impl Engine for Watched {
    fn about(&self) -> About {
        self.inner.about()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if self.denies.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Denied, "no longer"));
        }
        if one_less(&self.busy) {
            return Err(Error::new(ErrorKind::Unreachable, "too many clients").because_busy());
        }
        let attempt = self.inner.try_acquire(claim).await;
        if one_less(&self.late_grants) {
            sleep(claim.ttl.get()).await;
        }
        sleep(ms(self.attempts_take.load(Ordering::SeqCst))).await;
        match attempt {
            Ok(Attempt::Held(_)) if self.silent.load(Ordering::SeqCst) => {
                Ok(Attempt::Held(Contention::default()))
            }
            attempt => attempt,
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        if self.silent.load(Ordering::SeqCst) {
            return pending().await;
        }
        let wake = self.inner.wait(claim).await;
        sleep(self.late).await;
        wake
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        self.renewals.fetch_add(held.len(), Ordering::SeqCst);
        let fails_after = self.next_renewal_fails_after.swap(0, Ordering::SeqCst);
        sleep(ms(fails_after)).await;
        if self.fails() || fails_after > 0 {
            return held.iter().map(|_| Err(cut())).collect();
        }
        sleep(ms(self.renewals_arrive_after.load(Ordering::SeqCst))).await;
        let answers = self.inner.renew(held).await;
        sleep(ms(self.renewals_take.load(Ordering::SeqCst))).await;
        answers
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        sleep(ms(self.releases_take.load(Ordering::SeqCst))).await;
        if self.fails() {
            return Err(cut());
        }
        self.inner.release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.inner.inspect(query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.inner.force_release(name).await
    }
}

/// The last renewal cuts the lock short; one that left before and arrives after it would let it stay for the whole TTL.
#[tokio::test(start_paused = true)]
async fn late_renewal_does_not_prolong_a_lock_that_is_done() {
    let engine = Watched::new();
    let locks = engine.locks();
    let request = locks.lock("x").ttl(secs(30)).hold_at_least(secs(20));
    let lease = request.acquire().await.unwrap();
    engine.renewals_arrive_after.store(2_000, Ordering::SeqCst);
    while engine.batches() == 0 {
        sleep(ms(10)).await;
    }
    engine.renewals_arrive_after.store(0, Ordering::SeqCst);
    assert_eq!(lease.release().await.unwrap(), Released::Yes);
    sleep(secs(3)).await;
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
    sleep(secs(10)).await;
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn failed_later_attempt_leaves_the_queue() {
    let engine = Watched::new();
    let locks = engine.locks();
    let held = locks.lock("x").ttl(secs(1)).acquire().await.unwrap();
    held.detach();
    let waiting = tokio::spawn(locks.lock("x").wait_forever().acquire());
    sleep(ms(500)).await;
    assert_eq!(locks.inspect("x").await.unwrap().waiters.len(), 1);
    engine.denies.store(true, Ordering::SeqCst);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(locks.inspect("x").await.unwrap().waiters, []);
}

#[tokio::test(start_paused = true)]
async fn keep_alive_renews_at_a_third_of_the_ttl() {
    let engine = Watched::new();
    let lease = engine.locks().lock("x").ttl(secs(30)).acquire().await;
    let lease = lease.unwrap();
    sleep(ms(9_900)).await;
    assert_eq!(engine.batches(), 0);
    sleep(ms(200)).await;
    assert_eq!(engine.batches(), 1);
    sleep(secs(300)).await;
    assert!(
        (30..=33).contains(&engine.batches()),
        "{}",
        engine.batches()
    );
    assert_eq!(lease.state(), LeaseState::Held);
    lease.release().await.unwrap();
    let so_far = engine.batches();
    sleep(secs(60)).await;
    assert_eq!(engine.batches(), so_far, "a released lease is renewed");
}

#[tokio::test(start_paused = true)]
async fn many_leases_travel_in_one_batch() {
    let engine = Watched::new();
    let locks = engine.locks();
    let mut leases = Vec::new();
    for nth in 0..900 {
        let lease = locks.lock(format!("x{nth}")).ttl(secs(30)).acquire().await;
        leases.push(lease.unwrap());
        sleep(ms(1)).await;
    }
    sleep(secs(30)).await;
    assert_eq!(engine.batches(), 3);
    assert_eq!(engine.renewals.load(Ordering::SeqCst), 2_700);
    assert!(leases.iter().all(|lease| lease.is_valid()));
}

#[tokio::test(start_paused = true)]
async fn renewals_go_on_through_failures_until_validity_ends() {
    let engine = Watched::new();
    let lease = engine.locks().lock("x").ttl(secs(30)).acquire().await;
    let lease = lease.unwrap();
    engine.fail(true);
    let start = Instant::now();
    sleep(ms(10_100)).await;
    assert_eq!(lease.state(), LeaseState::Uncertain);
    assert!(lease.is_valid());
    let LossReason::Expired { last_failure } = lease.lost().await else {
        panic!("lost by expiry");
    };
    assert!(last_failure.unwrap().contains("the cable is cut"));
    let took = start.elapsed();
    assert!(took >= secs(29) && took < secs(30), "{took:?}");
    assert!(engine.batches() >= 6, "only {} tries", engine.batches());
    assert_eq!(
        engine.releases.load(Ordering::SeqCst),
        0,
        "renewing releases"
    );
}

/// It fails when the next one is due anyway.
#[tokio::test(start_paused = true)]
async fn renewal_that_fails_late_is_repeated_once() {
    let engine = Watched::new();
    let lease = engine.locks().lock("x").ttl(secs(10)).acquire().await;
    let lease = lease.unwrap();
    engine
        .next_renewal_fails_after
        .store(3_250, Ordering::SeqCst);
    while engine.batches() < 6 {
        sleep(ms(10)).await;
        let renewals = engine.renewals.load(Ordering::SeqCst);
        assert_eq!(renewals, engine.batches(), "claims in so many batches");
    }
    assert_eq!(lease.state(), LeaseState::Held);
}

#[tokio::test(start_paused = true)]
async fn flush_does_not_wait_for_later_releases() {
    let engine = Watched::new();
    let locks = engine.locks();
    engine.releases_take.store(20, Ordering::SeqCst);
    let dropping = locks.clone();
    let dropping = tokio::spawn(async move {
        for nth in 0.. {
            drop(dropping.lock(format!("x{nth}")).acquire().await.unwrap());
            sleep(ms(5)).await;
        }
    });
    sleep(ms(50)).await;
    drop(locks.lock("x").acquire().await.unwrap());
    timeout(secs(1), locks.flush()).await.expect("it starves");
    assert_eq!(locks.inspect("x").await.unwrap().holders, []);
    dropping.abort();
}

#[tokio::test(start_paused = true)]
async fn repeat_of_a_dropped_acquire_keeps_its_lease() {
    let engine = Watched::new();
    let locks = engine.locks();
    let held = locks.lock("x").acquire().await.unwrap();
    let id = ClaimId::random().unwrap();
    let request = || locks.lock("x").claim_id(id).wait_forever().acquire();
    let mut waiting = Box::pin(request());
    assert!((&mut waiting).now_or_never().is_none());
    held.release().await.unwrap();
    // It is given up in the background, where nothing runs before the next await.
    drop(waiting);
    let lease = request().now_or_never().expect("it was admitted").unwrap();
    locks.flush().await;
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
    assert!(lease.renew().await.is_ok());
    // One that is dropped without a repeat is given up.
    lease.release().await.unwrap();
    let held = locks.lock("x").acquire().await.unwrap();
    let mut waiting = Box::pin(locks.lock("x").wait_forever().acquire());
    assert!((&mut waiting).now_or_never().is_none());
    drop(waiting);
    locks.flush().await;
    assert_eq!(locks.inspect("x").await.unwrap().waiters, []);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_that_is_told_nothing_looks_again() {
    let engine = Watched::new();
    let locks = engine.locks();
    engine.silent.store(true, Ordering::SeqCst);
    let held = locks.lock("x").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("x").wait_forever().acquire());
    sleep(secs(1)).await;
    held.release().await.unwrap();
    let lease = timeout(secs(91), waiting).await.expect("it never looks");
    lease.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn joined_request_with_terms_of_its_own_is_refused() {
    let locks = Watched::new().locks().reentrant("one").unwrap();
    let lease = locks.lock("x").max_hold(secs(60)).acquire().await.unwrap();
    for request in [
        locks.lock("x").max_hold(secs(5)),
        locks.lock("x").hold_at_least(secs(5)),
    ] {
        let refused = request.acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.advice().is_some());
    }
    let joined = locks.lock("x").acquire().await.unwrap();
    assert_eq!(joined.release().await.unwrap(), Released::Yes);
    assert_eq!(lease.release().await.unwrap(), Released::Yes);
}

#[tokio::test]
async fn lost_lease_that_is_not_the_last_was_not_held() {
    let locks = Watched::new().locks().reentrant("one").unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let second = locks.lock("x").acquire().await.unwrap();
    locks.force_release("x").await.unwrap();
    assert!(first.renew().await.is_err());
    assert_eq!(first.release().await.unwrap(), Released::WasNotHeld);
    assert_eq!(second.release().await.unwrap(), Released::WasNotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_lease_recovers_when_renewals_work_again() {
    let engine = Watched::new();
    let lease = engine.locks().lock("x").ttl(secs(30)).acquire().await;
    let lease = lease.unwrap();
    for _ in 0..3 {
        engine.fail(true);
        sleep(secs(12)).await;
        assert_eq!(lease.state(), LeaseState::Uncertain);
        engine.fail(false);
        sleep(secs(12)).await;
        assert_eq!(lease.state(), LeaseState::Held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_once_seen_as_lost_is_never_held_again() {
    let clock = Clock::tokio();
    let engine = Watched::on(clock.clone(), Duration::ZERO);
    let lease = engine.locks().lock("x").ttl(secs(30)).acquire().await;
    let lease = lease.unwrap();
    engine.fail(true);
    sleep(secs(25)).await;
    engine.fail(false);
    engine.renewals_take.store(300, Ordering::SeqCst);
    let mut renewing = Box::pin(lease.renew());
    assert!((&mut renewing).now_or_never().is_none());
    // The engine has renewed it, but the answer is still on its way when the old validity ends.
    clock.sleep_through(secs(6));
    assert!(matches!(lease.state(), LeaseState::Lost(_)));
    let error = renewing.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(matches!(lease.state(), LeaseState::Lost(_)));
    sleep(secs(20)).await;
    assert!(!lease.is_valid());
}

/// On a thread of its own: a renewer that loops for ever never yields.
#[test]
fn many_leases_that_cannot_be_renewed_are_all_lost_in_time() {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            for round in 0..100 {
                let engine = Watched::new();
                engine.fail(true);
                let (locks, mut leases) = (engine.locks(), Vec::new());
                for nth in 0..8 {
                    let request = locks.lock(format!("x{nth}")).ttl(ms(1500));
                    leases.push(request.acquire().await.unwrap());
                    sleep(ms((round * 37 + nth * 53) % 150)).await;
                }
                for lease in &leases {
                    let lost = timeout(secs(2), lease.lost()).await.unwrap();
                    assert!(matches!(lost, LossReason::Expired { .. }));
                }
            }
        });
        sender.send(()).unwrap();
    });
    done.recv_timeout(secs(60))
        .expect("the renewer stands still");
}

#[tokio::test(start_paused = true)]
async fn failed_release_is_retried_soon_with_a_long_ttl() {
    let engine = Watched::new();
    let locks = engine.locks();
    let lease = locks
        .lock("x")
        .ttl(secs(24 * 3600))
        .acquire()
        .await
        .unwrap();
    engine.fail(true);
    drop(lease);
    sleep(secs(60)).await;
    engine.fail(false);
    sleep(secs(10)).await;
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn detached_lock_survives_release_of_another_lease() {
    let engine = Watched::new();
    let (locks, other) = (engine.locks().reentrant("me").unwrap(), engine.locks());
    let first = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    let second = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    assert_eq!(first.token(), second.token());
    let resumed = other.resume("x", first.detach()).unwrap();
    let resumed = resumed.into_lease(secs(30)).await.unwrap().unwrap();
    second.release().await.unwrap();
    sleep(secs(60)).await;
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    assert!(resumed.is_valid());
    resumed.release().await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn recipes_never_join_what_their_owner_holds() {
    let engine = Watched::new();
    let (locks, other) = (engine.locks().reentrant("me").unwrap(), engine.locks());
    let outer = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    let once = locks.lock("x").wait(secs(1)).once_per(secs(60));
    assert_eq!(once.begin().await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(outer.is_valid());
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    outer.release().await.unwrap();

    let (mut one, mut two) = (locks.elect("x").unwrap(), locks.elect("x").unwrap());
    let ElectionEvent::Leading(lease) = one.next().await.unwrap() else {
        panic!("nobody else stands");
    };
    let second = timeout(secs(10), two.next()).await;
    assert!(!matches!(second, Ok(Ok(ElectionEvent::Leading(_)))));
    assert!(lease.is_valid());
}

/// Others can see a lead before the candidate gets the answer that says so.
#[tokio::test(start_paused = true)]
async fn candidate_with_a_slow_answer_does_not_follow_itself() {
    let engine = Watched::on(Clock::tokio(), secs(4));
    let (locks, other) = (engine.locks(), engine.locks());
    engine.attempts_take.store(4_000, Ordering::SeqCst);
    let mut first = locks.lock("x").ttl(secs(10)).label("a").elect().unwrap();
    let event = first.next().await.unwrap();
    assert!(matches!(event, ElectionEvent::Leading(_)), "{event:?}");

    engine.attempts_take.store(0, Ordering::SeqCst);
    let mut second = other.lock("x").ttl(secs(10)).label("b").elect().unwrap();
    let event = second.next().await.unwrap();
    let leads = |event: &ElectionEvent| match event {
        ElectionEvent::Following(leader) => Some(leader.claimant.label.clone()),
        _ => None,
    };
    assert_eq!(leads(&event).as_deref(), Some("a"), "{event:?}");
    drop(first);
    let event = second.next().await.unwrap();
    assert!(matches!(event, ElectionEvent::Leading(_)), "{event:?}");
}

/// Two of one process and one label cannot be told apart, but for how long the leader has led.
#[tokio::test(start_paused = true)]
async fn follower_with_the_label_of_the_leader_is_told() {
    let engine = Watched::new();
    let (locks, other) = (engine.locks(), engine.locks());
    let stand = |locks: &Locks| locks.lock("x").ttl(secs(10)).elect().unwrap();
    let (mut first, mut second) = (stand(&locks), stand(&other));
    let event = first.next().await.unwrap();
    assert!(matches!(event, ElectionEvent::Leading(_)), "{event:?}");
    let event = timeout(secs(20), second.next()).await.unwrap().unwrap();
    assert!(matches!(event, ElectionEvent::Following(_)), "{event:?}");
}

#[tokio::test]
async fn work_of_a_period_that_outlives_its_lease_is_an_error() {
    let locks = Locks::connect("memory:").await.unwrap();
    for result in [Ok(1), Err(2)] {
        let once = locks.lock("x").ttl(Duration::from_millis(100));
        let done = once
            .once_per(secs(60))
            .run(async |_lease| {
                std::thread::sleep(Duration::from_millis(300));
                result
            })
            .await;
        assert_eq!(done.unwrap_err().kind(), ErrorKind::LeaseLost);
        assert!(locks.forget_run("x").await.unwrap());
    }
}

#[tokio::test]
async fn a_party_that_stepped_back_from_a_barrier_is_not_counted() {
    let locks = Locks::connect("memory:").await.unwrap();
    let barrier = locks.barrier("x", 2).unwrap();
    let first = timeout(ms(100), barrier.pass(secs(10))).await;
    assert!(first.is_err());
    let again = barrier.pass(ms(200)).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_busy_engine_is_waited_for_until_the_deadline() {
    let engine = Watched::new();
    let locks = engine.locks();
    engine.busy.store(20, Ordering::SeqCst);
    let lease = locks.lock("x").wait(secs(60)).acquire().await.unwrap();
    lease.release().await.unwrap();

    engine.busy.store(usize::MAX, Ordering::SeqCst);
    let start = Instant::now();
    let error = locks.lock("x").wait(secs(60)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("too many clients"), "{error}");
    assert!(start.elapsed() >= secs(60) && start.elapsed() < secs(62));

    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert!(error.is_busy(), "whoever does not wait is told at once");
}

/// The lock is granted again, with all of its TTL, if nobody took it meanwhile.
#[tokio::test(start_paused = true)]
async fn grant_answered_after_its_ttl_is_asked_for_again() {
    let engine = Watched::new();
    let locks = engine.locks();
    engine.late_grants.store(2, Ordering::SeqCst);
    let lease = locks.lock("x").ttl(secs(1)).wait(secs(60)).acquire().await;
    let lease = lease.unwrap();
    assert!(lease.is_valid());
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();

    engine.late_grants.store(1, Ordering::SeqCst);
    let error = locks.lock("x").ttl(secs(1)).try_acquire().await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
    locks.flush().await;
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_lease_to_the_moment() {
    let engine = Watched::new();
    for hold in [secs(5), secs(100)] {
        let request = engine.locks().lock("x").ttl(secs(30)).max_hold(hold);
        let start = Instant::now();
        let lease = request.wait_forever().acquire().await.unwrap();
        let acquired = start.elapsed();
        assert_eq!(lease.lost().await, LossReason::MaxHold);
        let held = start.elapsed() - acquired;
        assert!(held >= hold && held < hold + ms(50), "{held:?}");
        assert!(!lease.is_valid());
        assert_eq!(
            lease.renew().await.unwrap_err().kind(),
            ErrorKind::LeaseLost
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_asleep_sees_the_truth() {
    let clock = Clock::tokio();
    let locks = Locks::new(Arc::new(Memory::with_clock(clock.clone())));
    let lease = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(1)).await;
    clock.sleep_through(secs(3600));
    assert!(!lease.is_valid(), "seen at once");
    assert!(lease.remaining().is_zero());
    let lost = timeout(ms(1_100), lease.lost()).await;
    assert_eq!(lost.unwrap(), LossReason::Expired { last_failure: None });
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_short_sleep_costs_nothing() {
    let clock = Clock::tokio();
    let locks = Locks::new(Arc::new(Memory::with_clock(clock.clone())));
    let lease = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    for _ in 0..5 {
        clock.sleep_through(secs(20));
        sleep(secs(1)).await;
        assert_eq!(lease.state(), LeaseState::Held);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_is_heard_of_late_is_renewed_in_time() {
    // Of the 30 s there are 5 left when the waiter hears that it holds the lock.
    let engine = Watched::on(Clock::tokio(), secs(25));
    let locks = engine.locks();
    let first = locks.lock("x").ttl(secs(300)).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("x").ttl(secs(30)).wait_forever().acquire());
    sleep(secs(1)).await;
    first.release().await.unwrap();
    let handed_over = Instant::now();
    let lease = waiter.await.unwrap().unwrap();
    assert!(handed_over.elapsed() >= secs(25));
    sleep(secs(60)).await;
    assert_eq!(lease.state(), LeaseState::Held);
}

#[tokio::test(start_paused = true)]
async fn run_returns_what_the_work_returns_and_releases() {
    let locks = Watched::new().locks();
    let done = locks.lock("x").run(|lease| async move {
        assert!(lease.is_valid());
        7
    });
    assert_eq!(done.await.unwrap(), 7);
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn run_drops_the_work_when_the_lease_is_lost_and_says_so() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let engine = Watched::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = Dropped(Arc::clone(&dropped));
    engine.fail(true);
    let lost = engine.locks().lock("x").run(|_| async move {
        let _guard = guard;
        pending::<()>().await
    });
    let lost = lost.await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    assert!(lost.to_string().contains("the cable is cut"), "{lost}");
    assert!(lost.advice().is_some());
    assert!(dropped.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_its_handle() {
    let engine = Watched::new();
    let locks = engine.locks();
    let lease = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    drop(locks);
    sleep(secs(300)).await;
    assert_eq!(lease.state(), LeaseState::Held);
    drop(lease);
    sleep(ms(1)).await;
    let free = engine.locks().lock("x").try_acquire().await;
    assert!(
        free.unwrap().is_some(),
        "released although the handle is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_finished_in_the_background() {
    let engine = Watched::new();
    let locks = engine.locks();
    let lease = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    engine.fail(true);
    let failed = lease.release().await.unwrap_err();
    assert_eq!(failed.effect(), Effect::Unknown);
    assert_eq!(failed.operation(), Some("release"));
    sleep(secs(1)).await;
    engine.fail(false);
    let next = timeout(secs(5), locks.lock("x").wait_forever().acquire());
    assert!(next.await.is_ok(), "freed long before its TTL");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_release_is_finished_in_the_background() {
    let engine = Watched::new();
    let locks = engine.locks();
    let lease = locks.lock("x").ttl(secs(30)).acquire().await.unwrap();
    drop(lease.release());
    sleep(ms(10)).await;
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_detached_claim_is_taken_up_by_its_id() {
    let engine = Watched::new();
    let lease = engine.locks().lock("x").ttl(secs(30)).acquire().await;
    let lease = lease.unwrap();
    let token = lease.token();
    let id = lease.detach();
    let locks = engine.locks();
    sleep(secs(20)).await;
    let stranger = locks.resume("x", ClaimId::random().unwrap()).unwrap();
    assert_eq!(stranger.renew(secs(30)).await.unwrap(), None);
    assert_eq!(stranger.release().await.unwrap(), Released::WasNotHeld);
    let resumed = locks.resume("x", id).unwrap();
    let lease = resumed.into_lease(secs(30)).await.unwrap().unwrap();
    assert_eq!(lease.token(), token);
    sleep(secs(100)).await;
    assert_eq!(lease.state(), LeaseState::Held);
    lease.release().await.unwrap();
    let gone = locks.resume("x", id).unwrap();
    assert!(gone.into_lease(secs(30)).await.unwrap().is_none());
}

#[test]
fn another_runtime_takes_over_the_renewals() {
    let engine = Watched::on(Clock::machine(), Duration::ZERO);
    let locks = engine.locks();
    let first = tokio::runtime::Runtime::new().unwrap();
    let orphan = first.block_on(locks.lock("orphan").ttl(ms(600)).acquire());
    let orphan = orphan.unwrap();
    drop(first);
    let second = tokio::runtime::Runtime::new().unwrap();
    second.block_on(async {
        let lease = locks.lock("x").ttl(secs(2)).acquire().await.unwrap();
        // Nobody renews what the first runtime was to renew; that must not go unheard.
        let lost = timeout(secs(10), orphan.lost()).await;
        assert!(lost.is_ok(), "the loss was never signalled");
        assert!(!orphan.is_valid());
        sleep(ms(2500)).await;
        assert!(lease.is_valid());
        drop(lease);
        let next = timeout(secs(10), locks.lock("x").wait_forever().acquire());
        assert!(next.await.unwrap().is_ok());
    });
}

#[test]
fn end_of_one_runtime_strands_no_lease_of_another() {
    let locks = Watched::on(Clock::machine(), Duration::ZERO).locks();
    let [first, second] = [(); 2].map(|()| tokio::runtime::Runtime::new().unwrap());
    let orphan = first.block_on(locks.lock("orphan").ttl(secs(3)).acquire());
    let orphan = orphan.unwrap();
    let lease = second.block_on(locks.lock("x").ttl(secs(3)).acquire());
    let lease = lease.unwrap();
    drop(first);
    second.block_on(async { sleep(secs(5)).await });
    assert!(lease.is_valid(), "nobody renews it");
    assert!(!orphan.is_valid(), "it goes on without its runtime");
}

/// The release is under way, or not yet begun, when its runtime ends.
#[test]
fn release_is_carried_out_although_its_runtime_has_ended() {
    for is_under_way in [true, false] {
        let engine = Watched::on(Clock::machine(), Duration::ZERO);
        let locks = engine.locks();
        let first = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let second = tokio::runtime::Runtime::new().unwrap();
        let lease = first.block_on(locks.lock("x").ttl(secs(100)).acquire());
        let lease = lease.unwrap();
        let other = second.block_on(locks.lock("y").acquire()).unwrap();
        engine.releases_take.store(100_000, Ordering::SeqCst);
        first.block_on(async {
            drop(lease);
            while is_under_way && engine.releases.load(Ordering::SeqCst) == 0 {
                sleep(ms(10)).await;
            }
        });
        engine.releases_take.store(0, Ordering::SeqCst);
        let flushed = second.spawn({
            let locks = locks.clone();
            async move { locks.flush().await }
        });
        drop(first);
        second.block_on(async {
            timeout(secs(20), flushed).await.unwrap().unwrap();
            timeout(secs(20), locks.flush()).await.unwrap();
            assert_eq!(locks.inspect("x").await.unwrap().holders, []);
        });
        assert!(other.is_valid());
    }
}

/// As one that a program without async uses now and then.
#[test]
fn runtime_that_stands_still_holds_up_no_flush() {
    let locks = Watched::on(Clock::machine(), Duration::ZERO).locks();
    let idle = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _held = idle.block_on(locks.lock("x").acquire()).unwrap();
    runtime.block_on(async {
        drop(locks.lock("y").ttl(secs(100)).acquire().await.unwrap());
        let flushed = timeout(secs(20), locks.flush()).await;
        assert!(flushed.is_ok(), "it waits for the other runtime");
        assert_eq!(locks.inspect("y").await.unwrap().holders, []);
    });
}

#[test]
fn a_lease_may_be_dropped_where_there_is_no_runtime() {
    let locks = Watched::on(Clock::machine(), Duration::ZERO).locks();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let lease = runtime.block_on(locks.lock("x").ttl(secs(30)).acquire());
    drop(lease.unwrap());
    let next = locks.lock("x").wait_forever().acquire();
    let next = runtime.block_on(async { timeout(secs(10), next).await });
    assert!(next.is_ok());
}

#[cfg(feature = "blocking")]
#[test]
fn the_blocking_face_does_the_same() {
    let locks = leasehold::blocking::Locks::connect("memory:").unwrap();
    let lease = locks.lock("x").ttl(secs(2)).acquire().unwrap();
    let other = locks.clone();
    assert!(other.lock("x").try_acquire().unwrap().is_none());
    std::thread::sleep(ms(2500));
    assert!(lease.is_valid(), "kept alive meanwhile");
    assert_eq!(locks.inspect("x").unwrap().holders[0].token, lease.token());
    assert!(lease.renew().unwrap() > Duration::ZERO);
    let waiter = std::thread::spawn(move || other.lock("x").wait(secs(20)).acquire());
    std::thread::sleep(ms(50));
    drop(lease);
    let next = waiter.join().unwrap().unwrap();
    assert_eq!(next.release().unwrap(), Released::Yes);
    assert!(locks.lock("x").run(|lease| lease.is_valid()).unwrap());
    assert_eq!(locks.force_release("x").unwrap(), Released::WasNotHeld);
    assert!(locks.list("").unwrap().is_empty());
}

#[cfg(feature = "blocking")]
#[tokio::test]
async fn blocking_api_in_async_code_is_a_clear_error() {
    let refused = leasehold::blocking::Locks::connect("memory:").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    assert!(refused.advice().is_some());
}

#[tokio::test(start_paused = true)]
async fn every_bad_input_has_a_typed_error_that_says_what_to_do() {
    use ErrorKind::{InvalidConfig, InvalidName, TimedOut, Unsupported};
    let locks = Watched::new().locks();
    let ok = |name: &str| locks.lock(name);
    let mut table = Vec::new();
    for name in ["", &"x".repeat(256), "a\0b", "a\nb", "\u{7f}", "\u{85}"] {
        table.push((InvalidName, ok(name).acquire().await));
        table.push((
            InvalidName,
            ok(name).try_acquire().await.map(Option::unwrap),
        ));
        assert_eq!(locks.inspect(name).await.unwrap_err().kind(), InvalidName);
        let broken = locks.force_release(name).await;
        assert_eq!(broken.unwrap_err().kind(), InvalidName);
        let resumed = locks.resume(name, ClaimId::from_bytes([7; 16]));
        assert_eq!(resumed.unwrap_err().kind(), InvalidName);
    }
    for ttl in [Duration::ZERO, ms(9), secs(25 * 60 * 60), Duration::MAX] {
        table.push((InvalidConfig, ok("x").ttl(ttl).acquire().await));
        let resumed = locks.resume("x", ClaimId::from_bytes([7; 16])).unwrap();
        let refused = resumed.renew(ttl).await.unwrap_err();
        assert_eq!(refused.kind(), InvalidConfig);
    }
    table.push((InvalidConfig, ok("x").permits(0).acquire().await));
    table.push((InvalidConfig, ok("x").max_hold(ms(9)).acquire().await));
    let too_long = ok("x").hold_at_least(secs(25 * 60 * 60));
    table.push((InvalidConfig, too_long.acquire().await));
    for text in ["", "a\nb", &"x".repeat(2000)] {
        table.push((InvalidConfig, ok("x").label(text).acquire().await));
        table.push((InvalidConfig, ok("x").reason(text).acquire().await));
        assert_eq!(locks.reentrant(text).unwrap_err().kind(), InvalidConfig);
    }
    let _two = ok("permits").permits(2).acquire().await.unwrap();
    table.push((InvalidConfig, ok("permits").permits(3).acquire().await));
    let owner = locks.reentrant("me").unwrap();
    let _reader = owner.lock("read").shared().acquire().await.unwrap();
    table.push((Unsupported, owner.lock("read").acquire().await));
    table.push((TimedOut, ok("read").wait(ms(50)).acquire().await));
    for (kind, outcome) in table {
        let error = outcome.expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.advice().is_some(), "{error}");
        if kind != InvalidName {
            assert_eq!(error.engine(), Some("memory:"), "{error}");
            assert!(error.lock().is_some(), "{error}");
        }
    }
    for url in ["", "nonsense", "etdc://x", "memory:?colour=red"] {
        let error = Locks::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), InvalidConfig, "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
    let error = "not a claim id".parse::<ClaimId>().unwrap_err();
    assert_eq!(error.kind(), InvalidConfig);
    assert!(error.advice().is_some());
}

/// An engine that hears of the end of its session says so, and leases are looked at then, not at a third of their TTL.
#[cfg(feature = "conformance")]
#[tokio::test]
async fn a_disturbance_has_every_lease_renewed_at_once() {
    use leasehold::conformance::faulty::Faulty;
    let engine = Faulty::new(std::sync::Arc::new(
        leasehold::engine::memory::Memory::default(),
    ));
    let locks = Locks::new(engine.clone());
    let broken = locks.lock("a").ttl(Duration::from_secs(3600)).acquire();
    let kept = locks.lock("b").ttl(Duration::from_secs(3600)).acquire();
    let (broken, kept) = (broken.await.unwrap(), kept.await.unwrap());
    let before = kept.valid_until();
    locks.force_release("a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(broken.is_valid(), "nobody has told it yet");
    engine.disturb();
    let lost = tokio::time::timeout(Duration::from_secs(10), broken.lost()).await;
    assert_eq!(lost.unwrap(), leasehold::LossReason::Gone);
    assert!(kept.is_valid() && kept.valid_until() > before);
}
