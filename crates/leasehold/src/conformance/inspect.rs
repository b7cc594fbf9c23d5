//! People see who holds and who waits, and no secrets.

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, ms, pause, queueing};
use crate::claim::{Claim, Claimant, Mode};
use crate::engine::Query;
use crate::locks::Locks;

theme! { inspect:
    holders_are_shown [] caught by [InspectForgetsReasons, InspectKnowsNoAges];
    waiters_are_shown [Fifo] caught by [InspectMissesWaiters, InspectMixesUpClaimants, InspectKnowsNoAges];
    all_readers_are_shown [Shared] caught by [SharedIsExclusive, GrantsAlways];
    claim_ids_are_not_shown [] caught by [InspectShowsClaimIds];
    a_prefix_is_no_pattern [] caught by [InspectMatchesPatterns];
    locks_are_ordered_by_name [] caught by [InspectHasNoOrder];
    a_released_lock_is_gone [] caught by [ReleaseDoesNothing];
    an_expired_lock_is_gone [] caught by [NeverExpires];
}

async fn holders_are_shown(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let request = locks.lock(&name).ttl(ms(60_000)).label("cook \u{1f512}");
    let lease = request.reason("supper 'n \"more\"").acquire().await;
    let lease = lease.unwrap();
    pause(200).await;
    let shown = other.inspect(&name).await.unwrap();
    assert_eq!(shown.waiters, []);
    let [holder] = shown.holders.as_slice() else {
        panic!("one holder: {shown:?}");
    };
    let this = Claimant::this_process();
    assert_eq!(holder.claimant.label, "cook \u{1f512}");
    assert_eq!(holder.claimant.host, this.host);
    assert_eq!(holder.claimant.pid, this.pid);
    assert_eq!(holder.reason.as_deref(), Some("supper 'n \"more\""));
    assert_eq!(holder.mode, Mode::Exclusive);
    assert_eq!(holder.token, lease.token());
    assert!(holder.held_for >= ms(150), "{:?}", holder.held_for);
    assert!(
        holder.time_left <= ms(60_000) - ms(150),
        "{:?}",
        holder.time_left
    );
    assert!(holder.time_left >= ms(30_000), "{:?}", holder.time_left);
    lease.release().await.unwrap();
    // A lock of a recipe's own, whose name no user can give.
    let user = claim(&name, ms(60_000));
    let own = Claim {
        name: user.name.beside("once").unwrap(),
        ..user
    };
    let engine = ground.engine().await;
    grant(&*engine, &own).await;
    let by_name = engine.inspect(&Query::Name(own.name.clone())).await;
    let names: Vec<_> = by_name.unwrap().into_iter().map(|lock| lock.name).collect();
    assert_eq!(names, std::slice::from_ref(&own.name));
    engine.inspect(&Query::Prefix(name)).await.unwrap();
    engine.release(&own).await.unwrap();
}

async fn waiters_are_shown(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let request = locks.lock(&name).ttl(LONG).label("first");
    let lease = request.acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for (nth, owner) in ["second", "third"].into_iter().enumerate() {
        let request = locks.lock(&name).ttl(LONG).wait_forever();
        waiters.spawn(request.label(owner).reason("my turn").acquire());
        ground.until_queued(&locks, &name, nth + 1).await;
    }
    pause(200).await;
    let shown = locks.inspect(&name).await.unwrap();
    let owners: Vec<_> = shown.waiters.iter().map(|w| &*w.claimant.label).collect();
    assert_eq!(owners, ["second", "third"]);
    for waiter in &shown.waiters {
        assert_eq!(waiter.claimant.pid, std::process::id());
        assert_eq!(waiter.reason.as_deref(), Some("my turn"));
        assert_eq!(waiter.mode, Mode::Exclusive);
        assert!(waiter.waited_for >= ms(150), "{:?}", waiter.waited_for);
    }
    waiters.shutdown().await;
    ground.until_queued(&locks, &name, 0).await;
    lease.release().await.unwrap();
}

async fn all_readers_are_shown(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let mut leases = Vec::new();
    for owner in ["a", "b", "c"] {
        let request = locks.lock(&name).ttl(LONG).label(owner).shared();
        leases.push(request.acquire().await.unwrap());
    }
    let shown = locks.inspect(&name).await.unwrap();
    let owners: Vec<_> = shown.holders.iter().map(|h| &*h.claimant.label).collect();
    assert_eq!(owners, ["a", "b", "c"], "the longest first");
    assert!(shown.holders.iter().all(|h| h.mode == Mode::Shared));
    let writer = locks.lock(&name).try_acquire().await.unwrap();
    assert!(writer.is_none());
}

async fn claim_ids_are_not_shown(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let held = claim(&name, LONG);
    grant(&**locks.engine(), &held).await;
    let waiter = queueing(&name, LONG);
    assert!(is_refused(&**locks.engine(), &waiter).await);
    let shown = format!("{:?}", locks.list(ground.name("")).await.unwrap());
    assert!(shown.contains(&name));
    for Claim { id, .. } in [held, waiter] {
        let digits = id.reveal();
        let bytes = format!("{:?}", id.as_bytes());
        let inner = bytes.trim_matches(['[', ']']).to_owned();
        for secret in [digits.to_uppercase(), digits, inner] {
            assert!(!shown.contains(&secret), "a claim id is shown");
        }
    }
}

async fn a_prefix_is_no_pattern(ground: Ground) {
    let locks = ground.locks().await;
    let rests = [
        "%a",
        "_a",
        "*a",
        "?a",
        "[x]a",
        "xa",
        "yxa",
        "\\a",
        "\u{1f512}a",
    ];
    for rest in rests {
        grant(&**locks.engine(), &claim(&ground.name(rest), LONG)).await;
    }
    for rest in rests {
        for prefix in [rest, &rest[..rest.len() - 1]] {
            let listed = locks.list(ground.name(prefix)).await.unwrap();
            let listed: Vec<_> = listed.iter().map(|lock| lock.name.as_str()).collect();
            assert_eq!(listed, [ground.name(rest)], "{prefix:?}");
        }
    }
    let none = locks.list(ground.name("zz")).await.unwrap();
    assert_eq!(none, []);
}

async fn locks_are_ordered_by_name(ground: Ground) {
    let locks = ground.locks().await;
    for rest in ["b", "a", "\u{e9}", "B", "aa", "z"] {
        grant(&**locks.engine(), &claim(&ground.name(rest), LONG)).await;
    }
    assert_eq!(
        names(&locks, &ground).await,
        ["B", "a", "aa", "b", "z", "\u{e9}"]
    );
}

async fn names(locks: &Locks, ground: &Ground) -> Vec<String> {
    let prefix = ground.name("");
    let listed = locks.list(&prefix).await.unwrap();
    let rest = |name: &str| name.strip_prefix(&prefix).unwrap().to_owned();
    listed.iter().map(|lock| rest(lock.name.as_str())).collect()
}

async fn a_released_lock_is_gone(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert_eq!(names(&locks, &ground).await, ["x"]);
    lease.release().await.unwrap();
    assert!(names(&locks, &ground).await.is_empty());
    assert_eq!(locks.inspect(&name).await.unwrap().holders, []);
}

async fn an_expired_lock_is_gone(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    grant(&**locks.engine(), &claim(&name, ms(200))).await;
    ground
        .until("it is no longer shown", async || {
            names(&locks, &ground).await.is_empty()
        })
        .await;
    assert_eq!(locks.inspect(&name).await.unwrap().holders, []);
}
