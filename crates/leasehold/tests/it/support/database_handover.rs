//! What becomes of a hand-over that nobody took up, on engines that keep locks as rows.

use std::time::{Duration, Instant};

use leasehold::engine::{Attempt, Wake};
use leasehold::{Claim, ClaimId, LockName, Locks, Ttl};

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
