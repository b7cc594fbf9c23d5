//! What the core does by itself, whatever the engine; on a paused clock, so that a lease of 30 s
//! takes milliseconds.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::clock::Clock;
use leasehold::engine::memory::Memory;
use leasehold::engine::{
    Attempt, Capabilities, Contention, Engine, LockInfo, Query, Renew, Renewal, Wake,
};
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
    /// How late a hand-over is heard of.
    late: Duration,
}

impl Watched {
    fn new() -> Arc<Self> {
        Self::on(Clock::tokio(), Duration::ZERO)
    }

    fn on(clock: Clock, late: Duration) -> Arc<Self> {
        Arc::new(Self {
            inner: Memory::with_clock(clock),
            batches: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            denies: AtomicBool::new(false),
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

fn cut() -> Error {
    Error::new(ErrorKind::Unreachable, "the cable is cut").of_unknown_effect()
}

#[async_trait]
impl Engine for Watched {
    fn scheme(&self) -> &'static str {
        self.inner.scheme()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if self.denies.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Denied, "no longer"));
        }
        self.inner.try_acquire(claim).await
    }

    async fn wait(&self, claim: &Claim, seen: &Contention) -> Result<Wake> {
        let wake = self.inner.wait(claim, seen).await;
        sleep(self.late).await;
        wake
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        self.renewals.fetch_add(held.len(), Ordering::SeqCst);
        if self.fails() {
            return held.iter().map(|_| Err(cut())).collect();
        }
        self.inner.renew(held).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        if self.fails() {
            return Err(cut());
        }
        self.inner.release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.inner.inspect(query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        self.inner.break_lock(name).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_in_the_queue_is_given_up_when_a_later_attempt_fails() {
    let engine = Watched::new();
    let locks = engine.locks();
    let held = locks.lock("x").ttl(secs(1)).acquire().await.unwrap();
    held.detach();
    let waiting = tokio::spawn(locks.lock("x").wait_forever().acquire());
    sleep(ms(500)).await;
    assert_eq!(locks.show("x").await.unwrap().waiters.len(), 1);
    engine.denies.store(true, Ordering::SeqCst);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(locks.show("x").await.unwrap().waiters, []);
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
        let lease = locks.lock("x").ttl(ms(600)).acquire().await.unwrap();
        // Nobody renews what the first runtime was to renew; that must not go unheard.
        let lost = timeout(secs(10), orphan.lost()).await;
        assert!(lost.is_ok(), "the loss was never signalled");
        assert!(!orphan.is_valid());
        sleep(ms(900)).await;
        assert_eq!(lease.state(), LeaseState::Held);
        drop(lease);
        let next = timeout(secs(10), locks.lock("x").wait_forever().acquire());
        assert!(next.await.unwrap().is_ok());
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
    let lease = locks.lock("x").ttl(ms(300)).acquire().unwrap();
    let other = locks.clone();
    assert!(other.lock("x").try_acquire().unwrap().is_none());
    std::thread::sleep(ms(700));
    assert_eq!(lease.state(), LeaseState::Held, "kept alive meanwhile");
    assert_eq!(locks.show("x").unwrap().holders[0].token, lease.token());
    assert!(lease.renew().unwrap() > Duration::ZERO);
    let waiter = std::thread::spawn(move || other.lock("x").wait(secs(20)).acquire());
    std::thread::sleep(ms(50));
    drop(lease);
    let next = waiter.join().unwrap().unwrap();
    assert_eq!(next.release().unwrap(), Released::Yes);
    assert!(locks.lock("x").run(|lease| lease.is_valid()).unwrap());
    assert_eq!(locks.break_lock("x").unwrap(), Released::WasNotHeld);
    assert!(locks.list("").unwrap().is_empty());
}

#[cfg(feature = "blocking")]
#[tokio::test]
async fn the_blocking_face_says_that_it_does_not_belong_into_async_code() {
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
        assert_eq!(locks.show(name).await.unwrap_err().kind(), InvalidName);
        let broken = locks.break_lock(name).await;
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
        table.push((InvalidConfig, ok("x").owner(text).acquire().await));
        table.push((InvalidConfig, ok("x").reason(text).acquire().await));
        assert_eq!(locks.owner(text).unwrap_err().kind(), InvalidConfig);
    }
    let _two = ok("permits").permits(2).acquire().await.unwrap();
    table.push((InvalidConfig, ok("permits").permits(3).acquire().await));
    let owner = locks.owner("me").unwrap();
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
    locks.break_lock("a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(broken.is_valid(), "nobody has told it yet");
    engine.disturb();
    let lost = tokio::time::timeout(Duration::from_secs(10), broken.lost()).await;
    assert_eq!(lost.unwrap(), leasehold::LossReason::Gone);
    assert!(kept.is_valid() && kept.valid_until() > before);
}
