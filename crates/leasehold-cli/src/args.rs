//! The arguments as typed. Help texts, shell completions and the man pages all come from here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use leasehold::guard::Version;
use leasehold::guard::sql::Dialect;
use leasehold::{ClaimId, Wait};

use crate::exit::Failure;

mod recipe;

pub(crate) use recipe::{AskArgs, ElectArgs, IdsArgs, RunRecipes};

/// What is used if neither `--url` nor `$LEASEHOLD_URL` says otherwise.
pub(crate) const DEFAULT_URL: &str = "sqlite:";

/// Run anything under a lock that you can trust, on the engine you already run.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    disable_help_subcommand = true,
    after_help = "Examples:
  leasehold run backup -- ./backup.sh            only one backup at a time on this machine
  leasehold run deploy --wait forever -- make deploy
  leasehold list                                 who holds what
  leasehold --url sqlite:/srv/locks.db show backup

Exit codes:
  CMD's own; 64 bad usage, name or URL; 66 no such record; 69 engine unreachable; 70 a bug; 75 not obtained in time;
  76 lease lost; 77 denied; 78 engine unfit; 126 CMD not executable; 127 CMD not found; 128+n killed by signal n"
)]
pub(crate) struct Cli {
    /// The engine that keeps the locks, such as sqlite:/srv/locks.db [default: sqlite:]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "LEASEHOLD_URL",
        hide_env_values = true
    )]
    url: Option<String>,

    /// Print JSON: results on stdout, errors on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads this process's arguments.
    pub(crate) fn from_command_line() -> Result<Self, Failure> {
        Self::try_parse().map_err(Failure::Usage)
    }

    /// The engine's URL. An empty one counts as none, as `LEASEHOLD_URL=` in a script means it.
    pub(crate) fn url(&self) -> &str {
        self.url
            .as_deref()
            .filter(|url| !url.is_empty())
            .unwrap_or(DEFAULT_URL)
    }
}

/// Whether `--json` was asked for, known even if the arguments are wrong.
pub(crate) fn json_was_asked_for() -> bool {
    std::env::args_os()
        .take_while(|arg| arg != "--")
        .any(|arg| arg == "--json")
}

/// The arguments of a command, put together only if it is the one that was called: `run` is called often, and
/// the definitions of all the others would take it longer than the lock does.
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
    /// Take a lock and leave it held; print claim, token and validity
    Acquire(Deferred<AcquireArgs>),
    /// Renew a claim that `acquire` made
    Renew(Deferred<RenewArgs>),
    /// Release a claim that `acquire` made
    Release(Deferred<ReleaseArgs>),
    /// Show who holds a lock and who waits for it
    Show(Deferred<ShowArgs>),
    /// List the locks that are held or waited for
    List(Deferred<ListArgs>),
    /// Watch locks being taken, waited for and released
    Watch(Deferred<WatchArgs>),
    /// Take a lock away from whoever holds it
    Break(Deferred<BreakArgs>),
    /// Keep CMD running on exactly one host
    Elect(Deferred<ElectArgs>),
    /// Ask whoever holds a lock to give it up
    Ask(Deferred<AskArgs>),
    /// Print ids that nobody else is given
    Ids(Deferred<IdsArgs>),
    /// Read and write records that refuse stale writes
    Store(Deferred<StoreArgs>),
    /// Let a table of your own refuse stale tokens
    Fence(Deferred<FenceArgs>),
    /// Measure this engine, beside the fastest that its store could do
    Bench(Deferred<BenchArgs>),
    #[command(hide = true)]
    BenchWorker(Deferred<BenchWorkerArgs>),
    /// Print the SQL that makes an engine's tables
    Schema(Deferred<SchemaArgs>),
    /// Print a completion script for a shell
    Completions(Deferred<CompletionsArgs>),
    /// Print the man page, or write all of them to a folder
    Man(Deferred<ManArgs>),
}

