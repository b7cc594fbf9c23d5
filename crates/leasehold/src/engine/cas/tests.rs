//! The engine on a store in memory, with a clock of its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::config::Settings;
use super::document::{Document, Holder, Life, Signature};
use super::engine::CasEngine;
use super::store::CasStore;
use super::test_store::{Fault, TestStore};
use crate::claim::{Claim, Ttl};
use crate::clock::Clock;
use crate::engine::meta::Meta;
use crate::engine::{Attempt, Engine, Grant, Query, Released, Renew, Renewal, Wake};
use crate::error::{Effect, Result};

/// Two processes at one store.
struct World {
    store: TestStore,
    clock: Clock,
    one: CasEngine<TestStore>,
    other: CasEngine<TestStore>,
}

fn world() -> World {
    let (store, clock) = (TestStore::default(), Clock::tokio());
    store.set_latency(ms(5));
    let engine = || CasEngine::new(Arc::new(store.clone()), Settings::default(), clock.clone());
    let (one, other) = (engine(), engine());
    World {
        store,
        clock,
        one,
        other,
    }
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn claim(nth: u8, ttl: u64) -> Claim {
    Claim {
        ttl: Ttl::new(ms(ttl)).unwrap(),
        ..Claim::example(nth)
    }
}

async fn grant(engine: &dyn Engine, claim: &Claim) -> Grant {
    match engine.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(held) => panic!("held: {held:?}"),
    }
}

async fn is_held(engine: &dyn Engine, claim: &Claim) -> bool {
    matches!(engine.try_acquire(claim).await.unwrap(), Attempt::Held(_))
}

/// As the core does.
async fn obtain(engine: &dyn Engine, claim: &Claim) -> Grant {
    loop {
        if let Attempt::Granted(grant) = engine.try_acquire(claim).await.unwrap() {
            return grant;
        }
        assert_eq!(engine.wait(claim).await.unwrap(), Wake::Retry);
    }
}

async fn renew(engine: &dyn Engine, claim: &Claim) -> Result<Renewal> {
    engine.renew(&[Renew::new(claim)]).await.pop().unwrap()
}

