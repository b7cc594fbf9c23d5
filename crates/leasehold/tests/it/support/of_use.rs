//! Whether an engine that was connected in some way serves.

use leasehold::{LeaseState, Locks};

use super::times::{ms, secs};

/// A lock is taken and held through a renewal, and a waiter gets it.
pub async fn is_of_use(locks: &Locks, name: &str) {
    let held = locks.lock(name).ttl(secs(2)).acquire().await.unwrap();
    let next = tokio::spawn(locks.lock(name).wait(secs(20)).acquire());
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(held.state(), LeaseState::Held);
    assert_eq!(locks.inspect(name).await.unwrap().waiters.len(), 1);
    let token = held.token();
    held.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}
