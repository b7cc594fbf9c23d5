//! Waiting: deadlines, cancellation, wake-ups, and whose turn it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;

use super::Ground;
use super::case::theme;
use super::child::Task;
use super::faulty::{Fault, Faulty};
use super::ground::{LONG, claim, grant, is_refused, ms, now, pause, queueing, unless_slow};
use crate::error::{Effect, ErrorKind};
use crate::locks::Locks;

theme! { waiting:
    a_deadline_is_kept [] caught by [GrantsAlways, ReleaseLeavesGhosts];
    no_wait_is_one_attempt [] caught by [GrantsAlways, QueuesEverybody];
    a_cancelled_wait_gives_up_its_place [] caught by [ReleaseLeavesGhosts];
    a_release_wakes_the_waiter [] caught by [NeverWakes, ReleaseDoesNothing];
    a_repeated_attempt_keeps_its_place [Fifo] caught by [QueuesAnew, HasNoQueue];
    first_come_first_served [Fifo] caught by [HasNoQueue];
    a_storm_loses_no_wake_up [] caught by [NeverWakes];
    a_deadline_that_meets_a_release_leaves_nothing [] caught by [ReleaseLeavesGhosts];
    a_cancellation_that_meets_a_release_leaves_nothing [] caught by [ReleaseLeavesGhosts];
    a_waiter_enters_when_the_holder_falls_silent [] caught by [NeverExpires];
    a_waiter_enters_when_the_one_before_it_falls_silent [Fifo] caught by [NeverExpires];
    a_waiter_enters_when_the_lock_is_cut_short [] caught by [RenewDoesNothing];
    a_waiter_enters_when_the_one_that_was_told_leaves [Fifo] caught by [RenewDoesNothing];
    a_killed_waiter_does_not_stall_the_queue [Processes] caught by [NeverWakes];
    a_single_attempt_does_not_barge [Fifo] caught by [HasNoQueue];
    an_attempt_of_unknown_effect_is_taken_back [] caught by [ReleaseDoesNothing];
}

async fn a_deadline_is_kept(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let start = now();
    let late = other.lock(&name).ttl(LONG).wait(ms(300)).acquire();
    let late = ground.soon("the deadline", late).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert!(now() >= start + ms(300), "gave up too early");
    lease.release().await.unwrap();
    let free = locks.lock(&name).ttl(LONG).try_acquire().await.unwrap();
    assert!(free.is_some(), "whoever gave up is still in line");
}

async fn no_wait_is_one_attempt(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let refused = locks.lock(&name).wait(ms(0)).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    assert_eq!(locks.inspect(&name).await.unwrap().waiters, []);
    lease.release().await.unwrap();
    let lease = locks.lock(&name).wait(ms(0)).acquire().await.unwrap();
    lease.release().await.unwrap();
}

async fn a_cancelled_wait_gives_up_its_place(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let request = |locks: &Locks| locks.lock(&name).ttl(LONG).wait_forever();
    let first = tokio::spawn(request(&locks).acquire());
    ground.until_queued(&locks, &name, 1).await;
    let second = tokio::spawn(request(&other).acquire());
    ground.until_queued(&locks, &name, 2).await;
    first.abort();
    ground.until_queued(&locks, &name, 1).await;
    lease.release().await.unwrap();
    let lease = ground.soon("the second waiter enters", second).await;
    lease.unwrap().unwrap().release().await.unwrap();
}

async fn a_release_wakes_the_waiter(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    for _ in 0..5 {
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let waiter = other.lock(&name).ttl(LONG).wait_forever();
        let waiter = tokio::spawn(waiter.acquire());
        ground.until_queued(&locks, &name, 1).await;
        lease.release().await.unwrap();
        let lease = ground.soon("the waiter wakes", waiter).await;
        lease.unwrap().unwrap().release().await.unwrap();
    }
}

async fn a_repeated_attempt_keeps_its_place(ground: Ground) {
    let (locks, engine) = (ground.locks().await, ground.engine().await);
    unless_slow(&ground, async |name, steps| {
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let (first, second) = (queueing(&name, LONG), queueing(&name, LONG));
        for waiter in [&first, &second, &first, &first, &second] {
            assert!(is_refused(&*engine, waiter).await);
        }
        assert_eq!(locks.inspect(&name).await.unwrap().waiters.len(), 2);
        steps.begin();
        lease.release().await.unwrap();
        steps.next();
        if !is_refused(&*engine, &second).await {
            return Err("overtook the first".to_owned());
        }
        for waiter in [&first, &second] {
            if is_refused(&*engine, waiter).await {
                return Err("the lock should be free".to_owned());
            }
            steps.next();
            engine.release(waiter).await.unwrap();
        }
        grant(&*engine, &claim(&name, LONG)).await;
        Ok(())
    })
    .await;
}

