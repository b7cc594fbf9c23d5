//! Arguments of the commands that acquire, renew and release a lock.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold::{ClaimId, Error, ErrorKind, Wait};

use super::recipe::{HookArgs, RunRecipes};
use super::values::{Until, parse_duration, parse_until, parse_wait};

/// Which lock to acquire, and how.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The name of the lock: 1 to 255 bytes
    pub(crate) name: String,

    /// For how long the lock is granted unless renewed; this is how long others wait if this machine dies
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock: a time, 0 or forever
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_wait)]
    pub(crate) wait: Wait,

    /// Acquire it as one of many readers; a writer leaves this option out
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,

    /// Acquire one of N permits; everyone who uses the lock must give the same number
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,

    /// A label of the holder, shown to people [default: the command's name]
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,

    /// Why the lock is held, shown to people
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// Run CMD while holding a lock
///
/// CMD runs in its own process group, and signals that leasehold receives are passed on to it. The lock is renewed
/// while CMD runs and released when it ends; the exit code is CMD's. If the lease can no longer be relied
/// on, the whole process group is terminated (TERM, then KILL) before the lock can be granted again, and the exit code
/// is 76. So it is by a second process, the watchdog, if leasehold alone is stopped or killed.
///
/// CMD gets LEASEHOLD_NAME, LEASEHOLD_TOKEN, LEASEHOLD_CLAIM and LEASEHOLD_URL in its environment. A
/// `leasehold run` of the same name within CMD uses the lock that is already held.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold run backup -- ./backup.sh
  leasehold run backup --wait 0 -- ./backup.sh           give up at once if it is held (exit code 75)
  leasehold run deploy --wait forever --reason 'release 42' -- make deploy
  leasehold run import --at-least 1m -- ./import.sh      a host whose clock is behind does not run it again
  leasehold run hourly --once-per 50m -- ./report.sh     on one of the hosts, at most once in 50 minutes
  leasehold run nightly --once-per 20h -- ./report.sh    less than the time between two starts, or every second one is skipped
  leasehold run nightly --once-per 20h --retry-failed --wait 4h -- ./report.sh    another host takes over if it fails
  leasehold run hourly --once-per 50m --exit-if-skipped 3 -- true    exit code 3 if it has run already
  leasehold run api --permits 3 -- ./call-the-api.sh     up to three at a time
  leasehold run report --on-lost 'curl -fsS https://hc.example/report/fail' -- ./report.sh
  leasehold run db --max-hold 10m -- ./migrate.sh        terminated after ten minutes")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// Keep the lock for at least this long, even if CMD ends sooner
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) at_least: Option<Duration>,

    /// Terminate CMD before it has held the lock for longer than this
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) recipe: RunRecipes,

    #[command(flatten)]
    pub(crate) hooks: HookArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Acquire a lock and leave it held; print its claim, token and validity
///
/// The lock is not renewed: it ends with its TTL unless `renew` or `release` is called with the claim. Keep the claim
/// secret: whoever knows it can renew and release the lock.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  got=$(leasehold acquire deploy --ttl 5m) || exit; eval \"$got\"    sets $claim, $token and $valid_ms
  export LEASEHOLD_CLAIM=\"$claim\"                 not as an argument: `ps` would show it
  leasehold renew deploy --ttl 5m
  leasehold release deploy
  leasehold acquire deploy --until 2026-12-27T08:00 --reason 'no deployments over the holidays'
  leasehold break deploy                          ends it, also without the claim")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// Hold it without a process until then, and give a --reason: a time in UTC such as 2026-12-24T18:00, a time from now such as
    /// 2days, or forever
    #[arg(long, value_name = "TIME", value_parser = parse_until, conflicts_with = "ttl", requires = "reason")]
    pub(crate) until: Option<Until>,
}

/// Renew a claim made by `acquire`
///
/// A renewal never shortens a lock: if more time than --ttl is left, it stays.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  LEASEHOLD_CLAIM=\"$claim\" leasehold renew deploy --ttl 5m
  printf %s \"$claim\" | leasehold renew deploy --claim -

Exit code 76 if the lock is no longer held by this claim.")]
pub(crate) struct RenewArgs {
    /// The name of the lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) claim: ClaimArg,

    /// For how long the lock is held from now on, at least
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,
}

/// Release a claim made by `acquire`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  LEASEHOLD_CLAIM=\"$claim\" leasehold release deploy
  printf %s \"$claim\" | leasehold release deploy --claim -

If the lock is no longer held by this claim, it prints `not held` and the exit code is 0.")]
pub(crate) struct ReleaseArgs {
    /// The name of the lock
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) claim: ClaimArg,
}

#[derive(Debug, Args)]
pub(crate) struct ClaimArg {
    /// The claim that `acquire` printed; `-` reads it from stdin. It is a secret, and every user of the machine can see
    /// arguments: set $LEASEHOLD_CLAIM instead
    #[arg(
        long = "claim",
        value_name = "ID",
        env = "LEASEHOLD_CLAIM",
        hide_env_values = true
    )]
    // Parsed later: clap would print a value that it cannot parse.
    source: OsString,
}

impl ClaimArg {
    /// Reads the claim from the argument, the environment or stdin.
    pub(crate) fn read(self) -> leasehold::Result<ClaimId> {
        if self.source != "-" {
            return self.source.to_string_lossy().trim().parse();
        }
        std::io::read_to_string(std::io::stdin())
            .map_err(|cause| {
                let what = format!("cannot read the claim from stdin: {cause}");
                Error::new(ErrorKind::InvalidConfig, what)
            })?
            .trim()
            .parse()
    }
}
