//! `memory:`: locks within one process, for tests and for programs that want the same API there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, HolderInfo,
    LockInfo, LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource,
    WaiterInfo, Wake,
};
use crate::error::Result;
use crate::guard::{GuardedStore, MemoryStore};
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

/// How `memory:` URLs are connected. Each URL makes locks of its own.
pub const DRIVER: Driver = Driver {
    schemes: &["memory"],
    options: &[],
    example: "memory:",
    connect: |_| Box::pin(async { Ok(Arc::new(Memory::default()) as Arc<dyn Engine>) }),
};

/// Locks in the memory of this process.
#[derive(Debug, Default)]
pub struct Memory {
    clock: Clock,
    /// Held for microseconds and never across an await, so a std Mutex.
    state: Mutex<State>,
    records: Arc<MemoryStore>,
}

#[derive(Debug, Default)]
struct State {
    locks: BTreeMap<LockName, Lock>,
    last_token: u64,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Holder {
    claim: Claim,
    token: FencingToken,
    since: Moment,
    expires: Moment,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    since: Moment,
    /// Rung once, when the lock was handed over or the queue is worth another look. Keeps the ring
    /// until the waiter listens.
    bell: Arc<Notify>,
}

impl Memory {
    /// Locks that follow a test's clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            records: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Does something to a lock, then grants what can be granted, and forgets the lock if it is idle.
    fn with<T>(
        &mut self,
        name: &LockName,
        now: Moment,
        change: impl FnOnce(&mut Lock) -> T,
    ) -> Result<T> {
        let lock = self.locks.entry(name.clone()).or_default();
        lock.holders.retain(|holder| holder.expires > now);
        let result = change(lock);
        lock.admit(&mut self.last_token, now)?;
        if lock.holders.is_empty() && lock.queue.is_empty() {
            self.locks.remove(name);
        }
        Ok(result)
    }
}

impl Lock {
    /// Lets the head of the queue in while it fits.
    fn admit(&mut self, last_token: &mut u64, now: Moment) -> Result<()> {
        while let Some(next) = self.queue.front() {
            if !next
                .claim
                .mode
                .fits(self.holders.iter().map(|h| h.claim.mode))
            {
                break;
            }
            let token = FencingToken::after(*last_token, wall_clock_micros())?;
            *last_token = token.get();
            let Some(Waiter { claim, bell, .. }) = self.queue.pop_front() else {
                break;
            };
            let expires = now + claim.ttl.get();
            // Most locks have one holder and no queue: no room is kept for more.
            self.holders.reserve_exact(1);
            self.holders.push(Holder {
                claim,
                token,
                since: now,
                expires,
            });
            bell.notify_one();
        }
        if self.queue.is_empty() {
            self.queue.shrink_to_fit();
        }
        Ok(())
    }

    fn holder(&mut self, id: &ClaimId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|h| h.claim.id == *id)
    }

    fn position(&self, id: &ClaimId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.claim.id == *id)
    }

    fn contention(&self, id: &ClaimId, now: Moment) -> Contention {
        let expiries = self.holders.iter().map(|holder| holder.expires);
        Contention {
            look_again_in: expiries.min().map(|first| first.since(now)),
            ahead: Some(self.holders.len() + self.position(id).unwrap_or(self.queue.len())),
            seen: 0,
            because: None,
        }
    }

    /// Whoever is first may now have less to wait for than it thinks.
    fn nudge(&self) {
        if let Some(first) = self.queue.front() {
            first.bell.notify_one();
        }
    }
}

impl Holder {
    fn grant(&self) -> Grant {
        let margin = self
            .claim
            .ttl
            .get()
            .saturating_sub(self.claim.ttl.validity());
        Grant {
            token: self.token,
            valid_until: self.expires - margin,
        }
    }
}

