//! `leasehold store`: guarded records, for scripts.

use std::io::Read;

use leasehold::guard::{Checked, Fenced, FileStore, Key, Pass, Record, Store, Version};
use leasehold::{Error, ErrorKind, FencingToken, LockName};
use serde_json::json;

use super::Context;
use crate::args::{
    DeleteArgs, GetArgs, GuardArgs, PutArgs, StoreArgs, StoreCommand, StoreLocation,
};
use crate::exit::{Failure, Outcome, unexpected};
use crate::output;

pub(super) async fn store(context: Context, args: StoreArgs) -> Outcome {
    match args.command {
        StoreCommand::Get(args) => get(context, args).await,
        StoreCommand::Put(args) => put(context, args).await,
        StoreCommand::Delete(args) => delete(context, args).await,
    }
}

async fn open(context: &Context, location: &StoreLocation) -> Outcome<Store> {
    match &location.dir {
        Some(folder) => Ok(FileStore::open(folder)?),
        None => Ok(context.connect().await?.store()?),
    }
}

async fn get(context: Context, args: GetArgs) -> Outcome {
    Key::new(&args.key)?;
    let store = open(&context, &args.location).await?;
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
        (false, false) => output::bytes(&record.value)?,
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
    // JSON has no bytes: a value that is not UTF-8 is printed as hexadecimal digits.
    match std::str::from_utf8(&record.value) {
        Ok(text) => json["value"] = text.into(),
        Err(_) => json["value_hex"] = hexadecimal(&record.value).into(),
    }
    json
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a write is checked against.
enum Guard {
    Token(Pass),
    Version(Version),
}

async fn put(context: Context, args: PutArgs) -> Outcome {
    Key::new(&args.key)?;
    let guard = match args.new {
        true => None,
        false => Some(guard(&args.guard, "--token, --if-version or --new")?),
    };
    let value = match args.value {
        Some(value) => value.into_bytes(),
        None => standard_input()?,
    };
    let store = open(&context, &args.location).await?;
    let key = &args.key;
    let expected = match guard {
        None => Ok(None),
        Some(Guard::Version(version)) => Ok(Some(version)),
        Some(Guard::Token(pass)) => Err(pass),
    };
    let version = match expected {
        Ok(version) => checked(key, "written", store.write_if(key, value, version).await?)?,
        Err(pass) => {
            let written = store.write_fenced(key, value, pass.clone()).await?;
            fenced(key, &pass, written)?
        }
    };
    match context.json {
        true => output::json_line(&json!({"key": key, "version": version.get()}))?,
        false => output::line(&format!("version={version}"))?,
    }
    Ok(0)
}

async fn delete(context: Context, args: DeleteArgs) -> Outcome {
    Key::new(&args.key)?;
    let guard = guard(&args.guard, "--token or --if-version")?;
    let store = open(&context, &args.location).await?;
    let key = &args.key;
    match guard {
        Guard::Token(pass) => fenced(key, &pass, store.delete(key, pass.clone()).await?)?,
        Guard::Version(version) => checked(key, "deleted", store.delete_if(key, version).await?)?,
    };
    match context.json {
        true => output::json_line(&json!({"key": key, "deleted": true}))?,
        false => output::line("deleted")?,
    }
    Ok(0)
}

/// The guard from the arguments or the environment. `options` names those that would set it.
fn guard(args: &GuardArgs, options: &str) -> leasehold::Result<Guard> {
    if let Some(version) = args.if_version {
        return Ok(Guard::Version(version));
    }
    let Some(token) = args.token else {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "neither a token nor a version to check the write against was given",
        )
        .advise(format!(
            "give {options}, or run it under `leasehold run`, which sets LEASEHOLD_TOKEN"
        )));
    };
    let token = FencingToken::new(token).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the token {token} is out of range"),
        )
        .advise("give the token of a lease, which is below 2^53")
    })?;
    let lock = args.lock.as_ref().map(LockName::new).transpose()?;
    Ok(Guard::Token(match lock {
        Some(lock) => Pass::new(token, lock),
        None => token.into(),
    }))
}

fn standard_input() -> Outcome<Vec<u8>> {
    let mut value = Vec::new();
    // One byte more than the limit is enough to be rejected.
    let limit = leasehold::guard::MAX_VALUE as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut value)
        .map_err(|cause| unexpected("cannot read stdin", cause))?;
    Ok(value)
}

fn fenced(key: &str, pass: &Pass, result: Fenced) -> leasehold::Result<Version> {
    let highest = match result {
        Fenced::Written { version } => return Ok(version),
        Fenced::Refused { highest } => highest,
    };
    let token = pass.token;
    Err(Error::new(
        ErrorKind::LeaseLost,
        format!("the record {key:?} rejects token {token}: token {highest} has written already"),
    )
    .advise(
        "the lease was lost and a later holder has written; stop, or start over under the lock",
    ))
}

fn checked(key: &str, what: &str, result: Checked) -> leasehold::Result<Version> {
    let now = match result {
        Checked::Written { version } => return Ok(version),
        Checked::Changed {
            version: Some(version),
        } => format!("it has version {version} now"),
        Checked::Changed { version: None } => "there is no record".to_owned(),
    };
    Err(Error::new(
        ErrorKind::TimedOut,
        format!("the record {key:?} was not {what}: {now}"),
    )
    .advise("read the record again, then retry"))
}
