//! A lock ends with its TTL unless it is renewed, and no sooner than was promised.

use std::time::Duration;

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, ms, now, pause, queueing};
use crate::claim::{Claim, Ttl};
use crate::engine::{Attempt, Engine, Grant, LossReason, Renew, Renewal, Wake};
use crate::lease::LeaseState;
use crate::token::FencingToken;

theme! { expiry:
    a_silent_holder_loses_the_lock [] caught by [NeverExpires];
    never_before_validity_ends [] caught by [ExpiresEarly];
    the_shortest_and_the_longest_ttl_are_kept [OwnTtl] caught by [ExpiresEarly, NeverExpires];
    a_renewal_extends_it [] caught by [RenewDoesNothing, RenewSaysLost, RenewReleases];
    a_renewal_may_change_the_ttl [] caught by [RenewDoesNothing];
    a_renewal_after_expiry_is_lost [] caught by [RenewAlwaysSaysRenewed, RenewTakesTheLock, NeverExpires];
    a_renewal_of_anothers_is_lost [] caught by [RenewAlwaysSaysRenewed];
    a_batch_of_renewals_is_answered_one_by_one [] caught by [RenewAlwaysSaysRenewed, RenewSaysLost];
    keep_alive_holds_it_past_the_ttl [] caught by [RenewDoesNothing, RenewSaysLost, RenewReleases];
    hold_at_least_keeps_it_taken [] caught by [RenewDoesNothing, RenewReleases, NeverExpires];
    max_hold_ends_it [] caught by [NeverExpires];
    validity_counts_from_before_the_attempt [] caught by [CountsFromTheReply];
    validity_counts_from_before_the_renewal [] caught by [CountsFromTheReply];
    validity_ends_before_a_handed_over_lock_expires [Fifo] caught by [CountsFromTheReply];
}

async fn a_silent_holder_loses_the_lock(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(300)).acquire().await.unwrap();
    lease.detach();
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
    let next = claim(&name, LONG);
    ground
        .until("the detached claim expires", async || {
            !is_refused(&*other, &next).await
        })
        .await;
}

async fn never_before_validity_ends(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let ttl = ms(600);
    let sent = now();
    let held = grant(&*first, &claim(&name, ttl)).await;
    assert!(held.valid_until >= sent + ttl / 2, "hardly any validity");
    let next = claim(&name, LONG);
    ground
        .until("the claim expires", async || {
            !is_refused(&*second, &next).await
        })
        .await;
    assert!(
        now() >= held.valid_until,
        "granted while it was still valid"
    );
}

async fn the_shortest_and_the_longest_ttl_are_kept(ground: Ground) {
    let locks = ground.locks().await;
    let engine = &**locks.engine();
    let (short, long) = (ground.name("short"), ground.name("long"));
    grant(engine, &claim(&short, Ttl::MIN.get())).await;
    grant(engine, &claim(&long, Ttl::MAX.get())).await;
    let holders = locks.show(&long).await.unwrap().holders;
    let day = Ttl::MAX.get();
    assert!(holders[0].time_left > day * 9 / 10 && holders[0].time_left <= day);
    let next = claim(&short, LONG);
    ground
        .until("the shortest expires", async || {
            !is_refused(engine, &next).await
        })
        .await;
}

async fn renew(engine: &dyn Engine, claim: &Claim, token: Option<FencingToken>) -> Renewal {
    let answers = engine.renew(&[Renew { claim, token }]).await;
    let [answer] = <[_; 1]>::try_from(answers).expect("one answer to one renewal");
    answer.unwrap()
}

fn renewed(renewal: Renewal) -> Grant {
    match renewal {
        Renewal::Renewed(grant) => grant,
        Renewal::Lost(reason) => panic!("lost: {reason}"),
    }
}

async fn a_renewal_extends_it(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, ms(1500));
    let mut last = grant(&*first, &held).await;
    for _ in 0..4 {
        pause(500).await;
        // By the id alone, as another process would.
        let again = renewed(renew(&*first, &held, None).await);
        assert_eq!(again.token, last.token);
        assert!(again.valid_until > last.valid_until);
        last = again;
        assert!(is_refused(&*second, &claim(&name, LONG)).await);
    }
}

async fn a_renewal_may_change_the_ttl(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let held = claim(&name, LONG);
    let Grant { token, .. } = grant(&*engine, &held).await;
    let shorter = Claim {
        ttl: claim(&name, ms(200)).ttl,
        ..held
    };
    renewed(renew(&*engine, &shorter, Some(token)).await);
    let next = claim(&name, LONG);
    ground
        .until("it expires by the new TTL", async || {
            !is_refused(&*engine, &next).await
        })
        .await;
}

async fn a_renewal_after_expiry_is_lost(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, ms(200));
    let Grant { token, .. } = grant(&*first, &held).await;
    pause(1300).await;
    let answer = renew(&*first, &held, Some(token)).await;
    assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
    grant(&*second, &claim(&name, LONG)).await;
    let answer = renew(&*first, &held, Some(token)).await;
    assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
}

