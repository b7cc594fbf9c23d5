//! One uncontended acquire and release at a time.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use leasehold::Locks;
use leasehold::engine::baseline::BaselineLock;
use serde::Serialize;

use super::stats::{Percentiles, ratio};
use super::{ROUNDS, Subject, random_lock_name};
use crate::exit::Outcome;

/// How many cycles each side runs before the other's turn: few, so that noise affects both alike.
const CYCLES_PER_TURN: usize = 20;

#[derive(Debug, Serialize)]
pub(super) struct Cycle {
    pub(super) ours: Percentiles,
    pub(super) baseline: Option<Percentiles>,
    pub(super) baseline_is: Option<&'static str>,
    /// Of the p50; below 1 is faster than the baseline.
    pub(super) ratio: Option<f64>,
}

pub(super) async fn measure(url: &str, turn: Duration, progress: &ProgressBar) -> Outcome<Cycle> {
    let subject = Subject::connect(url).await?;
    let name = random_lock_name();
    let mut baseline = match &subject.baseline {
        Some(limit) => Some(limit.cycle(&name).await?),
        None => None,
    };
    let (mut ours, mut baselines) = (Vec::new(), Vec::new());
    // The first cycles open files and fill caches.
    ours_once(&subject.locks, &name).await?;
    for _ in 0..ROUNDS {
        let end = Instant::now() + 2 * turn;
        while Instant::now() < end {
            for _ in 0..CYCLES_PER_TURN {
                ours.push(ours_once(&subject.locks, &name).await?);
            }
            if let Some(baseline) = &mut baseline {
                for _ in 0..CYCLES_PER_TURN {
                    baselines.push(baseline_once(baseline.as_mut()).await?);
                }
            }
        }
        progress.inc(2);
    }
    let ours = Percentiles::of(ours);
    let baseline = baseline.is_some().then(|| Percentiles::of(baselines));
    Ok(Cycle {
        ratio: ratio(ours.p50_us, baseline.map(|baseline| baseline.p50_us)),
        ours,
        baseline,
        baseline_is: subject.baseline.as_ref().map(|limit| limit.cycle_is()),
    })
}

pub(super) async fn ours_once(locks: &Locks, name: &str) -> leasehold::Result<Duration> {
    let start = Instant::now();
    locks.lock(name).acquire().await?.release().await?;
    Ok(start.elapsed())
}

pub(super) async fn baseline_once(lock: &mut dyn BaselineLock) -> leasehold::Result<Duration> {
    let start = Instant::now();
    lock.acquire().await?;
    lock.release().await?;
    Ok(start.elapsed())
}
