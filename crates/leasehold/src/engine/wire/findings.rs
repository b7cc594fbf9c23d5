//! What a server's engine is found to mean for locks.

use serde::{Deserialize, Serialize};

use crate::engine::doctor::{Finding, Weight};

/// Asks what the set-up means for locks of this TTL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FindingsRequest {
    /// In milliseconds.
    pub ttl_ms: u64,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FindingsMessage {
    /// All that was found.
    pub findings: Vec<FindingMessage>,
}

/// A [`Finding`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FindingMessage {
    /// See [`Finding::id`].
    pub id: String,
    /// See [`Finding::place`].
    pub place: Option<String>,
    /// See [`Finding::seen`].
    pub seen: String,
    /// See [`Finding::means`].
    pub means: String,
    /// See [`Finding::fix`].
    pub fix: String,
    /// See [`Weight::as_str`].
    pub weight: String,
    /// See [`Finding::accepted`].
    pub accepted: bool,
}

impl From<&Finding> for FindingMessage {
    fn from(finding: &Finding) -> Self {
        Self {
            id: finding.id.to_owned(),
            place: finding.place.clone(),
            seen: finding.seen.clone(),
            means: finding.means.clone(),
            fix: finding.fix.clone(),
            weight: finding.weight.as_str().to_owned(),
            accepted: finding.accepted,
        }
    }
}

impl From<FindingMessage> for Finding {
    /// What another version knows and this one does not is still told, under a name that this one has.
    fn from(told: FindingMessage) -> Self {
        Self {
            id: Finding::known(&told.id).unwrap_or("settings"),
            place: told.place,
            seen: told.seen,
            means: told.means,
            fix: told.fix,
            weight: Weight::read(&told.weight).unwrap_or(Weight::Unknown),
            accepted: told.accepted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_read_back() {
        let finding = Finding::warning("memory", "95 %")
            .means("it is full")
            .at("h");
        let told = FindingMessage::from(&finding);
        assert_eq!(Finding::from(told.clone()), finding);
        let newer = FindingMessage {
            id: "colour".to_owned(),
            weight: "grave".to_owned(),
            ..told
        };
        let finding = Finding::from(newer);
        assert_eq!((finding.id, finding.weight), ("settings", Weight::Unknown));
    }
}
