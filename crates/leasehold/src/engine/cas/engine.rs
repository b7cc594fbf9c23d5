//! The engine of locks that are documents of a store.
//!
//! The life of a claim: an attempt puts it into the document, as a holder or at the end of the queue. Whoever releases the lock offers it to the
//! first in the queue with the same write. The waiter finds the offer when it looks, takes it with a write of its own, and renews it. If it gives
//! no sign of life in time, whoever waits behind it takes it out.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::config::Settings;
use super::document::Signature;
use super::lock::Lock;
use super::poller;
use super::rules::{Outcome, Renewal as RenewalOf, Request, Terms};
use super::sightings::Sightings;
use super::store::CasStore;
use crate::claim::{Claim, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::doctor::Finding;
use crate::engine::wakeup::local_waiters::LocalWaiters;
use crate::engine::{
    About, Attempt, Engine, Expiry, Fairness, Grant, LockInfo, LossReason, Query, Released, Renew,
    Renewal, Survives, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::guard::condition::ConditionCheck;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// As many locks are remembered that nobody here holds or waits for: the next attempt on one of them needs no read.
const REMEMBERED: usize = 128;

/// Locks in such a store.
#[derive(Debug)]
pub(crate) struct CasEngine<S> {
    pub(super) shared: Arc<Shared<S>>,
}

#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) store: Arc<S>,
    pub(super) terms: Terms,
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) sightings: Arc<Sightings>,
    /// Those of lists. They are many, and must not push out what waiters time.
    pub(super) listed: Sightings,
    pub(super) waiters: LocalWaiters<()>,
    locks: Mutex<Remembered<S>>,
}

#[derive(Debug)]
struct Remembered<S> {
    locks: HashMap<LockName, (u64, Arc<Lock<S>>)>,
    uses: u64,
    /// How many there may be before those that nobody needs are forgotten.
    room: usize,
}

