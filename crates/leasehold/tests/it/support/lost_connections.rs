//! What is asked of every engine with a server: connections that are lost in silence are replaced long before the system gives them up.

use std::time::Instant;

use leasehold::{ErrorKind, Lease, LeaseState, Locks};

use super::proxy::Proxy;
use super::times::{ms, secs};

/// `through` leads through the proxies, `directly` past them. Requests must be given up after a second or so.
pub async fn are_replaced(proxies: &[Proxy], through: &str, directly: &str) {
    let ttl = secs(9);
    let other = Locks::connect(directly).await.unwrap();
    let locks = Locks::connect(through).await.unwrap();
    let taken = other.lock("waited for").ttl(ttl).acquire().await.unwrap();
    let held = locks.lock("held").ttl(ttl).acquire().await.unwrap();
    // As many connections as it may have.
    let calls = (0..16).map(|_| locks.inspect("held"));
    futures_util::future::try_join_all(calls).await.unwrap();
    let waiting = tokio::spawn(waits(locks.clone()));
    super::times::until("it queues", async || {
        !other
            .inspect("waited for")
            .await
            .unwrap()
            .waiters
            .is_empty()
    })
    .await;

    proxies.iter().for_each(|proxy| proxy.lose_connections());
    let lost = Instant::now();
    taken.release().await.unwrap();
    let next = tokio::time::timeout(secs(25), waiting).await;
    let next = next.expect("the waiter stays outside").unwrap();
    println!("the waiter is in after {:?}", lost.elapsed());
    next.release().await.unwrap();
    // Longer than the lease would last without renewals.
    tokio::time::sleep((ttl + ms(1000)).saturating_sub(lost.elapsed())).await;
    assert_eq!(held.state(), LeaseState::Held, "after {:?}", lost.elapsed());
    held.release().await.unwrap();
}

/// As a program does that asks again when the server could not be reached.
async fn waits(locks: Locks) -> Lease {
    loop {
        let request = locks.lock("waited for").wait(secs(60));
        match request.acquire().await {
            Ok(lease) => return lease,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
        }
    }
}
