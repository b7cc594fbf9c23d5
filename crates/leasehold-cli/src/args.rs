//! The arguments as typed. Help texts, shell completions and the man pages are generated from them.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};

use crate::engine_url;
use crate::exit::Failure;

mod inspect;
mod lock;
mod recipe;
#[cfg(feature = "serve")]
mod serve;
mod store;
mod tools;
mod values;

pub(crate) use inspect::{BreakArgs, DoctorArgs, ListArgs, ShowArgs, WatchArgs};
pub(crate) use lock::{AcquireArgs, LockArgs, ReleaseArgs, RenewArgs, RunArgs};
pub(crate) use recipe::{AskArgs, ElectArgs, HookArgs, IdsArgs, RunRecipes};
#[cfg(feature = "serve")]
pub(crate) use serve::{NewTokenArgs, ServeArgs, TokenArgs, TokenCommand};
pub(crate) use store::{
    DeleteArgs, FenceArgs, FenceCommand, FenceTableArgs, GetArgs, GuardArgs, PutArgs, StoreArgs,
    StoreCommand, StoreLocation,
};
pub(crate) use tools::{
    BenchArgs, BenchWorkerArgs, CompletionsArgs, ManArgs, SchemaArgs, SqlEngine, TortureArgs,
    TortureClientArgs, WatchdogArgs,
};
pub(crate) use values::Until;

/// Run commands under a distributed lock, on the store that you already run.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    disable_help_subcommand = true,
    after_help = "Examples:
  leasehold run backup -- ./backup.sh            only one backup at a time on this machine
  leasehold run deploy --wait forever -- make deploy
  leasehold list                                 who holds which lock
  leasehold --url sqlite:/srv/locks.db show backup
  leasehold --url @prod list                     the URL called prod in a configuration file

Configuration files (TOML; both are optional, and refused if other users can write them):
  $XDG_CONFIG_HOME/leasehold/config.toml, /etc/leasehold.toml
  url = \"@prod\"                                  the default of --url
  [urls]
  prod = \"redis://:password@db1:6379\"            --url @prod

Exit codes:
  CMD's own; 64 bad usage, name or URL; 66 no such record; 69 engine unreachable; 70 internal error; 75 not obtained
  in time; 76 lease lost; 77 denied; 78 engine unfit; 126 CMD not executable; 127 CMD not found; 128+n killed by signal n"
)]
pub(crate) struct Cli {
    /// The URL of the engine that stores the locks, such as sqlite:/srv/locks.db, or @NAME for a URL in a configuration file
    /// [env: LEASEHOLD_URL] [default: sqlite:]
    // The environment is read later: clap would take it for an argument, and prefer it to --url-file.
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,

    /// A file that contains the URL, to keep a password out of crontabs and process lists [env: LEASEHOLD_URL_FILE]
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        value_hint = clap::ValueHint::FilePath,
        conflicts_with = "url"
    )]
    url_file: Option<PathBuf>,

    /// Print JSON: results on stdout, errors on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses this process's arguments.
    pub(crate) fn from_command_line() -> Result<Self, Failure> {
        Self::try_parse().map_err(|error| {
            #[cfg(not(feature = "serve"))]
            if asks_for_server(&error) {
                let what = "this leasehold was built without the lock server";
                let advice = "cargo install leasehold-cli --features serve, or a package, has it";
                return leasehold::Error::new(leasehold::ErrorKind::InvalidConfig, what)
                    .advise(advice)
                    .into();
            }
            Failure::Usage(error)
        })
    }

    /// The engine's URL, wherever it is given.
    pub(crate) fn url(&self) -> leasehold::Result<String> {
        engine_url::find(self.url.as_deref(), self.url_file.as_deref())
    }
}

/// Whether a command is called that only the feature `serve` brings.
#[cfg(not(feature = "serve"))]
fn asks_for_server(error: &clap::Error) -> bool {
    use clap::error::{ContextKind, ContextValue};
    let called = error.get(ContextKind::InvalidSubcommand);
    matches!(called, Some(ContextValue::String(name)) if name == "serve" || name == "token")
}

/// Whether `--json` was given; known even if the arguments cannot be parsed.
pub(crate) fn json_was_asked_for() -> bool {
    std::env::args_os()
        .take_while(|arg| arg != "--")
        .any(|arg| arg == "--json")
}

/// Arguments that clap builds only for the command that is called: building the definitions of all commands takes longer
/// than an uncontended `run`.
#[derive(Debug)]
pub(crate) struct Deferred<T>(pub(crate) T);

impl<T: FromArgMatches> FromArgMatches for Deferred<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Deferred<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.defer(T::augment_args)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command.defer(T::augment_args_for_update)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run CMD while holding a lock
    Run(Deferred<RunArgs>),
    /// Acquire a lock and leave it held; print its claim, token and validity
    Acquire(Deferred<AcquireArgs>),
    /// Renew a claim made by `acquire`
    Renew(Deferred<RenewArgs>),
    /// Release a claim made by `acquire`
    Release(Deferred<ReleaseArgs>),
    /// Show who holds a lock and who waits for it
    Show(Deferred<ShowArgs>),
    /// List the locks that are held or waited for
    List(Deferred<ListArgs>),
    /// Watch locks being acquired, waited for and released
    Watch(Deferred<WatchArgs>),
    /// Check what the set-up of the engine guarantees
    Doctor(Deferred<DoctorArgs>),
    /// Take a lock away from its holder
    Break(Deferred<BreakArgs>),
    /// Keep CMD running on exactly one host
    Elect(Deferred<ElectArgs>),
    /// Ask the holder of a lock to release it
    Ask(Deferred<AskArgs>),
    /// Print unique ids
    Ids(Deferred<IdsArgs>),
    /// Read, write and delete records that reject stale writes
    Store(Deferred<StoreArgs>),
    /// Make a table of your own reject stale tokens
    Fence(Deferred<FenceArgs>),
    /// Serve locks over HTTP, with a dashboard of who holds what
    #[cfg(feature = "serve")]
    Serve(Deferred<ServeArgs>),
    /// Make access tokens for `leasehold serve`
    #[cfg(feature = "serve")]
    Token(Deferred<TokenArgs>),
    /// Measure an engine against the baseline of its store
    Bench(Deferred<BenchArgs>),
    #[command(hide = true)]
    BenchWorker(Deferred<BenchWorkerArgs>),
    /// Attack the clients of an engine, and check that its locks hold
    Torture(Deferred<TortureArgs>),
    #[command(hide = true)]
    TortureClient(Deferred<TortureClientArgs>),
    /// Print the SQL that creates an engine's tables
    Schema(Deferred<SchemaArgs>),
    /// Print a completion script for a shell
    Completions(Deferred<CompletionsArgs>),
    /// Print the man page, or write all man pages to a directory
    Man(Deferred<ManArgs>),
    #[command(hide = true)]
    Watchdog(Deferred<WatchdogArgs>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
