//! Clients while a server is lost and another takes its place.

use std::time::{Duration, Instant};

use leasehold::conformance::history::Violation;
use leasehold::{ErrorKind, Lease, Locks};

/// Long enough for a failover and a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// The servers are waited for without the runtime that our clients need.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

pub async fn acquired(locks: &Locks, name: &str) -> Lease {
    let deadline = Instant::now() + LONG;
    loop {
        match locks.lock(name).ttl(LONG).wait(LONG).acquire().await {
            Ok(lease) => return lease,
            // The answer may have been lost with the primary, and a replica takes a moment to follow the next one.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                assert!(Instant::now() < deadline, "{error}");
            }
        }
    }
}

pub async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    let deadline = Instant::now() + LONG;
    while locks.inspect(name).await.unwrap().waiters.len() < count {
        assert!(Instant::now() < deadline, "{count} wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Two may hold a lock that was lost; that is told. Nothing else may go wrong: tokens rise from each hold to those that begin after its end. Of two at
/// once, granted by two servers that both take themselves for the primary, either may have the greater token.
pub fn only_overlaps(what: &str, violations: Vec<Violation>) {
    let (overlaps, others): (Vec<_>, Vec<_>) =
        violations
            .into_iter()
            .partition(|violation| match violation {
                Violation::Overlap { .. } => true,
                Violation::TokenFell { earlier, later, .. } => {
                    earlier.left.is_none_or(|left| later.entered < left)
                }
            });
    println!("{what}: {} overlaps", overlaps.len());
    assert_eq!(others, [], "tokens rise");
}

/// Both rely on the lock, the second with the greater token.
pub fn both_hold(what: &str, old: Lease, new: &Lease) {
    assert!(
        old.is_valid() && new.is_valid(),
        "the overlap was to be shown"
    );
    assert!(new.token() > old.token());
    println!("{what}: 2 operations, 1 fault, 1 overlap");
    old.detach();
}
