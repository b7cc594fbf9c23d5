//! The engine for locks that are rows of a database.
//!
//! The life of a claim: an attempt takes the lock, or is refused. A refused claim that queues gets a mailbox and a number, waits until the listener of this process
//! is connected (the server removes waiters of processes that do not listen), and makes another attempt, which queues it. The call that makes the lock free
//! offers it to the first waiter in the queue: that waiter is the holder for half a second. The listener puts the offer into the waiter's mailbox; the waiter enters,
//! and the core renews the lock. If it is not renewed in time, the offer ends, and the lock is offered to the next waiter.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, select};

use super::failure;
use super::records::Records;
use super::rows::RenewalRow;
use super::store::{Decided, Outcome, Renewed, RowStore};
use crate::claim::{Claim, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::doctor::Finding;
use crate::engine::merged_renewals::MergedRenewals;
use crate::engine::wakeup::look_again::delay_behind_first;
use crate::engine::{
    About, Attempt, Capabilities, Contention, Engine, Grant, LockInfo, LossReason, Query, Released,
    Renew, Renewal, SqlSupport, Survives, Wake,
};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::sync::Mutex;

/// How often to remove rows that are of no more use.
const SWEEP: Duration = Duration::from_secs(60);

/// How many claims are renewed by one call.
const BATCH: usize = 1000;

/// While somebody waits, connections that were not used for so long are closed.
pub(crate) const UNUSED: Duration = Duration::from_secs(1);

/// Locks in one database.
#[derive(Debug)]
pub(crate) struct RowEngine<S> {
    store: Arc<S>,
    next_sweep: Arc<Mutex<Moment>>,
}

impl<S: RowStore> RowEngine<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store: Arc::new(store),
            next_sweep: Arc::new(Mutex::new(Clock::machine().now() + S::FIRST_SWEEP)),
        }
    }

    /// Delivers the notices of a call to waiters of this process.
    fn deliver<T>(&self, decided: Decided<T>) -> T {
        if let Some(now) = decided.now {
            let listener = self.store.listener();
            listener.answered(decided.sent, now, decided.notices);
        }
        decided.what
    }

    async fn attempt(&self, claim: &Claim, number: Option<u64>) -> Result<Attempt> {
        let decided = self.store.acquire(claim, number).await?;
        let valid_until = decided.sent + claim.ttl.validity();
        Ok(match self.deliver(decided) {
            Outcome::Granted(token) => Attempt::Granted(Grant { token, valid_until }),
            Outcome::Held {
                left,
                is_next,
                ahead,
            } => {
                let later = match is_next {
                    true => Duration::from_millis(1),
                    false => delay_behind_first(number.unwrap_or(0)),
                };
                Attempt::Held(Contention {
                    look_again_in: Some(left + later),
                    ahead,
                    ..Contention::default()
                })
            }
        })
    }

    /// An attempt that queues the claim if it is refused.
    async fn queue(&self, claim: &Claim) -> Result<Attempt> {
        let listener = self.store.listener();
        self.store.prepare_to_wait();
        let number = listener.waiters.expect_next_for(claim.id, &claim.name);
        let queued = match listener.connected(self.store.listener_timeout()).await {
            Ok(()) => {
                listener.waiters.looks(&claim.id);
                self.attempt(claim, Some(number)).await
            }
            // The listener cannot connect, since the server accepts no more connections; but the lock may be free by now.
            Err(error) if error.is_busy() => match self.attempt(claim, None).await {
                Ok(Attempt::Held(_)) => Err(error),
                attempt => attempt,
            },
            Err(error) => Err(error),
        };
        // A claim that waits keeps its number, with which it is in the queue. So does one that tries again once the server has room, since it may be there.
        let keeps_number = match &queued {
            Ok(Attempt::Held(_)) => true,
            Ok(Attempt::Granted(_)) => false,
            Err(error) => error.is_busy(),
        };
        if !keeps_number {
            listener.waiters.forget(&claim.id);
        }
        queued
    }

    async fn renew_some(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let merged = MergedRenewals::of(held);
        let rows = RenewalRow::in_order(&merged.each);
        let (sent, renewed) = match self.store.renew(&rows).await {
            Ok(renewed) => renewed,
            Err(error) => return vec![Err(error); held.len()],
        };
        let mut tokens = vec![None; merged.each.len()];
        for Renewed { nth, token } in renewed {
            let Some(row) = rows.get(nth) else {
                return vec![Err(failure::nonsense("row")); held.len()];
            };
            tokens[row.nth] = Some(token);
        }
        let tokens = merged.answers(&tokens).into_iter();
        let renewals = tokens.zip(held).map(|(token, renew)| match token {
            None => Ok(Renewal::Lost(LossReason::Gone)),
            Some(token) => Ok(Renewal::Renewed(Grant {
                token: token?,
                valid_until: sent + renew.claim.ttl.validity(),
            })),
        });
        renewals.collect()
    }

    /// Sweeps in the background, now and then.
    fn sweep(&self) {
        let now = Clock::machine().now();
        {
            let mut next = self.next_sweep.lock();
            if *next > now {
                return;
            }
            *next = now + SWEEP;
        }
        let (store, next) = (Arc::clone(&self.store), Arc::clone(&self.next_sweep));
        tokio::spawn(async move {
            if !store.sweep().await {
                *next.lock() = now;
            }
        });
    }
}

