//! `?accept=` in a URL: the user knows of these findings.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Finding, Weight};
use crate::claim::{Claim, Ttl};
use crate::engine::{
    About, Attempt, Engine, LockInfo, Query, Released, Renew, Renewal, SqlSupport, Wake,
};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::condition::ConditionCheck;
use crate::name::LockName;
use crate::token::FencingToken;

/// An engine that does not warn of what its user has accepted.
#[derive(Debug)]
pub(crate) struct Accepting {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) accepted: Vec<&'static str>,
}

/// Marks what is wrong and accepted. That locks do not hold cannot be accepted.
pub(super) fn mark(findings: &mut [Finding], accepted: &[&str]) {
    for finding in findings {
        let can_be = finding.is_bad() && finding.weight != Weight::Unfit;
        finding.accepted |= can_be && accepted.contains(&finding.id);
    }
}

#[async_trait]
impl Engine for Accepting {
    fn about(&self) -> About {
        let mut about = self.engine.about();
        mark(&mut about.findings, &self.accepted);
        let accepted = about.findings.iter().filter(|finding| finding.accepted);
        let accepted: Vec<_> = accepted.map(Finding::to_string).collect();
        about.warnings.retain(|warning| !accepted.contains(warning));
        about
    }

    async fn findings(&self, ttl: Ttl) -> Vec<Finding> {
        let mut findings = self.engine.findings(ttl).await;
        mark(&mut findings, &self.accepted);
        findings
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.engine.try_acquire(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.engine.wait(claim).await
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.engine.renew(held).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.engine.release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.engine.inspect(query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.engine.force_release(name).await
    }

    async fn close(&self) {
        self.engine.close().await;
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        self.engine.store()
    }

    fn sql(&self) -> Option<Arc<dyn SqlSupport>> {
        self.engine.sql()
    }

    fn condition_check(&self, name: &LockName, token: FencingToken) -> Option<ConditionCheck> {
        self.engine.condition_check(name, token)
    }
}
