//! Guarded records: a hash each, written by one script.

use std::sync::LazyLock;

use async_trait::async_trait;
use redis::Script;

use super::failure;
use super::keys::Keys;
use super::protocol::Call;
use super::servers::Servers;
use crate::error::Result;
use crate::guard::{
    Checked, Content, Fenced, GuardedStore, Key, Pass, Record, Version, other_lock,
};
use crate::name::LockName;
use crate::token::FencingToken;

static WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/record.lua")));

#[derive(Debug)]
pub(super) struct Records {
    servers: Servers,
    keys: Keys,
}

impl Records {
    pub(super) fn on(servers: Servers, keys: Keys) -> Self {
        Self { servers, keys }
    }

    async fn write(
        &self,
        key: &Key,
        content: Content<'_>,
        how: [&str; 3],
    ) -> Result<(String, String)> {
        let what = match content.value {
            Some(_) => "put",
            None => "delete",
        };
        // One of zero deletes the key.
        let lifetime = content.lifetime_micros();
        let lifetime = lifetime.map_or(String::new(), |micros| micros.div_ceil(1000).to_string());
        let value = content.value.unwrap_or_default();
        let key = self.keys.record(key);
        let call = Call::new(&WRITE, &[&key])
            .arg(what)
            .arg(value)
            .arg(lifetime)
            .arg(&how[..]);
        self.servers.call(&key, &call).await
    }
}

fn version(text: &str) -> Result<Version> {
    text.parse().map_err(|_| nonsense(text))
}

fn token(text: &str) -> Result<FencingToken> {
    let number = text.parse().ok().and_then(FencingToken::new);
    number.ok_or_else(|| nonsense(text))
}

fn nonsense(text: &str) -> crate::Error {
    failure::nonsense(&[text.to_owned()])
}

#[async_trait]
impl GuardedStore for Records {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let (mut command, key) = (redis::cmd("HMGET"), self.keys.record(key));
        command
            .arg(&key)
            .arg(&["value", "version", "token", "lock"][..]);
        type Fields = (
            Option<Vec<u8>>,
            Option<String>,
            Option<String>,
            Option<String>,
        );
        let (value, at, by, lock): Fields = self.servers.send(&key, &command).await?;
        let (Some(value), Some(at), Some(by)) = (value, at, by) else {
            return Ok(None);
        };
        Ok(Some(Record {
            value,
            version: version(&at)?,
            token: token(&by)?,
            lock: lock.and_then(|name| LockName::new(name).ok()),
        }))
    }

    async fn write_fenced(&self, key: &Key, content: Content<'_>, pass: &Pass) -> Result<Fenced> {
        let number = pass.token.to_string();
        let lock = pass.lock.as_ref().map_or("", LockName::as_str);
        let (what, told) = self.write(key, content, ["fenced", &number, lock]).await?;
        match (what.as_str(), &pass.lock) {
            ("written", _) => Ok(Fenced::Written {
                version: version(&told)?,
            }),
            ("refused", _) => Ok(Fenced::Refused {
                highest: token(&told)?,
            }),
            ("other lock", Some(given)) => Err(other_lock(&told, given)),
            _ => Err(nonsense(&what)),
        }
    }

    async fn write_if(
        &self,
        key: &Key,
        content: Content<'_>,
        expected: Option<Version>,
    ) -> Result<Checked> {
        let number = expected.map_or(String::new(), |version| version.to_string());
        let (what, told) = self.write(key, content, ["checked", &number, ""]).await?;
        match what.as_str() {
            "written" => Ok(Checked::Written {
                version: version(&told)?,
            }),
            "changed" if told.is_empty() => Ok(Checked::Changed { version: None }),
            "changed" => Ok(Checked::Changed {
                version: Some(version(&told)?),
            }),
            _ => Err(nonsense(&what)),
        }
    }
}
