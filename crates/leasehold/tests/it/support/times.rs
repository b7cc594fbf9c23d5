//! Times, and waiting for something to become true.

use std::time::{Duration, Instant};

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Panics with this if it is not true in time.
pub async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + secs(20);
    while !is_true().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(10)).await;
    }
}
