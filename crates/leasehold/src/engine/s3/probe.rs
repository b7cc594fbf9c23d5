//! Whether the store honours conditions: one that ignores them would let everybody in.

use super::client::{Client, If};
use super::failure;
use super::keys::Keys;
use crate::error::Result;

/// The hash of nothing that is ever there.
const NO_TAG: &str = "\"00000000000000000000000000000000\"";

const BODY: &[u8] =
    b"{\"format\":0,\"what\":\"leasehold tries here whether conditions of writes are honoured\"}";

/// Two writes that must be refused; and before them, once for all, the one that makes the object.
pub(super) async fn conditions_hold(client: &Client, keys: &Keys) -> Result<()> {
    let made = client.put(&keys.probe, BODY.to_vec(), If::Absent).await?;
    if made.is_some()
        && client
            .put(&keys.probe, BODY.to_vec(), If::Absent)
            .await?
            .is_some()
    {
        return Err(failure::unfit(
            "it writes an object that is there although If-None-Match forbids it".to_owned(),
        ));
    }
    if client
        .put(&keys.probe, BODY.to_vec(), If::Tagged(NO_TAG))
        .await?
        .is_some()
    {
        return Err(failure::unfit(
            "it writes an object although If-Match forbids it".to_owned(),
        ));
    }
    Ok(())
}
