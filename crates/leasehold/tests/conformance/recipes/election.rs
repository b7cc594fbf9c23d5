//! One leader at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use leasehold::Released;
use leasehold::clock::Clock;
use leasehold::recipe::ElectionEvent;

#[cfg(feature = "redis")]
use crate::support::redis_server::RedisServer;
use crate::target::Target;

const TTL: Duration = Duration::from_secs(2);

/// Five who resign soon after they were elected, until thirty terms have passed.
pub(crate) async fn one_leader_at_a_time(target: Arc<Target>) {
    let leading: Arc<AtomicUsize> = Arc::default();
    let terms: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut tasks = Vec::new();
    for nth in 0..5 {
        let (target, leading, terms) = (
            Arc::clone(&target),
            Arc::clone(&leading),
            Arc::clone(&terms),
        );
        tasks.push(tokio::spawn(async move {
            let locks = target.connect().await;
            let label = format!("candidate-{nth}");
            let mut election = locks
                .lock("one-leader")
                .ttl(TTL)
                .label(label)
                .elect()
                .unwrap();
            loop {
                if let ElectionEvent::Leading(lease) = election.next().await.unwrap() {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                    terms.lock().unwrap().push(lease.token().get());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                    let enough = terms.lock().unwrap().len() >= 30;
                    let until = lease.valid_until();
                    let released = election.resign().await.unwrap();
                    assert!(released == Released::Yes || Clock::machine().now() >= until);
                    assert_eq!(election.resign().await.unwrap(), Released::WasNotHeld);
                    if enough {
                        return;
                    }
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let terms = terms.lock().unwrap();
    assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
}

pub(crate) async fn followers_are_told_who_leads(target: Arc<Target>) {
    let (locks, other) = (target.connect().await, target.connect().await);
    assert_eq!(other.leader("follow").await.unwrap(), None);
    let mut first = locks
        .lock("follow")
        .ttl(TTL)
        .label("first")
        .elect()
        .unwrap();
    let ElectionEvent::Leading(lease) = first.next().await.unwrap() else {
        panic!("nobody else stands");
    };
    let mut second = other
        .lock("follow")
        .ttl(TTL)
        .label("second")
        .elect()
        .unwrap();
    let ElectionEvent::Following(leader) = second.next().await.unwrap() else {
        panic!("the first leads");
    };
    assert_eq!(
        (leader.claimant.label.as_str(), leader.term),
        ("first", lease.token())
    );
    let seen = other.leader("follow").await.unwrap().unwrap();
    assert_eq!((seen.claimant, seen.term), (leader.claimant, leader.term));

    // To stop listening is not to stop standing. It may not be in the queue yet, and enters it only while it listens.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut is_standing = false;
    while !is_standing && Instant::now() < deadline {
        let quiet = tokio::time::timeout(Duration::from_millis(300), second.next()).await;
        assert!(quiet.is_err(), "nothing has changed: {quiet:?}");
        is_standing = other.inspect("follow").await.unwrap().waiters.len() == 1;
    }
    assert!(is_standing);

    drop(first);
    let mut second = Box::pin(second.into_stream());
    let ElectionEvent::Leading(next) = second.next().await.unwrap().unwrap() else {
        panic!("the second leads");
    };
    assert!(next.token() > leader.term);
    assert!(!lease.is_valid());
}

pub(crate) async fn a_leader_that_loses_stands_again(target: Arc<Target>) {
    let locks = target.connect().await;
    let mut election = locks.lock("again").ttl(TTL).elect().unwrap();
    let mut last = None;
    for _ in 0..3 {
        let ElectionEvent::Leading(lease) = election.next().await.unwrap() else {
            panic!("nobody else stands");
        };
        assert!(last.replace(lease.token()) < Some(lease.token()));
        target.connect().await.force_release("again").await.unwrap();
        assert!(matches!(
            election.next().await.unwrap(),
            ElectionEvent::Lost(_)
        ));
        assert!(!lease.is_valid());
    }
}

/// A server of its own, since it is killed.
#[cfg(feature = "redis")]
pub(crate) async fn the_engine_goes_away_and_comes_back() {
    let server = RedisServer::start();
    let locks = leasehold::Locks::connect(server.url()).await.unwrap();
    let mut election = locks
        .lock("away")
        .ttl(Duration::from_secs(1))
        .elect()
        .unwrap();
    let ElectionEvent::Leading(lease) = election.next().await.unwrap() else {
        panic!("nobody else stands");
    };
    let term = lease.token();
    server.kill();
    assert!(matches!(
        election.next().await.unwrap(),
        ElectionEvent::Lost(_)
    ));
    let error = election.next().await.unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Unreachable, "{error}");
    server.revive();
    let next = loop {
        match election.next().await {
            Ok(ElectionEvent::Leading(lease)) => break lease.token(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_eq!(error.kind(), leasehold::ErrorKind::Unreachable, "{error}"),
        }
    };
    assert!(next > term);
}
