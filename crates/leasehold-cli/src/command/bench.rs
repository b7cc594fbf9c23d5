//! `leasehold bench`: measures an engine against the baseline of its store, the fastest that the store itself can do.
//!
//! Both take turns, so that noise affects them alike. A measurement is repeated if the host took much of the processor away
//! meanwhile.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::Locks;
use leasehold::engine::Reach;
use leasehold::engine::baseline::Baseline;

use super::{Context, block_on};
use crate::args::BenchArgs;
use crate::exit::{Outcome, unexpected};
use steal::measure;
use waiters::WaiterKind;

mod counter;
mod cycle;
mod handoff;
mod last_holder;
mod parallel;
mod processor;
mod report;
mod stats;
mod steal;
mod tokio_mutex;
mod waiters;
pub(super) mod worker;

/// How many turns each side has in a measurement.
const ROUNDS: u32 = 4;

pub(super) fn bench(mut context: Context, args: BenchArgs) -> Outcome {
    if let Some(url) = args.engine {
        context.url = url;
    }
    let turn = Duration::from_secs(args.seconds.into()) / ROUNDS;
    let progress = progress_bar();
    let about = block_on(async { Ok(Subject::connect(&context.url).await?.about()) })?;
    let url = &context.url;
    let cycle = measure("cycle", &progress, || {
        block_on(cycle::measure(url, turn, &progress))
    })?;
    let parallel = measure("64 tasks", &progress, || {
        multi_thread_runtime()?.block_on(parallel::measure(url, turn, &progress))
    })?;
    let processor = measure("processor", &progress, || {
        multi_thread_runtime()?.block_on(processor::measure(url, turn, &progress))
    })?;
    let handoffs = |kind: WaiterKind| {
        measure("handoffs", &progress, || {
            handoff::measure(url, kind, args.waiters, turn, &progress)
        })
    };
    let handoff = match about.reach {
        Reach::Process => None,
        _ => Some(handoffs(WaiterKind::Processes)?),
    };
    let handoff_in_process = handoffs(WaiterKind::Threads)?;
    let counter = match about.store {
        true => Some(measure("counter", &progress, || {
            multi_thread_runtime()?.block_on(counter::measure(url, turn, &progress))
        })?),
        false => None,
    };
    progress.finish_and_clear();
    let report = report::Report {
        engine: about.location,
        seconds: args.seconds,
        cycle,
        parallel,
        processor: processor.transpose(),
        handoff,
        handoff_in_process,
        counter,
    };
    report.print(context.json)?;
    Ok(0)
}

/// An engine and its baseline, on the runtime of the caller of `connect`.
#[derive(Debug, Clone)]
struct Subject {
    locks: Locks,
    baseline: Option<Arc<dyn Baseline>>,
}

/// What is known about an engine, without a connection.
#[derive(Debug)]
struct About {
    location: String,
    reach: Reach,
    /// Whether it keeps guarded records.
    store: bool,
}

impl Subject {
    async fn connect(url: &str) -> leasehold::Result<Self> {
        let locks = Locks::connect(url).await?;
        let baseline = match locks.capabilities().reach {
            // Within a process, nothing is faster than the runtime's own mutex.
            Reach::Process => {
                Some(Arc::new(tokio_mutex::TokioMutex::default()) as Arc<dyn Baseline>)
            }
            _ => leasehold::Registry::builtin().baseline(url)?,
        };
        Ok(Self { locks, baseline })
    }

    fn about(&self) -> About {
        About {
            location: self.locks.location(),
            reach: self.locks.capabilities().reach,
            store: self.locks.capabilities().store,
        }
    }
}

/// The name of a lock that no other bench uses.
fn random_lock_name() -> String {
    format!("leasehold-bench-{:016x}", fastrand::u64(..))
}

/// For the measurements with many tasks, which use all cores, like a server.
fn multi_thread_runtime() -> Outcome<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|cause| unexpected("cannot start the async runtime", cause))
}

/// On stderr, and only on a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(u64::from(6 * 2 * ROUNDS));
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg:9}") {
        bar.set_style(style);
    }
    bar.tick();
    bar
}
