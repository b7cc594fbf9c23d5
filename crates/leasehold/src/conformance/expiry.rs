//! A lock ends with its TTL unless it is renewed, and no sooner than was promised.

use std::time::Duration;

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, ms, now, pause, queueing, unless_slow};
use super::stalls::unless_stalled;
use crate::claim::{Claim, ClaimId, Ttl};
use crate::engine::{Attempt, Engine, Expiry, Grant, LossReason, Renew, Renewal, Wake};
use crate::hold::LeaseState;
use crate::token::FencingToken;

theme! { expiry:
    a_silent_holder_loses_the_lock [] caught by [NeverExpires];
    never_before_validity_ends [] caught by [ExpiresEarly];
    a_queued_claim_that_asks_again_for_longer_is_kept_for_longer [] caught by [ExpiresEarly];
    the_shortest_and_the_longest_ttl_are_kept [OwnTtl] caught by [ExpiresEarly, NeverExpires];
    a_renewal_extends_it [] caught by [RenewDoesNothing, RenewSaysLost, RenewReleases];
    a_renewal_may_lengthen_the_ttl [OwnTtl] caught by [RenewDoesNothing];
    a_renewal_never_shortens_the_lock [] caught by [RenewShortens];
    a_resumed_lease_never_shortens_the_lock [] caught by [RenewShortens];
    the_last_renewal_may_shorten_the_lock [] caught by [RenewDoesNothing, RenewNeverShortens];
    a_renewal_after_expiry_is_lost [] caught by [RenewAlwaysSaysRenewed, RenewTakesTheLock, NeverExpires];
    a_renewal_of_anothers_is_lost [] caught by [RenewAlwaysSaysRenewed];
    a_batch_of_renewals_is_answered_one_by_one [] caught by [RenewAlwaysSaysRenewed, RenewSaysLost];
    a_claim_twice_in_a_batch_is_answered_twice [] caught by [RenewSaysLost];
    a_detached_lease_that_was_handed_over_keeps_its_ttl [] caught by [ExpiresEarly];
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
    let lease = locks.lock(&name).ttl(ms(1000)).acquire().await.unwrap();
    let valid_until = lease.valid_until();
    lease.detach();
    let next = claim(&name, LONG);
    assert!(is_refused(&*other, &next).await || now() >= valid_until);
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

/// Or it is told that it may rely on the lock for no longer than it is kept.
async fn a_queued_claim_that_asks_again_for_longer_is_kept_for_longer(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    grant(&*second, &claim(&name, ms(2500))).await;
    let short = queueing(&name, ms(1000));
    assert!(is_refused(&*first, &short).await);
    // The next attempt finds the lock free, where it was not handed over.
    pause(3000).await;
    let long = Claim {
        ttl: Ttl::new(ms(4000)).unwrap(),
        ..short
    };
    let mut held: Option<Grant> = None;
    ground
        .until("the holder expires", async || {
            if let Attempt::Granted(grant) = first.try_acquire(&long).await.unwrap() {
                held = Some(grant);
            }
            held.is_some()
        })
        .await;
    let next = claim(&name, LONG);
    ground
        .until("the claim expires", async || {
            !is_refused(&*second, &next).await
        })
        .await;
    assert!(
        now() >= held.unwrap().valid_until,
        "granted while it was still valid"
    );
}

async fn the_shortest_and_the_longest_ttl_are_kept(ground: Ground) {
    let locks = ground.locks().await;
    let engine = &**locks.engine();
    let (short, long) = (ground.name("short"), ground.name("long"));
    grant(engine, &claim(&short, Ttl::MIN.get())).await;
    grant(engine, &claim(&long, Ttl::MAX.get())).await;
    let holders = locks.inspect(&long).await.unwrap().holders;
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
    ask(
        engine,
        Renew {
            claim,
            token,
            shorten: false,
        },
    )
    .await
}

async fn ask(engine: &dyn Engine, renew: Renew<'_>) -> Renewal {
    let answers = engine.renew(&[renew]).await;
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
    unless_stalled(ms(300), async || {
        let name = ground.name(&ClaimId::random().unwrap().reveal());
        let held = claim(&name, ms(3000));
        let granted = grant(&*first, &held).await;
        let mut last = granted;
        for _ in 0..8 {
            pause(500).await;
            // By the id alone, as another process would.
            let again = match renew(&*first, &held, None).await {
                Renewal::Renewed(again) => again,
                Renewal::Lost(reason) => return Err(format!("lost: {reason}")),
            };
            assert_eq!(again.token, last.token);
            // Where it ends with a session, not every renewal makes it longer.
            assert!(again.valid_until >= last.valid_until);
            last = again;
            let refused = is_refused(&*second, &claim(&name, LONG)).await;
            assert!(refused || now() >= last.valid_until);
        }
        assert!(last.valid_until > granted.valid_until + ms(2000));
        Ok(())
    })
    .await;
}

async fn a_renewal_may_lengthen_the_ttl(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, ms(3000));
    let Grant { token, .. } = grant(&*engine, &held).await;
    let longer = with_ttl(&held, LONG);
    renewed(renew(&*engine, &longer, Some(token)).await);
    pause(3500).await;
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
}

