//! Arguments of the recipes.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::Signal;

use super::values::{parse_duration, parse_signal};

/// Options of `run` that make it a recipe.
#[derive(Debug, Args)]
pub(crate) struct RunRecipes {
    /// Run CMD only if it has not run within this time, by the engine's clock; exit code 0 if it has
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with_all = ["shared", "permits"])]
    pub(crate) once_per: Option<Duration>,

    /// With --once-per: do not count a run that failed or crashed
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,

    /// With --once-per: exit with this code instead of 0 if CMD has already run in this period
    #[arg(long, requires = "once_per", value_name = "N")]
    pub(crate) exit_if_skipped: Option<u8>,

    /// Run this shell command if CMD is not run: because the lock was not obtained, or because of --once-per
    #[arg(long, value_name = "COMMAND")]
    pub(crate) on_skip: Option<String>,

    /// Send CMD this signal when someone asks for the lock with `leasehold ask`
    #[arg(long, value_name = "SIGNAL", value_parser = parse_signal)]
    pub(crate) on_revoke: Option<Signal>,
}

/// Shell commands that are run when something happens to the lock: for at most 10 seconds, with LEASEHOLD_NAME, LEASEHOLD_TOKEN,
/// LEASEHOLD_URL and LEASEHOLD_HOOK in the environment. One that fails is a warning.
#[derive(Debug, Default, Args)]
pub(crate) struct HookArgs {
    /// Run this shell command when the lock was acquired, before CMD
    #[arg(long, value_name = "COMMAND")]
    pub(crate) on_acquire: Option<String>,

    /// Run this shell command when the lease was lost, after CMD was terminated
    #[arg(long, value_name = "COMMAND")]
    pub(crate) on_lost: Option<String>,
}

/// Keep CMD running on exactly one host
///
/// The holder of the lock is the leader and runs CMD, as `run` does; the others wait. If the lease can no longer be relied on, CMD
/// is terminated before another host can become the leader. When CMD ends by itself, the lock is released, and this host
/// becomes a candidate again after a delay that grows while CMD fails. TERM, INT and QUIT are passed on to CMD and end the candidacy.
///
/// LEASEHOLD_TOKEN in the environment of CMD is the term: it grows from leader to leader.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold elect scheduler -- ./scheduler
  leasehold elect scheduler --owner web1 --ttl 10s -- ./scheduler
  leasehold elect scheduler --on-acquire 'curl -fsS https://hc.example/leads' -- ./scheduler
  leasehold show scheduler                               the leader and the candidates")]
pub(crate) struct ElectArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// How long the others wait if this machine dies
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// A label of the candidate, shown to people [default: the command's name]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,

    /// How long to wait after CMD has ended before this host is a candidate again; doubles each time CMD fails
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub(crate) restart_delay: Duration,

    /// The upper limit of that delay; the delay is reset once CMD has run for longer than this
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    pub(crate) max_restart_delay: Duration,

    #[command(flatten)]
    pub(crate) hooks: HookArgs,

    /// Serve the state of the election at this address: `/` names the leader, `/readyz` returns 200 while this host leads
    #[cfg(feature = "serve")]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<std::net::SocketAddr>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Ask the holder of a lock to release it
///
/// The lock is not taken away: a holder that listens, such as `run --on-revoke`, receives the request within a third of its TTL.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold ask deploy --reason 'a fix must go out'
  leasehold run deploy --on-revoke TERM -- ./deploy      a holder that receives such requests")]
pub(crate) struct AskArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// Why, shown to the holder
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// Print unique ids
///
/// Each id contains a number that the engine has reserved for it, and 80 random bits that nobody can guess. A crash skips
/// numbers, but no number is used twice.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold ids
  leasehold ids orders --count 5
  leasehold ids orders --count 5 --json")]
pub(crate) struct IdsArgs {
    /// The pool: ids are unique within it
    #[arg(default_value = "ids")]
    pub(crate) pool: String,

    /// How many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
}
