//! The commands, one file each.

use leasehold::Locks;

use crate::args::{Cli, Command, Deferred};
use crate::exit::{Outcome, unexpected};

mod acquire;
mod ask;
mod bench;
mod break_lock;
mod completions;
mod elect;
mod fence;
mod ids;
mod list;
mod man;
mod release;
mod renew;
mod run;
mod schema;
mod show;
mod store;
mod watch;

/// What all commands are told.
#[derive(Debug)]
pub(crate) struct Context {
    /// The engine's URL, as given.
    pub(crate) url: String,
    /// Whether results are to be JSON.
    pub(crate) json: bool,
}

impl Context {
    /// Connects, and passes on what the engine warns of.
    async fn connect(&self) -> leasehold::Result<Locks> {
        let locks = Locks::connect(&self.url).await?;
        for warning in locks.warnings() {
            eprintln!("leasehold: warning: {warning}");
        }
        Ok(locks)
    }
}

/// Does what was asked; returns the exit code.
pub(crate) fn execute(cli: Cli) -> Outcome {
    let context = Context {
        url: cli.url().to_owned(),
        json: cli.json,
    };
    match cli.command {
        Command::Run(Deferred(args)) => run::run(context, args),
        Command::Acquire(Deferred(args)) => block_on(acquire::acquire(context, args)),
        Command::Renew(Deferred(args)) => block_on(renew::renew(context, args)),
        Command::Release(Deferred(args)) => block_on(release::release(context, args)),
        Command::Show(Deferred(args)) => block_on(show::show(context, args)),
        Command::List(Deferred(args)) => block_on(list::list(context, args)),
        Command::Watch(Deferred(args)) => block_on(watch::watch(context, args)),
        Command::Break(Deferred(args)) => block_on(break_lock::break_lock(context, args)),
        Command::Elect(Deferred(args)) => block_on(elect::elect(context, args)),
        Command::Ask(Deferred(args)) => block_on(ask::ask(context, args)),
        Command::Ids(Deferred(args)) => block_on(ids::ids(context, args)),
        Command::Store(Deferred(args)) => block_on(store::store(context, args)),
        Command::Fence(Deferred(args)) => block_on(fence::fence(context, args)),
        Command::Bench(Deferred(args)) => bench::bench(context, args),
        Command::BenchWorker(Deferred(args)) => bench::worker::main(context, args),
        Command::Schema(Deferred(args)) => schema::schema(args),
        Command::Completions(Deferred(args)) => completions::completions(args),
        Command::Man(Deferred(args)) => man::man(args),
    }
}

/// Runs on this thread alone: CMD must be started by the thread that lives longest, and a thread pool
/// takes time to start.
fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| unexpected("cannot start", cause))?;
    let outcome = runtime.block_on(work);
    // The process ends next; taking the runtime down in good order would only take time.
    std::mem::forget(runtime);
    outcome
}
