//! What engines keep for people beside a claim, as JSON.

use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Claimant};

/// Who holds or waits, and why.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Described {
    owner: String,
    host: String,
    pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Described {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            owner: claim.claimant.owner.clone(),
            host: claim.claimant.host.clone(),
            pid: claim.claimant.pid,
            reason: claim.reason.as_ref().map(|reason| reason.to_string()),
        }
    }

    /// The claimant, and the reason if one was given.
    pub(crate) fn told(self) -> (Claimant, Option<String>) {
        let claimant = Claimant {
            owner: self.owner,
            host: self.host,
            pid: self.pid,
        };
        (claimant, self.reason)
    }
}

/// Who holds a lock of which nothing is written down.
pub(crate) fn another_program() -> Claimant {
    Claimant {
        owner: "another program".to_owned(),
        host: "unknown".to_owned(),
        pid: 0,
    }
}
