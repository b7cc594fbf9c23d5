//! What is kept for people beside a claim: for engines that store it as text.

use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Claimant};
#[cfg(feature = "zookeeper")]
use {crate::claim::Ttl, std::time::Duration};

#[derive(Debug, Default, Serialize, Deserialize)]
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
            owner: claim.claimant.owner.clone(),
            host: claim.claimant.host.clone(),
            pid: claim.claimant.pid,
            reason: claim.reason.as_ref().map(|reason| reason.to_string()),
            ttl: None,
        }
    }

    #[cfg(feature = "zookeeper")]
    pub(crate) fn with_ttl(mut self, ttl: Ttl) -> Self {
        self.ttl = Some(ttl.get().as_millis() as u64);
        self
    }

    #[cfg(feature = "zookeeper")]
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl.map(Duration::from_millis)
    }

    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// `None` if another program wrote it.
    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(crate) fn split(self) -> (Claimant, Option<String>) {
        let claimant = Claimant {
            owner: self.owner,
            host: self.host,
            pid: self.pid,
        };
        (claimant, self.reason)
    }
}

/// Whoever holds a lock without having said who it is.
pub(crate) fn another_program() -> Claimant {
    Claimant {
        owner: "another program".to_owned(),
        host: "unknown".to_owned(),
        pid: 0,
    }
}
