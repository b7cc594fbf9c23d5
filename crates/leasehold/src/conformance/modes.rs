//! Readers and writers, permits, and what happens where they meet.

use tokio::task::JoinSet;

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, queueing, unless_slow};
use crate::claim::{Claim, Mode};
use crate::engine::{Attempt, Engine};
use crate::error::{Effect, ErrorKind};
use crate::lease::Lease;

theme! { modes:
    readers_share [Shared] caught by [SharedIsExclusive];
    a_writer_excludes_readers [Shared] caught by [GrantsAlways];
    a_reader_excludes_writers [Shared] caught by [GrantsAlways];
    a_writer_waits_for_all_readers [Shared] caught by [GrantsAlways, NeverWakes];
    readers_wait_for_the_writer_and_enter_together [Shared] caught by [SharedIsExclusive, NeverWakes];
    a_reader_does_not_barge_past_a_waiting_writer [Shared, Fifo] caught by [HasNoQueue];
    a_writer_that_gives_up_lets_readers_in [Shared, Fifo] caught by [ReleaseLeavesGhosts];
    as_many_permits_as_were_said [Permits] caught by [OnePermitTooMany, PermitsAreThree];
    a_released_permit_is_passed_on [Permits] caught by [NeverWakes, ReleaseDoesNothing];
    permits_and_exclusive_exclude_each_other [Permits] caught by [GrantsAlways];
    permits_and_shared_exclude_each_other [Permits, Shared] caught by [GrantsAlways];
    another_number_of_permits_is_refused [Permits] caught by [PermitsAreThree];
    a_claim_held_in_another_mode_is_refused [Shared] caught by [KeepsTheFirstMode];
    a_claim_held_as_a_permit_is_refused_in_another_mode [Permits] caught by [KeepsTheFirstMode];
    a_queued_claim_waits_in_the_mode_asked_last [Shared] caught by [KeepsTheFirstMode];
    shared_mode_is_refused_where_there_is_none [NoShared] caught by [AcceptsWhatItLacks];
    permits_are_refused_where_there_are_none [NoPermits] caught by [AcceptsWhatItLacks];
}

fn in_mode(name: &str, mode: Mode) -> Claim {
    Claim {
        mode,
        ..claim(name, LONG)
    }
}

async fn readers_share(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    let name = ground.name("x");
    let mut tokens = Vec::new();
    for engine in [&first, &second, &first] {
        tokens.push(grant(&**engine, &in_mode(&name, Mode::Shared)).await.token);
    }
}

async fn a_writer_excludes_readers(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let writer = claim(&name, LONG);
    grant(&*engine, &writer).await;
    assert!(is_refused(&*engine, &in_mode(&name, Mode::Shared)).await);
    engine.release(&writer).await.unwrap();
    grant(&*engine, &in_mode(&name, Mode::Shared)).await;
}

async fn a_reader_excludes_writers(ground: Ground) {
    let engine = ground.engine().await;
    let name = ground.name("x");
    let reader = in_mode(&name, Mode::Shared);
    grant(&*engine, &reader).await;
    assert!(is_refused(&*engine, &claim(&name, LONG)).await);
    engine.release(&reader).await.unwrap();
    grant(&*engine, &claim(&name, LONG)).await;
}

async fn a_writer_waits_for_all_readers(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let reader = || locks.lock(&name).ttl(LONG).shared().acquire();
    let (first, second) = (reader().await.unwrap(), reader().await.unwrap());
    let writer = other.lock(&name).ttl(LONG).wait_forever();
    let mut writer = tokio::spawn(writer.acquire());
    ground.until_queued(&locks, &name, 1).await;
    first.release().await.unwrap();
    super::ground::pause(100).await;
    assert!(!writer.is_finished(), "entered beside a reader");
    second.release().await.unwrap();
    let lease = ground.soon("the writer enters", &mut writer).await;
    lease.unwrap().unwrap().release().await.unwrap();
}

