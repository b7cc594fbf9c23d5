//! Guarded records: an item each.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::client::{Client, Conditional};
use super::failure;
use super::item::{Item, Value};
use super::table::EXPIRES;
use crate::claim::fill_with_random;
use crate::engine::cas::records;
use crate::error::Result;
use crate::guard::Key;
use crate::guard::optimistic::{TRIES, unlucky};
use crate::token::wall_clock_micros;

/// What stands before a record's key in the key of its item.
const RECORD: &str = "record:";

#[derive(Debug)]
pub(super) struct Blobs {
    pub(super) client: Arc<Client>,
    pub(super) table: String,
    pub(super) key: String,
}

impl Blobs {
    fn item(&self, key: &Key) -> Item {
        let text = format!("{RECORD}{}", key.as_str());
        Item::from([(self.key.clone(), Value::text(text))])
    }
}

/// An item may have 400 KB. What is longer is in several: these parts are written first, each under the tag of the whole, and deleted when
/// something else is in its place.
const PART: usize = 300_000;

/// What stands before the tag in the key of a part.
const PART_OF: &str = "part:";

impl Blobs {
    fn part(&self, tag: &str, nth: u64) -> Item {
        let text = format!("{PART_OF}{tag}:{nth}");
        Item::from([(self.key.clone(), Value::text(text))])
    }

    /// Of what is there: its tag, and how many parts it has beside the first.
    fn parts(item: &Item) -> (String, u64) {
        let tag = item.get("tag").and_then(Value::as_text).unwrap_or("");
        let parts = item.get("parts").and_then(Value::as_number).unwrap_or(0);
        (tag.to_owned(), parts)
    }

    /// Whoever reads them at this moment reads anew.
    async fn drop_parts(&self, tag: &str, parts: u64) {
        for nth in 1..=parts {
            let request = json!({ "TableName": self.table, "Key": self.part(tag, nth) });
            let _ = self.client.call("DeleteItem", &request).await;
        }
    }

    /// Nothing if one of its parts is gone: something else is in its place.
    async fn whole(&self, key: &Key, item: &Item) -> Result<Option<(Vec<u8>, String)>> {
        let missing = || failure::foreign(key.as_str(), "it has no value");
        let mut bytes = item
            .get("value")
            .and_then(Value::as_bytes)
            .ok_or_else(missing)?;
        let (tag, parts) = Self::parts(item);
        // Of one whose lifetime is over only the end counts, which is in the first part. The others may be deleted before it.
        let ends = item.get(EXPIRES).and_then(Value::as_number);
        if ends.is_some_and(|ends| ends <= wall_clock_micros() / 1_000_000) {
            return Ok(Some((bytes, tag)));
        }
        for nth in 1..=parts {
            let Some(part) = self.client.get(&self.table, &self.part(&tag, nth)).await? else {
                return Ok(None);
            };
            let part = part.get("value").and_then(Value::as_bytes);
            bytes.extend(part.ok_or_else(missing)?);
        }
        Ok(Some((bytes, tag)))
    }
}

#[async_trait]
impl records::Blobs for Blobs {
    async fn get(&self, key: &Key) -> Result<Option<(Vec<u8>, String)>> {
        for _ in 0..TRIES {
            let Some(item) = self.client.get(&self.table, &self.item(key)).await? else {
                return Ok(None);
            };
            if let Some(whole) = self.whole(key, &item).await? {
                return Ok(Some(whole));
            }
        }
        Err(unlucky(key))
    }

    async fn put(
        &self,
        key: &Key,
        bytes: &[u8],
        tag: Option<&str>,
        ends: Option<u64>,
    ) -> Result<bool> {
        let mut random = [0; 16];
        fill_with_random(&mut random)?;
        let new_tag = format!("{:032x}", u128::from_ne_bytes(random));
        let mut item = self.item(key);
        let mut chunks = bytes.chunks(PART);
        let first = chunks.next().unwrap_or_default();
        item.insert("value".to_owned(), Value::bytes(first));
        item.insert("tag".to_owned(), Value::text(&new_tag));
        let mut parts = 0;
        for chunk in chunks {
            parts += 1;
            let mut part = self.part(&new_tag, parts);
            part.insert("value".to_owned(), Value::bytes(chunk));
            if let Some(ends) = ends {
                part.insert(EXPIRES.to_owned(), Value::number(ends));
            }
            let request = json!({ "TableName": self.table, "Item": part });
            self.client.call("PutItem", &request).await?;
        }
        if parts > 0 {
            item.insert("parts".to_owned(), Value::number(parts));
        }
        if let Some(ends) = ends {
            item.insert(EXPIRES.to_owned(), Value::number(ends));
        }
        let mut request = self.if_there(tag);
        request["Item"] = json!(item);
        match self.client.write("PutItem", &request).await? {
            Conditional::Done(before) => {
                let (tag, parts) = before.as_ref().map(Self::parts).unwrap_or_default();
                self.drop_parts(&tag, parts).await;
                Ok(true)
            }
            Conditional::Refused(there) => {
                let there = match there {
                    None => self.client.get(&self.table, &self.item(key)).await?,
                    told => told,
                };
                // Something on the way may have sent it twice: it was refused because it had been carried out.
                if there.is_some_and(|there| Self::parts(&there).0 == new_tag) {
                    return Ok(true);
                }
                self.drop_parts(&new_tag, parts).await;
                Ok(false)
            }
        }
    }

    async fn remove(&self, key: &Key, tag: &str, _over: &[u8]) -> Result<bool> {
        let mut request = self.if_there(Some(tag));
        request["Key"] = json!(self.item(key));
        match self.client.write("DeleteItem", &request).await? {
            Conditional::Done(before) => {
                let (tag, parts) = before.as_ref().map(Self::parts).unwrap_or_default();
                self.drop_parts(&tag, parts).await;
                Ok(true)
            }
            Conditional::Refused(_) => Ok(false),
        }
    }
}

impl Blobs {
    fn if_there(&self, tag: Option<&str>) -> serde_json::Value {
        match tag {
            Some(tag) => json!({
                "TableName": self.table,
                "ReturnValues": "ALL_OLD",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                "ConditionExpression": "#g = :g",
                "ExpressionAttributeNames": { "#g": "tag" },
                "ExpressionAttributeValues": { ":g": { "S": tag } },
            }),
            None => json!({
                "TableName": self.table,
                "ReturnValues": "ALL_OLD",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                "ConditionExpression": "attribute_not_exists(#k)",
                "ExpressionAttributeNames": { "#k": self.key },
            }),
        }
    }
}
