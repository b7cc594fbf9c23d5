//! Locks as other programs keep them: the lock client for Java, and `dynamolock` for Go.
//!
//! Their row has an owner, a lease duration and a *record version number* that is new with each heartbeat; whoever waits times that number on its
//! own clock, as we do. A row of theirs is a document with one holder and no queue. What only we know stands beside it, in attributes of our own,
//! and counts as long as the record version number is the one that we wrote.

use std::time::Duration;

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::config::LockDialect;
use super::failure;
use super::item::{Item, Value};
use crate::engine::cas::document::{Document, Holder, Life, Signature};
use crate::engine::cas::store::Stored;
use crate::engine::meta::Meta;
use crate::error::Result;
use crate::name::LockName;

const OWNER: &str = "ownerName";
const LEASE: &str = "leaseDuration";
const VERSION: &str = "recordVersionNumber";
const RELEASED: &str = "isReleased";

/// Our token: the greatest that was given, as long as the row is not deleted.
const TOKEN: &str = "leaseholdToken";
/// Our holder, as in a document of our own.
const HOLDER: &str = "leaseholdHolder";
/// The record version number that our holder was written with.
const WRITTEN: &str = "leaseholdVersion";

/// A time that no clock reaches: theirs do not tell when they wrote.
const NEVER: u64 = u64::MAX / 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect(LockDialect);

impl Dialect {
    pub(super) fn of(dialect: LockDialect) -> Self {
        Self(dialect)
    }

    fn lease(self, ttl: u64) -> String {
        match self.0 {
            LockDialect::Java => ttl.to_string(),
            LockDialect::Go => format!("{ttl}ms"),
        }
    }

    /// In milliseconds.
    fn ttl(self, lease: &str) -> Option<u64> {
        match self.0 {
            LockDialect::Java => lease.parse().ok(),
            LockDialect::Go => {
                go_duration(lease).map(|time| time.as_millis().try_into().unwrap_or(u64::MAX))
            }
        }
    }

    /// A version of ours as a record version number: a UUID, as theirs are.
    pub(super) fn version(document: &Document) -> String {
        let version = &document.version;
        let part = |from, to| version.get(from..to).unwrap_or("");
        [
            part(0, 8),
            part(8, 12),
            part(12, 16),
            part(16, 20),
            part(20, 32),
        ]
        .join("-")
    }

    pub(super) fn stored(self, name: &LockName, item: &Item) -> Result<Stored> {
        let text = |attribute: &str| item.get(attribute).and_then(Value::as_text);
        let Some(tag) = text(VERSION) else {
            return Err(failure::foreign(
                name.as_str(),
                "it has no record version number",
            ));
        };
        let mut document = Document::new(name.as_str());
        document.token = item.get(TOKEN).and_then(Value::as_number).unwrap_or(0);
        let ours = text(WRITTEN) == Some(tag);
        document.version = match ours {
            true => tag.replace('-', ""),
            false => tag.to_owned(),
        };
        if !item.contains_key(RELEASED) {
            let holder = text(HOLDER).filter(|_| ours);
            let holder = holder.and_then(|holder| serde_json::from_str(holder).ok());
            document.holders.push(match holder {
                Some(holder) => holder,
                None => self.foreign(name, item, tag)?,
            });
        }
        Ok(Stored {
            document,
            tag: tag.to_owned(),
        })
    }

    fn foreign(self, name: &LockName, item: &Item, tag: &str) -> Result<Holder> {
        let text = |attribute: &str| item.get(attribute).and_then(Value::as_text);
        let Some(ttl) = text(LEASE).and_then(|lease| self.ttl(lease)) else {
            return Err(failure::foreign(
                name.as_str(),
                "its lease duration is not one of this dialect",
            ));
        };
        let owner = text(OWNER).unwrap_or("unknown");
        let digest = Sha256::digest(tag.as_bytes());
        let mut beat = [0; 8];
        beat.copy_from_slice(&digest[..8]);
        let life = Life {
            beat: u64::from_be_bytes(beat),
            at: NEVER,
        };
        Ok(Holder::foreign(owner, ttl, life, Meta::foreign(owner)))
    }

    /// The request that makes a row of the document: in the place of what has this tag, or of nothing, or of a row that was released.
    pub(super) fn update(
        self,
        key: &Item,
        partition: &str,
        document: &Document,
        tag: Option<&str>,
    ) -> Json {
        let version = Self::version(document);
        let mut names =
            json!({ "#v": VERSION, "#t": TOKEN, "#w": WRITTEN, "#r": RELEASED, "#h": HOLDER });
        let mut values = json!({ ":v": { "S": version }, ":t": Value::number(document.token) });
        let change = match document.holders.first() {
            Some(holder) => {
                names["#o"] = json!(OWNER);
                names["#l"] = json!(LEASE);
                values[":o"] = json!({ "S": owner(holder) });
                values[":l"] = json!({ "S": self.lease(holder.ttl) });
                values[":h"] = json!({ "S": serde_json::to_string(holder).unwrap_or_default() });
                "SET #o = :o, #l = :l, #v = :v, #t = :t, #w = :v, #h = :h REMOVE #r"
            }
            // A row of its own: other clients fail on one without these two.
            None if tag.is_none() => {
                names["#o"] = json!(OWNER);
                names["#l"] = json!(LEASE);
                values[":o"] = json!({ "S": "leasehold" });
                values[":l"] = json!({ "S": self.lease(1000) });
                values[":r"] = json!({ "S": "1" });
                "SET #o = :o, #l = :l, #r = :r, #v = :v, #t = :t, #w = :v REMOVE #h"
            }
            None => {
                values[":r"] = json!({ "S": "1" });
                "SET #r = :r, #v = :v, #t = :t, #w = :v REMOVE #h"
            }
        };
        let condition = match tag {
            Some(tag) => {
                values[":s"] = json!({ "S": tag });
                "#v = :s"
            }
            None => {
                names["#k"] = json!(partition);
                values[":yes"] = json!({ "S": "1" });
                "attribute_not_exists(#k) OR (#r = :yes AND (attribute_not_exists(#t) OR #t < :t))"
            }
        };
        json!({
            "Key": key,
            "UpdateExpression": change,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        })
    }