async fn first_come_first_served(ground: Ground) {
    let locks = ground.locks().await;
    unless_slow(&ground, async |name, steps| {
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = JoinSet::new();
        for nth in 0..6 {
            let request = ground.locks().await.lock(&name).ttl(LONG).wait_forever();
            let (order, steps) = (Arc::clone(&order), steps.clone());
            waiters.spawn(async move {
                let lease = request.acquire().await.unwrap();
                steps.next();
                order.lock().unwrap().push(nth);
                lease.release().await.unwrap();
            });
            ground.until_queued(&locks, &name, nth + 1).await;
        }
        steps.begin();
        lease.release().await.unwrap();
        ground.soon("all enter", waiters.join_all()).await;
        let order = order.lock().unwrap();
        match order.is_sorted() {
            true => Ok(()),
            false => Err(format!("they came in this order: {order:?}")),
        }
    })
    .await;
}

async fn a_storm_loses_no_wake_up(ground: Ground) {
    let name = ground.name("x");
    let mut storm = JoinSet::new();
    for _ in 0..5 {
        let locks = ground.locks().await;
        for _ in 0..6 {
            let (locks, name) = (locks.clone(), name.clone());
            storm.spawn(async move {
                for _ in 0..4 {
                    let request = locks.lock(&name).ttl(LONG).wait_forever();
                    let lease = request.acquire().await.unwrap();
                    tokio::task::yield_now().await;
                    lease.release().await.unwrap();
                }
            });
        }
    }
    ground.soon("the storm is over", storm.join_all()).await;
}

async fn a_deadline_that_meets_a_release_leaves_nothing(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    for nth in 0..20 {
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let waiter = other.lock(&name).ttl(LONG).wait(ms(10));
        let waiter = tokio::spawn(waiter.acquire());
        pause(5 + nth / 2).await;
        lease.release().await.unwrap();
        // Whether it was obtained at the last moment or not, the lock is free afterwards.
        drop(ground.soon("the wait ends", waiter).await.unwrap());
        let free = locks.lock(&name).ttl(LONG).wait_forever().acquire();
        let free = ground.soon("the lock is free", free).await;
        free.unwrap().release().await.unwrap();
    }
}

async fn a_cancellation_that_meets_a_release_leaves_nothing(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    for nth in 0..30 {
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let waiter = other.lock(&name).ttl(LONG).wait_forever();
        let waiter = tokio::spawn(waiter.acquire());
        pause(5).await;
        if nth == 0 {
            waiter.abort();
        }
        let release = tokio::spawn(lease.release());
        // Timers are too coarse to meet it.
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_micros(nth * nth / 2) {
            std::hint::spin_loop();
        }
        waiter.abort();
        // Together with the lease, if it was obtained at the last moment.
        drop(waiter);
        release.await.unwrap().unwrap();
        let free = locks.lock(&name).ttl(LONG).wait_forever().acquire();
        let free = ground.soon("the lock is free", free).await;
        free.unwrap().release().await.unwrap();
    }
}

async fn a_waiter_enters_when_the_holder_falls_silent(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(500)).acquire().await.unwrap();
    let valid_until = lease.valid_until();
    lease.detach();
    let next = other.lock(&name).ttl(LONG).wait_forever().acquire();
    let next = ground.soon("the waiter enters", next).await.unwrap();
    assert!(now() >= valid_until);
    next.release().await.unwrap();
}

async fn a_waiter_enters_when_the_one_before_it_falls_silent(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let first = other.lock(&name).ttl(ms(2000)).wait_forever();
    let first = tokio::spawn(first.acquire());
    ground.until_queued(&locks, &name, 1).await;
    let second = locks.lock(&name).ttl(LONG).wait_forever();
    let second = tokio::spawn(second.acquire());
    ground.until_queued(&locks, &name, 2).await;
    // The second waiter has met a holder with two minutes left. The next holder has two seconds.
    lease.release().await.unwrap();
    let lease = ground.soon("the first waiter enters", first).await;
    lease.unwrap().unwrap().detach();
    let next = ground.soon("the second waiter enters", second).await;
    next.unwrap().unwrap().release().await.unwrap();
}