#[tokio::test(start_paused = true)]
async fn uncontended_cycle_takes_two_requests() {
    for tells in [true, false] {
        let World {
            store, one, other, ..
        } = world();
        store.set_tells(tells);
        for nth in 0..5 {
            let claim = claim(nth, 1000);
            let before = store.requests();
            grant(&one, &claim).await;
            one.release(&claim).await.unwrap();
            assert_eq!(store.requests() - before, 2);
        }
        // Even for one who has never seen it, on a store that can tell an idle lock.
        let before = store.requests();
        grant(&other, &claim(9, 1000)).await;
        assert_eq!(store.requests() - before, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn hand_over_takes_four_requests_and_polling() {
    for (tells, most) in [(true, 3), (false, 4)] {
        let World {
            store, one, other, ..
        } = world();
        store.set_tells(tells);
        let (first, second) = (claim(1, 60_000), claim(2, 60_000));
        grant(&one, &first).await;
        assert!(is_held(&other, &second).await);
        let before = store.requests();
        one.release(&first).await.unwrap();
        obtain(&other, &second).await;
        // The holder does not know that someone has queued: its release is refused once, and read anew where the refusal tells nothing. The
        // waiter looks once and takes the offer.
        let looks = 1;
        assert_eq!(store.requests() - before, most + looks);
    }
}

#[tokio::test(start_paused = true)]
async fn dead_holder_is_replaced_within_its_ttl_and_a_look() {
    let World {
        one, other, clock, ..
    } = world();
    let held = grant(&one, &claim(1, 5_000)).await;
    let start = clock.now();
    obtain(&other, &claim(2, 5_000)).await;
    let took = clock.now().since(start);
    assert!(clock.now() > held.valid_until);
    assert!(took >= ms(5_000) && took < ms(5_300), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn write_whose_answer_is_lost_is_found() {
    let World {
        store, one, clock, ..
    } = world();
    let held = claim(1, 1000);
    for lost in [Fault::AnswerLost, Fault::Lost] {
        store.fail(&[lost]);
        let sent = clock.now();
        let granted = grant(&one, &held).await;
        assert_eq!(granted.valid_until, sent + held.ttl.validity());
        store.fail(&[lost]);
        assert!(matches!(renew(&one, &held).await, Ok(Renewal::Renewed(_))));
        store.fail(&[lost]);
        assert_eq!(one.release(&held).await.unwrap(), Released::Yes);
    }
    assert!(store.document("x").unwrap().is_idle());
}

#[tokio::test(start_paused = true)]
async fn write_that_others_have_written_over_is_found() {
    let World {
        store, one, other, ..
    } = world();
    let (held, waiter) = (claim(1, 60_000), claim(2, 60_000));
    // Before the first looks for its write, another has queued.
    store.fail(&[Fault::AnswerLost]);
    let second = async {
        tokio::time::sleep(ms(6)).await;
        store.set_latency(ms(1));
        assert!(is_held(&other, &waiter).await);
        store.set_latency(ms(5));
    };
    let (granted, ()) = tokio::join!(grant(&one, &held), second);
    assert_eq!(
        store.document("x").unwrap().holders[0].token,
        granted.token.get()
    );
    assert!(matches!(renew(&one, &held).await, Ok(Renewal::Renewed(_))));
    assert_eq!(one.release(&held).await.unwrap(), Released::Yes);
    obtain(&other, &waiter).await;
}

#[tokio::test(start_paused = true)]
async fn lock_is_not_broken_twice_if_the_answer_is_lost() {
    let World {
        store, one, other, ..
    } = world();
    let (first, next) = (claim(1, 60_000), claim(2, 60_000));
    grant(&one, &first).await;
    store.fail(&[Fault::AnswerLost]);
    let second = async {
        tokio::time::sleep(ms(6)).await;
        store.set_latency(ms(1));
        grant(&other, &next).await;
        store.set_latency(ms(5));
    };
    let (broken, ()) = tokio::join!(one.force_release(&first.name), second);
    assert_eq!(broken.unwrap_err().effect(), Effect::Unknown);
    assert!(matches!(
        renew(&other, &next).await,
        Ok(Renewal::Renewed(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn late_write_has_no_effect_after_a_release() {
    for idle_before in [false, true] {
        let World {
            store, one, other, ..
        } = world();
        if idle_before {
            grant(&one, &claim(9, 1000)).await;
            one.release(&claim(9, 1000)).await.unwrap();
        }
        let late = claim(1, 60_000);
        store.fail(&[
            Fault::Late(ms(10_000)),
            Fault::Lost,
            Fault::Lost,
            Fault::Lost,
        ]);
        store.fail_reads(0);
        let failed = one.try_acquire(&late).await.unwrap_err();
        assert_eq!(failed.effect(), Effect::Unknown);
        assert_eq!(one.release(&late).await.unwrap(), Released::WasNotHeld);
        tokio::time::sleep(ms(20_000)).await;
        assert!(store.document("x").unwrap().is_idle());
        grant(&other, &claim(2, 1000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_request_is_a_busy_error_without_effect() {
    let World { store, one, .. } = world();
    store.fail(&[Fault::Throttled]);
    let refused = one.try_acquire(&claim(1, 1000)).await.unwrap_err();
    assert!(refused.is_busy() && refused.effect() == Effect::None);
    grant(&one, &claim(2, 1000)).await;
}

#[tokio::test(start_paused = true)]
async fn refusal_after_a_lost_answer_is_of_unknown_effect() {
    let World {
        store, one, other, ..
    } = world();
    let (held, waiter) = (claim(1, 60_000), claim(2, 60_000));
    grant(&other, &held).await;
    one.inspect(&Query::Name(held.name.clone())).await.unwrap();
    // Before the waiter looks for its write, it is offered the lock.
    store.fail(&[Fault::AnswerLost]);
    let released = async {
        tokio::time::sleep(ms(6)).await;
        store.set_latency(ms(1));
        other.release(&held).await.unwrap();
        store.set_latency(ms(5));
        store.fail(&[Fault::Throttled]);
    };
    let (refused, ()) = tokio::join!(one.try_acquire(&waiter), released);
    let refused = refused.unwrap_err();
    assert_eq!(store.document("x").unwrap().holders.len(), 1);
    assert_eq!(refused.effect(), Effect::Unknown, "{refused}");
    assert!(refused.is_busy());
}

#[tokio::test(start_paused = true)]
async fn renewals_of_one_claim_that_come_together_both_count() {
    let World { one, clock, .. } = world();
    let held = claim(1, 60_000);
    grant(&one, &held).await;
    tokio::time::sleep(ms(1000)).await;
    let sent = clock.now();
    for renewed in one.renew(&[Renew::new(&held), Renew::new(&held)]).await {
        let Renewal::Renewed(grant) = renewed.unwrap() else {
            panic!("lost");
        };
        assert_eq!(grant.valid_until, sent + held.ttl.validity());
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_and_renewal_that_come_together_both_count() {
    let World { one, clock, .. } = world();
    let held = claim(1, 60_000);
    let first = grant(&one, &held).await;
    tokio::time::sleep(ms(1000)).await;
    let sent = clock.now();
    let (again, renewed) = tokio::join!(one.try_acquire(&held), renew(&one, &held));
    let Attempt::Granted(again) = again.unwrap() else {
        panic!("held");
    };
    assert_eq!(again.token, first.token);
    assert!(again.valid_until >= first.valid_until);
    let Renewal::Renewed(renewed) = renewed.unwrap() else {
        panic!("lost");
    };
    assert_eq!(renewed.valid_until, sent + held.ttl.validity());
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_together_are_written_together() {
    let World { store, one, .. } = world();
    grant(&one, &claim(0, 60_000)).await;
    let before = store.requests();
    let waiters: Vec<_> = (1..=50).map(|nth| claim(nth, 60_000)).collect();
    let asked = waiters.iter().map(|waiter| one.try_acquire(waiter));
    futures_util::future::join_all(asked).await;
    assert!(store.requests() - before <= 3);
    let queue = store.document("x").unwrap().queue;
    assert_eq!(queue.len(), 50);
}

#[tokio::test(start_paused = true)]
async fn one_task_looks_for_all_waiters_of_a_process() {
    let World {
        store, one, other, ..
    } = world();
    grant(&one, &claim(0, 600_000)).await;
    for nth in 1..=30 {
        assert!(is_held(&other, &claim(nth, 600_000)).await);
    }
    let before = store.requests();
    tokio::time::sleep(ms(60_000)).await;
    let asked = store.requests() - before;
    // The first looks every 150 to 200 ms, and now and then it writes a sign of life for all.
    assert!((280..480).contains(&asked), "{asked}");
    assert_eq!(store.document("x").unwrap().queue.len(), 30);
}

#[tokio::test(start_paused = true)]
async fn waiters_farther_back_look_less_often() {
    let World {
        store, one, other, ..
    } = world();
    grant(&one, &claim(0, 600_000)).await;
    for nth in 1..=8 {
        assert!(is_held(&one, &claim(nth, 600_000)).await);
    }
    // The ninth of the queue is the first of this process; the process of those before it is gone.
    assert!(is_held(&other, &claim(9, 600_000)).await);
    drop(one);
    let before = store.requests();
    tokio::time::sleep(ms(9_000)).await;
    let asked = store.requests() - before;
    assert!((4..12).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn process_that_is_gone_loses_its_place() {
    let World {
        store,
        one,
        other,
        clock,
    } = world();
    grant(&one, &claim(0, 600_000)).await;
    let gone = CasEngine::new(Arc::new(store.clone()), Settings::default(), clock);
    assert!(is_held(&gone, &claim(1, 600_000)).await);
    drop(gone);
    let waits = claim(2, 600_000);
    let waiting = obtain(&other, &waits);
    assert!(tokio::time::timeout(ms(15_000), waiting).await.is_err());
    let queue = store.document("x").unwrap().queue;
    assert_eq!(queue.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_at_once_exclude_each_other() {
    let World {
        store, one, other, ..
    } = world();
    let engines = [Arc::new(one), Arc::new(other)];
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..40 {
        let (engine, inside) = (
            Arc::clone(&engines[usize::from(nth % 2)]),
            Arc::clone(&inside),
        );
        tasks.spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            let claim = claim(nth, 60_000);
            let grant = obtain(&*engine, &claim).await;
            assert_eq!(inside.fetch_add(1, SeqCst), 0);
            tokio::time::sleep(ms(3)).await;
            inside.fetch_sub(1, SeqCst);
            assert_eq!(engine.release(&claim).await.unwrap(), Released::Yes);
            grant.token
        });
    }
    let mut tokens = tasks.join_all().await;
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 40);
    assert!(store.document("x").unwrap().is_idle());
}

#[tokio::test(start_paused = true)]
async fn locks_that_nobody_needs_are_forgotten() {
    let World { one, .. } = world();
    for nth in 0..1000 {
        let claim = Claim {
            name: crate::name::LockName::new(format!("n{nth}")).unwrap(),
            ..claim(1, 60_000)
        };
        grant(&one, &claim).await;
        if nth >= 10 {
            one.release(&claim).await.unwrap();
        }
    }
    assert!(one.remembered() < 200, "{}", one.remembered());
}

#[tokio::test(start_paused = true)]
async fn locks_asked_for_in_an_outage_are_forgotten() {
    let World { store, one, .. } = world();
    let named = |name: String| Claim {
        name: crate::name::LockName::new(name).unwrap(),
        ..claim(1, 60_000)
    };
    store.fail(&[Fault::Lost; 1000]);
    store.fail_reads(u64::MAX);
    for nth in 0..1000 {
        let asked = named(format!("n{nth}"));
        assert!(one.try_acquire(&asked).await.is_err());
    }
    store.fail_reads(0);
    // A write may be late, but not by so much.
    tokio::time::sleep(ms(3_600_000)).await;
    for nth in 0..1500 {
        let asked = named(format!("m{nth}"));
        grant(&one, &asked).await;
        one.release(&asked).await.unwrap();
    }
    assert!(one.remembered() < 200, "{}", one.remembered());
}

#[tokio::test(start_paused = true)]
async fn write_that_is_sent_twice_on_the_way_counts_once() {
    for tells in [true, false] {
        let World {
            store, one, other, ..
        } = world();
        store.set_tells(tells);
        let (first, next) = (claim(1, 60_000), claim(2, 60_000));
        store.fail(&[Fault::Repeated]);
        grant(&one, &first).await;
        assert!(is_held(&other, &next).await);
        // The next one has been offered the lock: that must not be broken as well.
        assert!(is_held(&one, &claim(3, 60_000)).await);
        store.fail(&[Fault::Repeated]);
        assert_eq!(one.force_release(&first.name).await.unwrap(), Released::Yes);
        let there = store.document("x").unwrap();
        assert!(there.holder(&Signature::of(&next.id)).is_some());
        obtain(&other, &next).await;
        store.fail(&[Fault::Repeated]);
        assert!(matches!(
            renew(&other, &next).await,
            Ok(Renewal::Renewed(_))
        ));
        store.fail(&[Fault::Repeated]);
        assert_eq!(other.release(&next).await.unwrap(), Released::Yes);
    }
}

#[tokio::test(start_paused = true)]
async fn row_of_another_program_is_not_written_to_settle_a_doubt() {
    let World { store, one, .. } = world();
    let late = claim(1, 60_000);
    store.fail(&[
        Fault::Late(ms(10_000)),
        Fault::Lost,
        Fault::Lost,
        Fault::Lost,
    ]);
    assert!(one.try_acquire(&late).await.is_err());
    let mut theirs = Document::new("x");
    theirs.version = "theirs".to_owned();
    let life = Life { beat: 7, at: 0 };
    theirs
        .holders
        .push(Holder::foreign("them", 60_000, life, Meta::foreign("them")));
    store.put(theirs.clone());
    assert_eq!(one.release(&late).await.unwrap(), Released::WasNotHeld);
    assert_eq!(store.document("x"), Some(theirs));
}

#[tokio::test(start_paused = true)]
async fn claim_that_asks_again_for_longer_is_kept_for_longer() {
    let World {
        one, other, clock, ..
    } = world();
    let first = grant(&one, &claim(1, 1000)).await;
    assert!(is_held(&other, &claim(2, 1000)).await);
    let held = grant(&one, &claim(1, 30_000)).await;
    assert_eq!(held.token, first.token);
    obtain(&other, &claim(2, 1000)).await;
    assert!(clock.now() > held.valid_until);
}

#[tokio::test(start_paused = true)]
async fn lists_do_not_delay_a_take_over() {
    let World {
        store, one, other, ..
    } = world();
    grant(&one, &claim(1, 5_000)).await;
    let lists = async {
        for second in 0.. {
            tokio::time::sleep(ms(1000)).await;
            // All of them have been renewed since the last list.
            for nth in 0..1_100 {
                let mut document = Document::new(&format!("n{nth}"));
                let life = Life {
                    beat: 1_100 * second + nth,
                    at: 0,
                };
                let holder = Holder::new(&claim(3, 600_000), 1, life);
                document.holders.push(holder);
                store.put(document);
            }
            other.inspect(&Query::Prefix(String::new())).await.unwrap();
        }
    };
    let waits = claim(2, 5_000);
    tokio::select! {
        _ = obtain(&other, &waits) => {}
        () = lists => {}
        () = tokio::time::sleep(ms(10_000)) => panic!("a dead holder still has the lock"),
    }
}

#[tokio::test(start_paused = true)]
async fn two_doubts_are_both_settled() {
    let World { store, one, .. } = world();
    // Its token is ahead of this client's clock.
    let mut document = Document::new("x");
    document.version = "first".to_owned();
    document.token = 1 << 52;
    store.put(document);
    let (late, next) = (claim(1, 60_000), claim(2, 60_000));
    one.inspect(&Query::Name(late.name.clone())).await.unwrap();
    store.fail(&[
        Fault::Late(ms(10_000)),
        Fault::Lost,
        Fault::Lost,
        Fault::Lost,
    ]);
    assert!(one.try_acquire(&late).await.is_err());
    store.fail(&[
        Fault::Lost,
        Fault::Throttled,
        Fault::Throttled,
        Fault::Throttled,
    ]);
    assert!(one.try_acquire(&next).await.is_err());
    for claim in [&late, &next] {
        one.release(claim).await.unwrap();
    }
    tokio::time::sleep(ms(20_000)).await;
    assert!(store.document("x").unwrap().is_idle());
}

/// Its attempts may be throttled while reads are not.
#[tokio::test(start_paused = true)]
async fn waiter_that_does_not_get_through_is_no_reason_to_look_more_often() {
    let World {
        store, one, other, ..
    } = world();
    grant(&one, &claim(1, 1000)).await;
    assert!(is_held(&other, &claim(2, 1000)).await);
    tokio::time::sleep(ms(1500)).await;
    let before = store.requests();
    tokio::time::sleep(ms(10_000)).await;
    let asked = store.requests() - before;
    assert!(asked < 80, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn lock_is_shown_as_it_was_seen_although_others_fail_meanwhile() {
    let World {
        store, one, other, ..
    } = world();
    grant(&other, &claim(1, 60_000)).await;
    let query = Query::Name(claim(1, 1000).name);
    let mut inspecting = one.inspect(&query);
    assert!((&mut inspecting).now_or_never().is_none());
    // It has been answered, and not been heard yet.
    tokio::time::sleep(ms(100)).await;
    store.fail(&[Fault::Lost; 4]);
    assert!(one.try_acquire(&claim(2, 1000)).await.is_err());
    assert_eq!(inspecting.await.unwrap()[0].holders.len(), 1);
}

/// An engine that is used from a second runtime, which ends while the store is asked there.
#[tokio::test]
async fn runtime_that_ends_in_mid_request_stops_nobody_else() {
    let store = TestStore::default();
    let engine = CasEngine::new(
        Arc::new(store.clone()),
        Settings::default(),
        Clock::machine(),
    );
    let engine = Arc::new(engine);
    store.set_latency(Duration::from_secs(3600));
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let asked = Arc::clone(&engine);
    other.spawn(async move { asked.try_acquire(&claim(1, 30_000)).await });
    while store.requests() == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    // One that has not been begun with.
    let waits = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.try_acquire(&claim(2, 30_000)).await }
    });
    tokio::task::yield_now().await;
    store.set_latency(ms(0));
    other.shutdown_background();
    let granted = tokio::time::timeout(Duration::from_secs(60), waits);
    let granted = granted.await.expect("nobody serves it").unwrap().unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
    let released = engine.release(&claim(2, 30_000)).await.unwrap();
    assert_eq!(released, Released::Yes);
}

#[tokio::test]
async fn waiters_are_looked_for_after_the_runtime_of_one_has_ended() {
    let store = TestStore::default();
    let engine = CasEngine::new(
        Arc::new(store.clone()),
        Settings::default(),
        Clock::machine(),
    );
    let engine = Arc::new(engine);
    grant(&*engine, &claim(1, 3_600_000)).await;
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    // The first waiter starts the task that looks, and is gone with it.
    let asked = Arc::clone(&engine);
    let asked = other.spawn(async move { is_held(&*asked, &claim(2, 500)).await });
    assert!(asked.await.unwrap());
    let waits = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { obtain(&*engine, &claim(3, 30_000)).await }
    });
    while store.document("x").unwrap().queue.len() < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    other.shutdown_background();
    engine.release(&claim(1, 3_600_000)).await.unwrap();
    let granted = tokio::time::timeout(Duration::from_secs(60), waits).await;
    granted.expect("nobody looks").unwrap();
}
