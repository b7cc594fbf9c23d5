//! What recipes keep for a lock is out of reach of locks that users have.

use std::sync::Arc;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::recipe::PeriodTurn;

use crate::target::Target;

const HOUR: Duration = Duration::from_secs(3600);

/// Locks of users that were once called like those of recipes.
pub(crate) async fn users_locks_are_not_in_the_way(target: Arc<Target>) {
    let locks = target.connect().await;
    let once = locks.lock("beside#once").acquire().await.unwrap();
    let round = locks.lock("beside#barrier/0").acquire().await.unwrap();
    let turn = locks.lock("beside").once_per(HOUR).begin().await.unwrap();
    let PeriodTurn::Ours(run) = turn else {
        panic!("nobody has run: {turn:?}");
    };
    run.succeeded().await.unwrap();
    if let Some(barrier) = Target::with_store(&locks, locks.barrier("beside", 2)) {
        let wait = Duration::from_secs(20);
        let (one, two) = tokio::join!(barrier.pass(wait), barrier.pass(wait));
        assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
    }
    // Nor the other way round: a user's break opens nothing.
    assert!(once.is_valid() && round.is_valid());
    locks.force_release("beside#once").await.unwrap();
    let turn = locks.lock("beside").once_per(HOUR).begin().await.unwrap();
    assert!(matches!(turn, PeriodTurn::Taken(_)), "{turn:?}");
    assert!(locks.forget_run("beside").await.unwrap());
    let turn = locks.lock("beside").once_per(HOUR).begin().await.unwrap();
    assert!(matches!(turn, PeriodTurn::Ours(_)), "{turn:?}");
}

pub(crate) async fn recipes_locks_are_in_no_list(target: Arc<Target>) {
    let locks = target.connect().await;
    let turn = locks.lock("unlisted").once_per(HOUR).begin().await.unwrap();
    let PeriodTurn::Ours(run) = turn else {
        panic!("nobody has run");
    };
    run.succeeded().await.unwrap();
    assert_eq!(locks.list("unlisted").await.unwrap(), []);
    assert_eq!(locks.inspect("unlisted").await.unwrap().holders, []);
    let beside = "unlisted\u{1f}once";
    for error in [
        locks.inspect(beside).await.unwrap_err(),
        locks.force_release(beside).await.unwrap_err(),
        locks.lock(beside).try_acquire().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
    // A user's lock of a name that begins alike is listed on both sides of it.
    let around = ["unlisted", "unlisted!", "unlisted/x"];
    let mut held = Vec::new();
    for name in around {
        held.push(locks.lock(name).acquire().await.unwrap());
    }
    let listed = locks.list("unlisted").await.unwrap();
    let names: Vec<_> = listed.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, around);
}