fn with_ttl(claim: &Claim, ttl: Duration) -> Claim {
    Claim {
        ttl: Ttl::new(ttl).unwrap(),
        ..claim.clone()
    }
}

async fn a_renewal_never_shortens_the_lock(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let held = claim(&name, LONG);
    let Grant { token, .. } = grant(&*engine, &held).await;
    let shorter = with_ttl(&held, ms(200));
    // A lock that ends with a session is renewed in that session alone.
    let renewer = match engine.about().capabilities.expiry {
        Expiry::Ttl | Expiry::Observed => &*other,
        Expiry::Session => &*engine,
    };
    // Once by the id alone, as another process would, and once as the holder.
    for known in [None, Some(token)] {
        let before = now();
        let again = renewed(renew(renewer, &shorter, known).await);
        assert_eq!(again.token, token);
        assert!(again.valid_until > before);
        pause(700).await;
        assert!(is_refused(&*other, &claim(&name, LONG)).await);
    }
    renewed(renew(&*engine, &held, Some(token)).await);
    engine.release(&held).await.unwrap();
}

async fn a_resumed_lease_never_shortens_the_lock(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let resumer = match locks.capabilities().expiry {
        Expiry::Ttl | Expiry::Observed => &other,
        Expiry::Session => &locks,
    };
    let resumed = resumer.resume(&name, lease.claim_id()).unwrap();
    let second = resumed.into_lease(ms(200)).await.unwrap().unwrap();
    second.detach();
    pause(700).await;
    let next = other.lock(&name).try_acquire().await.unwrap();
    assert!(next.is_none(), "granted while the first lease is valid");
    assert_eq!(lease.state(), LeaseState::Held);
    lease.release().await.unwrap();
}

async fn the_last_renewal_may_shorten_the_lock(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let held = claim(&name, LONG);
    let Grant { token, .. } = grant(&*engine, &held).await;
    let last = Renew {
        claim: &with_ttl(&held, ms(200)),
        token: Some(token),
        shorten: true,
    };
    renewed(ask(&*engine, last).await);
    let next = claim(&name, LONG);
    ground
        .until("it expires by the new TTL", async || {
            // Nobody relies on it any more, so even one who has never seen it need not wait.
            let comes_later = ground.engine().await;
            !is_refused(&*comes_later, &next).await
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
            shorten: false,
        })
        .collect();
    let answers = engine.renew(&batch).await;
    let answered: Vec<_> = answers
        .into_iter()
        .map(|answer| match answer.unwrap() {
            Renewal::Renewed(grant) => Some(grant.token),
            Renewal::Lost(_) => None,
        })
        .collect();
    assert_eq!(answered, tokens);
    assert_eq!(engine.renew(&[]).await.len(), 0);
}

