//! How much time of a processor the store's servers take for a cycle, with 64 tasks on one connection.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;

use super::parallel::{TASKS, baseline_until, ours_until};
use super::stats::{ratio, rounded};
use super::{ROUNDS, Subject, random_lock_name};
use crate::exit::Outcome;

#[derive(Debug, Serialize)]
pub(super) struct Processor {
    pub(super) tasks: usize,
    pub(super) ours_us: f64,
    pub(super) baseline_us: f64,
    /// Below 1 is less than the baseline.
    pub(super) ratio: Option<f64>,
}

/// `None` if the servers do not tell what they use.
pub(super) async fn measure(
    url: &str,
    turn: Duration,
    progress: &ProgressBar,
) -> Outcome<Option<Processor>> {
    let subject = Subject::connect(url).await?;
    let Some(baseline) = &subject.baseline else {
        return Ok(None);
    };
    let name = random_lock_name();
    let names: Vec<_> = (0..TASKS).map(|nth| format!("{name}-{nth}")).collect();
    let (mut ours, mut baselines) = (Used::default(), Used::default());
    for _ in 0..ROUNDS {
        let Some(start) = baseline.processor_time().await? else {
            return Ok(None);
        };
        let cycles = ours_until(&subject, &names, Instant::now() + turn).await?;
        let between = baseline.processor_time().await?.unwrap_or(start);
        ours.add(between.saturating_sub(start), cycles);
        progress.inc(1);
        let locks = baseline.cycles(&names).await?;
        let cycles = baseline_until(locks, Instant::now() + turn).await?;
        let end = baseline.processor_time().await?.unwrap_or(between);
        baselines.add(end.saturating_sub(between), cycles);
        progress.inc(1);
    }
    let (ours_us, baseline_us) = (ours.per_cycle(), baselines.per_cycle());
    Ok(Some(Processor {
        tasks: TASKS,
        ours_us,
        baseline_us,
        ratio: ratio(ours_us, Some(baseline_us)),
    }))
}

#[derive(Debug, Default)]
struct Used {
    time: Duration,
    cycles: usize,
}

impl Used {
    fn add(&mut self, time: Duration, cycles: usize) {
        self.time += time;
        self.cycles += cycles;
    }

    /// In microseconds.
    fn per_cycle(&self) -> f64 {
        rounded(self.time.as_secs_f64() * 1e6 / self.cycles.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_shared_among_all_cycles() {
        let mut used = Used::default();
        used.add(Duration::from_millis(1), 100);
        used.add(Duration::from_millis(5), 200);
        assert_eq!(used.per_cycle(), 20.0);
        assert_eq!(Used::default().per_cycle(), 0.0);
    }
}
