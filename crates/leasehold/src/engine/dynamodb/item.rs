//! Items: attributes and their types, as DynamoDB writes them in JSON.

use std::collections::BTreeMap;

use reqsign_core::hash::{base64_decode, base64_encode};
use serde::{Deserialize, Serialize};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Value {
    S(String),
    N(String),
    /// In base64.
    B(String),
    #[serde(rename = "NS")]
    Numbers(Vec<String>),
    /// Others that are of no use here.
    #[serde(untagged)]
    Other(serde_json::Value),
}

pub(super) type Item = BTreeMap<String, Value>;

impl Value {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::S(text.into())
    }

    pub(super) fn number(number: u64) -> Self {
        Self::N(number.to_string())
    }

    pub(super) fn bytes(bytes: &[u8]) -> Self {
        Self::B(base64_encode(bytes))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::S(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_number(&self) -> Option<u64> {
        match self {
            Self::N(number) => number.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn as_bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::B(bytes) => base64_decode(bytes).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_whatever_is_in_them() {
        let json = r#"{"a":{"S":"x"},"b":{"N":"7"},"c":{"BOOL":true},"d":{"M":{"e":{"S":"y"}}},"f":{"B":"AAE="},"g":{"NS":["1","2"]},"h":{"NULL":true}}"#;
        let item: Item = serde_json::from_str(json).unwrap();
        assert_eq!(item["a"].as_text(), Some("x"));
        assert_eq!(item["b"].as_number(), Some(7));
        assert_eq!(item["f"].as_bytes(), Some(vec![0, 1]));
        assert!(matches!(item["d"], Value::Other(_)) && item["c"].as_text().is_none());
        let again: Item = serde_json::from_str(&serde_json::to_string(&item).unwrap()).unwrap();
        assert_eq!(again, item);
    }
}