/// Run CMD while holding a lock
///
/// CMD runs in a process group of its own and gets the signals that leasehold gets. The lock is renewed
/// while CMD runs and released when it ends; the exit code is CMD's. If the lease can no longer be relied
/// on, the whole group is ended (TERM, then KILL) before another can get the lock, and the exit code is 76.
///
/// CMD finds LEASEHOLD_NAME, LEASEHOLD_TOKEN, LEASEHOLD_CLAIM and LEASEHOLD_URL in its environment. A
/// `leasehold run` of the same name within CMD goes straight through.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold run backup -- ./backup.sh
  leasehold run backup --wait 0 -- ./backup.sh           give up at once if it is held (exit code 75)
  leasehold run deploy --wait forever --reason 'release 42' -- make deploy
  leasehold run nightly --at-least 1m -- ./report.sh     a host whose clock is late does not run it again
  leasehold run hourly --once-per 50m -- ./report.sh     one of all hosts, once in the time
  leasehold run api --permits 3 -- ./call-the-api.sh     up to three at a time
  leasehold run db --max-hold 10m -- ./migrate.sh        ended after ten minutes")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// Keep the lock for this long even if CMD ends sooner
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) at_least: Option<Duration>,

    /// End CMD before it has held the lock for longer than this
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) recipe: RunRecipes,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Take a lock and leave it held; print claim, token and validity
///
/// Nothing renews the lock after this: it is free again when its TTL has passed, unless `renew` or `release`
/// is called with the claim. Keep the claim secret: it is what signs the lock.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  eval \"$(leasehold acquire deploy --ttl 5m)\"      sets $claim, $token and $valid_ms
  leasehold renew deploy --claim \"$claim\" --ttl 5m
  leasehold release deploy --claim \"$claim\"")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Renew a claim that `acquire` made
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold renew deploy --claim \"$claim\"
  leasehold renew deploy --claim \"$claim\" --ttl 5m

Exit code 76 if the lock is no longer held by this claim.")]
pub(crate) struct RenewArgs {
    /// The name of the lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) claim: ClaimArg,

    /// For how long it is held from now on
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) ttl: Duration,
}

/// Release a claim that `acquire` made
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold release deploy --claim \"$claim\"

A lock that is no longer held by this claim is no failure: it says `not held`.")]
pub(crate) struct ReleaseArgs {
    /// The name of the lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) claim: ClaimArg,
}

#[derive(Debug, Args)]
pub(crate) struct ClaimArg {
    /// The claim that `acquire` printed
    #[arg(
        long = "claim",
        value_name = "ID",
        env = "LEASEHOLD_CLAIM",
        hide_env_values = true
    )]
    pub(crate) id: ClaimId,
}

/// Show who holds a lock and who waits for it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold show deploy
  leasehold show deploy --json | jq '.holders[].token'")]
pub(crate) struct ShowArgs {
    /// The name of the lock
    pub(crate) name: String,
}

/// List the locks that are held or waited for
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold list
  leasehold list orders/                   only names that begin with orders/
  leasehold list --json | jq -r .name      one object a line
  leasehold list --deadlocks               who waits for whom in a circle")]
pub(crate) struct ListArgs {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Tell who waits for whom in a circle, and nothing else
    #[arg(long)]
    pub(crate) deadlocks: bool,
}

/// Watch locks being taken, waited for and released
///
/// On a terminal the list is redrawn; otherwise, and with --json, each change is a line.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold watch
  leasehold watch orders/ --interval 200ms
  leasehold watch --json | jq -c 'select(.event == \"ended\")'")]
pub(crate) struct WatchArgs {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// How often to look
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub(crate) interval: Duration,
}

/// Take a lock away from whoever holds it
///
/// The holder is not asked: it finds out at its next renewal, within a third of its TTL. Until then two may work at
/// once; the next token is still greater. Asks first on a terminal.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold break deploy
  leasehold break deploy --yes")]
pub(crate) struct BreakArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// Read and write records that refuse stale writes
///
/// A record keeps the highest fencing token that has written it, and its version. A write with a lower token, or one that is
/// based on an old version, is refused and changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold run orders -- sh -c './work | leasehold store put orders/42'    with the token of the run
  leasehold store get orders/42
  leasehold store get orders/42 --stat                                      version, token and lock
  leasehold store put orders/42 paid --if-version 7                         only if nobody has written since
  leasehold store put orders/42 --new < order.json                          only if there is none
  leasehold store put report.txt --dir /srv/reports < report.txt            a plain file in a folder

Exit codes: 66 no such record; 76 a later holder has written; 75 another version is there")]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Print a record's value as it is
    Get(GetArgs),
    /// Write a record, unless the write is stale; print its version
    Put(PutArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StorePlace {
    /// Files in this folder instead of the engine's records
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The key of the record: 1 to 255 bytes
    pub(crate) key: String,

    /// Print version, token and lock instead of the value
    #[arg(long)]
    pub(crate) stat: bool,

    #[command(flatten)]
    pub(crate) place: StorePlace,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The key of the record: 1 to 255 bytes
    pub(crate) key: String,

    /// The value [default: what stdin has]
    pub(crate) value: Option<String>,

    /// The fencing token of the lease under which it is written
    #[arg(
        long,
        value_name = "T",
        env = "LEASEHOLD_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<u64>,

    /// The lock that the token is of; tokens of another lock than the record's are refused
    #[arg(
        long,
        value_name = "NAME",
        env = "LEASEHOLD_NAME",
        hide_env_values = true
    )]
    pub(crate) lock: Option<String>,

    /// Only if the record is still of this version, whatever its token
    #[arg(long, value_name = "V", conflicts_with = "new")]
    pub(crate) if_version: Option<Version>,

    /// Only if there is no record
    #[arg(long)]
    pub(crate) new: bool,

    #[command(flatten)]
    pub(crate) place: StorePlace,
}

