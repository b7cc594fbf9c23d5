//! `memory:`: locks within one process, for tests and for programs that want the same API there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;

use crate::claim::{Claim, ClaimId};
use crate::clock::{Clock, Moment};
use crate::engine::wakeup::local_waiters::LocalWaiters;
use crate::engine::{
    About, Attempt, Capabilities, Contention, Driver, Engine, Grant, HolderInfo, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Survives, WaiterInfo, Wake, connecting,
};
use crate::error::Result;
use crate::guard::{GuardedStore, MemoryStore};
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::{FencingToken, wall_clock_micros};

/// How `memory:` URLs are connected. Each URL makes locks of its own.
pub const DRIVER: Driver = Driver {
    schemes: &["memory"],
    options: &[],
    example: "memory:",
    connect: |_| connecting(async { Ok(Memory::default()) }),
    #[cfg(feature = "bench")]
    baseline: None,
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
    waiters: LocalWaiters<()>,
    /// One for all locks, so that a lock can be forgotten.
    last_token: u64,
    /// How many attempts were made since the locks were swept.
    unswept: usize,
}

/// The locks are not swept before so many attempts were made, however few there are.
const UNSWEPT: usize = 64;

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
}

impl State {
    /// Forgets the locks that have expired, since nobody may ever ask for them again. So there are never many more than twice the locks that are held
    /// or waited for. The cost is constant for each attempt.
    fn sweep(&mut self, now: Moment) {
        self.unswept += 1;
        if self.unswept > UNSWEPT.max(self.locks.len() / 2) {
            self.unswept = 0;
            let is_held = |lock: &Lock| lock.holders.iter().any(|holder| holder.expires > now);
            self.locks
                .retain(|_, lock| !lock.queue.is_empty() || is_held(lock));
        }
    }

    /// Does something to a lock, then grants what can be granted, and forgets the lock if it is idle. The first waiter is woken if it may have less to wait
    /// for than it thinks: because the lock went to a claim with a shorter TTL, or because the waiter before it, which knew, has gone.
    fn with<T>(
        &mut self,
        name: &LockName,
        now: Moment,
        change: impl FnOnce(&mut Lock) -> T,
    ) -> Result<T> {
        let lock = self.locks.entry(name.clone()).or_default();
        let expected = lock.first_expiry();
        let was_first = lock.queue.front().map(|waiter| waiter.claim.id);
        lock.holders.retain(|holder| holder.expires > now);
        let result = change(lock);
        lock.admit(&mut self.last_token, &self.waiters, now)?;
        if let Some(first) = lock.queue.front().map(|waiter| waiter.claim.id) {
            let has_left = |id| id != first && lock.holder(&id).is_none();
            if was_first.is_some_and(has_left) || lock.first_expiry() < expected {
                self.waiters.wake(&first);
            }
        }
        if lock.holders.is_empty() && lock.queue.is_empty() {
            self.locks.remove(name);
        }
        Ok(result)
    }
}

