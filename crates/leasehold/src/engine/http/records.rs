//! Guarded records through a server.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::{Client, Repeat};
use crate::engine::wire::{RecordAnswer, RecordCall, RecordMessage};
use crate::error::Result;
use crate::guard::{Checked, Content, Fenced, GuardedStore, Key, Pass, Record, Version};

#[derive(Debug)]
pub(super) struct Records(pub(super) Arc<Client>);

impl Records {
    async fn call(&self, key: &Key, call: RecordCall, repeat: Repeat) -> Result<RecordAnswer> {
        let message = RecordMessage::new(key, call);
        let answer = self.0.call("/v1/engine/record", &message, repeat).await?;
        Ok(answer.what)
    }
}

#[async_trait]
impl GuardedStore for Records {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let read = self.call(key, RecordCall::Read, Repeat::Freely).await?;
        read.into_record()
    }

    async fn write_fenced(&self, key: &Key, content: Content<'_>, pass: &Pass) -> Result<Fenced> {
        let call = RecordCall::Fenced {
            content: (&content).into(),
            token: pass.token.get(),
            lock: pass.lock.as_ref().map(|lock| lock.as_str().to_owned()),
        };
        let written = self.call(key, call, Repeat::IfWithoutEffect).await?;
        written.into_fenced()
    }

    async fn write_if(
        &self,
        key: &Key,
        content: Content<'_>,
        version: Option<Version>,
    ) -> Result<Checked> {
        let call = RecordCall::If {
            content: (&content).into(),
            version: version.map(Version::get),
        };
        let written = self.call(key, call, Repeat::IfWithoutEffect).await?;
        written.into_checked()
    }
}
