//! For the user's own items on DynamoDB: a condition in their transaction, so that it happens only while the lock is still held.
//!
//! No clock is asked and no token is compared with a greater one: the table that keeps the lock says in the same transaction whether this lease
//! holds it. A holder that was stopped for longer than its TTL is refused as soon as another has the lock.
//!
//! ```no_run
//! # async fn example() -> leasehold::Result<()> {
//! let locks = leasehold::Locks::connect("dynamodb://locks?region=eu-west-1").await?;
//! let lease = locks.lock("orders/42").acquire().await?;
//! let check = lease.condition_check()?;
//! // As one more item of TransactWriteItems, beside the writes that need the lock.
//! println!("{}", check.to_json());
//! # Ok(())
//! # }
//! ```

use std::fmt::Write;

/// One `ConditionCheck` of a transaction: in parts for an SDK, or as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConditionCheck {
    /// The table that keeps the lock.
    pub table: String,
    /// The names and values of the key's attributes; all are strings.
    pub key: Vec<(String, String)>,
    /// The condition, with placeholders.
    pub expression: String,
    /// The placeholders for names.
    pub names: Vec<(String, String)>,
    /// The placeholders for values.
    pub values: Vec<(String, ConditionValue)>,
}

/// A value of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConditionValue {
    /// `S`.
    String(String),
    /// `N`.
    Number(u64),
}

impl ConditionCheck {
    /// As an item of `TransactItems`: `{"ConditionCheck": {…}}`.
    pub fn to_json(&self) -> String {
        let mut json = format!(
            "{{\"ConditionCheck\":{{\"TableName\":{}",
            quoted(&self.table)
        );
        let key = self.key.iter().map(|(name, value)| (name, string(value)));
        let names = self.names.iter().map(|(name, value)| (name, quoted(value)));
        let values = self.values.iter().map(|(name, value)| {
            let value = match value {
                ConditionValue::String(value) => string(value),
                ConditionValue::Number(value) => format!("{{\"N\":\"{value}\"}}"),
            };
            (name, value)
        });
        let _ = write!(json, ",\"Key\":{}", object(key));
        let _ = write!(
            json,
            ",\"ConditionExpression\":{}",
            quoted(&self.expression)
        );
        let _ = write!(json, ",\"ExpressionAttributeNames\":{}", object(names));
        let _ = write!(
            json,
            ",\"ExpressionAttributeValues\":{}}}}}",
            object(values)
        );
        json
    }
}

fn object<'a>(members: impl Iterator<Item = (&'a String, String)>) -> String {
    let members = members.map(|(name, value)| format!("{}:{value}", quoted(name)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn string(text: &str) -> String {
    format!("{{\"S\":{}}}", quoted(text))
}

/// As a JSON string.
fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(json, "\\u{:04x}", u32::from(letter));
            }
            letter => json.push(letter),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_json_whatever_the_name() {
        let check = ConditionCheck {
            table: "locks".to_owned(),
            key: vec![("key".to_owned(), "lock:\"a\\b\u{1}\u{1f512}".to_owned())],
            expression: "contains(#h, :t)".to_owned(),
            names: vec![("#h".to_owned(), "held".to_owned())],
            values: vec![
                (":t".to_owned(), ConditionValue::Number(7)),
                (":s".to_owned(), ConditionValue::String("x".to_owned())),
            ],
        };
        assert_eq!(
            check.to_json(),
            "{\"ConditionCheck\":{\"TableName\":\"locks\",\"Key\":{\"key\":{\"S\":\"lock:\\\"a\\\\b\\u0001\u{1f512}\"}},\
             \"ConditionExpression\":\"contains(#h, :t)\",\"ExpressionAttributeNames\":{\"#h\":\"held\"},\
             \"ExpressionAttributeValues\":{\":t\":{\"N\":\"7\"},\":s\":{\"S\":\"x\"}}}}"
        );
    }
}
