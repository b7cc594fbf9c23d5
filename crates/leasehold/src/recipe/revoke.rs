//! Asking a holder to give a lock up. It may, or not: nothing is taken away.

use std::str;

use super::{read_claimant, write_claimant};
use crate::claim::{Claimant, check_text};
use crate::engine::HolderInfo;
use crate::error::Result;
use crate::lease::LeaseView;
use crate::locks::Locks;
use crate::token::FencingToken;

/// What a holder is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokeRequest {
    /// Why it should give the lock up.
    pub reason: String,
    /// Who asks.
    pub by: Claimant,
}

impl Locks {
    /// Asks all present holders of a lock to give it up; returns who was asked, nobody if nobody holds it.
    ///
    /// Those who listen ([`LeaseView::revoke_requested`]) hear of it within a third of their TTL. Later holders are not
    /// concerned. `ErrorKind::Unsupported` where the engine keeps no guarded records.
    pub async fn ask(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Vec<HolderInfo>> {
        let reason = reason.into();
        check_text("reason", &reason, 1024)?;
        let store = self.store()?;
        let lock = self.show(name).await?;
        let Some(token) = lock.holders.iter().map(|holder| holder.token).max() else {
            return Ok(Vec::new());
        };
        let asked = Asked {
            token,
            request: RevokeRequest {
                reason,
                by: self.claimant().clone(),
            },
        };
        let key = super::beside(&lock.name, "ask")?;
        store.update(key, |_| asked.write()).await?;
        Ok(lock.holders)
    }
}

impl LeaseView {
    /// Returns what is asked, once someone asks for this lock to be given up: looks at once, and then at each third of the TTL.
    /// Leases that nobody listens on so pay nothing.
    ///
    /// `ErrorKind::LeaseLost` if there is nothing left to give up; `ErrorKind::Unsupported` where the engine keeps no guarded
    /// records. What fails for a while is tried again.
    pub async fn revoke_requested(&self) -> Result<RevokeRequest> {
        let store = self.core.store()?;
        let key = super::beside(self.name(), "ask")?;
        let listening = async {
            loop {
                if let Ok(Some(record)) = store.read(&key).await
                    && let Some(asked) = Asked::read(&record.value)
                    && asked.token >= self.token()
                {
                    return asked.request;
                }
                let clock = &self.core.clock;
                clock
                    .sleep_until(clock.now() + self.hold.claim.ttl.get() / 3)
                    .await;
            }
        };
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.lost_error(&reason)),
            asked = listening => Ok(asked),
        }
    }
}

/// The record: asked of this token and of all before it.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    token: FencingToken,
    request: RevokeRequest,
}

impl Asked {
    fn write(&self) -> String {
        let RevokeRequest { reason, by } = &self.request;
        format!("{}\n{}\n{reason}", self.token, write_claimant(by))
    }

    fn read(value: &[u8]) -> Option<Self> {
        let mut lines = str::from_utf8(value).ok()?.lines();
        Some(Self {
            token: FencingToken::new(lines.next()?.parse().ok()?)?,
            request: RevokeRequest {
                by: read_claimant(&mut lines)?,
                reason: lines.next()?.to_owned(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_back() {
        let asked = Asked {
            token: FencingToken::new(7).unwrap(),
            request: RevokeRequest {
                reason: "a deploy; please".into(),
                by: Claimant::this_process(),
            },
        };
        assert_eq!(Asked::read(asked.write().as_bytes()), Some(asked));
        assert_eq!(Asked::read(b"7\nx"), None);
    }
}
