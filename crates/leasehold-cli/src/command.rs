//! The commands, one file each.

use leasehold::Locks;

use crate::args::{Cli, Command};
use crate::exit::{Outcome, unexpected};

mod acquire;
mod bench;
mod break_lock;
mod completions;
mod list;
mod man;
mod release;
mod renew;
mod run;
mod show;
mod watch;

/// What all commands are told.
#[derive(Debug)]
struct Context {
    /// The engine's URL, as given.
    url: String,
    /// Whether results are to be JSON.
    json: bool,
}

impl Context {
    async fn connect(&self) -> leasehold::Result<Locks> {
        Locks::connect(&self.url).await
    }
}

/// Does what was asked; returns the exit code.
pub(crate) fn execute(cli: Cli) -> Outcome {
    let context = Context {
        url: cli.url().to_owned(),
        json: cli.json,
    };
    match cli.command {
        Command::Run(args) => run::run(context, args),
        Command::Acquire(args) => block_on(acquire::acquire(context, args)),
        Command::Renew(args) => block_on(renew::renew(context, args)),
        Command::Release(args) => block_on(release::release(context, args)),
        Command::Show(args) => block_on(show::show(context, args)),
        Command::List(args) => block_on(list::list(context, args)),
        Command::Watch(args) => block_on(watch::watch(context, args)),
        Command::Break(args) => block_on(break_lock::break_lock(context, args)),
        Command::Bench(args) => bench::bench(context, args),
        Command::BenchWorker(args) => bench::worker::main(context, args),
        Command::Completions(args) => completions::completions(args),
        Command::Man(args) => man::man(args),
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