async fn readers_wait_for_the_writer_and_enter_together(ground: Ground) {
    let locks = ground.locks().await;
    unless_slow(&ground, async |name, steps| {
        let writer = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let mut readers = JoinSet::new();
        for nth in 0..3 {
            let other = ground.locks().await;
            let request = other.lock(&name).ttl(LONG).shared().wait_forever();
            readers.spawn(request.acquire());
            ground.until_queued(&locks, &name, nth + 1).await;
        }
        steps.begin();
        writer.release().await.unwrap();
        let leases = ground.soon("all readers enter", readers.join_all()).await;
        let leases: Vec<Lease> = leases.into_iter().map(Result::unwrap).collect();
        let holders = locks.inspect(&name).await.unwrap().holders.len();
        match holders == 3 && leases.iter().all(|lease| lease.is_valid()) {
            true => Ok(()),
            false => Err(format!("{holders} hold it: {leases:?}")),
        }
    })
    .await;
}

async fn a_reader_does_not_barge_past_a_waiting_writer(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let reader = locks.lock(&name).ttl(LONG).shared();
    let reader = reader.acquire().await.unwrap();
    let writer = other.lock(&name).ttl(LONG).wait_forever();
    let writer = tokio::spawn(writer.acquire());
    ground.until_queued(&locks, &name, 1).await;
    let barger = locks.lock(&name).ttl(LONG).shared();
    assert!(barger.try_acquire().await.unwrap().is_none());
    reader.release().await.unwrap();
    let lease = ground.soon("the writer enters", writer).await;
    lease.unwrap().unwrap().release().await.unwrap();
}

async fn a_writer_that_gives_up_lets_readers_in(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    let name = ground.name("x");
    let _reader = locks.lock(&name).ttl(LONG).shared();
    let _reader = _reader.acquire().await.unwrap();
    let writer = other.lock(&name).ttl(LONG).wait_forever();
    let writer = tokio::spawn(writer.acquire());
    ground.until_queued(&locks, &name, 1).await;
    let second = locks.lock(&name).ttl(LONG).shared().wait_forever();
    let second = tokio::spawn(second.acquire());
    ground.until_queued(&locks, &name, 2).await;
    writer.abort();
    let lease = ground.soon("the second reader enters", second).await;
    lease.unwrap().unwrap().release().await.unwrap();
}

async fn as_many_permits_as_were_said(ground: Ground) {
    let (first, second) = (ground.engine().await, ground.engine().await);
    for of in [1, 2, 4] {
        let name = ground.name(&format!("x{of}"));
        for nth in 0..of {
            let engine = if nth % 2 == 0 { &first } else { &second };
            grant(&**engine, &in_mode(&name, Mode::Permit { of })).await;
        }
        let one_more = in_mode(&name, Mode::Permit { of });
        assert!(is_refused(&*second, &one_more).await, "{of} permits");
    }
}

async fn a_released_permit_is_passed_on(ground: Ground) {
    let (locks, other) = (ground.locks().await, ground.locks().await);
    unless_slow(&ground, async |name, steps| {
        let permit = || locks.lock(&name).ttl(LONG).permits(2).acquire();
        let (first, _second) = (permit().await.unwrap(), permit().await.unwrap());
        let waiter = other.lock(&name).ttl(LONG).permits(2).wait_forever();
        let waiter = tokio::spawn(waiter.acquire());
        ground.until_queued(&locks, &name, 1).await;
        steps.begin();
        first.release().await.unwrap();
        let third = ground.soon("the permit is passed on", waiter).await;
        let third = third.unwrap().unwrap();
        let more = locks.lock(&name).ttl(LONG).permits(2).try_acquire();
        if more.await.unwrap().is_some() {
            return Err("a third permit of two".to_owned());
        }
        third.release().await.unwrap();
        Ok(())
    })
    .await;
}

async fn permits_and_exclusive_exclude_each_other(ground: Ground) {
    excludes(&ground, Mode::Permit { of: 2 }, Mode::Exclusive).await;
}

async fn permits_and_shared_exclude_each_other(ground: Ground) {
    excludes(&ground, Mode::Permit { of: 2 }, Mode::Shared).await;
}

async fn excludes(ground: &Ground, one: Mode, another: Mode) {
    let engine = ground.engine().await;
    for (rest, held, asked) in [("x", one, another), ("y", another, one)] {
        let name = ground.name(rest);
        let held = in_mode(&name, held);
        grant(&*engine, &held).await;
        let asked = in_mode(&name, asked);
        assert!(is_refused(&*engine, &asked).await, "{asked:?} by {held:?}");
        engine.release(&held).await.unwrap();
        grant(&*engine, &asked).await;
    }
}

