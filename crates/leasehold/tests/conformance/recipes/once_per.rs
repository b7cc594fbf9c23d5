//! Once per period.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::recipe::{PeriodRun, PeriodTurn};
use leasehold::{ErrorKind, Locks};

use crate::target::Target;

const HOUR: Duration = Duration::from_secs(3600);

async fn ask(locks: &Locks, name: &str, period: Duration, retry: bool) -> Option<PeriodRun> {
    let asked = locks
        .lock(name)
        .ttl(Duration::from_secs(4))
        .once_per(period);
    let asked = if retry { asked.retry_failed() } else { asked };
    match asked.begin().await.unwrap() {
        PeriodTurn::Ours(run) => Some(run),
        PeriodTurn::Taken(ran) => {
            assert!(
                ran.next_in <= period && ran.by.pid == std::process::id(),
                "{ran:?}"
            );
            None
        }
    }
}

pub(crate) async fn ten_at_once(target: Arc<Target>) {
    for retry in [false, true] {
        let name = format!("ten/{retry}");
        let mut tasks = Vec::new();
        for _ in 0..10 {
            let (target, name) = (Arc::clone(&target), name.clone());
            tasks.push(tokio::spawn(async move {
                let locks = target.connect().await;
                match ask(&locks, &name, HOUR, retry).await {
                    Some(run) => {
                        assert!(run.lease().is_valid());
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        run.succeeded().await.unwrap();
                        1
                    }
                    None => 0,
                }
            }));
        }
        let mut runs = 0;
        for task in tasks {
            runs += task.await.unwrap();
        }
        assert_eq!(runs, 1);
        let late = target.connect().await;
        assert!(ask(&late, &name, HOUR, retry).await.is_none(), "much later");
        assert!(
            ask(&late, &name, HOUR, !retry).await.is_none(),
            "the other way"
        );
        assert_eq!(
            late.inspect(&name).await.unwrap().holders,
            [],
            "the lock itself is free"
        );
    }
}

pub(crate) async fn a_failed_run_counts_unless_it_may_be_retried(target: Arc<Target>) {
    let (one, two) = (target.connect().await, target.connect().await);
    let run = ask(&one, "failed/no", HOUR, false).await.unwrap();
    run.failed().await.unwrap();
    assert!(ask(&two, "failed/no", HOUR, false).await.is_none());

    let run = ask(&one, "failed/yes", HOUR, true).await.unwrap();
    run.failed().await.unwrap();
    let run = ask(&two, "failed/yes", HOUR, true).await.unwrap();
    run.succeeded().await.unwrap();
    assert!(ask(&one, "failed/yes", HOUR, true).await.is_none());

    let asked = || one.lock("failed/work").once_per(HOUR).retry_failed();
    let failed = asked().run(|_| async { Err::<u8, _>("no luck") }).await;
    assert_eq!(failed.unwrap(), Some(Err("no luck")));
    let done = asked().run(|_| async { Ok::<_, ()>(7) }).await;
    assert_eq!(done.unwrap(), Some(Ok(7)));
    let skipped = asked().run(|_| twice()).await;
    assert_eq!(skipped.unwrap(), None);
}

/// A crash is a holder that says nothing more: its lease ends with its TTL.
pub(crate) async fn a_crash_counts_as_failed(target: Arc<Target>) {
    for retry in [false, true] {
        let name = format!("crash/{retry}");
        let (crashes, next) = (target.connect().await, target.connect().await);
        let run = ask(&crashes, &name, HOUR, retry).await.unwrap();
        let view = run.lease().view();
        crashes.force_release(&name).await.unwrap();
        let again = ask(&next, &name, HOUR, retry).await;
        assert_eq!(again.is_some(), retry, "{name}");
        if let Some(again) = again {
            view.lost().await;
            // Too late: the other one has it now.
            let error = run.succeeded().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LeaseLost);
            again.succeeded().await.unwrap();
            assert!(ask(&next, &name, HOUR, retry).await.is_none());
        }
    }
}

pub(crate) async fn the_next_period_has_its_own_run(target: Arc<Target>) {
    let period = Duration::from_millis(1500);
    for retry in [false, true] {
        let name = format!("next/{retry}");
        let mut runs = Vec::new();
        while runs.len() < 3 {
            // As cron does: each time a process that has never seen the lock.
            let locks = target.connect().await;
            let asked = Instant::now();
            if let Some(run) = ask(&locks, &name, period, retry).await {
                runs.push((asked, Instant::now()));
                run.succeeded().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for pair in runs.windows(2) {
            // The engine has granted each between the question and the answer.
            let apart = pair[1].1 - pair[0].0;
            assert!(apart >= period - Duration::from_millis(400), "{apart:?}");
        }
    }
    let locks = target.connect().await;
    for bad in [Duration::ZERO, Duration::from_secs(86_401)] {
        let error = locks
            .lock("next/bad")
            .once_per(bad)
            .begin()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let long = "x".repeat(255);
    let error = locks.lock(long).once_per(HOUR).begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
}

pub(crate) async fn what_is_not_run_frees_the_lock(target: Arc<Target>) {
    let locks = target.connect().await;
    let asked = || locks.lock("frees").hold_at_least(HOUR).once_per(HOUR);
    let PeriodTurn::Ours(run) = asked().begin().await.unwrap() else {
        panic!("nobody has run");
    };
    run.succeeded().await.unwrap();
    assert_eq!(
        locks.inspect("frees").await.unwrap().holders.len(),
        1,
        "at least an hour"
    );
    assert!(matches!(
        asked().begin().await.unwrap(),
        PeriodTurn::Taken(_)
    ));
    locks.force_release("frees").await.unwrap();
    // An operator may let it run again.
    assert!(locks.forget_run("frees").await.unwrap());
    assert!(!locks.forget_run("frees").await.unwrap());
    assert!(matches!(
        asked().begin().await.unwrap(),
        PeriodTurn::Ours(_)
    ));
}

pub(crate) async fn a_waiter_learns_that_it_was_done(target: Arc<Target>) {
    let (one, two) = (target.connect().await, target.connect().await);
    let run = ask(&one, "learns", HOUR, true).await.unwrap();
    let short = two.lock("learns").wait(Duration::from_millis(50));
    let error = short
        .once_per(HOUR)
        .retry_failed()
        .begin()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "it may still fail");
    let waiter = tokio::spawn(async move {
        let asked = two.lock("learns").wait_forever().once_per(HOUR);
        asked.retry_failed().begin().await.unwrap()
    });
    while one.inspect("learns").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    run.succeeded().await.unwrap();
    assert!(matches!(waiter.await.unwrap(), PeriodTurn::Taken(_)));
}

async fn twice() -> Result<u8, ()> {
    panic!("it was done already");
}
