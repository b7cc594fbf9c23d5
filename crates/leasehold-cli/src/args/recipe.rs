//! The arguments of the recipes.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::Signal;

use super::time;

/// What `run` can do besides.
#[derive(Debug, Args)]
pub(crate) struct RunRecipes {
    /// Run CMD only if nobody has in this time, by the engine's clock; exit code 0 if somebody has
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["shared", "permits"])]
    pub(crate) once_per: Option<Duration>,

    /// With --once-per: a run that failed or crashed does not count
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,

    /// Send CMD this signal when someone asks for the lock with `leasehold ask`
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub(crate) on_revoke: Option<Signal>,
}

/// Keep CMD running on exactly one host
///
/// Whoever holds the lock leads and runs CMD, as `run` does; the others wait. If the lease can no longer be relied on, CMD
/// is ended before another can lead. When CMD ends by itself, the lead is handed over, and this host stands again after a delay
/// that grows while CMD fails. TERM, INT and QUIT are passed on to CMD and end the candidacy.
///
/// CMD finds the term in LEASEHOLD_TOKEN: it grows from leader to leader.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold elect scheduler -- ./scheduler
  leasehold elect scheduler --owner web1 --ttl 10s -- ./scheduler
  leasehold show scheduler                               who leads, and who stands by")]
pub(crate) struct ElectArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// For how long the others wait if this machine dies
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) ttl: Duration,

    /// A label that tells people who leads [default: the command's name]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,

    /// How long to wait after CMD has ended; doubles while it fails
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub(crate) restart_delay: Duration,

    /// The longest such wait; a CMD that ran for longer starts again with the shortest
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(crate) max_restart_delay: Duration,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Ask whoever holds a lock to give it up
///
/// Nothing is taken away: the holder hears of it within a third of its TTL, if it listens, as `run --on-revoke` does.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold ask deploy --reason 'a fix must go out'
  leasehold run deploy --on-revoke TERM -- ./deploy      listens")]
pub(crate) struct AskArgs {
    /// The name of the lock
    pub(crate) name: String,

    /// Tells the holder why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// Print ids that nobody else is given
///
/// Each has a number that was reserved at the engine for it alone, and 80 random bits that nobody can guess. A crash wastes
/// numbers and never repeats one.
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

/// `TERM`, `SIGTERM` or `15`.
fn signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let named = match upper.starts_with("SIG") {
        true => upper.parse().ok(),
        false => format!("SIG{upper}").parse().ok(),
    };
    let number = || {
        text.parse::<i32>()
            .ok()
            .and_then(|n| Signal::try_from(n).ok())
    };
    named
        .or_else(number)
        .ok_or_else(|| "no such signal; write it like TERM or USR1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_as_people_write_them() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(signal(text), Ok(Signal::SIGTERM), "{text}");
        }
        assert!(signal("SIGNIFICANT").is_err() && signal("99").is_err());
    }
}
