//! One uncontended acquire and release at a time.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use leasehold::Locks;
use leasehold::engine::raw::RawLock;
use serde::Serialize;

use super::stats::{Spread, ratio};
use super::{ROUNDS, Subject, a_lock_name};
use crate::exit::Outcome;

/// Ours and raw change over this often: far more often than the machine's mood.
const CYCLES_A_TURN: usize = 20;

#[derive(Debug, Serialize)]
pub(super) struct Cycle {
    pub(super) ours: Spread,
    pub(super) raw: Option<Spread>,
    pub(super) raw_is: Option<&'static str>,
    /// Of the p50; below 1 is faster than raw.
    pub(super) ratio: Option<f64>,
}

pub(super) async fn measure(url: &str, turn: Duration, progress: &ProgressBar) -> Outcome<Cycle> {
    let subject = Subject::connect(url).await?;
    let name = a_lock_name();
    let mut raw = match &subject.raw {
        Some(limit) => Some(limit.cycle(&name).await?),
        None => None,
    };
    let (mut ours, mut raws) = (Vec::new(), Vec::new());
    // The first cycles open files and fill caches.
    ours_once(&subject.locks, &name).await?;
    for _ in 0..ROUNDS {
        let end = Instant::now() + 2 * turn;
        while Instant::now() < end {
            for _ in 0..CYCLES_A_TURN {
                ours.push(ours_once(&subject.locks, &name).await?);
            }
            if let Some(raw) = &mut raw {
                for _ in 0..CYCLES_A_TURN {
                    raws.push(raw_once(raw.as_mut()).await?);
                }
            }
        }
        progress.inc(2);
    }
    let ours = Spread::of(ours);
    let raw = raw.is_some().then(|| Spread::of(raws));
    Ok(Cycle {
        ratio: ratio(ours.p50_us, raw.map(|raw| raw.p50_us)),
        ours,
        raw,
        raw_is: subject.raw.as_ref().map(|limit| limit.cycle_is()),
    })
}

pub(super) async fn ours_once(locks: &Locks, name: &str) -> leasehold::Result<Duration> {
    let start = Instant::now();
    locks.lock(name).acquire().await?.release().await?;
    Ok(start.elapsed())
}

pub(super) async fn raw_once(raw: &mut dyn RawLock) -> leasehold::Result<Duration> {
    let start = Instant::now();
    raw.acquire().await?;
    raw.release().await?;
    Ok(start.elapsed())
}
