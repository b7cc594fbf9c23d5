//! A release frees the lock: one's own, and no other.

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, ms, pause, queueing, unless_slow};
use crate::engine::Released;

theme! { release:
    frees_the_lock [] caught by [ReleaseDoesNothing];
    twice_is_a_value [] caught by [ReleaseFailsIfNotHeld, ReleaseAlwaysSaysYes];
    never_frees_anothers [] caught by [ReleaseFreesAnybodys];
    after_expiry_leaves_the_next_holder_alone [] caught by [ReleaseFreesAnybodys, ReleaseFailsIfNotHeld];
    of_a_lost_lease_is_a_value [] caught by [ReleaseFailsIfNotHeld, ReleaseFreesAnybodys];
    gives_up_a_place_in_the_queue [Fifo] caught by [ReleaseLeavesGhosts];
    of_what_never_was_is_a_value [] caught by [ReleaseFailsIfNotHeld, ReleaseAlwaysSaysYes];
    by_dropping_the_lease [] caught by [ReleaseDoesNothing];
    breaking_frees_the_lock [] caught by [BreakDoesNothing];
    breaking_a_free_lock_is_a_value [] caught by [BreakAlwaysSaysYes];
    breaking_leaves_the_queue [Fifo] caught by [BreakDropsWaiters, BreakDoesNothing];
}

async fn frees_the_lock(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
    assert_eq!(lease.release().await.unwrap(), Released::Yes);
    grant(&*other, &claim(&name, LONG)).await;
}

async fn twice_is_a_value(ground: Ground) {
    let engine = ground.engine().await;
    let claim = claim(&ground.name("x"), LONG);
    grant(&*engine, &claim).await;
    assert_eq!(engine.release(&claim).await.unwrap(), Released::Yes);
    assert_eq!(engine.release(&claim).await.unwrap(), Released::WasNotHeld);
}

async fn never_frees_anothers(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, LONG);
    grant(&*first, &held).await;
    let stranger = claim(&name, LONG);
    let freed = second.release(&stranger).await.unwrap();
    assert_eq!(freed, Released::WasNotHeld);
    assert!(is_refused(&*second, &stranger).await);
    assert_eq!(first.release(&held).await.unwrap(), Released::Yes);
}

async fn after_expiry_leaves_the_next_holder_alone(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let late = claim(&name, ms(200));
    grant(&*engine, &late).await;
    let next = claim(&name, LONG);
    ground
        .until("the first claim expires", async || {
            !is_refused(&*engine, &next).await
        })
        .await;
    assert_eq!(engine.release(&late).await.unwrap(), Released::WasNotHeld);
    assert!(is_refused(&*engine, &claim(&name, LONG)).await);
    assert_eq!(engine.release(&next).await.unwrap(), Released::Yes);
}

async fn of_a_lost_lease_is_a_value(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    locks.force_release(&name).await.unwrap();
    let next = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::WasNotHeld);
    assert!(locks.lock(&name).try_acquire().await.unwrap().is_none());
    assert_eq!(next.release().await.unwrap(), Released::Yes);
}

async fn gives_up_a_place_in_the_queue(ground: Ground) {
    let locks = ground.locks().await;
    let engine = ground.engine().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let waiter = queueing(&name, LONG);
    assert!(is_refused(&*engine, &waiter).await);
    assert_eq!(locks.inspect(&name).await.unwrap().waiters.len(), 1);
    assert_eq!(engine.release(&waiter).await.unwrap(), Released::WasNotHeld);
    assert_eq!(locks.inspect(&name).await.unwrap().waiters, []);
    lease.release().await.unwrap();
    grant(&*engine, &claim(&name, LONG)).await;
}

async fn of_what_never_was_is_a_value(ground: Ground) {
    let engine = ground.engine().await;
    let never = claim(&ground.name("never"), LONG);
    assert_eq!(engine.release(&never).await.unwrap(), Released::WasNotHeld);
}

async fn by_dropping_the_lease(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let waiter = other.lock(&name).ttl(LONG).wait_forever().acquire();
    let waiter = tokio::spawn(waiter);
    pause(50).await;
    drop(lease);
    let next = ground.soon("the dropped lease is released", waiter).await;
    // The handle goes too, while the release of its last lease is still to be done.
    drop(next.unwrap().unwrap());
    drop(other);
    let again = locks.lock(&name).ttl(LONG).wait_forever().acquire();
    let again = ground.soon("the last lease is released", again).await;
    again.unwrap().release().await.unwrap();
}

async fn breaking_frees_the_lock(ground: Ground) {
    let (holder, operator) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, LONG);
    grant(&*holder, &held).await;
    let broken = operator.force_release(&held.name).await.unwrap();
    assert_eq!(broken, Released::Yes);
    grant(&*operator, &claim(&name, LONG)).await;
    assert_eq!(holder.release(&held).await.unwrap(), Released::WasNotHeld);
}

async fn breaking_a_free_lock_is_a_value(ground: Ground) {
    let locks = ground.locks().await;
    let broken = locks.force_release(ground.name("x")).await.unwrap();
    assert_eq!(broken, Released::WasNotHeld);
}

async fn breaking_leaves_the_queue(ground: Ground) {
    let (holder, operator) = (ground.locks().await, ground.locks().await);
    unless_slow(&ground, async |name, steps| {
        let _lease = holder.lock(&name).ttl(LONG).acquire().await.unwrap();
        let mut waiters = Vec::new();
        for nth in 0..2 {
            let locks = ground.locks().await;
            let request = locks.lock(&name).ttl(LONG).wait_forever();
            waiters.push(tokio::spawn(request.acquire()));
            ground.until_queued(&operator, &name, nth + 1).await;
        }
        let second = waiters.pop().unwrap();
        let first = waiters.pop().unwrap();
        steps.begin();
        operator.force_release(&name).await.unwrap();
        let lease = ground.soon("the first waiter enters", first).await;
        let info = operator.inspect(&name).await.unwrap();
        if (info.holders.len(), info.waiters.len()) != (1, 1) {
            return Err(format!("one holds it, and one waits: {info:?}"));
        }
        lease.unwrap().unwrap().release().await.unwrap();
        let lease = ground.soon("the second waiter enters", second).await;
        lease.unwrap().unwrap().release().await.unwrap();
        Ok(())
    })
    .await;
}