async fn a_renewal_of_anothers_is_lost(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let held = claim(&name, LONG);
    let Grant { token, .. } = grant(&*engine, &held).await;
    for known in [None, Some(token)] {
        let answer = renew(&*engine, &claim(&name, LONG), known).await;
        assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
    }
    renewed(renew(&*engine, &held, Some(token)).await);
}

async fn a_batch_of_renewals_is_answered_one_by_one(ground: Ground) {
    let engine = ground.engine().await;
    let mut claims = Vec::new();
    let mut tokens = Vec::new();
    for nth in 0..20 {
        let claim = claim(&ground.name(&format!("x{nth}")), LONG);
        let held = nth % 3 != 0;
        if held {
            tokens.push(Some(grant(&*engine, &claim).await.token));
        } else {
            tokens.push(None);
        }
        claims.push(claim);
    }
    let batch: Vec<_> = claims
        .iter()
        .zip(&tokens)
        .map(|(claim, token)| Renew {
            claim,
            token: *token,
        })
        .collect();
    let answers = engine.renew(&batch).await;
    let told: Vec<_> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Renewal::Renewed(grant) => Some(grant.token),
            Renewal::Lost(_) => None,
        })
        .collect();
    assert_eq!(told, tokens);
    assert_eq!(engine.renew(&[]).await.len(), 0);
}

async fn keep_alive_holds_it_past_the_ttl(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(ms(1200)).acquire().await.unwrap();
    let end = now() + ms(3000);
    while now() < end {
        assert!(is_refused(&*other, &claim(&name, LONG)).await);
        assert_eq!(lease.state(), LeaseState::Held);
        pause(50).await;
    }
    lease.release().await.unwrap();
}

async fn hold_at_least_keeps_it_taken(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    let name = ground.name("x");
    let least = ms(2000);
    let request = locks.lock(&name).ttl(ms(1000)).hold_at_least(least);
    let before = now();
    let lease = request.acquire().await.unwrap();
    lease.release().await.unwrap();
    let next = claim(&name, LONG);
    ground
        .until("it is freed at last", async || {
            !is_refused(&*other, &next).await
        })
        .await;
    assert!(now() >= before + least, "freed too early");
}

async fn max_hold_ends_it(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let request = locks.lock(&name).ttl(ms(1500)).max_hold(ms(2500));
    let before = now();
    let lease = request.acquire().await.unwrap();
    let reason = ground.soon("the lease ends", lease.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    assert!(now() >= before + ms(2500));
    assert!(!lease.is_valid());
    let next = other.lock(&name).ttl(LONG).wait_forever().acquire();
    let next = ground.soon("the next one enters", next).await;
    next.unwrap().release().await.unwrap();
}

/// The engine looks at the clock a moment after the case does; on a busy machine that may now and
/// then be a long moment.
const A_MOMENT: Duration = ms(15);

async fn validity_counts_from_before_the_attempt(ground: Ground) {
    let engine = ground.engine().await;
    let mut excess = LONG;
    for nth in 0..6 {
        let held = claim(&ground.name(&format!("x{nth}")), ms(5000));
        let sent = now();
        let granted = grant(&*engine, &held).await;
        excess = excess.min(granted.valid_until.since(sent + held.ttl.validity()));
    }
    assert!(excess < A_MOMENT, "{excess:?} too long");
}

async fn validity_counts_from_before_the_renewal(ground: Ground) {
    let engine = ground.engine().await;
    let held = claim(&ground.name("x"), ms(5000));
    let Grant { token, .. } = grant(&*engine, &held).await;
    let mut excess = LONG;
    for nth in 0..6 {
        let sent = now();
        let known = (nth % 2 == 0).then_some(token);
        let again = renewed(renew(&*engine, &held, known).await);
        excess = excess.min(again.valid_until.since(sent + held.ttl.validity()));
    }
    assert!(excess < A_MOMENT, "{excess:?} too long");
}

async fn validity_ends_before_a_handed_over_lock_expires(ground: Ground) {
    let (engine, locks) = (ground.engine().await, ground.locks().await);
    let name = ground.name("x");
    let first = claim(&name, LONG);
    grant(&*engine, &first).await;
    let waiter = queueing(&name, ms(4000));
    let Attempt::Held(seen) = engine.try_acquire(&waiter).await.unwrap() else {
        panic!("granted while held");
    };
    engine.release(&first).await.unwrap();
    // The lock may have been handed over already; its time runs, whenever the waiter looks.
    pause(300).await;
    let woken = ground.soon("a wake-up", engine.wait(&waiter, &seen)).await;
    let granted = match woken.unwrap() {
        Wake::Granted(granted) => granted,
        Wake::Retry => grant(&*engine, &waiter).await,
    };
    let info = locks.show(&name).await.unwrap();
    let [holder] = info.holders.as_slice() else {
        panic!("one holder: {info:?}");
    };
    assert!(granted.valid_until <= now() + holder.time_left);
}
