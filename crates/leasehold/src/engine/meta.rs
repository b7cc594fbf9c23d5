//! What is kept for people beside a claim: for engines that store it as text.

use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Claimant};
use {crate::claim::Ttl, std::time::Duration};

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    owner: String,
    host: String,
    pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// In milliseconds, where the store does not know it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
}

impl Meta {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            owner: claim.claimant.label.clone(),
            host: claim.claimant.host.clone(),
            pid: claim.claimant.pid,
            reason: claim.reason.as_ref().map(|reason| reason.to_string()),
            ttl: None,
        }
    }

    /// Of another program's, which says no more than this.
    pub(crate) fn foreign(owner: &str) -> Self {
        let another = another_program();
        Self {
            owner: another.label,
            host: another.host,
            reason: Some(owner.replace(char::is_control, "?")),
            ..Self::default()
        }
    }

    pub(crate) fn with_ttl(mut self, ttl: Ttl) -> Self {
        self.ttl = Some(ttl.get().as_millis() as u64);
        self
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl.map(Duration::from_millis)
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// `None` if another program wrote it.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn split(self) -> (Claimant, Option<String>) {
        let claimant = Claimant {
            label: self.owner,
            host: self.host,
            pid: self.pid,
        };
        (claimant, self.reason)
    }
}

/// Whoever holds a lock without having said who it is.
pub(crate) fn another_program() -> Claimant {
    Claimant {
        label: "another program".to_owned(),
        host: "unknown".to_owned(),
        pid: 0,
    }
}