/// Let a table of your own refuse stale tokens
///
/// Installs a column for the highest fencing token and a trigger on a table in the database of --url (PostgreSQL, MySQL or
/// MariaDB). From then on an UPDATE that sets a lower token fails in the database, whoever sends it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold --url postgres://app@db/shop fence install --table orders
  leasehold --url mysql://app@db/shop fence install --table shop.orders --column lease
  leasehold fence print --table orders --for postgres | psql shop
  leasehold --url postgres://app@db/shop fence remove --table orders")]
pub(crate) struct FenceArgs {
    #[command(subcommand)]
    pub(crate) command: FenceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Install the column and the trigger; may be done again
    Install(FenceTableArgs),
    /// Take both away again
    Remove(FenceTableArgs),
    /// Print the SQL that `install` runs
    Print {
        #[command(flatten)]
        table: FenceTableArgs,

        /// Whose SQL: postgres or mysql
        #[arg(long = "for", value_name = "DATABASE")]
        dialect: Dialect,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FenceTableArgs {
    /// The table, as TABLE or SCHEMA.TABLE
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: String,

    /// The column that keeps the highest token
    #[arg(long, value_name = "COLUMN", default_value = leasehold::guard::sql::COLUMN)]
    pub(crate) column: String,
}

/// Measure this engine, beside the fastest that its store could do
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold bench
  leasehold bench sqlite:/srv/locks.db --seconds 5
  leasehold bench memory: --json

Each measure is taken in turns with the raw limit of the engine, so that noise hits both.")]
pub(crate) struct BenchArgs {
    /// The engine to measure; the same as --url
    #[arg(value_name = "ENGINE")]
    pub(crate) engine: Option<String>,

    /// For how long each measure is taken, and its raw limit
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// How many wait for one lock when it is handed over
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) waiters: u32,
}

/// One waiter of `bench`, in a process of its own.
#[derive(Debug, Args)]
pub(crate) struct BenchWorkerArgs {
    /// The lock that is handed over
    #[arg(long)]
    pub(crate) lock: String,

    /// The file that says who was last
    #[arg(long)]
    pub(crate) board: PathBuf,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold completions bash > /etc/bash_completion.d/leasehold
  leasehold completions zsh > ~/.zfunc/_leasehold
  leasehold completions fish > ~/.config/fish/completions/leasehold.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print the SQL that makes an engine's tables
///
/// For a database where the user of the URL may not make them. To run it again does no harm, and brings older tables up to date.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold schema postgres | psql mydb
  leasehold schema postgres --schema locks > locks.sql")]
pub(crate) struct SchemaArgs {
    /// The engine
    pub(crate) engine: SqlEngine,

    /// The schema that they are to be in: the same as ?schema= in the URL
    #[arg(long, value_name = "NAME")]
    pub(crate) schema: Option<String>,

    /// What the names of MySQL's tables are to begin with: the same as ?table= in the URL
    #[arg(long, value_name = "NAME", conflicts_with = "schema")]
    pub(crate) table: Option<String>,
}

/// An engine whose tables can be made beforehand.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum SqlEngine {
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    Mysql,
}

/// Print the man page, or write all of them to a folder
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold man | man -l -
  leasehold man --out /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write leasehold.1 and a page for each command here
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// What is asked of a lock.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The name of the lock: 1 to 255 bytes
    pub(crate) name: String,

    /// For how long the lock is granted unless renewed: how long others wait if this machine dies
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock: a time, 0 or forever
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = wait)]
    pub(crate) wait: Wait,

    /// Hold it as one reader of many; a writer asks without this
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Hold it as one of up to N; all who use the lock say the same number
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,

    /// A label that tells people who holds the lock [default: the command's name]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,

    /// Tells people why the lock is held
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

fn time(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|cause| format!("{cause}; write it like 500ms, 30s or 5m"))
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => time(text)
            .map(Wait::UpTo)
            .map_err(|cause| format!("{cause}, or forever")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_agree_with_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_as_people_write_them() {
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(time("10").unwrap_err().contains("500ms"));
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("0"), Ok(Wait::UpTo(Duration::ZERO)));
        assert!(wait("for ever").unwrap_err().contains("forever"));
    }
}
