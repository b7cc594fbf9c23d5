//! Arguments of the commands for operators: look at locks, and break them.

use std::time::Duration;

use clap::Args;

use super::values::parse_duration;

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
  leasehold list --json | jq -r .name      one object per line
  leasehold list --deadlocks               processes that wait for each other")]
pub(crate) struct ListArgs {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// List only deadlocks: processes that wait for each other in a cycle
    #[arg(long)]
    pub(crate) deadlocks: bool,
}

/// Watch locks being acquired, waited for and released
///
/// On a terminal the list is redrawn; otherwise, and with --json, each change is printed as a line.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold watch
  leasehold watch orders/ --interval 200ms
  leasehold watch --json | jq -c 'select(.event == \"ended\")'")]
pub(crate) struct WatchArgs {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// How often to query the engine
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) interval: Duration,
}

/// Check what the set-up of the engine guarantees
///
/// Asks the engine for its settings, acquires locks of its own, lets one expire, and compares clocks. Each line of the report is a finding: what was seen, what
/// it means for a lock, and what to do. A finding that you know and accept can be named in the URL: ?accept=eviction. Takes a few seconds.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold doctor
  leasehold --url redis://10.0.0.7 doctor --ttl 10s
  leasehold --url 'redis://10.0.0.7?accept=eviction,replicas' doctor --strict
  leasehold doctor --json | jq '.findings[] | select(.weight != \"good\")'

Exit codes:
  0 fit, 1 fit with warnings, 78 unfit, or with warnings and --strict; what is unknown or accepted is no warning")]
pub(crate) struct DoctorArgs {
    /// The TTL of your locks, which round trips and failovers are compared with
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// Exit with 78 if there are warnings
    #[arg(long)]
    pub(crate) strict: bool,
}

/// Take a lock away from its holder
///
/// The holder notices at its next renewal, within a third of its TTL. Until then two holders may work at once; the next
/// token is still greater. Asks for confirmation on a terminal.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold break deploy
  leasehold break deploy --yes
  leasehold break hourly --once-per       let a job of `run --once-per` run again now")]
pub(crate) struct BreakArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Forget that `run --once-per` has run in this period, and do not touch the lock itself
    #[arg(long)]
    pub(crate) once_per: bool,
}