/// As with two leases of one claim in one process, one of them resumed.
async fn a_claim_twice_in_a_batch_is_answered_twice(ground: Ground) {
    let engine = ground.engine().await;
    let (twice, once) = (
        claim(&ground.name("x"), LONG),
        claim(&ground.name("y"), LONG),
    );
    let shorter = with_ttl(&twice, ms(60_000));
    let token = grant(&*engine, &twice).await.token;
    grant(&*engine, &once).await;
    let renew = |claim, token| Renew {
        claim,
        token,
        shorten: false,
    };
    for known in [None, Some(token)] {
        let batch = [
            renew(&twice, known),
            renew(&once, None),
            renew(&shorter, known),
        ];
        for answer in engine.renew(&batch).await {
            renewed(answer.unwrap());
        }
    }
}

/// An engine may hand a lock over for a moment only, until it is renewed.
async fn a_detached_lease_that_was_handed_over_keeps_its_ttl(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    unless_slow(&ground, async |name, steps| {
        let held = locks.lock(&name).acquire().await.unwrap();
        let waiting = locks.lock(&name).ttl(ms(4000)).wait(LONG).acquire();
        let waiting = tokio::spawn(waiting);
        ground.until_queued(&locks, &name, 1).await;
        steps.begin();
        held.release().await.unwrap();
        let lease = ground.soon("the lock", waiting).await.unwrap().unwrap();
        steps.next();
        let acquired = now();
        lease.detach();
        let next = claim(&name, LONG);
        ground
            .until("the detached claim expires", async || {
                let is_free = !is_refused(&*other, &next).await;
                steps.next();
                is_free
            })
            .await;
        match now() >= acquired + ms(3000) {
            true => Ok(()),
            false => Err("it ended before its TTL".to_owned()),
        }
    })
    .await;
}

async fn keep_alive_holds_it_past_the_ttl(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    unless_stalled(ms(300), async || {
        let name = ground.name(&ClaimId::random().unwrap().reveal());
        let lease = locks.lock(&name).ttl(ms(2000)).acquire().await.unwrap();
        let end = now() + ms(5000);
        while now() < end {
            let refused = is_refused(&*other, &claim(&name, LONG)).await;
            assert!(refused || !lease.is_valid());
            if let LeaseState::Lost(reason) = lease.state() {
                return Err(format!("lost: {reason}"));
            }
            pause(50).await;
        }
        lease.release().await.unwrap();
        Ok(())
    })
    .await;
}

async fn hold_at_least_keeps_it_taken(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.engine().await);
    let name = ground.name("x");
    let least = ms(4000);
    let request = locks.lock(&name).ttl(ms(3000)).hold_at_least(least);
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
    let request = locks.lock(&name).ttl(ms(3000)).max_hold(ms(4000));
    let before = now();
    let lease = request.acquire().await.unwrap();
    let reason = ground.soon("the lease ends", lease.lost()).await;
    assert_eq!(reason, LossReason::MaxHold);
    assert!(now() >= before + ms(4000));
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
    let Attempt::Held(_) = engine.try_acquire(&waiter).await.unwrap() else {
        panic!("granted while held");
    };
    engine.release(&first).await.unwrap();
    // The lock may have been handed over already; its time runs, whenever the waiter looks.
    pause(300).await;
    let woken = ground.soon("a wake-up", engine.wait(&waiter)).await;
    let granted = match woken.unwrap() {
        Wake::Granted(granted) => granted,
        Wake::Retry => grant(&*engine, &waiter).await,
    };
    let info = locks.inspect(&name).await.unwrap();
    match info.holders.as_slice() {
        [holder] => assert!(granted.valid_until <= now() + holder.time_left),
        // It was offered for a moment only, which is over.
        [] => assert!(granted.valid_until <= now()),
        _ => panic!("one holder: {info:?}"),
    }
}