impl Lock {
    /// Lets the head of the queue in while it fits.
    fn admit(
        &mut self,
        last_token: &mut u64,
        waiters: &LocalWaiters<()>,
        now: Moment,
    ) -> Result<()> {
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
            let Some(Waiter { claim, .. }) = self.queue.pop_front() else {
                break;
            };
            waiters.wake(&claim.id);
            let expires = now + claim.ttl.get();
            // Most locks have one holder and no queue: no room is kept for more.
            self.holders.reserve_exact(1);
            self.holders.push(Holder {
                claim,
                token,
                since: now,
                expires,
            });
        }
        if self.queue.is_empty() {
            self.queue.shrink_to_fit();
        }
        Ok(())
    }

    fn first_expiry(&self) -> Option<Moment> {
        self.holders.iter().map(|holder| holder.expires).min()
    }

    fn holder(&mut self, id: &ClaimId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|h| h.claim.id == *id)
    }

    fn position(&self, id: &ClaimId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.claim.id == *id)
    }

    fn contention(&self, id: &ClaimId, now: Moment) -> Contention {
        Contention {
            look_again_in: self.first_expiry().map(|first| first.since(now)),
            ahead: Some(self.holders.len() + self.position(id).unwrap_or(self.queue.len())),
            because: None,
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
    fn about(&self) -> About {
        let capabilities = Capabilities {
            reach: Reach::Process,
            survives: &[Survives::ClockStep],
            ..Capabilities::FULL
        };
        About::new("memory", "memory:".to_owned(), capabilities).clock(self.clock.clone())
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::clone(&self.records) as _)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.sweep(now);
        let agrees: Result<()> = state.with(&claim.name, now, |lock| {
            if let Some(holder) = lock.holder(&claim.id) {
                return claim.mode.is_still(holder.claim.mode);
            }
            let holders = lock.holders.iter().map(|holder| &holder.claim);
            let there = holders.chain(lock.queue.iter().map(|waiter| &waiter.claim));
            there
                .filter(|there| there.id != claim.id)
                .try_for_each(|there| claim.mode.agrees_with(there.mode))?;
            match lock.position(&claim.id) {
                Some(place) => lock.queue[place].claim = claim.clone(),
                None => lock.queue.push_back(Waiter {
                    claim: claim.clone(),
                    since: now,
                }),
            }
            Ok(())
        })?;
        agrees?;
        let attempt = state.with(&claim.name, now, |lock| {
            if let Some(holder) = lock.holder(&claim.id) {
                return Attempt::Granted(holder.grant());
            }
            let contention = lock.contention(&claim.id, now);
            if !claim.queues {
                lock.queue.retain(|waiter| waiter.claim.id != claim.id);
            }
            Attempt::Held(contention)
        })?;
        match &attempt {
            Attempt::Held(_) if claim.queues => {
                state.waiters.expect_next(claim.id);
            }
            _ => state.waiters.forget(&claim.id),
        }
        Ok(attempt)
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let waiter = self.state.lock().waiters.waiter(&claim.id);
        if let Some((_, mailbox)) = waiter {
            mailbox.read().await;
        }
        let mut state = self.state.lock();
        let lock = state.locks.get_mut(&claim.name);
        let holder = lock.and_then(|lock| lock.holder(&claim.id));
        let Some(grant) = holder.map(|holder| holder.grant()) else {
            return Ok(Wake::Retry);
        };
        state.waiters.forget(&claim.id);
        Ok(Wake::Granted(grant))
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let state = &mut *state;
        let mut answers = Vec::with_capacity(held.len());
        for Renew { claim, shorten, .. } in held {
            let lock = state.locks.get_mut(&claim.name);
            let holder = lock.and_then(|lock| {
                let holder = lock
                    .holder(&claim.id)
                    .filter(|holder| holder.expires > now)?;
                let before = holder.expires;
                let asked = now + claim.ttl.get();
                if *shorten || asked > before {
                    holder.claim.ttl = claim.ttl;
                    holder.expires = asked;
                }
                let shorter = holder.expires < before;
                let grant = holder.grant();
                // Whoever is first may now have less to wait for than it thinks.
                if let Some(first) = lock.queue.front().filter(|_| shorter) {
                    state.waiters.wake(&first.claim.id);
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
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.waiters.forget(&claim.id);
        state.with(&claim.name, now, |lock| {
            lock.queue.retain(|waiter| waiter.claim.id != claim.id);
            let before = lock.holders.len();
            lock.holders.retain(|holder| holder.claim.id != claim.id);
            Released::from_held(lock.holders.len() < before)
        })
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let state = self.state.lock();
        // Only now: a claim granted while we waited for the lock would show more time left than its TTL.
        let now = self.clock.now();
        let asked = state.locks.iter().filter(|(name, _)| query.asks_for(name));
        let infos = asked.map(|(name, lock)| lock.info(name, now));
        Ok(infos
            .filter(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty())
            .collect())
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        state.with(name, now, |lock| {
            let held = !lock.holders.is_empty();
            lock.holders.clear();
            Released::from_held(held)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::claim::Ttl;

    fn claim(name: &str, ttl: Duration) -> Claim {
        let mut claim = Claim::new(LockName::new(name).unwrap(), ClaimId::random().unwrap());
        claim.ttl = Ttl::new(ttl).unwrap();
        claim
    }

    async fn token(memory: &Memory, claim: &Claim) -> FencingToken {
        match memory.try_acquire(claim).await.unwrap() {
            Attempt::Granted(grant) => grant.token,
            held => panic!("{held:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn names_of_expired_locks_are_forgotten() {
        let clock = Clock::tokio();
        let memory = Memory::with_clock(clock.clone());
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let held = claim("held", hour);
        token(&memory, &held).await;
        let waited_for = claim("waited for", second);
        token(&memory, &waited_for).await;
        let mut waiter = claim("waited for", second);
        waiter.queues = true;
        memory.try_acquire(&waiter).await.unwrap();
        let mut last = token(&memory, &claim("order", second)).await;
        for nth in 0..10_000 {
            last = token(&memory, &claim(&format!("order/{nth}"), second)).await;
        }
        clock.sleep_through(2 * second);
        for _ in 0..10_000 {
            let short = claim("short", second);
            let next = token(&memory, &short).await;
            assert!(next > last, "a token has gone back");
            last = next;
            memory.release(&short).await.unwrap();
        }
        let kept = memory.state.lock().locks.len();
        assert!(kept < 100, "{kept} names are kept");
        assert!(token(&memory, &claim("order/1", second)).await > last);
        // What is held or waited for is not swept.
        let other = memory.try_acquire(&claim("held", second)).await.unwrap();
        assert!(matches!(other, Attempt::Held(_)), "two hold it");
        assert_eq!(memory.state.lock().locks[&waiter.name].queue.len(), 1);
        token(&memory, &waiter).await;
    }
}
