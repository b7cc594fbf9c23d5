//! A holder is notified when the lock can no longer be relied on, before anyone else can have it.

use std::sync::Arc;

use super::Ground;
use super::case::theme;
use super::child::{Report, Task};
use super::faulty::{Fault, Faulty};
use super::ground::{LONG, claim, grant, is_refused, ms, now, pause};
use crate::claim::Claim;
use crate::engine::{LossReason, Renew, Renewal};
use crate::hold::LeaseState;
use crate::locks::Locks;
use crate::name::LockName;

theme! { loss:
    a_broken_lock_is_signalled [] caught by [RenewAlwaysSaysRenewed, BreakDoesNothing];
    one_id_on_two_locks_is_lost_on_one [] caught by [RenewAlwaysSaysRenewed, RenewSaysLost];
    an_ended_session_is_signalled [] caught by [RenewAlwaysSaysRenewed, BreakDoesNothing];
    renewals_that_hang_are_signalled_in_time [] caught by [ExpiresEarly, NeverExpires];
    renewals_that_fail_are_signalled_in_time [] caught by [ExpiresEarly, NeverExpires];
    a_renewal_that_works_again_ends_uncertainty [] caught by [RenewSaysLost, RenewReleases];
    failing_renewals_never_release [] caught by [ExpiresEarly];
    work_is_dropped_when_the_lock_is_lost [] caught by [RenewAlwaysSaysRenewed];
    a_stopped_process_sees_the_truth [Processes] caught by [TokensFall];
    a_killed_process_frees_the_lock_with_its_ttl [Processes] caught by [TokensFall, ExpiresEarly];
}

async fn a_broken_lock_is_signalled(ground: Ground) {
    let (locks, operator) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(900)).acquire().await.unwrap();
    assert_eq!(lease.state(), LeaseState::Held);
    operator.force_release(&name).await.unwrap();
    let reason = ground.soon("the loss is signalled", lease.lost()).await;
    assert_ne!(reason, LossReason::Released);
    assert_eq!(lease.state(), LeaseState::Lost(reason));
    assert!(!lease.is_valid());
    assert!(lease.renew().await.is_err());
}

/// Nobody should; but whoever uses an id twice must not be told that it holds what another has.
async fn one_id_on_two_locks_is_lost_on_one(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    let first = claim(&ground.name("x"), LONG);
    let second = Claim {
        name: LockName::new(ground.name("y")).unwrap(),
        ..first.clone()
    };
    grant(&*engine, &first).await;
    let held = grant(&*engine, &second).await;
    other.force_release(&first.name).await.unwrap();
    grant(&*other, &claim(first.name.as_str(), LONG)).await;
    let both = [Renew::new(&first), Renew::new(&second)];
    let renewed = engine.renew(&both).await;
    assert!(matches!(&renewed[0], Ok(Renewal::Lost(_))), "{renewed:?}");
    let Ok(Renewal::Renewed(renewed)) = &renewed[1] else {
        panic!("the second: {renewed:?}");
    };
    assert_eq!(renewed.token, held.token);
    for claim in [&first, &second] {
        engine.release(claim).await.unwrap();
    }
}

async fn an_ended_session_is_signalled(ground: Ground) {
    let engine = ground.engine().await;
    let (locks, other) = (Locks::new(Arc::clone(&engine)), ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(1500)).acquire().await.unwrap();
    let waiter = other.lock(&name).ttl(LONG).wait_forever();
    let waiter = tokio::spawn(waiter.acquire());
    ground.until_queued(&locks, &name, 1).await;
    if !ground.fixture().sever(&engine).await {
        // Without sessions, what comes nearest: the store forgets the claim.
        other.force_release(&name).await.unwrap();
    }
    ground.soon("the loss is signalled", lease.lost()).await;
    assert!(!lease.is_valid());
    let next = ground.soon("the next one enters", waiter).await;
    next.unwrap().unwrap().release().await.unwrap();
}

async fn renewals_that_hang_are_signalled_in_time(ground: Ground) {
    in_time(ground, Fault::RenewalsHang).await;
}

async fn renewals_that_fail_are_signalled_in_time(ground: Ground) {
    in_time(ground, Fault::RenewalsFail).await;
}

