//! Sixteen writers on one counter: with optimistic writes, and with the same work under a lock.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use leasehold::Locks;
use leasehold::guard::{Fenced, Store};
use serde::Serialize;
use tokio::task::JoinSet;

use super::stats::rounded;
use super::{ROUNDS, Subject, random_lock_name};
use crate::exit::{Outcome, unexpected};

const WRITERS: u32 = 16;

/// How long one update may take before the bench fails.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
pub(super) struct Counter {
    pub(super) writers: u32,
    pub(super) optimistic_per_s: f64,
    /// Attempts per optimistic update.
    pub(super) tries_per_update: f64,
    pub(super) locked_per_s: f64,
    /// Updates missing from the counter: any means that the store is broken.
    pub(super) lost: u64,
}

pub(super) async fn measure(url: &str, turn: Duration, progress: &ProgressBar) -> Outcome<Counter> {
    let Subject { locks, .. } = Subject::connect(url).await?;
    let store = locks.store()?;
    let key = random_lock_name();
    let (mut optimistic, mut tries, mut locked) = (0, 0, 0);
    for _ in 0..ROUNDS {
        let end = Instant::now() + turn;
        let (updates, tried) =
            run_writers(|| add_optimistically(store.clone(), key.clone(), end)).await?;
        optimistic += updates;
        tries += tried;
        progress.inc(1);
        let end = Instant::now() + turn;
        let (updates, _) = run_writers(|| add_under_lock(locks.clone(), key.clone(), end)).await?;
        locked += updates;
        progress.inc(1);
    }
    let counted = store
        .read(&key)
        .await?
        .map_or(0, |record| number(Some(&record.value)));
    let per_s = |updates: u64| rounded(updates as f64 / (turn * ROUNDS).as_secs_f64());
    Ok(Counter {
        writers: WRITERS,
        optimistic_per_s: per_s(optimistic),
        tries_per_update: rounded(tries as f64 / optimistic.max(1) as f64),
        locked_per_s: per_s(locked),
        lost: (optimistic + locked).abs_diff(counted),
    })
}

async fn run_writers<W>(writer: impl Fn() -> W) -> Outcome<(u64, u64)>
where
    W: Future<Output = leasehold::Result<(u64, u64)>> + Send + 'static,
{
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        writers.spawn(writer());
    }
    let mut sum = (0, 0);
    while let Some(done) = writers.join_next().await {
        let done = done.map_err(|cause| unexpected("a task of the bench failed", cause))??;
        sum = (sum.0 + done.0, sum.1 + done.1);
    }
    Ok(sum)
}

fn number(text: Option<&[u8]>) -> u64 {
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns how many updates were made until the end, and in how many attempts.
async fn add_optimistically(
    store: Store,
    key: String,
    end: Instant,
) -> leasehold::Result<(u64, u64)> {
    let (mut updates, mut tries) = (0, 0);
    while Instant::now() < end {
        let add = |old: Option<&[u8]>| (number(old) + 1).to_string();
        tries += u64::from(store.update_within(LIMIT, &key, add).await?.tries);
        updates += 1;
    }
    Ok((updates, tries))
}

async fn add_under_lock(locks: Locks, key: String, end: Instant) -> leasehold::Result<(u64, u64)> {
    let store = locks.store()?;
    let mut updates = 0;
    while Instant::now() < end {
        let lease = locks.lock(&key).wait(LIMIT).acquire().await?;
        let old = store.read(&key).await?;
        let new = (number(old.as_ref().map(|old| &*old.value)) + 1).to_string();
        if let Fenced::Written { .. } = store.write_fenced(&key, new, &lease).await? {
            updates += 1;
        }
        lease.release().await?;
    }
    Ok((updates, updates))
}