#[async_trait]
impl<S: RowStore> Engine for RowEngine<S> {
    fn about(&self) -> About {
        let capabilities = Capabilities {
            survives: &[
                Survives::ClientKilled,
                Survives::EngineRestart,
                Survives::PowerLoss,
            ],
            ..Capabilities::FULL
        };
        let store = &self.store;
        let found = store.found().iter().cloned();
        About::new(S::SCHEME, store.location(), capabilities)
            .with_offers()
            .findings(found.chain(store.listener().fallback.finding()))
            .requests(store.requests())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let listener = self.store.listener();
        // If the listener is connected, one call both tries and queues. A claim that waits already must keep its position.
        let waits = || listener.waiters.waiter(&claim.id).is_some();
        let attempt = match claim.queues && (listener.is_alive() || waits()) {
            true => self.queue(claim).await,
            false => match self.attempt(claim, None).await {
                Ok(Attempt::Held(_)) if claim.queues => self.queue(claim).await,
                attempt => attempt,
            },
        };
        // A claim that does not queue may have queued before: nobody waits for it any more.
        if !claim.queues {
            listener.waiters.forget(&claim.id);
        }
        // Afterwards, when a connection is idle.
        self.sweep();
        attempt
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let store = &self.store;
        let relied = || store.relies_on_offers();
        let woken = pin!(store.listener().wait(&claim.id, relied));
        let while_idle = pin!(tokio::time::sleep(UNUSED));
        Ok(match select(woken, while_idle).await {
            Either::Left((woken, _)) => woken,
            Either::Right(((), woken)) => {
                store.close_unused();
                woken.await
            }
        })
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let mut renewals = Vec::with_capacity(held.len());
        for some in held.chunks(BATCH) {
            renewals.extend(self.renew_some(some).await);
        }
        self.sweep();
        renewals
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let listener = self.store.listener();
        // Whether or not the call succeeds, the claim waits no longer.
        listener.waiters.forget(&claim.id);
        let released_by = self.store.release(claim).await;
        if !matches!(&released_by, Ok(decided) if decided.maybe_applied.is_none()) {
            // The answer that was lost may have contained an offer to a waiter of this process, of which no message comes.
            listener.fallback.excuse();
        }
        let mut decided = released_by?;
        self.sweep();
        match (decided.maybe_applied.take(), self.deliver(decided)) {
            // An earlier try may have released it.
            (Some(error), false) => Err(error),
            (_, was_held) => Ok(Released::from_held(was_held)),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.store.inspect(query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let decided = self.store.force_release(name).await?;
        Ok(Released::from_held(self.deliver(decided)))
    }

    async fn close(&self) {
        self.store.close().await;
    }

    async fn findings(&self, ttl: Ttl) -> Vec<Finding> {
        let mut findings = self.store.findings(ttl).await;
        findings.extend(self.store.listener().fallback.finding());
        findings
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::new(Records(Arc::clone(&self.store))))
    }

    fn sql(&self) -> Option<Arc<dyn SqlSupport>> {
        Some(Arc::clone(&self.store) as _)
    }
}
