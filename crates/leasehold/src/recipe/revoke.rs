//! Asking a holder to release a lock. Nothing is taken away from it.

use std::str;
use std::time::Duration;

use super::{read_claimant, write_claimant};
use crate::claim::{Claimant, Mode, check_text};
use crate::engine::HolderInfo;
use crate::error::Result;
use crate::guard::{Content, Key, Slot, UPDATE_LIMIT, Version};
use crate::lease::{Lease, LeaseView};
use crate::locks::Locks;
use crate::token::FencingToken;

/// For how long a request stays if nobody hears of it: whoever listens looks at least three times a day.
const ASKED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// A request to release a lock, made with [`Locks::request_revoke`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevokeRequest {
    /// Why the holder should release the lock.
    pub reason: String,
    /// Who asks.
    pub by: Claimant,
}

impl Locks {
    /// Asks the present holders of a lock to release it; returns who they are, nobody if the lock is free. Nothing is taken away:
    /// for that, see [`force_release`](Self::force_release).
    ///
    /// A holder that listens with [`LeaseView::revoke_requested`] receives the request within a third of its TTL. Later holders do
    /// not. The request is forgotten after a day.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the engine keeps no guarded records; [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName);
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the reason is empty, longer than 1,024 bytes, or has control characters; and the
    /// [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may or may not be made. It can be repeated.
    pub async fn request_revoke(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Vec<HolderInfo>> {
        let reason = reason.into();
        check_text("reason", &reason, 1024)?;
        let store = self.store()?;
        let lock = self.inspect(name).await?;
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
        let requests = store.at(Key::beside(&lock.name, "ask"));
        requests
            .update(UPDATE_LIMIT, Some(ASKED_FOR), |_| asked.write())
            .await?;
        Ok(lock.holders)
    }
}

impl Lease {
    /// Returns the request once someone asks for this lock: [`LeaseView::revoke_requested`].
    ///
    /// # Errors
    ///
    /// Those of [`LeaseView::revoke_requested`].
    ///
    /// # Cancel safety
    ///
    /// That of [`LeaseView::revoke_requested`].
    pub async fn revoke_requested(&self) -> Result<RevokeRequest> {
        self.view.revoke_requested().await
    }
}

impl LeaseView {
    /// Returns the request once someone asks for this lock with [`Locks::request_revoke`]. It looks at once, and then every third of
    /// the TTL; a lease on which nobody calls this costs nothing. A look that fails is repeated.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(locks: leasehold::Locks) -> leasehold::Result<()> {
    /// let lease = locks.lock("deploy").acquire().await?;
    /// tokio::select! {
    ///     () = work() => {}
    ///     request = lease.revoke_requested() => println!("asked to stop: {}", request?.reason),
    /// }
    /// lease.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeaseLost`](crate::ErrorKind::LeaseLost) if the lease is lost or released; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the engine keeps no guarded
    /// records.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time: the request stays until the lease has ended.
    pub async fn revoke_requested(&self) -> Result<RevokeRequest> {
        let requests = self.core.store()?.at(Key::beside(self.name(), "ask"));
        let listening = async {
            loop {
                if let Ok(Some(record)) = requests.read().await
                    && let Some(asked) = Asked::read(&record.value)
                {
                    if asked.token >= self.token() {
                        self.clear_when_over(&requests, record.version);
                        return asked.request;
                    }
                    // Whoever holds the lock alone knows that those are gone who were asked. It may be left to the next.
                    if self.hold.claim.mode == Mode::Exclusive {
                        let _ = clear(&requests, record.version).await;
                    }
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

impl LeaseView {
    /// The request goes with the lease that it was for; where others may hold the lock too, and have not heard of it yet, it goes in
    /// time by itself.
    fn clear_when_over(&self, requests: &Slot, version: Version) {
        if self.hold.claim.mode != Mode::Exclusive {
            return;
        }
        let (view, requests) = (self.clone(), requests.clone());
        tokio::spawn(async move {
            view.lost().await;
            let _ = clear(&requests, version).await;
        });
    }
}

async fn clear(requests: &Slot, version: Version) -> Result<()> {
    let nothing = Content::deleted(Duration::ZERO);
    requests.write_if(nothing, Some(version)).await.map(|_| ())
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
