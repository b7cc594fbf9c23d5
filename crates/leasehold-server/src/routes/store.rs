//! Guarded records.

use axum::extract::State as Extract;
use leasehold::engine::wire::{decode_base64, encode_base64, pass};
use leasehold::guard::{Checked, Fenced, Pass, Version};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::Answer;
use crate::access::{Caller, Scope};
use crate::problem::Problem;
use crate::request::{Json, Named, RECORD, lock_name};
use crate::state::State;

pub(crate) async fn read(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(key): Named,
) -> Answer<Value> {
    caller.key(Scope::Read, &key)?;
    let Some(record) = state.locks().store()?.read(&key).await? else {
        return Err(
            Problem::new("no_record", format!("there is no record {key:?}"))
                .advise("check the key, or write it"),
        );
    };
    let mut shown = json!({
        "key": key,
        "version": record.version.get(),
        "token": record.token.get(),
        "lock": record.lock.as_ref().map(|lock| lock.as_str()),
    });
    let (name, value) = match String::from_utf8(record.value) {
        Ok(text) => ("value", text),
        Err(bytes) => ("value_base64", encode_base64(bytes.as_bytes())),
    };
    shown[name] = value.into();
    Ok(axum::Json(shown))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WriteForm {
    value: Option<String>,
    value_base64: Option<String>,
    token: Option<u64>,
    lock: Option<String>,
    #[serde(deserialize_with = "given")]
    version: Option<Option<u64>>,
}

/// Tells null from what is missing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// On which condition a record is written.
enum Condition {
    Fenced(Pass),
    Version(Option<Version>),
}

impl WriteForm {
    fn condition(&self) -> Result<Condition, Problem> {
        match (self.token, self.version) {
            (Some(token), None) => {
                let lock = self.lock.as_deref().map(lock_name).transpose()?;
                let mut pass = pass(token, None)?;
                pass.lock = lock;
                Ok(Condition::Fenced(pass))
            }
            (None, Some(version)) if self.lock.is_none() => {
                Ok(Condition::Version(version.map(Version::new)))
            }
            _ => Err(
                Problem::invalid("a write needs a condition").advise(
                    "give either \"token\", and perhaps its \"lock\", or \"version\" (null: there is none)",
                ),
            ),
        }
    }

    fn value(&self) -> Result<Vec<u8>, Problem> {
        match (&self.value, &self.value_base64) {
            (Some(text), None) => Ok(text.clone().into_bytes()),
            (None, Some(text)) => Ok(decode_base64(text)?),
            _ => Err(Problem::invalid("a write needs a value")
                .advise("give either \"value\" or \"value_base64\"")),
        }
    }

    fn has_value(&self) -> bool {
        self.value.is_some() || self.value_base64.is_some()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Written {
    key: String,
    version: u64,
}

pub(crate) async fn write(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(key): Named,
    Json(form): Json<WriteForm, RECORD>,
) -> Answer<Written> {
    caller.key(Scope::Hold, &key)?;
    let value = form.value()?;
    let store = state.locks().store()?;
    match form.condition()? {
        Condition::Fenced(pass) => fenced(&key, store.write_fenced(&key, value, pass).await?),
        Condition::Version(version) => checked(&key, store.write_if(&key, value, version).await?),
    }
}

pub(crate) async fn delete(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(key): Named,
    Json(form): Json<WriteForm>,
) -> Answer<Written> {
    caller.key(Scope::Hold, &key)?;
    if form.has_value() {
        return Err(Problem::invalid("a deleted record has no value")
            .advise("leave \"value\" and \"value_base64\" out"));
    }
    let store = state.locks().store()?;
    match form.condition()? {
        Condition::Fenced(pass) => fenced(&key, store.delete(&key, pass).await?),
        Condition::Version(Some(version)) => checked(&key, store.delete_if(&key, version).await?),
        Condition::Version(None) => Err(Problem::invalid("there is nothing to delete")
            .advise("give the version that the record was read with")),
    }
}

fn fenced(key: &str, written: Fenced) -> Answer<Written> {
    match written {
        Fenced::Written { version } => Ok(axum::Json(Written {
            key: key.to_owned(),
            version: version.get(),
        })),
        Fenced::Refused { highest } => Err(Problem::new(
            "stale",
            format!("a later holder has written with token {highest}"),
        )
        .advise("stop the work: the lock was lost")
        .with("highest", highest.get())),
    }
}

fn checked(key: &str, written: Checked) -> Answer<Written> {
    match written {
        Checked::Written { version } => Ok(axum::Json(Written {
            key: key.to_owned(),
            version: version.get(),
        })),
        Checked::Changed { version } => Err(Problem::new(
            "changed",
            "someone else has written in between",
        )
        .advise("read the record again, and decide anew")
        .with("version", version.map(Version::get))),
    }
}