impl<S: CasStore> CasEngine<S> {
    pub(crate) fn new(store: Arc<S>, settings: Settings, clock: Clock) -> Self {
        let queue = store.capabilities().fairness == Fairness::Fifo;
        let sightings = Arc::new(Sightings::trusting(settings.max_clock_skew));
        let shared = Shared {
            store,
            terms: settings.terms(queue),
            settings,
            clock,
            sightings,
            listed: Sightings::trusting(settings.max_clock_skew),
            waiters: LocalWaiters::default(),
            locks: Mutex::new(Remembered {
                locks: HashMap::new(),
                uses: 0,
                room: REMEMBERED,
            }),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

#[cfg(test)]
impl<S> CasEngine<S> {
    pub(super) fn remembered(&self) -> usize {
        self.shared.locks.lock().locks.len()
    }
}

impl<S: CasStore> Shared<S> {
    pub(super) fn lock(&self, name: &LockName) -> Arc<Lock<S>> {
        let mut remembered = self.locks.lock();
        remembered.uses += 1;
        let now = remembered.uses;
        if let Some((used, lock)) = remembered.locks.get_mut(name) {
            *used = now;
            return Arc::clone(lock);
        }
        remembered.make_room();
        let lock = Arc::new(Lock::new(
            name.clone(),
            Arc::clone(&self.store),
            Arc::clone(&self.sightings),
            self.terms,
            self.clock.clone(),
        ));
        let used = (now, Arc::clone(&lock));
        remembered.locks.insert(name.clone(), used);
        lock
    }

    fn grant(&self, token: u64, since: Moment, ttl: Ttl) -> Result<Grant> {
        let token = FencingToken::new(token).ok_or_else(|| {
            let what = format!("the fencing token {token} is out of range");
            Error::new(ErrorKind::EngineUnfit, what)
                .advise("set the clocks right, and use another table, bucket or prefix")
                .of_unknown_effect()
        })?;
        Ok(Grant {
            token,
            valid_until: since + ttl.validity(),
        })
    }

    async fn acquire(self: &Arc<Self>, claim: &Claim) -> Result<Attempt> {
        self.supports(claim.mode)?;
        let lock = self.lock(&claim.name);
        let signature = Signature::of(&claim.id);
        let was_there = self.waiters.waiter(&claim.id).is_some();
        if claim.queues {
            // Before others can see it in the queue.
            self.waiters.expect_next(claim.id);
        }
        let served = lock.serve(Request::Acquire(claim.clone())).await;
        let waits = matches!(served, Ok(Outcome::Held(_))) || (served.is_err() && was_there);
        if !(waits && claim.queues) {
            self.waiters.forget(&claim.id);
            lock.forget(&signature);
        }
        match served? {
            Outcome::Granted(token, since) => {
                Ok(Attempt::Granted(self.grant(token, since, claim.ttl)?))
            }
            Outcome::Held(contention) => {
                if claim.queues && !lock.expect(signature, claim.id) {
                    poller::start(self, &lock);
                }
                Ok(Attempt::Held(contention))
            }
            other => Err(nonsense(&other)),
        }
    }

    fn supports(&self, mode: Mode) -> Result<()> {
        let able = self.store.capabilities();
        let lacks = match mode {
            Mode::Exclusive => return Ok(()),
            Mode::Shared if able.shared => return Ok(()),
            Mode::Permit { .. } if able.permits => return Ok(()),
            Mode::Shared => "shared mode",
            Mode::Permit { .. } => "permits",
        };
        let what = format!("{} has no {lacks}", self.store.location());
        Err(Error::new(ErrorKind::Unsupported, what)
            .advise("use exclusive mode, or a table without a dialect"))
    }

    async fn renew_one(&self, renew: &Renew<'_>) -> Result<Renewal> {
        let request = Request::Renew(RenewalOf {
            claim: Signature::of(&renew.claim.id),
            ttl: renew.claim.ttl.get(),
            shorten: renew.shorten,
        });
        match self.lock(&renew.claim.name).serve(request).await? {
            Outcome::Renewed(token, since) => {
                let grant = self.grant(token, since, renew.claim.ttl)?;
                Ok(Renewal::Renewed(grant))
            }
            Outcome::Lost => Ok(Renewal::Lost(LossReason::Gone)),
            other => Err(nonsense(&other)),
        }
    }

    async fn released(&self, name: &LockName, request: Request) -> Result<Released> {
        match self.lock(name).serve(request).await? {
            Outcome::Released(true) => Ok(Released::Yes),
            Outcome::Released(false) => Ok(Released::WasNotHeld),
            other => Err(nonsense(&other)),
        }
    }
}

impl<S: CasStore> Remembered<S> {
    fn make_room(&mut self) {
        if self.locks.len() < self.room {
            return;
        }
        let unused = self.locks.iter().filter(|(_, (_, lock))| {
            // One that is in use elsewhere is not quiet for long.
            Arc::strong_count(lock) == 1 && lock.is_quiet()
        });
        let mut unused: Vec<_> = unused
            .map(|(name, (used, _))| (*used, name.clone()))
            .collect();
        unused.sort_unstable_by_key(|(used, _)| *used);
        let keep = REMEMBERED / 2;
        unused.truncate(unused.len().saturating_sub(keep));
        for (_, name) in unused {
            self.locks.remove(&name);
        }
        self.room = REMEMBERED.max(2 * self.locks.len());
    }
}

pub(super) fn nonsense(outcome: &Outcome) -> Error {
    Error::new(ErrorKind::Unexpected, format!("unexpected: {outcome:?}"))
        .advise("report this as a bug of leasehold")
        .of_unknown_effect()
}

#[async_trait]
impl<S: CasStore> Engine for CasEngine<S> {
    fn about(&self) -> About {
        let shared = &self.shared;
        let mut capabilities = shared.store.capabilities();
        match shared.settings.max_clock_skew {
            Some(_) => capabilities.survives = without_clock_steps(capabilities.survives),
            None => capabilities.expiry = Expiry::Observed,
        }
        let found = shared.store.found();
        About::new(shared.store.scheme(), shared.store.location(), capabilities)
            .findings(found.into_iter().chain(clock_skew(&shared.settings)))
            .clock(shared.clock.clone())
            .requests(shared.store.requests())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.shared.acquire(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        if let Some((_, mailbox)) = self.shared.waiters.waiter(&claim.id) {
            mailbox.read().await;
        }
        Ok(Wake::Retry)
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        join_all(held.iter().map(|renew| self.shared.renew_one(renew))).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let signature = Signature::of(&claim.id);
        self.shared.waiters.forget(&claim.id);
        self.shared.lock(&claim.name).forget(&signature);
        let request = Request::Release(signature);
        self.shared.released(&claim.name, request).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.shared.inspect(query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.shared.released(name, Request::Break).await
    }

    async fn findings(&self, _ttl: Ttl) -> Vec<Finding> {
        let mut findings = self.shared.store.findings().await;
        findings.extend(clock_skew(&self.shared.settings));
        findings
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        self.shared.store.records()
    }

    fn condition_check(&self, name: &LockName, token: FencingToken) -> Option<ConditionCheck> {
        self.shared.store.condition_check(name, token)
    }
}

fn clock_skew(settings: &Settings) -> Option<Finding> {
    let skew = humantime::format_duration(settings.max_clock_skew?);
    let finding = Finding::efficiency("clock_skew", format!("max_clock_skew={skew}"))
        .means("if the clocks of two clients differ by more, both may hold a lock")
        .fix("leave max_clock_skew out of the URL, or let NTP set all clocks, and watch it");
    Some(finding)
}

/// What is left for those who trust clocks.
fn without_clock_steps(survives: &'static [Survives]) -> &'static [Survives] {
    match survives.split_last() {
        Some((Survives::ClockStep, others)) => others,
        _ => survives,
    }
}
