//! One leader at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use leasehold::Released;
use leasehold::recipe::Standing;

use super::place::Place;
use super::support::redis_server::RedisServer;

const TTL: Duration = Duration::from_secs(2);

/// Five who resign soon after they were elected, until thirty terms have passed.
pub(crate) async fn one_leader_at_a_time(place: Arc<Place>) {
    let leading: Arc<AtomicUsize> = Arc::default();
    let terms: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut tasks = Vec::new();
    for nth in 0..5 {
        let (place, leading, terms) =
            (Arc::clone(&place), Arc::clone(&leading), Arc::clone(&terms));
        tasks.push(tokio::spawn(async move {
            let locks = place.connect().await;
            let label = format!("candidate-{nth}");
            let mut election = locks
                .lock("one-leader")
                .ttl(TTL)
                .owner(label)
                .elect()
                .unwrap();
            loop {
                if let Standing::Leading(lease) = election.next().await.unwrap() {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                    terms.lock().unwrap().push(lease.token().get());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                    let enough = terms.lock().unwrap().len() >= 30;
                    assert_eq!(election.resign().await.unwrap(), Released::Yes);
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

pub(crate) async fn followers_are_told_who_leads(place: Arc<Place>) {
    let (locks, other) = (place.connect().await, place.connect().await);
    assert_eq!(other.leader("follow").await.unwrap(), None);
    let mut first = locks
        .lock("follow")
        .ttl(TTL)
        .owner("first")
        .elect()
        .unwrap();
    let Standing::Leading(lease) = first.next().await.unwrap() else {
        panic!("nobody else stands");
    };
    let mut second = other
        .lock("follow")
        .ttl(TTL)
        .owner("second")
        .elect()
        .unwrap();
    let Standing::Following(leader) = second.next().await.unwrap() else {
        panic!("the first leads");
    };
    assert_eq!(
        (leader.claimant.owner.as_str(), leader.term),
        ("first", lease.token())
    );
    let seen = other.leader("follow").await.unwrap().unwrap();
    assert_eq!((seen.claimant, seen.term), (leader.claimant, leader.term));

    // To stop listening is not to stop standing.
    let quiet = tokio::time::timeout(Duration::from_millis(300), second.next()).await;
    assert!(quiet.is_err(), "nothing has changed: {quiet:?}");
    assert_eq!(other.show("follow").await.unwrap().waiters.len(), 1);

    drop(first);
    let mut second = Box::pin(second.into_stream());
    let Standing::Leading(next) = second.next().await.unwrap().unwrap() else {
        panic!("the second leads");
    };
    assert!(next.token() > leader.term);
    assert!(!lease.is_valid());
}

pub(crate) async fn a_leader_that_loses_stands_again(place: Arc<Place>) {
    let locks = place.connect().await;
    let mut election = locks
        .lock("again")
        .ttl(Duration::from_millis(600))
        .elect()
        .unwrap();
    let mut last = None;
    for _ in 0..3 {
        let Standing::Leading(lease) = election.next().await.unwrap() else {
            panic!("nobody else stands");
        };
        assert!(last.replace(lease.token()) < Some(lease.token()));
        place.connect().await.break_lock("again").await.unwrap();
        assert!(matches!(election.next().await.unwrap(), Standing::Lost(_)));
        assert!(!lease.is_valid());
    }
}

/// A server of its own, since it is killed.
pub(crate) async fn the_engine_goes_away_and_comes_back() {
    let server = RedisServer::start();
    let locks = leasehold::Locks::connect(server.url()).await.unwrap();
    let mut election = locks
        .lock("away")
        .ttl(Duration::from_secs(1))
        .elect()
        .unwrap();
    let Standing::Leading(lease) = election.next().await.unwrap() else {
        panic!("nobody else stands");
    };
    let term = lease.token();
    server.kill();
    assert!(matches!(election.next().await.unwrap(), Standing::Lost(_)));
    let error = election.next().await.unwrap_err();
    assert_eq!(error.kind(), leasehold::ErrorKind::Unreachable, "{error}");
    server.revive();
    let next = loop {
        match election.next().await {
            Ok(Standing::Leading(lease)) => break lease.token(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert_eq!(error.kind(), leasehold::ErrorKind::Unreachable, "{error}"),
        }
    };
    assert!(next > term);
}
