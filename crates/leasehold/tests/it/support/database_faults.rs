//! What is asked of every engine that keeps locks as rows, by its server's clock, over a few connections.

use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold::conformance::history::Violation;
use tokio::task::JoinSet;

use super::bent_clock::BentClock;
use super::crowd::Crowd;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// On a loaded machine.
pub const PATIENCE: Duration = ms(20_000);
pub const TTL: Duration = ms(1000);

/// Locks then expire late; nobody is let in too soon.
pub async fn a_clock_that_steps_back(url: &str, clock: &BentClock) {
    let crowd = Crowd::start(url, TTL).await;
    for seconds in [-2, -60, -3600] {
        crowd.goes_on(50, PATIENCE).await;
        clock.step_to(seconds);
    }
    crowd.goes_on(100, PATIENCE).await;
    crowd.ends_well("clock back", 3).await;
}

/// Locks expire early, so two may hold one for a moment, and the earlier of them may enter last. Everyone goes on, and tokens rise with
/// every grant.
pub async fn a_clock_that_steps_forward(url: &str, clock: &BentClock) {
    let crowd = Crowd::start(url, TTL).await;
    for seconds in [2, 60, 3600, 0, 7200] {
        crowd.goes_on(50, PATIENCE).await;
        clock.step_to(seconds);
    }
    crowd.goes_on(100, PATIENCE).await;
    for violation in crowd.end("clock forward", 5, Vec::new()).await {
        if let Violation::TokenFell { earlier, later, .. } = &violation {
            let beside = later.entered.since(earlier.entered) < TTL;
            assert!(beside, "not only a matter of early expiry: {violation}");
        }
    }
    let locks = Locks::connect(url).await.unwrap();
    let mut last = None;
    for seconds in [0, 3600, -3600, 60, -60, 0] {
        clock.step_to(seconds);
        let lease = locks.lock("z").acquire().await.unwrap();
        assert!(Some(lease.token()) > last, "{seconds} s");
        last = Some(lease.token());
        lease.release().await.unwrap();
    }
}

/// Two connections, a hundred that wait, and others whose leases must be renewed meanwhile.
pub async fn two_connections_for_all(url: &str) {
    let locks = Locks::connect(format!("{url}?pool=2&timeout=20s"))
        .await
        .unwrap();
    let mut held = Vec::new();
    for nth in 0..5 {
        let request = locks.lock(format!("held/{nth}")).ttl(ms(2000));
        held.push(request.acquire().await.unwrap());
    }
    let mut waiting = JoinSet::new();
    for _ in 0..100 {
        let locks = locks.clone();
        waiting.spawn(async move {
            for _ in 0..3 {
                let lease = locks.lock("x").wait_forever().acquire().await.unwrap();
                tokio::time::sleep(ms(5)).await;
                lease.release().await.unwrap();
            }
        });
    }
    let began = Instant::now();
    while !waiting.is_empty() {
        assert!(began.elapsed() < PATIENCE * 2, "{} wait", waiting.len());
        let _ = tokio::time::timeout(ms(50), waiting.join_next()).await;
        for lease in &held {
            assert!(lease.is_valid(), "{:?}", lease.state());
        }
    }
    println!(
        "two connections: 300 visits of 100 in {:?}",
        began.elapsed()
    );
    assert!(began.elapsed() > ms(1000), "too soon for a renewal");
}
