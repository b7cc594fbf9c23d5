//! A lock as an item, and the conditions of its writes.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value as Json, json};

use super::client::{Client, Conditional, read};
use super::config::DynamoDbConfig;
use super::dialect::Dialect;
use super::doctor;
use super::failure;
use super::item::{Item, Value};
use super::records::Blobs;
use super::table::{EXPIRES, Table};
use crate::engine::cas::document::Document;
use crate::engine::cas::records::Records;
use crate::engine::cas::store::{CasStore, Found, Stored, Written};
use crate::engine::doctor::Finding;
use crate::engine::queue_rules;
use crate::engine::{Capabilities, Fairness, TokenSource};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::by_version::ByVersion;
use crate::guard::condition::{ConditionCheck, ConditionValue};
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

/// What stands before a lock's name in the key of its item.
const LOCK: &str = "lock:";

/// For how long the item of a lock is kept beyond the last claim in it, in seconds.
const KEPT: u64 = 7 * 24 * 60 * 60;

/// When the table may delete the item, in seconds since 1970.
fn expires(document: &Document, wall: u64) -> u64 {
    let holders = document.holders.iter().map(|holder| holder.ttl);
    let waiters = document.queue.iter().map(|waiter| waiter.ttl);
    let longest = holders.chain(waiters).max().unwrap_or(0);
    // The token is a time too: no clock that has stepped back makes an item end while its lock is held.
    let now = wall.max(document.token) / 1_000_000;
    now.saturating_add(longest / 1000).saturating_add(KEPT)
}

/// The locks of a table.
#[derive(Debug)]
pub(super) struct Items {
    client: Arc<Client>,
    config: DynamoDbConfig,
    table: Arc<Table>,
    dialect: Option<Dialect>,
    location: String,
}

impl Items {
    pub(super) fn new(
        client: Client,
        config: DynamoDbConfig,
        table: Table,
        location: String,
    ) -> Self {
        Self {
            client: Arc::new(client),
            dialect: config.dialect.map(Dialect::of),
            config,
            table: Arc::new(table),
            location,
        }
    }

    fn key_text(&self, name: &str) -> String {
        match self.dialect {
            Some(_) => name.to_owned(),
            None => format!("{LOCK}{name}"),
        }
    }

    fn key(&self, name: &LockName) -> Item {
        let mut key = Item::new();
        key.insert(
            self.table.key.clone(),
            Value::text(self.key_text(name.as_str())),
        );
        if let (Some(sort_key), Some(value)) = (&self.table.sort_key, &self.config.sort_key) {
            key.insert(sort_key.clone(), Value::text(value));
        }
        key
    }

    fn stored(&self, name: &LockName, item: &Item) -> Result<Stored> {
        match &self.dialect {
            Some(dialect) => dialect.stored(name, item),
            None => stored(name, item),
        }
    }

    async fn write(
        &self,
        name: &LockName,
        document: &Document,
        tag: Option<&str>,
    ) -> Result<Written> {
        let key = self.key(name);
        let (call, mut request, new_tag) = match &self.dialect {
            Some(dialect) => {
                let request = dialect.update(&key, &self.table.key, document, tag);
                ("UpdateItem", request, Dialect::version(document))
            }
            None => (
                "PutItem",
                self.put(key, document, tag),
                document.version.clone(),
            ),
        };
        request["TableName"] = json!(self.config.table);
        request["ReturnValuesOnConditionCheckFailure"] = json!("ALL_OLD");
        Ok(match self.client.write(call, &request).await? {
            Conditional::Done(_) => Written::Done(new_tag),
            Conditional::Refused(None) => Written::Changed(Found::Untold),
            Conditional::Refused(Some(item)) => {
                Written::Changed(Found::There(Box::new(self.stored(name, &item)?)))
            }
        })
    }

    fn put(&self, key: Item, document: &Document, tag: Option<&str>) -> Json {
        let mut item = key;
        item.insert("version".to_owned(), Value::text(&document.version));
        item.insert("token".to_owned(), Value::number(document.token));
        item.insert("document".to_owned(), Value::text(document.to_json()));
        // Whoever has not taken an offer yet must not write anything by it.
        let held = document.holders.iter().filter(|holder| !holder.offered);
        let held: Vec<_> = held.map(|holder| holder.token.to_string()).collect();
        if !held.is_empty() {
            item.insert("held".to_owned(), Value::Numbers(held));
        }
        // Also while it is in use: if everybody dies, nobody is left to write it again. Until then each renewal and each sign of life puts it off.
        let expires = expires(document, wall_clock_micros());
        item.insert(EXPIRES.to_owned(), Value::number(expires));
        if document.is_idle() {
            item.insert("idle".to_owned(), Value::number(1));
        }
        match tag {
            Some(tag) => json!({
                "Item": item,
                "ConditionExpression": "#v = :v",
                "ExpressionAttributeNames": { "#v": "version" },
                "ExpressionAttributeValues": { ":v": { "S": tag } },
            }),
            None => json!({
                "Item": item,
                "ConditionExpression": "attribute_not_exists(#k) OR (attribute_exists(#i) AND #t < :t)",
                "ExpressionAttributeNames": { "#k": self.table.key, "#i": "idle", "#t": "token" },
                "ExpressionAttributeValues": { ":t": Value::number(document.token) },
            }),
        }
    }
}

