//! A claim.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::micros;
use crate::claim::{Claim, ClaimId, Claimant, Mode, Ttl, check_text};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// A [`Claim`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimMessage {
    id: Secret,
    name: String,
    mode: i64,
    ttl_us: u64,
    queues: bool,
    label: String,
    host: String,
    pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The digits of a claim id, which are not printed.
#[derive(Clone, Serialize, Deserialize)]
struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl From<&Claim> for ClaimMessage {
    fn from(claim: &Claim) -> Self {
        Self {
            id: Secret(claim.id.reveal()),
            name: claim.name.as_str().to_owned(),
            mode: claim.mode.to_number(),
            ttl_us: micros(claim.ttl.get()),
            queues: claim.queues,
            label: claim.claimant.label.clone(),
            host: claim.claimant.host.clone(),
            pid: claim.claimant.pid,
            reason: claim.reason.as_ref().map(|reason| reason.to_string()),
        }
    }
}

impl ClaimMessage {
    /// The claim, checked: its name may be one of the crate's own, beside a user's lock.
    ///
    /// # Errors
    ///
    /// `InvalidName` or `InvalidConfig` if a part of it cannot be used.
    pub fn into_claim(self) -> Result<Claim> {
        check_text("label", &self.label, 255)?;
        check_text("host", &self.host, 255)?;
        if let Some(reason) = &self.reason {
            check_text("reason", reason, 1024)?;
        }
        let id: ClaimId = self.id.0.parse()?;
        Ok(Claim {
            mode: mode(self.mode)?,
            ttl: Ttl::new(Duration::from_micros(self.ttl_us))?,
            queues: self.queues,
            claimant: Arc::new(Claimant::new(self.label, self.host, self.pid)),
            reason: self.reason.map(Arc::from),
            ..Claim::new(LockName::stored(&self.name)?, id)
        })
    }
}

fn mode(number: i64) -> Result<Mode> {
    match number {
        -1..=4_294_967_295 => Ok(Mode::from_number(number)),
        _ => Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("the mode {number} cannot be used"),
        )
        .advise("use 0 for exclusive, -1 for shared, or the number of permits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_claim_is_read_back_and_its_id_is_not_printed() {
        let name = LockName::new("a").unwrap();
        for name in [name.clone(), name.beside("once").unwrap()] {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit { of: 7 }] {
                let claim = Claim {
                    name: name.clone(),
                    mode,
                    reason: Some("why".into()),
                    ..Claim::example(9)
                };
                let message = ClaimMessage::from(&claim);
                assert!(!format!("{message:?}").contains("0909"), "{message:?}");
                let read = message.into_claim().unwrap();
                assert_eq!((&read.name, read.id, read.mode), (&name, claim.id, mode));
                assert_eq!((read.ttl, read.queues), (claim.ttl, claim.queues));
                assert_eq!((read.claimant, read.reason), (claim.claimant, claim.reason));
            }
        }
    }

    proptest! {
        #[test]
        fn no_claim_makes_it_panic(text in "\\PC{0,60}") {
            let _ = serde_json::from_str::<ClaimMessage>(&text).map(ClaimMessage::into_claim);
        }
    }
}
