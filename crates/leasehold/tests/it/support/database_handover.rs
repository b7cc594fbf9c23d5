//! What becomes of a hand-over that nobody took up, on engines that keep locks as rows.

use std::time::{Duration, Instant};

use leasehold::engine::{Attempt, Wake};
use leasehold::{Claim, ClaimId, FencingToken, LockName, Locks, Ttl};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub const LONG: Duration = Duration::from_secs(60);

/// Much less than the holder's TTL, after which a forgotten waiter looks by itself.
pub const SOON: Duration = Duration::from_secs(10);

pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(10)).await;
    }
}

pub async fn until_queued(locks: &Locks, count: usize) {
    until("they queue", async || {
        locks.inspect("x").await.unwrap().waiters.len() == count
    })
    .await;
}

pub fn claim() -> Claim {
    let mut claim = Claim::new(LockName::new("x").unwrap(), ClaimId::random().unwrap());
    claim.ttl = Ttl::new(LONG).unwrap();
    claim.queues = true;
    claim
}

/// One that was handed the lock, and has lost it since, does not wait any more: it is not to be offered it again and again.
pub async fn a_hand_over_that_was_lost(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let engine = locks.engine();
    let (held, lapsed) = (claim(), claim());
    let granted = engine.try_acquire(&held).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
    let queued = engine.try_acquire(&lapsed).await.unwrap();
    assert!(matches!(queued, Attempt::Held(_)));
    engine.release(&held).await.unwrap();
    until("the hand-over is heard of", async || {
        let woken = engine.wait(&lapsed).await;
        matches!(woken.unwrap(), Wake::Granted(_))
    })
    .await;
    // Its renewals do not come through, it counts as lost, and whoever had it takes a while to notice. This keeps the process alive:
    let other = locks.lock("y").ttl(LONG).acquire().await.unwrap();
    let waiting = locks.lock("y").wait(LONG);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    tokio::time::sleep(ms(800)).await;

    let far = Locks::connect(url).await.unwrap();
    drop(far.lock("x").wait(LONG).acquire().await.unwrap());
    far.flush().await;
    let began = Instant::now();
    for _ in 0..10 {
        let lease = far.lock("x").wait(LONG).acquire().await.unwrap();
        lease.release().await.unwrap();
    }
    let took = began.elapsed();
    println!("10 cycles beside a hand-over that was lost: {took:?}");
    assert_eq!(far.inspect("x").await.unwrap().waiters.len(), 0);
    assert!(took < ms(4500), "{took:?}");
    other.release().await.unwrap();
    drop(waiting.await.unwrap());
}

/// One that could not hear in time is told to look, asks again, and gets the lock in its turn.
pub async fn an_offer_that_lapsed(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let engine = locks.engine();
    let (held, late) = (claim(), claim());
    engine.try_acquire(&held).await.unwrap();
    engine.try_acquire(&late).await.unwrap();
    // It has no time to listen just now.
    engine.release(&held).await.unwrap();
    tokio::time::sleep(ms(1500)).await;
    let woken = tokio::time::timeout(SOON, engine.wait(&late)).await;
    let woken = woken.expect("nobody told it").unwrap();
    assert!(matches!(woken, Wake::Retry), "it relied on an old offer");
    let again = engine.try_acquire(&late).await.unwrap();
    assert!(matches!(again, Attempt::Granted(_)));
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
}

/// A claim that leaves the queue with an attempt that does not queue is nobody's waiter any more.
pub async fn a_queue_that_is_left(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let mailboxes = || format!("{:?}", locks.engine()).matches("Mailbox {").count();
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = claim();
    let refused = locks.engine().try_acquire(&waiter).await;
    assert!(matches!(refused, Ok(Attempt::Held(_))), "{refused:?}");
    assert_eq!(mailboxes(), 1);
    locks.broker().leave_queue(&waiter).await.unwrap();
    assert_eq!(mailboxes(), 0);
    holder.release().await.unwrap();
}

/// The process of the claims that have left lives on, so that each of them would be offered the lock.
pub async fn waiters_that_have_left(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let left: Vec<_> = (0..10).map(|_| claim()).collect();
    for claim in &left {
        let refused = locks.engine().try_acquire(claim).await;
        assert!(matches!(refused, Ok(Attempt::Held(_))), "{refused:?}");
    }
    let next = tokio::spawn(locks.lock("x").ttl(LONG).wait(LONG).acquire());
    until_queued(&locks, 11).await;
    for claim in &left {
        locks.broker().leave_queue(claim).await.unwrap();
    }
    assert_eq!(locks.inspect("x").await.unwrap().waiters.len(), 1);
    let began = Instant::now();
    holder.release().await.unwrap();
    let next = tokio::time::timeout(SOON, next).await;
    let next = next.expect("it was forgotten").unwrap().unwrap();
    // Ten offers that nobody takes up last for five seconds.
    let took = began.elapsed();
    assert!(took < ms(3500), "{took:?}");
    next.release().await.unwrap();
}

