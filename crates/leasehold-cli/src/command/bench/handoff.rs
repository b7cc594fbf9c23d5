//! Forced handoffs: many wait for one lock, and whoever was in last lets another in first.

use std::time::Duration;

use indicatif::ProgressBar;
use leasehold::clock::Clock;
use leasehold::engine::Reach;
use serde::Serialize;

use super::crew::Crew;
use super::stats::{Spread, ratio, rounded};
use super::worker::{Done, Lane, Round, nanos};
use super::{About, ROUNDS, Subject};
use crate::command::block_on;
use crate::exit::Outcome;

/// All waiters hear of a round before it starts.
const NOTICE: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize)]
pub(super) struct Handoff {
    pub(super) waiters: u32,
    /// Whether each waiter was a process of its own.
    pub(super) processes: bool,
    pub(super) ours: Handoffs,
    pub(super) raw: Option<Handoffs>,
    pub(super) raw_is: Option<&'static str>,
    /// Of the handoffs a second; above 1 is faster than raw.
    pub(super) ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Handoffs {
    pub(super) per_s: f64,
    /// From the end of one hold to the start of the next.
    pub(super) gap: Spread,
    /// Acquisitions of the waiter that had most, and of the one that had fewest.
    pub(super) most: usize,
    pub(super) fewest: usize,
    pub(super) commands_per_handoff: Option<f64>,
    /// Holds that began before the last had ended: none, or the engine is broken.
    pub(super) overlaps: usize,
}

pub(super) fn measure(
    url: &str,
    about: &About,
    waiters: u32,
    turn: Duration,
    progress: &ProgressBar,
) -> Outcome<Handoff> {
    let raw_is = block_on(async {
        let raw = Subject::connect(url).await?.raw;
        Ok(raw.map(|limit| limit.handoff_is()))
    })?;
    let mut crew = Crew::gather(url, about, waiters)?;
    let (mut ours, mut raw) = (Tally::default(), Tally::default());
    for _ in 0..ROUNDS {
        ours.add(play(&mut crew, Lane::Ours, turn)?);
        progress.inc(1);
        if raw_is.is_some() {
            raw.add(play(&mut crew, Lane::Raw, turn)?);
        }
        progress.inc(1);
    }
    let ours = ours.sum_up(turn * ROUNDS);
    let raw = raw_is.map(|_| raw.sum_up(turn * ROUNDS));
    Ok(Handoff {
        waiters,
        processes: about.reach == Reach::Machine,
        ratio: ratio(ours.per_s, raw.as_ref().map(|raw| raw.per_s)),
        ours,
        raw,
        raw_is,
    })
}

fn play(crew: &mut Crew, lane: Lane, turn: Duration) -> Outcome<(u64, Vec<Done>)> {
    let start = Clock::machine().now() + NOTICE;
    let end = start + turn;
    let round = Round {
        lane,
        start: nanos(start),
        end: nanos(end),
    };
    Ok((round.end, crew.play(round)?))
}

/// What the rounds of one lane have come to.
#[derive(Debug, Default)]
struct Tally {
    each: Vec<usize>,
    gaps: Vec<Duration>,
    commands: Option<u64>,
    /// Holds that began in time, and all of them.
    in_time: usize,
    all: usize,
    overlaps: usize,
}

impl Tally {
    fn add(&mut self, (end, round): (u64, Vec<Done>)) {
        self.each.resize(round.len(), 0);
        let mut holds = Vec::new();
        for (each, done) in self.each.iter_mut().zip(round) {
            *each += done.holds.iter().filter(|(began, _)| *began < end).count();
            if let Some(commands) = done.commands {
                *self.commands.get_or_insert(0) += commands;
            }
            holds.extend(done.holds);
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
            gap: Spread::of(self.gaps),
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
    fn gaps_fairness_and_overlaps_over_all_waiters() {
        let mut tally = Tally::default();
        let done = |holds: &[(u64, u64)]| Done {
            holds: holds.to_vec(),
            commands: Some(4),
        };
        let round = vec![done(&[(0, 1_000), (5_000, 6_000)]), done(&[(2_000, 4_000)])];
        tally.add((10_000, round));
        tally.add((
            30_000,
            vec![done(&[(20_000, 22_000)]), done(&[(21_000, 23_000)])],
        ));
        let sum = tally.sum_up(Duration::from_secs(1));
        assert_eq!((sum.most, sum.fewest, sum.overlaps), (3, 2, 1));
        assert_eq!(sum.per_s, 5.0);
        assert_eq!(sum.commands_per_handoff, Some(3.2));
        assert_eq!(sum.gap.p50_us, 1.0);
    }
}
