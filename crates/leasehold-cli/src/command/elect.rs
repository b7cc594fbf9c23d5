//! `leasehold elect`: a command on exactly one host.

use std::time::{Duration, Instant};

use leasehold::backoff::Backoff;
use leasehold::{Error, ErrorKind, Lease};
use nix::sys::signal::Signal;

use super::Context;
use crate::args::ElectArgs;
use crate::exit::{Failure, Outcome};
use crate::held::Held;
use crate::output::{self, age::age};
use crate::request::Request;
use crate::signals::Signals;
use crate::supervise::End;
use crate::waiting;
use crate::work::{self, Seat, Work};

/// Who passes these on to CMD does not stand again when CMD has ended.
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT];

pub(super) async fn elect(context: Context, args: ElectArgs) -> Outcome {
    let request = Request::of_elect(&args)?;
    let locks = context.connect().await?;
    let held = Held::inherited()?;
    if held.covering(&request, &locks.location())?.is_some() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "an enclosing `leasehold run` holds it, so that this would wait for itself",
        )
        .advise("use another name")
        .on(&request.name)
        .into());
    }
    let work = Work {
        context: &context,
        locks: &locks,
        request: &request,
        words: &args.command,
        held,
        on_revoke: None,
    };
    let mut seat = Seat::take()?;
    let mut delays = Delays::new(&args);
    loop {
        let lease = obtain(&work, &mut seat.signals, &mut delays).await?;
        output::warn(&format!(
            "leading {} in term {}",
            request.name,
            lease.token()
        ));
        let started = Instant::now();
        let (end, back) = work.under(&lease, seat).await;
        seat = back;
        work::give_back(lease).await;
        match end? {
            End::ByItself(code) if is_over(&seat, code) => return Ok(code),
            End::ByItself(code) => {
                let delay = delays.after(code, started.elapsed());
                let told = format!(
                    "the command ended with {code}; standing again in {}",
                    age(delay)
                );
                output::warn(&told);
                pause(delay, &mut seat.signals).await?;
            }
            End::ByUs(why) => output::warn(&format!("no longer leading: {why}")),
        }
    }
}

/// The lead, however long it takes; an engine that cannot be reached may come back.
async fn obtain(work: &Work<'_>, signals: &mut Signals, delays: &mut Delays) -> Outcome<Lease> {
    loop {
        let quiet = work.context.json;
        match waiting::obtain(work.locks, work.request, signals, quiet).await {
            Err(Failure::Locks(error)) if error.kind() == ErrorKind::Unreachable => {
                let delay = delays.next();
                output::warn(&format!("{error}; trying again in {}", age(delay)));
                pause(delay, signals).await?;
            }
            obtained => return obtained,
        }
    }
}

/// Whether the candidacy ends with CMD: because we were told to end, or the terminal told CMD.
fn is_over(seat: &Seat, code: i32) -> bool {
    let killed_by = |signal: Signal| code == 128 + signal as i32;
    let told = seat
        .passed_on
        .iter()
        .any(|passed| ENDING.contains(passed) || (*passed == Signal::SIGHUP && killed_by(*passed)));
    told || (seat.terminal.is_some() && ENDING.into_iter().any(killed_by))
}

async fn pause(time: Duration, signals: &mut Signals) -> Outcome<()> {
    let end = tokio::time::sleep(time);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            signal = signals.next() => if ENDING.contains(&signal) || signal == Signal::SIGHUP {
                return Err(Failure::Signal(signal));
            },
        }
    }
}

/// Between the end of CMD and the next candidacy.
struct Delays {
    shortest: Duration,
    longest: Duration,
    growing: Backoff,
}

impl Delays {
    fn new(args: &ElectArgs) -> Self {
        let (shortest, longest) = (args.restart_delay, args.max_restart_delay);
        Self {
            shortest,
            longest,
            growing: Backoff::new(fastrand::u64(..), shortest, longest),
        }
    }

    fn next(&mut self) -> Duration {
        self.growing.delay()
    }

    fn after(&mut self, code: i32, ran_for: Duration) -> Duration {
        if code == 0 || ran_for > self.longest {
            self.growing = Backoff::new(fastrand::u64(..), self.shortest, self.longest);
        }
        self.next()
    }
}
