//! Arguments of the commands of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use leasehold_server::Scope;

use super::values::parse_duration;

/// Serve locks over HTTP, with a dashboard of who holds what
///
/// Clients of any language acquire, renew and release locks with a few requests; `leasehold --url http://HOST:PORT` and the library use it like
/// any other engine. The server keeps no state: several servers on one engine can run behind a load balancer.
///
/// On TERM or INT the server tells waiting clients to retry, completes the requests in flight, and exits. Locks that are held stay
/// held until their TTL ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold --url redis://10.0.0.7 serve
  leasehold serve --listen 0.0.0.0:7654 --tokens /etc/leasehold/tokens.toml --tls-cert server.pem --tls-key server-key.pem
  curl -N -X POST http://127.0.0.1:7654/v1/locks/deploy/hold     holds the lock until it is interrupted")]
pub(crate) struct ServeArgs {
    /// The address and port to listen on; port 0 chooses a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7654")]
    pub(crate) listen: SocketAddr,

    /// The file with the access tokens: see `leasehold token new`. It is reloaded when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tokens: Option<PathBuf>,

    /// The certificate chain of the server, in PEM form; serves HTTPS
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The key of the certificate, in PEM form
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Accept only clients whose certificate is signed by an authority in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Allow an address that other machines can reach without any access control
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Refuse all requests that change something
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Clients connect through a proxy or a load balancer that adds no Via, Forwarded or X-Forwarded-For: do not take the end of a connection for that of its client
    #[arg(long)]
    pub(crate) behind_proxy: bool,

    /// How often to list all locks, for events, history and metrics; 0 turns it off
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub(crate) observe: Duration,

    /// Log to this file who broke which lock, one JSON object per line [default: stderr]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) audit: Option<PathBuf>,

    /// Keep the last 100,000 holds that have ended in this SQLite file [default: the last 10,000, in memory]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) history: Option<PathBuf>,

    /// Include the names of locks in the metrics
    #[arg(long)]
    pub(crate) metrics_names: bool,

    /// How many requests of one access token may wait at once
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) max_waiters: usize,

    /// How many streams one access token may have at once
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) max_streams: usize,

    /// How many connections are served at once
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) max_connections: usize,
}

/// Make access tokens for `leasehold serve`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold token new deploy-bot --scope read --scope hold --prefix deploy/ --file tokens.toml
  leasehold serve --tokens tokens.toml")]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make an access token and print it; only its digest is stored
    New(NewTokenArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NewTokenArgs {
    /// Whose token it is; shown to people and in the audit log
    pub(crate) name: String,

    /// What it allows: read, hold, break or admin; may be given several times
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = parse_scope)]
    pub(crate) scopes: Vec<Scope>,

    /// Allow only locks whose names begin with this; may be given several times [default: all locks]
    #[arg(long = "prefix", value_name = "PREFIX")]
    pub(crate) prefixes: Vec<String>,

    /// For how long it is accepted from now on [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) expires: Option<Duration>,

    /// Add its entry to this tokens file instead of printing the entry
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    let mut all = Scope::ALL.iter();
    let found = all.find(|(name, _)| *name == text);
    found
        .map(|(_, scope)| *scope)
        .ok_or_else(|| "write read, hold, break or admin".to_owned())
}
