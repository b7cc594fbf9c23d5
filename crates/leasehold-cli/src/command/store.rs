//! `leasehold store`: guarded records, for scripts.

use std::io::Read;

use leasehold::guard::{Checked, Fenced, FileStore, Key, Pass, Record, Store};
use leasehold::{Error, ErrorKind, FencingToken, LockName};
use serde_json::json;

use super::Context;
use crate::args::{GetArgs, PutArgs, StoreArgs, StoreCommand, StorePlace};
use crate::exit::{Failure, Outcome, unexpected};
use crate::output;

pub(super) async fn store(context: Context, args: StoreArgs) -> Outcome {
    match args.command {
        StoreCommand::Get(args) => get(context, args).await,
        StoreCommand::Put(args) => put(context, args).await,
    }
}

async fn open(context: &Context, place: &StorePlace) -> Outcome<Store> {
    match &place.dir {
        Some(folder) => Ok(FileStore::open(folder)?),
        None => Ok(context.connect().await?.store()?),
    }
}

async fn get(context: Context, args: GetArgs) -> Outcome {
    Key::new(&args.key)?;
    let store = open(&context, &args.place).await?;
    let Some(record) = store.read(&args.key).await? else {
        return Err(Failure::NoRecord { key: args.key });
    };
    match (context.json, args.stat) {
        (true, _) => output::json_line(&as_json(&args.key, &record))?,
        (false, true) => {
            let lock = record.lock.as_ref().map_or("", LockName::as_str);
            let (version, token) = (record.version, record.token);
            output::line(&format!("version={version}\ntoken={token}\nlock={lock}"))?;
        }
        (false, false) => output::raw(&record.value)?,
    }
    Ok(0)
}

fn as_json(key: &str, record: &Record) -> serde_json::Value {
    let mut json = json!({
        "key": key,
        "version": record.version.get(),
        "token": record.token.get(),
        "lock": record.lock.as_ref().map(LockName::as_str),
    });
    // JSON has no bytes: what is not text is told in hexadecimal digits.
    match std::str::from_utf8(&record.value) {
        Ok(text) => json["value"] = text.into(),
        Err(_) => json["value_hex"] = hexadecimal(&record.value).into(),
    }
    json
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What keeps a stale write out.
enum Guard {
    Token(Pass),
    Version(Option<leasehold::guard::Version>),
}

async fn put(context: Context, args: PutArgs) -> Outcome {
    Key::new(&args.key)?;
    let guard = guard(&args)?;
    let value = match args.value {
        Some(value) => value.into_bytes(),
        None => standard_input()?,
    };
    let store = open(&context, &args.place).await?;
    let version = match guard {
        Guard::Token(pass) => match store.write_fenced(&args.key, value, pass.clone()).await? {
            Fenced::Written { version } => version,
            Fenced::Refused { highest } => return Err(stale(&args.key, &pass, highest).into()),
        },
        Guard::Version(expected) => match store.write_if(&args.key, value, expected).await? {
            Checked::Written { version } => version,
            Checked::Changed { version } => return Err(changed(&args.key, version).into()),
        },
    };
    match context.json {
        true => output::json_line(&json!({"key": args.key, "version": version.get()}))?,
        false => output::line(&format!("version={version}"))?,
    }
    Ok(0)
}

fn guard(args: &PutArgs) -> leasehold::Result<Guard> {
    if args.new {
        return Ok(Guard::Version(None));
    }
    if let Some(version) = args.if_version {
        return Ok(Guard::Version(Some(version)));
    }
    let Some(token) = args.token else {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "nothing says what keeps a stale write out",
        )
        .advise("give --token, --if-version or --new, or call it within leasehold run, which sets LEASEHOLD_TOKEN"));
    };
    let token = FencingToken::new(token).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the token {token} is out of range"),
        )
        .advise("give the token of a lease: it is below 2^53")
    })?;
    let lock = args.lock.as_ref().map(LockName::new).transpose()?;
    Ok(Guard::Token(Pass { token, lock }))
}

fn standard_input() -> Outcome<Vec<u8>> {
    let mut value = Vec::new();
    // One byte more than is allowed is enough to be refused.
    let limit = leasehold::guard::MAX_VALUE as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut value)
        .map_err(|cause| unexpected("cannot read stdin", cause))?;
    Ok(value)
}

fn stale(key: &str, pass: &Pass, highest: FencingToken) -> Error {
    let token = pass.token;
    Error::new(
        ErrorKind::LeaseLost,
        format!("the record {key:?} refuses token {token}: {highest} has written already"),
    )
    .advise(
        "the lease was lost and a later holder has worked; give up, or start over under the lock",
    )
}

fn changed(key: &str, version: Option<leasehold::guard::Version>) -> Error {
    let now = match version {
        Some(version) => format!("it is at version {version} now"),
        None => "there is no record".to_owned(),
    };
    Error::new(
        ErrorKind::TimedOut,
        format!("the record {key:?} was not written: {now}"),
    )
    .advise("read it again, make the change anew, and write that")
}
