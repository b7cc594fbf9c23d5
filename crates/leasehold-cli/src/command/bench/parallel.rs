//! 64 tasks, each on its own lock.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use leasehold::engine::baseline::BaselineLock;
use serde::Serialize;
use tokio::task::JoinSet;

use super::cycle::{baseline_once, ours_once};
use super::stats::{ratio, rounded};
use super::{ROUNDS, Subject, random_lock_name};
use crate::exit::{Outcome, unexpected};

pub(super) const TASKS: usize = 64;

#[derive(Debug, Serialize)]
pub(super) struct Parallel {
    pub(super) tasks: usize,
    pub(super) ours_per_s: f64,
    pub(super) baseline_per_s: Option<f64>,
    /// Above 1 is faster than the baseline.
    pub(super) ratio: Option<f64>,
}

pub(super) async fn measure(
    url: &str,
    turn: Duration,
    progress: &ProgressBar,
) -> Outcome<Parallel> {
    let subject = Subject::connect(url).await?;
    let name = random_lock_name();
    let (mut ours, mut baselines) = (0, 0);
    let names: Vec<_> = (0..TASKS).map(|nth| format!("{name}-{nth}")).collect();
    for _ in 0..ROUNDS {
        ours += ours_until(&subject, &names, Instant::now() + turn).await?;
        progress.inc(1);
        baselines += baseline_for(&subject, &names, turn).await?;
        progress.inc(1);
    }
    let per_s = |cycles: usize| rounded(cycles as f64 / (turn * ROUNDS).as_secs_f64());
    let baseline_per_s = subject.baseline.is_some().then(|| per_s(baselines));
    Ok(Parallel {
        tasks: TASKS,
        ours_per_s: per_s(ours),
        baseline_per_s,
        ratio: ratio(per_s(ours), baseline_per_s),
    })
}

/// How many cycles a task for each lock makes until then, all together.
pub(super) async fn ours_until(
    subject: &Subject,
    names: &[String],
    end: Instant,
) -> Outcome<usize> {
    let mut tasks = JoinSet::new();
    for name in names {
        let (locks, name) = (subject.locks.clone(), name.clone());
        tasks.spawn(async move {
            let mut cycles = 0;
            while Instant::now() < end {
                ours_once(&locks, &name).await?;
                cycles += 1;
            }
            Ok(cycles)
        });
    }
    sum(tasks).await
}

/// Each with a connection of its own.
async fn baseline_for(subject: &Subject, names: &[String], turn: Duration) -> Outcome<usize> {
    let Some(limit) = &subject.baseline else {
        return Ok(0);
    };
    let mut opened = Vec::new();
    for name in names {
        opened.push(limit.cycle(name).await?);
    }
    baseline_until(opened, Instant::now() + turn).await
}

pub(super) async fn baseline_until(
    locks: Vec<Box<dyn BaselineLock>>,
    end: Instant,
) -> Outcome<usize> {
    let mut tasks = JoinSet::new();
    for mut lock in locks {
        tasks.spawn(async move {
            let mut cycles = 0;
            while Instant::now() < end {
                baseline_once(lock.as_mut()).await?;
                cycles += 1;
            }
            Ok(cycles)
        });
    }
    sum(tasks).await
}

async fn sum(mut tasks: JoinSet<leasehold::Result<usize>>) -> Outcome<usize> {
    let mut cycles = 0;
    while let Some(done) = tasks.join_next().await {
        cycles += done.map_err(|cause| unexpected("a task of the bench failed", cause))??;
    }
    Ok(cycles)
}
