//! 64 tasks, each on its own lock.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;
use tokio::task::JoinSet;

use super::cycle::{ours_once, raw_once};
use super::stats::{ratio, rounded};
use super::{ROUNDS, Subject, a_lock_name};
use crate::exit::{Outcome, unexpected};

const TASKS: usize = 64;

#[derive(Debug, Serialize)]
pub(super) struct Parallel {
    pub(super) tasks: usize,
    pub(super) ours_per_s: f64,
    pub(super) raw_per_s: Option<f64>,
    /// Above 1 is faster than raw.
    pub(super) ratio: Option<f64>,
}

pub(super) async fn measure(
    url: &str,
    turn: Duration,
    progress: &ProgressBar,
) -> Outcome<Parallel> {
    let subject = Subject::connect(url).await?;
    let name = a_lock_name();
    let (mut ours, mut raws) = (0, 0);
    for _ in 0..ROUNDS {
        ours += ours_for(&subject, &name, turn).await?;
        progress.inc(1);
        raws += raw_for(&subject, &name, turn).await?;
        progress.inc(1);
    }
    let per_s = |cycles: usize| rounded(cycles as f64 / (turn * ROUNDS).as_secs_f64());
    let raw_per_s = subject.raw.is_some().then(|| per_s(raws));
    Ok(Parallel {
        tasks: TASKS,
        ours_per_s: per_s(ours),
        raw_per_s,
        ratio: ratio(per_s(ours), raw_per_s),
    })
}

async fn ours_for(subject: &Subject, name: &str, turn: Duration) -> Outcome<usize> {
    let end = Instant::now() + turn;
    let mut tasks = JoinSet::new();
    for nth in 0..TASKS {
        let (locks, name) = (subject.locks.clone(), format!("{name}-{nth}"));
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

async fn raw_for(subject: &Subject, name: &str, turn: Duration) -> Outcome<usize> {
    let Some(limit) = &subject.raw else {
        return Ok(0);
    };
    let mut opened = Vec::new();
    for nth in 0..TASKS {
        opened.push(limit.cycle(&format!("{name}-{nth}")).await?);
    }
    let end = Instant::now() + turn;
    let mut tasks = JoinSet::new();
    for mut raw in opened {
        tasks.spawn(async move {
            let mut cycles = 0;
            while Instant::now() < end {
                raw_once(raw.as_mut()).await?;
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
