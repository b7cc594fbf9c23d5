//! Ids that are unique by construction.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::target::Target;

pub(crate) async fn never_twice(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.id_pool("never-twice"));
    if made.is_none() {
        return;
    }
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let target = Arc::clone(&target);
        tasks.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            // Each pool ends as a crash ends it: with numbers that were reserved and never used.
            for _ in 0..4 {
                let pool = target.connect().await.id_pool("never-twice").unwrap();
                let mut both = Vec::new();
                for _ in 0..2 {
                    let pool = pool.clone();
                    both.push(tokio::spawn(async move {
                        let mut ids = pool.take(10).await.unwrap();
                        for _ in 0..1000 {
                            ids.push(pool.next().await.unwrap());
                        }
                        ids
                    }));
                }
                for one in both {
                    ids.extend(one.await.unwrap());
                }
            }
            ids
        }));
    }
    let mut numbers = HashSet::new();
    for task in tasks {
        for id in task.await.unwrap() {
            let number: [u8; 6] = id.as_bytes()[..6].try_into().unwrap();
            assert!(numbers.insert(number), "an id was repeated");
        }
    }
    assert_eq!(numbers.len(), 6 * 4 * 2 * 1010);
}

pub(crate) async fn claims_are_signed_from_a_pool(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.id_pool("signs"));
    let Some(pool) = made else { return };
    let signed = locks.ids_from(&pool);
    let one = signed.lock("signed/1").acquire().await.unwrap();
    let two = signed.reentrant("me").unwrap();
    let two = two.lock("signed/2").acquire().await.unwrap();
    let number = |lease: &leasehold::Lease| {
        let bits = u128::from_be_bytes(*lease.claim_id().as_bytes());
        (bits >> 80) as u64
    };
    assert_eq!(number(&two), number(&one) + 1);
    let waits = signed.lock("signed/1").wait(Duration::from_millis(50));
    assert!(waits.acquire().await.is_err());
    one.release().await.unwrap();
    let again = signed.lock("signed/1").acquire().await.unwrap();
    assert!(number(&again) > number(&two));
}
