//! Fencing tokens grow from grant to grant, whatever lies between.

use std::collections::HashSet;

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, ms};
use crate::claim::{Claim, Mode};

theme! { tokens:
    grow_across_release [] caught by [TokensRepeat, TokensFall];
    grow_across_clients [] caught by [TokensRepeat, TokensFall];
    grow_across_expiry [] caught by [TokensRepeat, TokensFall];
    grow_across_break [] caught by [TokensRepeat, TokensFall];
    grow_across_hand_over [] caught by [TokensRepeat, TokensFall];
    grow_across_restart [OwnStore] caught by [TokensRestart, TokensFall];
    a_held_lock_survives_a_restart [OwnStore, SurvivesRestart, OwnTtl] caught by [GrantsAlways, RenewSaysLost];
    each_reader_has_its_own [Shared] caught by [ReadersShareAToken];
    each_permit_has_its_own [Permits] caught by [TokensRepeat];
}

async fn grow_across_release(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let mut last = None;
    for _ in 0..20 {
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        assert!(Some(lease.token()) > last);
        last = Some(lease.token());
        lease.release().await.unwrap();
    }
}

async fn grow_across_clients(ground: Ground) {
    let name = ground.name("x");
    let mut last = None;
    for _ in 0..5 {
        let engine = ground.engine().await;
        let claim = claim(&name, LONG);
        let token = grant(&*engine, &claim).await.token;
        assert!(Some(token) > last);
        last = Some(token);
        engine.release(&claim).await.unwrap();
    }
}

async fn grow_across_expiry(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let first = grant(&*engine, &claim(&name, ms(100))).await;
    let next = claim(&name, LONG);
    ground
        .until("the first claim expires", async || {
            !is_refused(&*engine, &next).await
        })
        .await;
    assert!(grant(&*engine, &next).await.token > first.token);
}

async fn grow_across_break(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let first = claim(&name, LONG);
    let before = grant(&*engine, &first).await.token;
    engine.force_release(&first.name).await.unwrap();
    let after = grant(&*engine, &claim(&name, LONG)).await.token;
    assert!(after > before);
}

async fn grow_across_hand_over(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let mut lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    for nth in 0..6 {
        let next = if nth % 2 == 0 { &other } else { &locks };
        let waiter = tokio::spawn(next.lock(&name).ttl(LONG).wait_forever().acquire());
        ground.until_queued(&locks, &name, 1).await;
        let before = lease.token();
        lease.release().await.unwrap();
        let handed_over = ground.soon("the waiter enters", waiter).await;
        lease = handed_over.unwrap().unwrap();
        assert!(lease.token() > before);
    }
    lease.release().await.unwrap();
}

async fn grow_across_restart(ground: Ground) {
    let name = ground.name("x");
    let mut last = None;
    for _ in 0..3 {
        let engine = ground.engine().await;
        let claim = claim(&name, LONG);
        let token = grant(&*engine, &claim).await.token;
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        engine.release(&claim).await.unwrap();
        drop(engine);
        ground.fixture().restart().await;
    }
}

async fn a_held_lock_survives_a_restart(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let held = claim(&name, LONG);
    let token = grant(&*engine, &held).await.token;
    drop(engine);
    ground.fixture().restart().await;
    let locks = ground.locks().await;
    assert!(is_refused(&**locks.engine(), &claim(&name, LONG)).await);
    let resumed = locks.resume(&name, held.id).unwrap();
    let lease = resumed.into_lease(LONG).await.unwrap();
    let lease = lease.expect("the claim is still known");
    assert_eq!(lease.token(), token);
    lease.release().await.unwrap();
    // An engine may keep it for a moment: the release could be a repetition of one that the restart has lost.
    let next = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert!(next.token() > token);
}

async fn each_reader_has_its_own(ground: Ground) {
    each_has_its_own(&ground, Mode::Shared).await;
}

async fn each_permit_has_its_own(ground: Ground) {
    each_has_its_own(&ground, Mode::Permit { of: 5 }).await;
}

async fn each_has_its_own(ground: &Ground, mode: Mode) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let mut tokens = HashSet::new();
    for _ in 0..5 {
        let claim = Claim {
            mode,
            ..claim(&name, LONG)
        };
        tokens.insert(grant(&*engine, &claim).await.token);
    }
    assert_eq!(tokens.len(), 5);
}
