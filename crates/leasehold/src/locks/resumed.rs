//! A claim that was handed from one process to another by its id.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::claim::{Claim, Ttl};
use crate::engine::{Grant, Released, Renew, Renewal};
use crate::error::Result;
use crate::hold::{Hold, Terms};
use crate::keep_alive;
use crate::lease::Lease;

/// A claim that this process knows by its id alone.
#[derive(Debug)]
pub struct Resumed {
    pub(super) core: Arc<Core>,
    pub(super) claim: Claim,
}

impl Resumed {
    /// Renews it once for `ttl`; `None` if it is no longer held.
    pub async fn renew(&self, ttl: Duration) -> Result<Option<Grant>> {
        let renewal = async {
            let claim = Claim {
                ttl: Ttl::new(ttl)?,
                ..self.claim.clone()
            };
            let sent = self.core.clock.now();
            let renew = Renew {
                claim: &claim,
                token: None,
            };
            Ok(
                match keep_alive::renew_one(&*self.core.engine, renew).await? {
                    Renewal::Renewed(grant) => Some(Grant {
                        valid_until: grant.valid_until.min(sent + claim.ttl.validity()),
                        ..grant
                    }),
                    Renewal::Lost(_) => None,
                },
            )
        };
        let renewed: Result<_> = renewal.await;
        renewed.map_err(|error| self.core.place(error, "renew", &self.claim.name))
    }

    /// Renews it and keeps it alive from now on; `None` if it is no longer held.
    pub async fn into_lease(self, ttl: Duration) -> Result<Option<Lease>> {
        let Some(grant) = self.renew(ttl).await? else {
            return Ok(None);
        };
        let claim = Claim {
            ttl: Ttl::new(ttl)?,
            ..self.claim
        };
        let now = self.core.clock.now();
        let hold = Arc::new(Hold::new(claim, grant, Terms::default(), now));
        self.core.keeper.keep(Arc::clone(&hold));
        Ok(Some(Lease::new(self.core, hold)))
    }

    /// Releases it.
    pub async fn release(&self) -> Result<Released> {
        let released = self.core.engine.release(&self.claim).await;
        released.map_err(|error| self.core.place(error, "release", &self.claim.name))
    }

    /// For how long a grant can be relied on, by the clock as it stands now.
    pub fn remaining(&self, grant: &Grant) -> Duration {
        grant.valid_until.since(self.core.clock.now())
    }
}
