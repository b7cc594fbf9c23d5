//! `leasehold bench`: an engine beside the fastest that its store could do.
//!
//! Ours and raw take turns, so that whatever else the machine does hits both.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::Locks;
use leasehold::engine::Reach;
use leasehold::engine::raw::RawLimit;

use super::{Context, block_on};
use crate::args::BenchArgs;
use crate::exit::{Outcome, unexpected};

mod board;
mod counter;
mod crew;
mod cycle;
mod floor;
mod handoff;
mod parallel;
mod report;
mod stats;
pub(super) mod worker;

/// Turns that ours and raw take for each measure.
const ROUNDS: u32 = 4;

pub(super) fn bench(mut context: Context, args: BenchArgs) -> Outcome {
    if let Some(url) = args.engine {
        context.url = url;
    }
    let turn = Duration::from_secs(args.seconds.into()) / ROUNDS;
    let progress = progress_bar();
    let about = block_on(async { Ok(Subject::connect(&context.url).await?.about()) })?;
    progress.set_message("cycle");
    let cycle = block_on(cycle::measure(&context.url, turn, &progress))?;
    progress.set_message("64 tasks");
    let parallel = many_threads()?.block_on(parallel::measure(&context.url, turn, &progress))?;
    progress.set_message("handoffs");
    let handoff = handoff::measure(&context.url, &about, args.waiters, turn, &progress)?;
    progress.set_message("counter");
    let counter = many_threads()?.block_on(counter::measure(&context.url, turn, &progress))?;
    progress.finish_and_clear();
    let report = report::Report {
        engine: about.location,
        seconds: args.seconds,
        cycle,
        parallel,
        handoff,
        counter,
    };
    report.print(context.json)?;
    Ok(0)
}

/// An engine and its raw limit, on the runtime of whoever connects.
#[derive(Debug, Clone)]
struct Subject {
    locks: Locks,
    raw: Option<Arc<dyn RawLimit>>,
}

/// What is known of an engine without a connection.
#[derive(Debug)]
struct About {
    location: String,
    reach: Reach,
}

impl Subject {
    async fn connect(url: &str) -> leasehold::Result<Self> {
        let locks = Locks::connect(url).await?;
        let raw = match locks.capabilities().reach {
            // Within a process, nothing hands over faster than the runtime's own mutex.
            Reach::Process => Some(Arc::new(floor::Floor::default()) as Arc<dyn RawLimit>),
            _ => locks.engine().raw_limit(),
        };
        Ok(Self { locks, raw })
    }

    fn about(&self) -> About {
        About {
            location: self.locks.location(),
            reach: self.locks.capabilities().reach,
        }
    }
}

/// A lock that no other bench uses.
fn a_lock_name() -> String {
    format!("leasehold-bench-{:016x}", fastrand::u64(..))
}

/// 64 tasks are what a server has, with all its cores.
fn many_threads() -> Outcome<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|cause| unexpected("cannot start", cause))
}

/// On stderr, and only on a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(u64::from(4 * 2 * ROUNDS));
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg:9}") {
        bar.set_style(style);
    }
    bar.tick();
    bar
}