#[async_trait]
impl Engine for Memory {
    fn scheme(&self) -> &'static str {
        "memory"
    }

    fn location(&self) -> String {
        "memory:".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Process,
            safety: Safety::Correctness,
            store: true,
            survives: &[Survives::ClockStep],
        }
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::clone(&self.records) as _)
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let now = self.clock.now();
        let mut state = self.state();
        let agrees: Result<()> = state.with(&claim.name, now, |lock| {
            let holders = lock.holders.iter().map(|holder| holder.claim.mode);
            let waiters = lock.queue.iter().map(|waiter| waiter.claim.mode);
            holders
                .chain(waiters)
                .try_for_each(|there| claim.mode.agrees_with(there))?;
            if lock.holder(&claim.id).is_none() && lock.position(&claim.id).is_none() {
                lock.queue.push_back(Waiter {
                    claim: claim.clone(),
                    since: now,
                    bell: Arc::default(),
                });
            }
            Ok(())
        })?;
        agrees?;
        state.with(&claim.name, now, |lock| {
            if let Some(holder) = lock.holder(&claim.id) {
                return Attempt::Granted(holder.grant());
            }
            let contention = lock.contention(&claim.id, now);
            if !claim.queues {
                lock.queue.retain(|waiter| waiter.claim.id != claim.id);
            }
            Attempt::Held(contention)
        })
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let bell = {
            let state = self.state();
            let lock = state.locks.get(&claim.name);
            let waiter = lock.and_then(|lock| lock.queue.get(lock.position(&claim.id)?));
            waiter.map(|waiter| Arc::clone(&waiter.bell))
        };
        if let Some(bell) = bell {
            bell.notified().await;
        }
        let mut state = self.state();
        let holder = state
            .locks
            .get_mut(&claim.name)
            .and_then(|lock| lock.holder(&claim.id));
        Ok(holder.map_or(Wake::Retry, |holder| Wake::Granted(holder.grant())))
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let now = self.clock.now();
        let mut state = self.state();
        let mut answers = Vec::with_capacity(held.len());
        for Renew { claim, .. } in held {
            let lock = state.locks.get_mut(&claim.name);
            let holder = lock.and_then(|lock| {
                let holder = lock
                    .holder(&claim.id)
                    .filter(|holder| holder.expires > now)?;
                holder.claim.ttl = claim.ttl;
                let before = std::mem::replace(&mut holder.expires, now + claim.ttl.get());
                let shorter = holder.expires < before;
                let grant = holder.grant();
                if shorter {
                    lock.nudge();
                }
                Some(grant)
            });
            answers.push(Ok(match holder {
                Some(grant) => Renewal::Renewed(grant),
                None => Renewal::Lost(LossReason::Gone),
            }));
        }
        answers
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let now = self.clock.now();
        self.state().with(&claim.name, now, |lock| {
            lock.queue.retain(|waiter| waiter.claim.id != claim.id);
            let before = lock.holders.len();
            lock.holders.retain(|holder| holder.claim.id != claim.id);
            if lock.holders.len() < before {
                Released::Yes
            } else {
                Released::WasNotHeld
            }
        })
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let now = self.clock.now();
        let state = self.state();
        let asked = state.locks.iter().filter(|(name, _)| query.asks_for(name));
        let told = asked.map(|(name, lock)| lock.info(name, now));
        Ok(told
            .filter(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty())
            .collect())
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let now = self.clock.now();
        self.state().with(name, now, |lock| {
            let held = !lock.holders.is_empty();
            lock.holders.clear();
            if held {
                Released::Yes
            } else {
                Released::WasNotHeld
            }
        })
    }
}

impl Lock {
    fn info(&self, name: &LockName, now: Moment) -> LockInfo {
        let reason = |claim: &Claim| claim.reason.as_ref().map(|reason| reason.to_string());
        let alive = self.holders.iter().filter(|holder| holder.expires > now);
        LockInfo {
            name: name.clone(),
            holders: alive
                .map(|holder| HolderInfo {
                    claimant: (*holder.claim.claimant).clone(),
                    reason: reason(&holder.claim),
                    mode: holder.claim.mode,
                    held_for: now.since(holder.since),
                    time_left: holder.expires.since(now),
                    token: holder.token,
                })
                .collect(),
            waiters: self
                .queue
                .iter()
                .map(|waiter| WaiterInfo {
                    claimant: (*waiter.claim.claimant).clone(),
                    reason: reason(&waiter.claim),
                    mode: waiter.claim.mode,
                    waited_for: now.since(waiter.since),
                })
                .collect(),
        }
    }
}
