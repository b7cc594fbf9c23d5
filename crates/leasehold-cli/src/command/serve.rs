//! `leasehold serve`: locks over HTTP; `leasehold token`: who may use it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use leasehold::engine::Expiry;
use leasehold::{Error, ErrorKind, Locks};
use leasehold_server::{Listening, NewToken, Settings, State, Tls, Tokens, serve as serve_http};
use nix::fcntl::OFlag;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{Context, FLUSH_TIMEOUT};
use crate::args::{NewTokenArgs, ServeArgs, TokenArgs, TokenCommand};
use crate::exit::{Outcome, unexpected};
use crate::output;

pub(super) fn serve(context: Context, args: ServeArgs) -> Outcome {
    check_exposure(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|cause| unexpected("cannot start the async runtime", cause))?;
    let outcome = runtime.block_on(run(context, args));
    runtime.shutdown_background();
    outcome
}

/// Whoever reaches a server without tokens or certificates may do everything.
fn check_exposure(args: &ServeArgs) -> leasehold::Result<()> {
    let is_guarded = args.tokens.is_some() || args.client_ca.is_some();
    if is_guarded || args.insecure || args.listen.ip().is_loopback() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidConfig,
        format!(
            "on {} everybody who reaches this machine could take and break locks",
            args.listen
        ),
    )
    .advise("name a file of access tokens with --tokens or of client certificates with --client-ca; or say --insecure"))
}

async fn run(context: Context, args: ServeArgs) -> Outcome {
    // From here on a signal ends it in order.
    let listen =
        |kind| signal(kind).map_err(|cause| unexpected("cannot listen for signals", cause));
    let (mut term, mut int) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
    );
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::from_files(cert, key, args.client_ca.as_deref())?),
        _ => None,
    };
    let settings = settings(&args)?;
    let locks = context.connect().await?;
    let _only = only_server(&args, &locks)?;
    raise_file_limit(&args);
    if locks.capabilities().expiry == Expiry::Session {
        output::warn(
            "each claim belongs to the session of one server: behind a load balancer with several, route each client to the same one always",
        );
    }
    let state = State::new(locks.clone(), settings)?;
    let listening = Listening::at(args.listen, tls).await?;
    announce(&context, &args, &listening, &locks)?;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let end = async {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        output::warn("ending: waiters are told to come back");
    };
    serve_http(listening, state.clone(), end).await;
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, state.close()).await;
    Ok(0)
}

/// A server over a file releases what its clients have given up, and counts on being the only one that can have granted it. So a second one
/// would take locks away from clients that have come back to the first.
fn only_server(args: &ServeArgs, locks: &Locks) -> leasehold::Result<Option<File>> {
    let location = locks.location();
    let file = location.strip_prefix("sqlite:");
    let (Some(path), false) = (file, args.read_only) else {
        return Ok(None);
    };
    let lock = || -> std::io::Result<_> {
        let mut path = Path::new(path).canonicalize()?.into_os_string();
        path.push("-server");
        // Whoever may write to the folder may have put a link or a pipe there.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true).mode(0o600);
        let file = options.custom_flags(flags.bits()).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is not a plain file"));
        }
        Ok((file.try_lock(), file))
    };
    let cannot = |cause: std::io::Error| unexpected_file(path, &cause).caused_by(cause);
    match lock().map_err(cannot)? {
        (Ok(()), file) => Ok(Some(file)),
        (Err(TryLockError::Error(cause)), _) => Err(cannot(cause)),
        (Err(TryLockError::WouldBlock), _) => Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("another server passes on the locks of {path:?}"),
        )
        .advise("use that one, or start this one with --read-only; several servers need an engine on the network")),
    }
}

fn unexpected_file(path: &str, cause: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!("the file beside {path:?} that only one server may lock cannot be used: {cause}"),
    )
    .advise("check who may write there")
}

/// Most systems allow a process about a thousand files at first, and more if it asks. Each connection is one.
fn raise_file_limit(args: &ServeArgs) {
    let Ok((soft, most)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    let files = match setrlimit(Resource::RLIMIT_NOFILE, most, most) {
        Ok(()) => most,
        Err(_) => soft,
    };
    if files < args.max_connections as u64 + 100 {
        output::warn(&format!(
            "the system allows {files} files, so fewer than {} connections: see `ulimit -Hn`",
            args.max_connections
        ));
    }
}

fn settings(args: &ServeArgs) -> leasehold::Result<Settings> {
    let mut settings = Settings::default();
    settings.tokens = args.tokens.as_ref().map(Tokens::open).transpose()?;
    settings.read_only = args.read_only;
    settings.check_host = args.tokens.is_none() && args.client_ca.is_none() && !args.insecure;
    settings.behind_proxy = args.behind_proxy;
    settings.observe = Some(args.observe).filter(|every| !every.is_zero());
    settings.audit = args.audit.clone();
    settings.history = args.history.clone();
    settings.name_metrics = args.metrics_names;
    settings.limits.waiters = args.max_waiters;
    settings.limits.streams = args.max_streams;
    settings.limits.connections = args.max_connections;
    Ok(settings)
}

/// The address, and a first request to try.
fn announce(
    context: &Context,
    args: &ServeArgs,
    listening: &Listening,
    locks: &Locks,
) -> Outcome<()> {
    let (url, engine) = (listening.url(), locks.location());
    if context.json {
        return output::json_line(&json!({"url": url, "engine": engine}));
    }
    let bearer = match args.tokens {
        Some(_) => "-H \"Authorization: Bearer $TOKEN\" ",
        None => "",
    };
    output::line(&format!("serving {engine} at {url}"))?;
    output::line(&format!(
        "try: curl -N {bearer}-X POST {url}/v1/locks/demo/hold"
    ))
}

pub(super) fn token(json: bool, args: TokenArgs) -> Outcome {
    let TokenCommand::New(args) = args.command;
    let expires = args.expires.map(|time| SystemTime::now() + time);
    let new = NewToken::new(&args.name, &args.scopes, &args.prefixes, expires)?;
    if args.file.is_some() {
        append(&args, &new)?;
    }
    let entry = args.file.is_none().then_some(&new.entry);
    match json {
        true => output::json_line(&json!({"name": args.name, "token": new.token, "entry": entry}))?,
        false => {
            output::line(&new.token)?;
            if let Some(entry) = entry {
                output::line(&format!("\n{}", entry.trim_end()))?;
            }
        }
    }
    Ok(0)
}

/// Only its owner may read and write a new file.
fn append(args: &NewTokenArgs, new: &NewToken) -> leasehold::Result<()> {
    let Some(path) = &args.file else {
        return Ok(());
    };
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| {
        let gap = if file.metadata()?.len() == 0 {
            ""
        } else {
            "\n"
        };
        file.write_all(format!("{gap}{}", new.entry).as_bytes())
    });
    written.map_err(|cause| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("cannot write to the tokens file {path:?}: {cause}"),
        )
        .advise("check its name and who may write there")
        .caused_by(cause)
    })
}
