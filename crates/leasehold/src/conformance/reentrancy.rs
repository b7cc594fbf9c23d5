//! One owner may take a lock again that it holds; different owners never.

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused, ms};
use crate::error::ErrorKind;

theme! { reentrancy:
    the_same_owner_enters_again [] caught by [ReleaseDoesNothing, TokensFall];
    tasks_of_one_owner_join [] caught by [ReleaseDoesNothing];
    different_owners_exclude_each_other [] caught by [GrantsAlways];
    a_handle_without_owner_is_not_reentrant [] caught by [GrantsAlways];
    a_writer_may_read_as_well [Shared] caught by [ReleaseDoesNothing];
    a_reader_cannot_become_the_writer [Shared] caught by [ReleaseDoesNothing];
    an_owner_that_lost_the_lock_asks_anew [] caught by [TokensRepeat, BreakDoesNothing];
}

async fn the_same_owner_enters_again(ground: Ground) {
    let locks = ground.locks().await.reentrant("one").unwrap();
    let other = ground.engine().await;
    let name = ground.name("x");
    let earlier = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let earlier_token = earlier.token();
    earlier.release().await.unwrap();
    let first = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert!(first.token() > earlier_token);
    let second = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let third = locks.clone().lock(&name).try_acquire().await.unwrap();
    let third = third.expect("a clone is the same owner");
    assert_eq!(first.token(), second.token());
    assert_eq!(first.token(), third.token());
    first.release().await.unwrap();
    third.release().await.unwrap();
    assert!(second.is_valid());
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
    second.release().await.unwrap();
    grant(&*other, &claim(&name, LONG)).await;
}

async fn tasks_of_one_owner_join(ground: Ground) {
    let locks = ground.locks().await.reentrant("one").unwrap();
    let other = ground.locks().await;
    let name = ground.name("x");
    let request = || locks.lock(&name).ttl(LONG).acquire();
    let both = async { tokio::join!(request(), request()) };
    let (first, second) = ground.soon("both enter", both).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.token(), second.token());
    drop(first);
    second.release().await.unwrap();
    let next = other.lock(&name).ttl(LONG).wait_forever().acquire();
    let next = ground.soon("it is free again", next).await;
    next.unwrap().release().await.unwrap();
}

async fn different_owners_exclude_each_other(ground: Ground) {
    let locks = ground.locks().await;
    let (one, two) = (
        locks.reentrant("same").unwrap(),
        locks.reentrant("same").unwrap(),
    );
    let name = ground.name("x");
    let lease = one.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert!(two.lock(&name).try_acquire().await.unwrap().is_none());
    assert!(locks.lock(&name).try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
}

async fn a_handle_without_owner_is_not_reentrant(ground: Ground) {
    let locks = ground.locks().await;
    let name = ground.name("x");
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let again = locks.lock(&name).wait(ms(50)).acquire().await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::TimedOut);
    let again = locks.lock(&name).label("a label").try_acquire().await;
    assert!(again.unwrap().is_none());
    lease.release().await.unwrap();
}

async fn a_writer_may_read_as_well(ground: Ground) {
    let locks = ground.locks().await.reentrant("one").unwrap();
    let other = ground.engine().await;
    let name = ground.name("x");
    let writer = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    let reader = locks.lock(&name).shared().acquire().await.unwrap();
    assert_eq!(writer.token(), reader.token());
    writer.release().await.unwrap();
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
    reader.release().await.unwrap();
    grant(&*other, &claim(&name, LONG)).await;
}

async fn a_reader_cannot_become_the_writer(ground: Ground) {
    let locks = ground.locks().await.reentrant("one").unwrap();
    let other = ground.engine().await;
    let name = ground.name("x");
    let reader = locks.lock(&name).ttl(LONG).shared();
    let reader = reader.acquire().await.unwrap();
    let refused = locks.lock(&name).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    // The refusal costs the reader nothing, and counts for nothing.
    assert!(reader.is_valid());
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
    reader.release().await.unwrap();
    grant(&*other, &claim(&name, LONG)).await;
}

async fn an_owner_that_lost_the_lock_asks_anew(ground: Ground) {
    let locks = ground.locks().await.reentrant("one").unwrap();
    let name = ground.name("x");
    let lost = locks.lock(&name).ttl(ms(600)).acquire().await.unwrap();
    locks.force_release(&name).await.unwrap();
    ground.soon("the loss is signalled", lost.lost()).await;
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    assert!(lease.token() > lost.token());
    drop(lost);
    assert!(lease.is_valid());
    let other = ground.engine().await;
    super::ground::pause(100).await;
    assert!(is_refused(&*other, &claim(&name, LONG)).await);
    lease.release().await.unwrap();
}