fn stored(name: &LockName, item: &Item) -> Result<Stored> {
    let Some(text) = item.get("document").and_then(Value::as_text) else {
        return Err(failure::foreign(name.as_str(), "it has no document"));
    };
    let document = Document::read(text.as_bytes())?;
    let tag = document.version.clone();
    Ok(Stored { document, tag })
}

#[async_trait]
impl CasStore for Items {
    fn scheme(&self) -> &'static str {
        "dynamodb"
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        let all = Capabilities {
            tokens: TokenSource::HybridClock,
            ..queue_rules::CAPABILITIES
        };
        match self.dialect {
            None => all,
            Some(_) => Capabilities {
                shared: false,
                permits: false,
                fairness: Fairness::Random,
                store: false,
                ..all
            },
        }
    }

    fn found(&self) -> Vec<Finding> {
        self.table.found.clone()
    }

    async fn findings(&self) -> Vec<Finding> {
        doctor::findings(&self.client, &self.config).await
    }

    async fn read(&self, name: &LockName) -> Result<Option<Stored>> {
        let item = self.client.get(&self.config.table, &self.key(name)).await?;
        item.map(|item| self.stored(name, &item)).transpose()
    }

    async fn create(&self, name: &LockName, document: &Document) -> Result<Written> {
        self.write(name, document, None).await
    }

    async fn replace(&self, name: &LockName, document: &Document, tag: &str) -> Result<Written> {
        self.write(name, document, Some(tag)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(LockName, Document)>> {
        let mut found = Vec::new();
        let mut request = json!({
            "TableName": self.config.table,
            "ConsistentRead": true,
        });
        let prefix = self.key_text(prefix);
        if !prefix.is_empty() {
            request["FilterExpression"] = json!("begins_with(#k, :p)");
            request["ExpressionAttributeNames"] = json!({ "#k": self.table.key });
            request["ExpressionAttributeValues"] = json!({ ":p": { "S": prefix } });
        }
        loop {
            let page = self.client.call("Scan", &request).await?;
            for item in page["Items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(read)
            {
                let key = item
                    .get(&self.table.key)
                    .and_then(Value::as_text)
                    .unwrap_or("");
                let key = match self.dialect {
                    Some(_) => Some(key),
                    None => key.strip_prefix(LOCK),
                };
                // Other sort keys are other locks; and one that cannot be read does not hide the rest.
                let is_ours = |name: &LockName| {
                    self.key(name)
                        .iter()
                        .all(|(part, value)| item.get(part) == Some(value))
                };
                if let Some(name) = key
                    .and_then(|name| LockName::stored(name).ok())
                    .filter(is_ours)
                    && let Ok(stored) = self.stored(&name, &item)
                {
                    found.push((name, stored.document));
                }
            }
            match page.get("LastEvaluatedKey").filter(|key| !key.is_null()) {
                Some(last) => request["ExclusiveStartKey"] = last.clone(),
                None => return Ok(found),
            }
        }
    }

    fn records(&self) -> Option<Arc<dyn GuardedStore>> {
        if self.dialect.is_some() {
            return None;
        }
        let blobs = Blobs {
            client: Arc::clone(&self.client),
            table: self.config.table.clone(),
            key: self.table.key.clone(),
        };
        Some(Arc::new(ByVersion(Records(blobs))))
    }

    fn condition_check(&self, name: &LockName, token: FencingToken) -> Option<ConditionCheck> {
        let (expression, names) = match self.dialect {
            Some(_) => Dialect::condition(),
            None => ("contains(#h, :t)", vec![("#h", "held")]),
        };
        let key = self.key(name).into_iter();
        let texts = key.filter_map(|(part, value)| Some((part, value.as_text()?.to_owned())));
        let names = names
            .into_iter()
            .map(|(short, long)| (short.to_owned(), long.to_owned()));
        Some(ConditionCheck {
            table: self.config.table.clone(),
            key: texts.collect(),
            expression: expression.to_owned(),
            names: names.collect(),
            values: vec![(":t".to_owned(), ConditionValue::Number(token.get()))],
        })
    }

    fn requests(&self) -> u64 {
        self.client.requests()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claim, Ttl};
    use crate::engine::cas::document::{Holder, Life};

    #[test]
    fn item_outlives_its_claims_though_a_clock_steps_back() {
        let claim = Claim {
            ttl: Ttl::sticky(std::time::Duration::from_secs(30 * 86_400)).unwrap(),
            ..Claim::example(1)
        };
        let mut document = Document::new("x");
        document.token = 2_000_000_000_000_000;
        let life = Life { beat: 1, at: 0 };
        document.holders.push(Holder::new(&claim, 1, life));
        for wall in [0, document.token] {
            assert_eq!(expires(&document, wall), 2_000_000_000 + 37 * 86_400);
        }
    }
}