async fn another_number_of_permits_is_refused(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).permits(2);
    let lease = lease.acquire().await.unwrap();
    let other = locks.lock(&name).permits(4).try_acquire().await;
    let refused = other.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    assert!(refused.advice().is_some());
    // Once it is free, all may agree on another number.
    lease.release().await.unwrap();
    let other = locks.lock(&name).permits(4).try_acquire().await;
    assert!(other.unwrap().is_some());
}

async fn a_claim_held_in_another_mode_is_refused(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    for (rest, held, asked) in [
        ("x", Mode::Shared, Mode::Exclusive),
        ("y", Mode::Exclusive, Mode::Shared),
    ] {
        let name = ground.name(rest);
        if held == Mode::Shared {
            grant(&*other, &in_mode(&name, Mode::Shared)).await;
        }
        is_kept_in_its_mode(&ground, &*engine, &in_mode(&name, held), asked).await;
        assert!(is_refused(&*other, &in_mode(&name, asked)).await);
    }
}

async fn a_claim_held_as_a_permit_is_refused_in_another_mode(ground: Ground) {
    let engine = ground.engine().await;
    let permit = in_mode(&ground.name("x"), Mode::Permit { of: 2 });
    grant(&*engine, &in_mode(&ground.name("x"), permit.mode)).await;
    for asked in [Mode::Permit { of: 3 }, Mode::Exclusive] {
        is_kept_in_its_mode(&ground, &*engine, &permit, asked).await;
    }
}

/// The claim is granted, and refused in another mode, through the same client and another; and holds the lock as before.
async fn is_kept_in_its_mode(ground: &Ground, engine: &dyn Engine, held: &Claim, asked: Mode) {
    let token = grant(engine, held).await.token;
    for queues in [false, true] {
        let asked = Claim {
            mode: asked,
            queues,
            ..held.clone()
        };
        let refused = engine.try_acquire(&asked).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
        assert_eq!(refused.effect(), Effect::None, "it would be released");
        assert!(refused.advice().is_some());
    }
    // Where locks end with a session, the same claim in another session is another claim.
    let asked = Claim {
        mode: asked,
        ..held.clone()
    };
    let attempt = ground.engine().await.try_acquire(&asked).await;
    assert!(!matches!(attempt, Ok(Attempt::Granted(_))), "two hold it");
    assert_eq!(grant(engine, held).await.token, token);
}

async fn a_queued_claim_waits_in_the_mode_asked_last(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    for (rest, first, last) in [
        ("x", Mode::Shared, Mode::Exclusive),
        ("y", Mode::Exclusive, Mode::Shared),
    ] {
        let name = ground.name(rest);
        let writer = claim(&name, LONG);
        grant(&*other, &writer).await;
        let waiter = queueing(&name, LONG);
        for mode in [first, last] {
            let waiter = Claim {
                mode,
                ..waiter.clone()
            };
            assert!(is_refused(&*engine, &waiter).await);
        }
        other.release(&writer).await.unwrap();
        let waiter = Claim {
            mode: last,
            ..waiter
        };
        ground
            .until("the waiter enters", async || {
                !is_refused(&*engine, &waiter).await
            })
            .await;
        let reader_is_refused = is_refused(&*other, &in_mode(&name, Mode::Shared)).await;
        assert_eq!(reader_is_refused, last == Mode::Exclusive);
    }
}

async fn shared_mode_is_refused_where_there_is_none(ground: Ground) {
    is_unsupported(&ground, Mode::Shared).await;
}

async fn permits_are_refused_where_there_are_none(ground: Ground) {
    is_unsupported(&ground, Mode::Permit { of: 2 }).await;
}

async fn is_unsupported(ground: &Ground, mode: Mode) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let request = locks.lock(&name);
    let request = match mode {
        Mode::Permit { of } => request.permits(of),
        _ => request.shared(),
    };
    let refused = request.try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    // An engine does not rely on its caller to ask only for what it has.
    let refused = locks.engine().try_acquire(&in_mode(&name, mode)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
}