    /// That a row is held with a token of ours.
    pub(super) fn condition() -> (&'static str, Vec<(&'static str, &'static str)>) {
        (
            "#t = :t AND #w = #v AND attribute_not_exists(#r)",
            vec![
                ("#t", TOKEN),
                ("#w", WRITTEN),
                ("#v", VERSION),
                ("#r", RELEASED),
            ],
        )
    }
}

/// One for each claim: theirs is one for each client, and tells whether a row is its own.
fn owner(holder: &Holder) -> String {
    let (who, _) = holder.who.clone().split();
    format!(
        "{}-{}-{}",
        who.host,
        who.pid,
        Signature::as_str(&holder.claim)
    )
}

/// As Go writes and reads them: `20s`, `1m30s`, `1.5h`, `300ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let worth = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * worth;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;

    fn name() -> LockName {
        LockName::new("x").unwrap()
    }

    fn row(attributes: &[(&str, &str)]) -> Item {
        let attributes = attributes.iter();
        attributes
            .map(|(name, value)| (name.to_string(), Value::text(*value)))
            .collect()
    }

    /// What UpdateItem would make of an empty row.
    fn made(request: &Json) -> Item {
        let change = request["UpdateExpression"].as_str().unwrap();
        let set = change
            .strip_prefix("SET ")
            .unwrap()
            .split(" REMOVE ")
            .next()
            .unwrap();
        set.split(", ")
            .map(|part| {
                let (name, value) = part.split_once(" = ").unwrap();
                let name = request["ExpressionAttributeNames"][name].as_str().unwrap();
                let value = &request["ExpressionAttributeValues"][value];
                (
                    name.to_owned(),
                    serde_json::from_value(value.clone()).unwrap(),
                )
            })
            .collect()
    }

    /// As when a release settles whether a lock was taken whose row is not there.
    #[test]
    fn new_row_that_nobody_holds_can_be_read_by_others() {
        for dialect in [LockDialect::Java, LockDialect::Go].map(Dialect::of) {
            let mut document = Document::new("x");
            document.token = 5;
            let row = made(&dialect.update(&Item::new(), "key", &document, None));
            for attribute in [OWNER, LEASE, RELEASED, VERSION] {
                let value = row.get(attribute).and_then(Value::as_text);
                assert!(value.is_some(), "{attribute}");
            }
        }
    }

    #[test]
    fn row_of_ours_is_read_back_as_it_was_written() {
        for dialect in [LockDialect::Java, LockDialect::Go].map(Dialect::of) {
            let life = Life { beat: 7, at: 1 };
            let mut document = Document::new("x");
            document.version = format!("{:016x}{:016x}", 1, 7);
            document.token = 5;
            document
                .holders
                .push(Holder::new(&Claim::example(1), 5, life));
            let row = made(&dialect.update(&Item::new(), "key", &document, None));
            assert_eq!(
                row[VERSION].as_text(),
                Some("00000000-0000-0001-0000-000000000007")
            );
            let stored = dialect.stored(&name(), &row).unwrap();
            assert_eq!(stored.document, document);
            document.holders.clear();
            let row = made(&dialect.update(&Item::new(), "key", &document, Some(&stored.tag)));
            assert_eq!(dialect.stored(&name(), &row).unwrap().document, document);
        }
    }

    #[test]
    fn row_of_theirs_is_one_holder_until_it_is_released() {
        let java = Dialect::of(LockDialect::Java);
        let held = [(OWNER, "them"), (LEASE, "20000"), (VERSION, "abc")];
        let stored = java.stored(&name(), &row(&held)).unwrap();
        assert_eq!(stored.document.holders[0].ttl, 20_000);
        // Ours beside it, which they have not removed, counts no more.
        let mut mixed = row(&held);
        mixed.insert(WRITTEN.to_owned(), Value::text("old"));
        mixed.insert(HOLDER.to_owned(), Value::text("{}"));
        mixed.insert(TOKEN.to_owned(), Value::number(9));
        let after = java.stored(&name(), &mixed).unwrap();
        assert_eq!(after.document.holders, stored.document.holders);
        assert_eq!(after.document.token, 9);
        let mut released = row(&held);
        released.insert(RELEASED.to_owned(), Value::text("1"));
        assert!(java.stored(&name(), &released).unwrap().document.is_idle());
        for bad in [row(&[(OWNER, "x")]), row(&[(LEASE, "20s"), (VERSION, "v")])] {
            assert!(java.stored(&name(), &bad).unwrap_err().advice().is_some());
        }
    }

    #[test]
    fn durations_of_go_are_read() {
        let table = [
            ("20s", 20_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("300ms", 300),
            ("1h0m0.25s", 3_600_250),
        ];
        for (text, millis) in table {
            assert_eq!(
                go_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for bad in ["", "20", "s", "20x", "1s2", "-1s"] {
            assert_eq!(go_duration(bad), None, "{bad}");
        }
    }
}
