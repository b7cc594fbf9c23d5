//! A lock is held by one at a time.

use std::collections::HashSet;

use super::Ground;
use super::case::theme;
use super::child::Task;
use super::ground::{LONG, claim, grant, is_refused, now, pause};
use crate::claim::{Claim, Ttl};
use crate::engine::Released;

theme! { exclusion:
    second_claim_is_refused [] caught by [GrantsAlways];
    only_one_of_many_enters [] caught by [GrantsAlways];
    different_names_do_not_meet [] caught by [NamesCutAtSlash];
    a_repeated_attempt_gets_the_same_grant [] caught by [GrantsAnew];
    a_repeated_attempt_with_another_ttl_keeps_the_grant [] caught by [GrantsAnew, GrantsAlways];
    a_refused_attempt_that_does_not_queue_leaves_nothing [] caught by [QueuesEverybody];
    between_processes [Processes] caught by [GrantsAlways, ReleaseDoesNothing];
}

async fn second_claim_is_refused(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    grant(&*first, &claim(&name, LONG)).await;
    assert!(is_refused(&*second, &claim(&name, LONG)).await);
    assert!(is_refused(&*first, &claim(&name, LONG)).await);
}

async fn only_one_of_many_enters(ground: Ground) {
    let name = ground.name("x");
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let locks = ground.locks().await;
        for _ in 0..8 {
            let request = locks.lock(&name).ttl(LONG);
            tries.spawn(async move { request.try_acquire().await.unwrap() });
        }
    }
    let leases = tries.join_all().await;
    assert_eq!(leases.iter().flatten().count(), 1);
}

async fn different_names_do_not_meet(ground: Ground) {
    let engine = ground.engine().await;
    let names: HashSet<_> = (0..5).map(|n| ground.name(&format!("x{n}"))).collect();
    for name in &names {
        grant(&*engine, &claim(name, LONG)).await;
    }
}

async fn a_repeated_attempt_gets_the_same_grant(ground: Ground) {
    let engine = ground.engine().await;
    let claim = claim(&ground.name("x"), LONG);
    let first = grant(&*engine, &claim).await;
    let again = grant(&*engine, &claim).await;
    assert_eq!(first.token, again.token);
    assert_eq!(engine.release(&claim).await.unwrap(), Released::Yes);
    assert_eq!(engine.release(&claim).await.unwrap(), Released::WasNotHeld);
}

/// A core that is answered with a grant that is over releases the claim.
async fn a_repeated_attempt_with_another_ttl_keeps_the_grant(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, LONG);
    let token = grant(&*engine, &held).await.token;
    for ttl in [100 * LONG, LONG / 100, LONG] {
        let again = Claim {
            ttl: Ttl::new(ttl).unwrap(),
            ..held.clone()
        };
        let granted = grant(&*engine, &again).await;
        assert_eq!(granted.token, token);
        let left = granted.valid_until.since(now());
        assert!(!left.is_zero(), "over, with {ttl:?} asked for");
        assert!(is_refused(&*other, &claim(&name, LONG)).await);
    }
    // It was not shortened.
    pause(1500).await;
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
}

async fn a_refused_attempt_that_does_not_queue_leaves_nothing(ground: Ground) {
    let locks = ground.locks().await;
    let engine = ground.engine().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    for _ in 0..3 {
        assert!(is_refused(&*engine, &claim(&name, LONG)).await);
    }
    assert_eq!(locks.inspect(&name).await.unwrap().waiters, []);
    lease.release().await.unwrap();
    grant(&*engine, &claim(&name, LONG)).await;
}

async fn between_processes(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let mut child = ground
        .child(Task::Hold {
            name: name.clone(),
            ttl: LONG,
        })
        .await;
    let (theirs, _) = child.held().await;
    assert!(is_refused(&*engine, &claim(&name, LONG)).await);
    child.release().await;
    let ours = grant(&*engine, &claim(&name, LONG)).await;
    assert!(ours.token.get() > theirs);
}