async fn in_time(ground: Ground, fault: Fault) {
    let faulty = Faulty::new(ground.engine().await);
    let locks = Locks::new(faulty.clone());
    let other = ground.locks().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(1800)).acquire().await.unwrap();
    faulty.set(fault);
    let view = lease.view();
    let next = tokio::spawn(async move {
        let request = other.lock(&name).ttl(LONG).wait_forever();
        let lease = request.acquire().await.unwrap();
        (now(), view.is_valid(), lease)
    });
    ground
        .until("uncertain, while validity still runs", async || {
            assert!(lease.is_valid(), "lost before it was uncertain");
            lease.state() == LeaseState::Uncertain
        })
        .await;
    let valid_until = lease.valid_until();
    let reason = ground.soon("the loss is signalled", lease.lost()).await;
    // By the clock it is over to the moment; a busy machine may wake us later than that.
    let late = now().since(valid_until);
    assert!(late < ms(700), "signalled {late:?} too late");
    let LossReason::Expired { last_failure } = reason else {
        panic!("lost by expiry: {reason:?}");
    };
    assert!(last_failure.is_some());
    let next = ground.soon("the next one enters", next).await;
    let (entered, still_valid, next) = next.unwrap();
    assert!(entered >= valid_until, "another entered while it was valid");
    assert!(
        !still_valid,
        "another entered, and the lease says it is valid"
    );
    assert!(next.token() > lease.token());
    next.release().await.unwrap();
}

async fn a_renewal_that_works_again_ends_uncertainty(ground: Ground) {
    let faulty = Faulty::new(ground.engine().await);
    let locks = Locks::new(faulty.clone());
    let lease = locks.lock(ground.name("x")).ttl(ms(3000));
    let lease = lease.acquire().await.unwrap();
    faulty.set(Fault::RenewalsFail);
    ground
        .until("uncertain", async || lease.state() == LeaseState::Uncertain)
        .await;
    faulty.set(Fault::None);
    ground
        .until("held again", async || lease.state() == LeaseState::Held)
        .await;
    lease.release().await.unwrap();
}

async fn failing_renewals_never_release(ground: Ground) {
    let faulty = Faulty::new(ground.engine().await);
    let locks = Locks::new(faulty.clone());
    let other = ground.engine().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(1500)).acquire().await.unwrap();
    faulty.set(Fault::RenewalsFail);
    while lease.is_valid() {
        let refused = is_refused(&*other, &claim(&name, LONG)).await;
        assert!(refused || !lease.is_valid(), "freed while still valid");
        pause(20).await;
    }
}

async fn work_is_dropped_when_the_lock_is_lost(ground: Ground) {
    let (locks, operator) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let (started, running) = tokio::sync::oneshot::channel();
    let request = locks.lock(&name).ttl(ms(900));
    let work = tokio::spawn(request.run(|_| async move {
        started.send(()).unwrap();
        std::future::pending::<()>().await
    }));
    ground.soon("the work starts", running).await.unwrap();
    operator.force_release(&name).await.unwrap();
    let ended = ground.soon("the work is dropped", work).await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), crate::ErrorKind::LeaseLost);
}

async fn a_stopped_process_sees_the_truth(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let task = Task::Hold {
        name: name.clone(),
        ttl: ms(1000),
    };
    let mut child = ground.child(task).await;
    let (theirs, _) = child.held().await;
    child.stop();
    let next = locks.lock(&name).ttl(LONG).wait_forever().acquire();
    let next = ground.soon("the stopped one loses it", next).await.unwrap();
    assert!(next.token().get() > theirs);
    // However long it took to enter here, the child has stood still for longer than its TTL.
    pause(1100).await;
    child.go_on();
    let mut reports = [child.report().await, child.report().await];
    reports.sort_by_key(|report| *report == Report::Lost);
    let still_valid = false;
    assert_eq!(reports, [Report::StoodStill { still_valid }, Report::Lost]);
    assert!(next.is_valid());
}

async fn a_killed_process_frees_the_lock_with_its_ttl(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let ttl = ms(1000);
    let task = Task::Hold {
        name: name.clone(),
        ttl,
    };
    let mut child = ground.child(task).await;
    let (theirs, valid_until) = child.held().await;
    child.kill().await;
    let next = locks.lock(&name).ttl(LONG).wait_forever().acquire();
    let next = ground.soon("the lock is freed", next).await.unwrap();
    assert!(next.token().get() > theirs);
    assert!(now() >= valid_until, "freed while it was still valid");
}