/// A shared claim waits behind an exclusive one, while others share the lock.
pub async fn a_waiter_behind_one_that_leaves(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let shared = || locks.lock("x").shared().ttl(LONG);
    let _holder = shared().acquire().await.unwrap();
    let exclusive = claim();
    let refused = locks.engine().try_acquire(&exclusive).await;
    assert!(matches!(refused, Ok(Attempt::Held(_))), "{refused:?}");
    let next = tokio::spawn(shared().wait(LONG).acquire());
    until_queued(&locks, 2).await;
    locks.broker().leave_queue(&exclusive).await.unwrap();
    let next = tokio::time::timeout(SOON, next).await;
    let next = next.expect("it was forgotten").unwrap().unwrap();
    assert!(next.is_valid());
}

/// A client of a server may come back through another one while the first still waits for it.
pub async fn a_waiter_that_came_back_elsewhere(url: &str) {
    let one = Locks::connect(url).await.unwrap();
    let other = Locks::connect(elsewhere(url)).await.unwrap();
    let holder = one.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = claim();
    for locks in [&one, &other] {
        let queued = locks.engine().try_acquire(&waiter).await;
        assert!(matches!(queued, Ok(Attempt::Held(_))), "{queued:?}");
    }
    one.broker().leave_queue(&waiter).await.unwrap();
    assert_eq!(one.inspect("x").await.unwrap().waiters.len(), 1);
    holder.release().await.unwrap();
    let woken = tokio::time::timeout(SOON, other.engine().wait(&waiter)).await;
    woken.expect("it was forgotten").unwrap();
}

/// The same server with a listener of its own, as another process has.
fn elsewhere(url: &str) -> String {
    format!("{url}?sslmode=disable")
}

/// A waiter was offered the lock, has checked its lease in a transaction, and does not renew it: nobody else can be let in before the transaction ends.
/// Other waiters of the process are served meanwhile.
pub async fn a_transaction_that_outlasts_its_offer<T>(
    url: &str,
    check: impl AsyncFn(FencingToken) -> Option<T>,
    commit: impl AsyncFnOnce(T),
) {
    let locks = Locks::connect(url).await.unwrap();
    let far = Locks::connect(elsewhere(url)).await.unwrap();
    let engine = locks.engine();
    let other = far.lock("y").ttl(LONG).acquire().await.unwrap();
    let (mut held, next) = (claim(), claim());
    engine.try_acquire(&held).await.unwrap();
    let transaction = loop {
        let offered = claim();
        let queued = engine.try_acquire(&offered).await.unwrap();
        assert!(matches!(queued, Attempt::Held(_)), "{queued:?}");
        let queued = engine.try_acquire(&next).await.unwrap();
        assert!(matches!(queued, Attempt::Held(_)), "{queued:?}");
        engine.release(&held).await.unwrap();
        if let Wake::Granted(grant) = engine.wait(&offered).await.unwrap()
            && let Some(transaction) = check(grant.token).await
        {
            break transaction;
        }
        // The offer was over by then.
        for claim in [&offered, &next] {
            engine.release(claim).await.unwrap();
        }
        held = claim();
        engine.try_acquire(&held).await.unwrap();
    };
    let waiting = tokio::spawn(locks.lock("y").wait(LONG).acquire());
    until("it queues", async || {
        far.inspect("y").await.unwrap().waiters.len() == 1
    })
    .await;
    tokio::time::sleep(ms(1500)).await;
    other.release().await.unwrap();
    let served = tokio::time::timeout(SOON, waiting).await;
    drop(served.expect("it was not served").unwrap().unwrap());
    let offers = engine.wait(&next);
    let early = tokio::time::timeout(ms(1000), offers).await;
    assert!(!matches!(early, Ok(Ok(Wake::Granted(_)))), "{early:?}");
    commit(transaction).await;
    until("it enters", async || {
        let woken = tokio::time::timeout(SOON, engine.wait(&next)).await;
        match woken.expect("it was forgotten").unwrap() {
            Wake::Granted(_) => true,
            _ => matches!(engine.try_acquire(&next).await, Ok(Attempt::Granted(_))),
        }
    })
    .await;
}
