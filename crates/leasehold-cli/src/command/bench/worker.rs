//! One waiter: takes part in rounds and tells when it held the lock.

use std::io::{self, BufRead};
use std::path::Path;
use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::{Clock, Moment};
use leasehold::engine::raw::RawLock;
use serde::{Deserialize, Serialize};

use super::board::Board;
use super::{Context, Subject};
use crate::args::BenchWorkerArgs;
use crate::command::block_on;
use crate::exit::{Outcome, unexpected};
use crate::output;

/// The longest hold.
const HOLD_UP_TO_MICROS: u64 = 1_000;
/// How often the last holder looks whether another is in.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// What a waiter is told to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Round {
    pub(super) lane: Lane,
    /// Nanoseconds on the machine's clock.
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Lane {
    Ours,
    Raw,
}

/// What a waiter has done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// When each hold began and ended.
    pub(super) holds: Vec<(u64, u64)>,
    pub(super) commands: Option<u64>,
}

/// A waiter that is connected and waits for rounds.
pub(super) struct Worker {
    locks: Locks,
    raw: Option<Box<dyn RawLock>>,
    lock: String,
    board: Board,
    id: u64,
}

impl Worker {
    pub(super) async fn ready(subject: Subject, lock: &str, board: &Path) -> Outcome<Self> {
        let raw = match &subject.raw {
            Some(limit) => Some(limit.handoff(lock).await?),
            None => None,
        };
        Ok(Self {
            locks: subject.locks,
            raw,
            lock: lock.to_owned(),
            board: Board::open(board)
                .map_err(|cause| unexpected("cannot open the board", cause))?,
            id: fastrand::u64(1..),
        })
    }

    /// A raw lock does not count.
    fn commands_sent(&self, lane: Lane) -> Option<u64> {
        let counts = lane == Lane::Ours;
        counts
            .then(|| self.locks.engine().commands_sent())
            .flatten()
    }

    pub(super) async fn take_part(&mut self, round: Round) -> Outcome<Done> {
        let clock = Clock::machine();
        let end = moment(round.end);
        std::thread::sleep(moment(round.start).since(clock.now()));
        let commands_before = self.commands_sent(round.lane);
        let mut holds = Vec::new();
        while clock.now() < end {
            let began;
            let ended;
            match (round.lane, &mut self.raw) {
                (Lane::Ours, _) => {
                    let lease = self.locks.lock(&self.lock).wait_forever().acquire().await?;
                    began = clock.now();
                    hold(&self.board, self.id)?;
                    ended = clock.now();
                    lease.release().await?;
                }
                (Lane::Raw, Some(raw)) => {
                    raw.acquire().await?;
                    began = clock.now();
                    hold(&self.board, self.id)?;
                    ended = clock.now();
                    raw.release().await?;
                }
                (Lane::Raw, None) => break,
            }
            holds.push((nanos(began), nanos(ended)));
            // Forced: whoever was in last lets another in first.
            while last(&self.board)? == self.id && clock.now() < end {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        let commands = commands_before
            .zip(self.commands_sent(round.lane))
            .map(|(before, after)| after - before);
        Ok(Done { holds, commands })
    }
}

/// Asleep on this thread: the runtime's timers are too coarse, and spinning would take a core away.
fn hold(board: &Board, id: u64) -> Outcome<()> {
    board
        .enter(id)
        .map_err(|cause| unexpected("cannot write the board", cause))?;
    std::thread::sleep(Duration::from_micros(fastrand::u64(0..=HOLD_UP_TO_MICROS)));
    Ok(())
}

fn last(board: &Board) -> Outcome<u64> {
    board
        .last()
        .map_err(|cause| unexpected("cannot read the board", cause))
}

pub(super) fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

fn moment(nanos: u64) -> Moment {
    Moment::from_origin(Duration::from_nanos(nanos))
}

/// A waiter in a process of its own: rounds on stdin, what was done on stdout.
pub(in crate::command) fn main(context: Context, args: BenchWorkerArgs) -> Outcome {
    block_on(async {
        let subject = Subject::connect(&context.url).await?;
        let mut worker = Worker::ready(subject, &args.lock, &args.board).await?;
        output::json_line(&Done::default())?;
        for line in io::stdin().lock().lines() {
            let line = line.map_err(|cause| unexpected("cannot read the next round", cause))?;
            let round = serde_json::from_str(&line)
                .map_err(|cause| unexpected("cannot read the next round", cause))?;
            output::json_line(&worker.take_part(round).await?)?;
        }
        Ok(0)
    })
}
