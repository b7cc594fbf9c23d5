//! Arguments of the commands around the program itself: benchmark, torture, SQL schema, completions and man pages.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;

use super::values::parse_duration;
use crate::command::Fault;

/// Measure an engine against the baseline of its store
///
/// The baseline is the fastest that the same store can do without leasehold, such as a bare INSERT and DELETE. Both are
/// measured in turns, so that noise affects them alike.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold bench
  leasehold bench sqlite:/srv/locks.db --seconds 5
  leasehold bench memory: --json")]
pub(crate) struct BenchArgs {
    /// The URL of the engine to measure; overrides --url
    #[arg(value_name = "ENGINE")]
    pub(crate) engine: Option<String>,

    /// How many seconds each measurement takes; measuring its baseline takes as long again
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// How many waiters the lock is handed between
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) waiters: u32,
}

/// A waiter of `bench` that runs in its own process.
#[derive(Debug, Args)]
pub(crate) struct BenchWorkerArgs {
    /// The lock that is handed over
    #[arg(long)]
    pub(crate) lock: String,

    /// The file that names the last holder
    #[arg(long)]
    pub(crate) last_holder: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct WatchdogArgs {
    /// The process group to watch over
    pub(crate) group: i32,
}

/// Attack the clients of an engine, and check that its locks hold
///
/// Clients, which are processes of their own, take a lock in turns and update two sets under it: one without the fencing token, and one
/// that checks it. Meanwhile they are stopped, killed, and cut off. The recorded history is checked: no two hold the lock at once, tokens
/// rise, no update that was guarded by the token is lost, nobody is overtaken, and the lock is free again in time.
///
/// The lock has a name of its own, and only the clients of this command are attacked, unless --kill-cmd is given.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold torture
  leasehold --url redis://10.0.0.7 torture --seconds 300 --report torture.html
  leasehold torture --faults pause,kill --clients 10 --seed 42
  leasehold --url @test torture --kill-cmd 'docker kill redis' --restart-cmd 'docker start redis'

Exit code 1 if something was violated.")]
pub(crate) struct TortureArgs {
    /// For how long
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,

    /// How many clients
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=100))]
    pub(crate) clients: u16,

    /// Which faults [default: all that are available on the engine]
    #[arg(long, value_name = "FAULT", value_delimiter = ',', value_enum)]
    pub(crate) faults: Vec<Fault>,

    /// Repeats the faults of an earlier run
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// The TTL of the clients' leases
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// Write a page with the timeline to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,

    /// A shell command that kills the server; it is run now and then. Not on a server that others use
    #[arg(long, value_name = "CMD", requires = "restart_cmd")]
    pub(crate) kill_cmd: Option<String>,

    /// A shell command that starts the server again
    #[arg(long, value_name = "CMD", requires = "kill_cmd")]
    pub(crate) restart_cmd: Option<String>,
}

/// A client of `torture`.
#[derive(Debug, Args)]
pub(crate) struct TortureClientArgs {
    /// The lock, and the key of the guarded set
    #[arg(long)]
    pub(crate) lock: String,

    /// Where the other set is
    #[arg(long)]
    pub(crate) folder: PathBuf,

    /// The number of this client
    #[arg(long)]
    pub(crate) number: u32,

    #[arg(long)]
    pub(crate) seed: u64,

    #[arg(long, value_parser = parse_duration)]
    pub(crate) ttl: Duration,
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

/// Print the SQL that creates an engine's tables, or the AWS CLI commands that create a DynamoDB table
///
/// For databases in which the user of the URL may not create tables. The SQL can be run again at any time, and upgrades older tables.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold schema postgres | psql mydb
  leasehold schema postgres --schema locks > locks.sql
  leasehold schema dynamodb --table locks | sh")]
pub(crate) struct SchemaArgs {
    /// The engine
    pub(crate) engine: SqlEngine,

    /// The schema to create the tables in, as in ?schema= of the URL
    #[arg(long, value_name = "NAME")]
    pub(crate) schema: Option<String>,

    /// The prefix of MySQL's table names, as in ?table= of the URL; the name of DynamoDB's table
    #[arg(long, value_name = "NAME", conflicts_with = "schema")]
    pub(crate) table: Option<String>,
}

/// An engine whose tables can be created beforehand.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum SqlEngine {
    /// PostgreSQL
    Postgres,
    /// MySQL and MariaDB
    Mysql,
    /// DynamoDB
    Dynamodb,
}

/// Print the man page, or write all man pages to a directory
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold man | man -l -
  leasehold man --out /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write leasehold.1 and a page for each command to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
