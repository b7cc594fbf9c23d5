//! One waiter: takes part in rounds and reports when it held the lock.

use std::io::{self, BufRead};
use std::path::Path;
use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::{Clock, Moment};
use leasehold::engine::baseline::BaselineLock;
use serde::{Deserialize, Serialize};

use super::last_holder::LastHolder;
use super::{Context, Subject};
use crate::args::BenchWorkerArgs;
use crate::command::block_on;
use crate::exit::{Outcome, unexpected};
use crate::output;

/// The longest hold.
const HOLD_UP_TO_MICROS: u64 = 1_000;
/// How often the last holder checks whether another has held the lock.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// A round that a waiter takes part in.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Round {
    pub(super) side: Side,
    /// Nanoseconds on the machine's clock.
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Side {
    Ours,
    Baseline,
}

/// What a waiter did in a round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RoundResult {
    /// When each hold began and ended.
    pub(super) holds: Vec<(u64, u64)>,
    pub(super) commands: Option<u64>,
}

/// A connected waiter.
pub(super) struct Worker {
    locks: Locks,
    baseline: Option<Box<dyn BaselineLock>>,
    lock: String,
    last_holder: LastHolder,
    id: u64,
}

impl Worker {
    pub(super) async fn new(subject: Subject, lock: &str, last_holder: &Path) -> Outcome<Self> {
        let baseline = match &subject.baseline {
            Some(baseline) => Some(baseline.handoff(lock).await?),
            None => None,
        };
        Ok(Self {
            locks: subject.locks,
            baseline,
            lock: lock.to_owned(),
            last_holder: LastHolder::open(last_holder)
                .map_err(|cause| unexpected("cannot open the file of the last holder", cause))?,
            id: fastrand::u64(1..),
        })
    }

    /// Unknown for the baseline, which does not count its commands.
    fn commands_sent(&self, side: Side) -> Option<u64> {
        let counts = side == Side::Ours;
        counts
            .then(|| self.locks.engine().about().requests)
            .flatten()
    }

    pub(super) async fn run(&mut self, round: Round) -> Outcome<RoundResult> {
        let clock = Clock::machine();
        let end = moment(round.end);
        std::thread::sleep(moment(round.start).since(clock.now()));
        let commands_before = self.commands_sent(round.side);
        let mut holds = Vec::new();
        while clock.now() < end {
            let began;
            let ended;
            match (round.side, &mut self.baseline) {
                (Side::Ours, _) => {
                    let lease = self.locks.lock(&self.lock).wait_forever().acquire().await?;
                    began = clock.now();
                    hold(&self.last_holder, self.id)?;
                    ended = clock.now();
                    lease.release().await?;
                }
                (Side::Baseline, Some(lock)) => {
                    lock.acquire().await?;
                    began = clock.now();
                    hold(&self.last_holder, self.id)?;
                    ended = clock.now();
                    lock.release().await?;
                }
                (Side::Baseline, None) => break,
            }
            holds.push((nanos(began), nanos(ended)));
            // The forced handoff: another waiter goes first.
            while get(&self.last_holder)? == self.id && clock.now() < end {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        let commands = commands_before
            .zip(self.commands_sent(round.side))
            .map(|(before, after)| after - before);
        Ok(RoundResult { holds, commands })
    }
}

/// Sleeps on this thread: the runtime's timers are too coarse, and spinning would occupy a core.
fn hold(last_holder: &LastHolder, id: u64) -> Outcome<()> {
    last_holder
        .set(id)
        .map_err(|cause| unexpected("cannot write the last holder", cause))?;
    std::thread::sleep(Duration::from_micros(fastrand::u64(0..=HOLD_UP_TO_MICROS)));
    Ok(())
}

fn get(last_holder: &LastHolder) -> Outcome<u64> {
    last_holder
        .get()
        .map_err(|cause| unexpected("cannot read the last holder", cause))
}

pub(super) fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

fn moment(nanos: u64) -> Moment {
    Moment::from_origin(Duration::from_nanos(nanos))
}

/// A waiter in its own process: reads rounds from stdin and writes results to stdout.
pub(in crate::command) fn main(context: Context, args: BenchWorkerArgs) -> Outcome {
    block_on(async {
        let subject = Subject::connect(&context.url).await?;
        let mut worker = Worker::new(subject, &args.lock, &args.last_holder).await?;
        output::json_line(&RoundResult::default())?;
        for line in io::stdin().lock().lines() {
            let line = line.map_err(|cause| unexpected("cannot read the next round", cause))?;
            let round = serde_json::from_str(&line)
                .map_err(|cause| unexpected("cannot read the next round", cause))?;
            output::json_line(&worker.run(round).await?)?;
        }
        Ok(0)
    })
}
