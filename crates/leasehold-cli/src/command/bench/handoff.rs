//! Forced handoffs: many wait for one lock, and the last holder waits until another has held it.

use std::time::Duration;

use indicatif::ProgressBar;
use leasehold::clock::Clock;
use serde::Serialize;

use super::stats::{Percentiles, ratio, rounded};
use super::waiters::{WaiterGroup, WaiterKind};
use super::worker::{Round, RoundResult, Side, nanos};
use super::{ROUNDS, Subject};
use crate::command::block_on;
use crate::exit::Outcome;

/// How long before its start a round is announced to the waiters.
const LEAD_TIME: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub(super) struct Handoff {
    pub(super) waiters: u32,
    pub(super) waiters_are: WaiterKind,
    pub(super) ours: Handoffs,
    pub(super) baseline: Option<Handoffs>,
    pub(super) baseline_is: Option<&'static str>,
    /// Of the handoffs per second; above 1 is faster than the baseline.
    pub(super) ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Handoffs {
    pub(super) per_s: f64,
    /// From the end of one hold to the start of the next.
    pub(super) gap: Percentiles,
    /// Acquisitions of the waiter with the most, and of the one with the fewest.
    pub(super) most: usize,
    pub(super) fewest: usize,
    pub(super) commands_per_handoff: Option<f64>,
    /// Holds that began before the previous one had ended: any means that the engine is broken.
    pub(super) overlaps: usize,
}

pub(super) fn measure(
    url: &str,
    waiters_are: WaiterKind,
    waiters: u32,
    turn: Duration,
    progress: &ProgressBar,
) -> Outcome<Handoff> {
    let baseline_is = block_on(async {
        let baseline = Subject::connect(url).await?.baseline;
        Ok(baseline.map(|baseline| baseline.handoff_is()))
    })?;
    let mut group = WaiterGroup::start(url, waiters_are, waiters)?;
    let (mut ours, mut baseline) = (Tally::default(), Tally::default());
    for _ in 0..ROUNDS {
        ours.add(run(&mut group, Side::Ours, turn)?);
        progress.inc(1);
        if baseline_is.is_some() {
            baseline.add(run(&mut group, Side::Baseline, turn)?);
        }
        progress.inc(1);
    }
    let ours = ours.sum_up(turn * ROUNDS);
    let baseline = baseline_is.map(|_| baseline.sum_up(turn * ROUNDS));
    Ok(Handoff {
        waiters,
        waiters_are,
        ratio: ratio(ours.per_s, baseline.as_ref().map(|it| it.per_s)),
        ours,
        baseline,
        baseline_is,
    })
}

fn run(group: &mut WaiterGroup, side: Side, turn: Duration) -> Outcome<(u64, Vec<RoundResult>)> {
    let start = Clock::machine().now() + LEAD_TIME;
    let end = start + turn;
    let round = Round {
        side,
        start: nanos(start),
        end: nanos(end),
    };
    Ok((round.end, group.run(round)?))
}

/// The sum of one side's rounds.
#[derive(Debug, Default)]
struct Tally {
    each: Vec<usize>,
    gaps: Vec<Duration>,
    commands: Option<u64>,
    /// Holds that began before the end of their round.
    in_time: usize,
    /// All holds.
    all: usize,
    overlaps: usize,
}

impl Tally {
    fn add(&mut self, (end, round): (u64, Vec<RoundResult>)) {
        self.each.resize(round.len(), 0);
        let mut holds = Vec::new();
        for (each, result) in self.each.iter_mut().zip(round) {
            *each += result
                .holds
                .iter()
                .filter(|(began, _)| *began < end)
                .count();
            if let Some(commands) = result.commands {
                *self.commands.get_or_insert(0) += commands;
            }
            holds.extend(result.holds);
        }
        holds.sort_unstable();
        self.all += holds.len();
        for pair in holds.windows(2) {
            let (ended, began) = (pair[0].1, pair[1].0);
            self.overlaps += usize::from(began < ended);
            if began < end {
                self.gaps
                    .push(Duration::from_nanos(began.saturating_sub(ended)));
            }
        }
        self.in_time += holds.iter().filter(|(began, _)| *began < end).count();
    }

    fn sum_up(self, time: Duration) -> Handoffs {
        let all = self.all.max(1) as f64;
        Handoffs {
            per_s: rounded(self.in_time as f64 / time.as_secs_f64()),
            gap: Percentiles::of(self.gaps),
            most: self.each.iter().copied().max().unwrap_or(0),
            fewest: self.each.iter().copied().min().unwrap_or(0),
            commands_per_handoff: self.commands.map(|sent| rounded(sent as f64 / all)),
            overlaps: self.overlaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_sums_gaps_fairness_and_overlaps() {
        let mut tally = Tally::default();
        let result = |holds: &[(u64, u64)]| RoundResult {
            holds: holds.to_vec(),
            commands: Some(4),
        };
        let round = vec![
            result(&[(0, 1_000), (5_000, 6_000)]),
            result(&[(2_000, 4_000)]),
        ];
        tally.add((10_000, round));
        tally.add((
            30_000,
            vec![result(&[(20_000, 22_000)]), result(&[(21_000, 23_000)])],
        ));
        let sum = tally.sum_up(Duration::from_secs(1));
        assert_eq!((sum.most, sum.fewest, sum.overlaps), (3, 2, 1));
        assert_eq!(sum.per_s, 5.0);
        assert_eq!(sum.commands_per_handoff, Some(3.2));
        assert_eq!(sum.gap.p50_us, 1.0);
    }
}
