//! The commands, one file each.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold::backoff::Backoff;
use leasehold::{Locks, Wait};

use crate::args::{Cli, Command, Deferred};
use crate::exit::{Outcome, unexpected};
use crate::request::Request;
use crate::watchdog;

mod acquire;
mod ask;
mod bench;
mod break_lock;
mod completions;
mod doctor;
mod elect;
mod fence;
mod ids;
mod list;
mod man;
mod release;
mod renew;
mod run;
mod schema;
#[cfg(feature = "serve")]
mod serve;
mod show;
mod store;
mod torture;
mod watch;

pub(crate) use torture::Fault;

/// What all commands need.
#[derive(Debug)]
pub(crate) struct Context {
    /// The engine's URL, as given.
    pub(crate) url: String,
    /// Whether to print JSON.
    pub(crate) json: bool,
    connected: Connected,
}

/// The engine that was connected last, to be flushed before the process ends.
type Connected = Rc<RefCell<Option<Locks>>>;

/// How long a flush may take: it leaves queues and frees what the engine keeps for future locks. All of that expires
/// by itself, later.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

impl Context {
    /// Connects, and prints the engine's warnings.
    async fn connect(&self) -> leasehold::Result<Locks> {
        let locks = Locks::connect(&self.url).await?;
        for warning in locks.warnings() {
            eprintln!("leasehold: warning: {warning}");
        }
        self.connected.replace(Some(locks.clone()));
        Ok(locks)
    }

    /// Connects for a request that waits: while the engine is busy, such as at its limit of connections, tries
    /// again for as long as the request may wait. The request's wait is reduced by the time this took.
    async fn connect_for(&self, request: &mut Request) -> leasehold::Result<Locks> {
        let start = Instant::now();
        let shortest = Duration::from_millis(20);
        let mut delays = Backoff::new(fastrand::u64(..), shortest, Duration::from_secs(1));
        loop {
            let connected = self.connect().await;
            let left = match request.wait {
                Wait::UpTo(time) => time.saturating_sub(start.elapsed()),
                Wait::Forever => Duration::MAX,
            };
            match connected {
                Err(error) if error.is_busy() && !left.is_zero() => {
                    tokio::time::sleep(delays.delay().min(left)).await;
                }
                connected => {
                    if let Wait::UpTo(time) = &mut request.wait {
                        *time = left;
                    }
                    return connected;
                }
            }
        }
    }
}

/// Executes the command; returns its exit code.
pub(crate) fn execute(cli: Cli) -> Outcome {
    let context = Context {
        url: match cli.command {
            Command::Schema(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Watchdog(_) => String::new(),
            #[cfg(feature = "serve")]
            Command::Token(_) => String::new(),
            _ => cli.url()?,
        },
        json: cli.json,
        connected: Connected::default(),
    };
    let connected = &Rc::clone(&context.connected);
    match cli.command {
        Command::Run(Deferred(args)) => run::run(context, args),
        Command::Acquire(Deferred(args)) => flushed(connected, acquire::acquire(context, args)),
        Command::Renew(Deferred(args)) => flushed(connected, renew::renew(context, args)),
        Command::Release(Deferred(args)) => flushed(connected, release::release(context, args)),
        Command::Show(Deferred(args)) => flushed(connected, show::show(context, args)),
        Command::List(Deferred(args)) => flushed(connected, list::list(context, args)),
        Command::Watch(Deferred(args)) => flushed(connected, watch::watch(context, args)),
        Command::Doctor(Deferred(args)) => flushed(connected, doctor::doctor(context, args)),
        Command::Break(Deferred(args)) => flushed(connected, break_lock::break_lock(context, args)),
        Command::Elect(Deferred(args)) => flushed(connected, elect::elect(context, args)),
        Command::Ask(Deferred(args)) => flushed(connected, ask::ask(context, args)),
        Command::Ids(Deferred(args)) => flushed(connected, ids::ids(context, args)),
        Command::Store(Deferred(args)) => flushed(connected, store::store(context, args)),
        Command::Fence(Deferred(args)) => flushed(connected, fence::fence(context, args)),
        #[cfg(feature = "serve")]
        Command::Serve(Deferred(args)) => serve::serve(context, args),
        #[cfg(feature = "serve")]
        Command::Token(Deferred(args)) => serve::token(context.json, args),
        Command::Bench(Deferred(args)) => bench::bench(context, args),
        Command::BenchWorker(Deferred(args)) => bench::worker::main(context, args),
        Command::Torture(Deferred(args)) => torture::torture(context, args),
        Command::TortureClient(Deferred(args)) => torture::client::main(context, args),
        Command::Schema(Deferred(args)) => schema::schema(args),
        Command::Completions(Deferred(args)) => completions::completions(args),
        Command::Man(Deferred(args)) => man::man(args),
        Command::Watchdog(Deferred(args)) => watchdog::main(args.group),
    }
}

/// Runs the work, and flushes the engine before the process ends.
fn flushed<T>(connected: &Connected, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    block_on(async {
        let outcome = work.await;
        if let Some(locks) = connected.take() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, locks.flush()).await;
        }
        outcome
    })
}

/// Runs on this thread alone: CMD must be started by the thread that lives longest (the parent-death signal is sent when that
/// thread ends), and a thread pool takes time to start.
fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| unexpected("cannot start the async runtime", cause))?;
    let outcome = runtime.block_on(work);
    // The process ends next; shutting the runtime down would only take time.
    std::mem::forget(runtime);
    outcome
}