async fn a_waiter_enters_when_the_lock_is_cut_short(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let request = locks.lock(&name).ttl(LONG).hold_at_least(ms(800));
    let lease = request.acquire().await.unwrap();
    let waiter = other.lock(&name).ttl(LONG).wait_forever();
    let waiter = tokio::spawn(waiter.acquire());
    ground.until_queued(&locks, &name, 1).await;
    // The waiter thinks that it has two minutes to wait; now it is less than a second.
    lease.release().await.unwrap();
    let next = ground.soon("the waiter enters", waiter).await;
    next.unwrap().unwrap().release().await.unwrap();
}

async fn a_waiter_enters_when_the_one_that_was_told_leaves(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let request = locks.lock(&name).ttl(LONG).hold_at_least(ms(2500));
    let lease = request.acquire().await.unwrap();
    let wait = |locks: &Locks| tokio::spawn(locks.lock(&name).ttl(LONG).wait_forever().acquire());
    let first = wait(&locks);
    ground.until_queued(&locks, &name, 1).await;
    let second = wait(&other);
    ground.until_queued(&locks, &name, 2).await;
    // Whoever is first learns that the lock ends soon, and goes.
    lease.release().await.unwrap();
    pause(300).await;
    first.abort();
    let next = ground.soon("the second waiter enters", second).await;
    next.unwrap().unwrap().release().await.unwrap();
}

async fn a_killed_waiter_does_not_stall_the_queue(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let task = Task::Hold {
        name: name.clone(),
        ttl: LONG,
    };
    let mut child = ground.child(task).await;
    ground.until_queued(&locks, &name, 1).await;
    let waiter = other.lock(&name).ttl(LONG).wait_forever();
    let waiter = tokio::spawn(waiter.acquire());
    ground.until_queued(&locks, &name, 2).await;
    child.kill().await;
    let released = now();
    lease.release().await.unwrap();
    let next = ground.soon("the next waiter enters", waiter).await;
    let stalled = now().since(released);
    assert!(stalled < LONG / 10, "the dead waiter cost {stalled:?}");
    next.unwrap().unwrap().release().await.unwrap();
}

async fn a_single_attempt_does_not_barge(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let barger = ground.locks().await;
    unless_slow(&ground, async |name, steps| {
        for _ in 0..8 {
            let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
            let waiter = other.lock(&name).ttl(LONG).wait_forever();
            let waiter = tokio::spawn(waiter.acquire());
            ground.until_queued(&locks, &name, 1).await;
            let over = Arc::new(AtomicBool::new(false));
            let barging = tokio::spawn({
                let (over, barger, name) = (Arc::clone(&over), barger.clone(), name.clone());
                async move {
                    while !over.load(Ordering::SeqCst) {
                        let got = barger.lock(&name).ttl(LONG).try_acquire().await.unwrap();
                        if got.is_some() {
                            return Err("barged past the waiter".to_owned());
                        }
                        tokio::task::yield_now().await;
                    }
                    Ok(())
                }
            });
            pause(5).await;
            steps.begin();
            lease.release().await.unwrap();
            let lease = ground.soon("the waiter enters", waiter).await;
            steps.next();
            over.store(true, Ordering::SeqCst);
            barging.await.unwrap()?;
            lease.unwrap().unwrap().release().await.unwrap();
        }
        Ok(())
    })
    .await;
}

async fn an_attempt_of_unknown_effect_is_taken_back(ground: Ground) {
    let faulty = Faulty::new(ground.engine().await);
    let locks = Locks::new(faulty.clone());
    let other = ground.engine().await;
    let name = ground.name("x");
    faulty.set(Fault::RepliesOfAttemptsAreLost);
    for wait in [ms(0), LONG] {
        let failed = locks.lock(&name).ttl(LONG).wait(wait).acquire().await;
        assert_eq!(failed.unwrap_err().effect(), Effect::Unknown);
        let next = claim(&name, LONG);
        ground
            .until("the lock is free again", async || {
                !is_refused(&*other, &next).await
            })
            .await;
        other.release(&next).await.unwrap();
    }
    grant(&*other, &claim(&name, LONG)).await;
}
