//! A claim that was handed from one process to another by its id.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::claim::{Claim, Ttl};
use crate::engine::{Grant, Released, Renew, Renewal};
use crate::error::{Error, Result};
use crate::hold::{Hold, Terms};
use crate::lease::Lease;
use crate::renewer;

/// A claim that this process knows by its id alone; made by [`Locks::resume`](crate::Locks::resume).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
///
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// // One process leaves the lock held, and passes the claim id on, which is a secret.
/// let claim_id = locks.lock("deploy").acquire().await?.detach();
///
/// // Another renews and releases it.
/// let claim = locks.resume("deploy", claim_id)?;
/// assert!(claim.renew(Duration::from_secs(60)).await?.is_some());
/// claim.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Resumed {
    pub(super) core: Arc<Core>,
    pub(super) claim: Claim,
}

impl Resumed {
    /// Renews it once, for at least `ttl`, a [`Ttl`] or a [`Duration`]; `None` if it is no longer held. A renewal never shortens a
    /// lock: if more time than `ttl` is left, it stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the TTL is out of range; and the
    /// [engine errors](crate::Error#engine-errors), which do not mean that the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be renewed. It is never released.
    pub async fn renew(&self, ttl: impl TryInto<Ttl, Error: Into<Error>>) -> Result<Option<Grant>> {
        let ttl = ttl.try_into().map_err(Into::into);
        let renewal = async {
            let claim = Claim {
                ttl: ttl?,
                ..self.claim.clone()
            };
            let sent = self.core.clock.now();
            let renew = Renew {
                claim: &claim,
                token: None,
                shorten: false,
            };
            Ok(match renewer::renew_one(&*self.core.engine, renew).await? {
                Renewal::Renewed(grant) => Some(Grant {
                    valid_until: grant.valid_until.min(sent + claim.ttl.validity()),
                    ..grant
                }),
                Renewal::Lost(_) => None,
            })
        };
        let renewed: Result<_> = renewal.await;
        renewed.map_err(|error| self.core.with_context(error, "renew", &self.claim.name))
    }

    /// Renews it, and returns a lease that is renewed in the background from then on; `None` if it is no longer held.
    ///
    /// # Errors
    ///
    /// Those of [`renew`](Self::renew).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be renewed. It is not released: it stays the other holder's.
    pub async fn into_lease(
        self,
        ttl: impl TryInto<Ttl, Error: Into<Error>>,
    ) -> Result<Option<Lease>> {
        let ttl = ttl.try_into().map_err(Into::into);
        let ttl = ttl.map_err(|error| self.core.with_context(error, "renew", &self.claim.name))?;
        let Some(grant) = self.renew(ttl).await? else {
            return Ok(None);
        };
        let claim = Claim { ttl, ..self.claim };
        let now = self.core.clock.now();
        let hold = Arc::new(Hold::new(claim, grant, Terms::default(), now));
        self.core.renewer.keep(Arc::clone(&hold));
        Ok(Some(Lease::new(self.core, hold)))
    }

    /// Releases it; [`Released::WasNotHeld`] if it is no longer held.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors). It is not tried again in the background.
    ///
    /// # Cancel safety
    ///
    /// A release that has begun runs to completion even if the future is dropped.
    pub async fn release(&self) -> Result<Released> {
        let released = self.core.claims.release(&self.claim).await;
        released.map_err(|error| self.core.with_context(error, "release", &self.claim.name))
    }

    /// For how long a grant of [`renew`](Self::renew) can be relied on from now on.
    pub fn remaining(&self, grant: &Grant) -> Duration {
        grant.valid_until.since(self.core.clock.now())
    }
}
