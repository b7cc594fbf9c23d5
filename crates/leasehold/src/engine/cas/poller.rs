//! How waiters learn that it is their turn, on a store that tells nothing by itself: one task for all waiters of a lock in this process looks, the
//! more often the nearer the first of them is to the head of the queue, and writes their signs of life.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::document::{Document, Holder, Signature};
use super::engine::Shared;
use super::lock::Lock;
use super::rules::{Present, Request};
use super::store::CasStore;
use crate::claim::ClaimId;
use crate::clock::Moment;
use crate::token::wall_clock_micros;

/// A sign of life is due after this part of the time for which a place is kept.
const SIGNS: u64 = 3;

/// Looks for the waiters of a lock until there are none.
pub(super) fn start<S: CasStore>(shared: &Arc<Shared<S>>, lock: &Arc<Lock<S>>) {
    let poller = Poller {
        shared: Arc::downgrade(shared),
        lock: Arc::clone(lock),
        last_look: shared.clock.now(),
        failing_since: None,
        random: fastrand::Rng::new(),
        is_done: false,
    };
    tokio::spawn(poller.run());
}

struct Poller<S: CasStore> {
    /// Not for longer than anyone has the engine.
    shared: Weak<Shared<S>>,
    lock: Arc<Lock<S>>,
    last_look: Moment,
    failing_since: Option<Moment>,
    random: fastrand::Rng,
    is_done: bool,
}

impl<S: CasStore> Drop for Poller<S> {
    /// If its runtime ends, the waiters of others go on: their next attempts start another one.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let waiting = self.lock.stop_polling();
        if let Some(shared) = self.shared.upgrade() {
            for waiter in &waiting {
                shared.waiters.wake(waiter);
            }
        }
    }
}

impl<S: CasStore> Poller<S> {
    async fn run(mut self) {
        // Drawn anew for each look, so that processes do not look all at once.
        let mut share = 1.0;
        loop {
            let waiting = self.lock.waiting();
            let Some(shared) = self.shared.upgrade().filter(|_| !waiting.is_empty()) else {
                self.is_done = true;
                return;
            };
            let clock = shared.clock.clone();
            let seen = self.lock.known();
            let plan = Plan::of(&shared, seen.as_ref(), &waiting);
            for waiter in &plan.wake {
                shared.waiters.wake(waiter);
            }
            let last = self
                .lock
                .heard()
                .unwrap_or(self.last_look)
                .max(self.last_look);
            let look = (last + plan.pace.mul_f64(share)).min(plan.ends.unwrap_or(last + plan.pace));
            let due = match self.failing_since {
                // A store that does not answer is not asked more often than a waiter of the middle would.
                Some(_) => self.last_look + shared.terms.pace(4).mul_f64(share),
                None => look
                    .min(plan.sign_due.unwrap_or(look))
                    .max(self.last_look + shared.terms.poll / 20),
            };
            // Whoever else has the engine may drop it meanwhile.
            drop(shared);
            tokio::select! {
                () = clock.sleep_until(due) => {
                    share = 0.75 + 0.25 * self.random.f64();
                    self.look(&waiting, plan.sign_due.is_some_and(|sign| sign <= clock.now())).await;
                }
                () = self.lock.changed.notified() => {}
            }
        }
    }

    async fn look(&mut self, waiting: &[(Signature, ClaimId)], signs: bool) {
        let claims = || waiting.iter().map(|(claim, _)| claim.clone()).collect();
        let request = match signs {
            true => Request::SignOfLife(claims()),
            false => Request::Look,
        };
        let looked = self.lock.serve(request).await;
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        self.last_look = shared.clock.now();
        let Err(_) = looked else {
            self.failing_since = None;
            return;
        };
        // Whoever waits learns why, by an attempt of its own, once it has lasted.
        let since = *self.failing_since.get_or_insert(self.last_look);
        if self.last_look.since(since) > shared.settings.timeout {
            self.failing_since = Some(self.last_look);
            for (_, id) in waiting {
                shared.waiters.wake(id);
            }
        }
    }
}

/// What is to be done for the waiters of a lock.
struct Plan {
    wake: Vec<ClaimId>,
    pace: Duration,
    /// When the first of them may find that others have ended.
    ends: Option<Moment>,
    /// When they must give a sign of life.
    sign_due: Option<Moment>,
}

impl Plan {
    fn of<S: CasStore>(
        shared: &Shared<S>,
        document: Option<&Document>,
        waiting: &[(Signature, ClaimId)],
    ) -> Self {
        let terms = &shared.terms;
        let all = || waiting.iter().map(|(_, id)| *id);
        let Some(document) = document else {
            return Self {
                wake: Vec::new(),
                pace: terms.pace(0),
                ends: None,
                sign_due: None,
            };
        };
        let now = shared.clock.now();
        let mut settled = document.clone();
        let wall = wall_clock_micros();
        let mut present = Present {
            now,
            wall,
            sightings: &shared.sightings,
            terms,
            random: fastrand::Rng::with_seed(0),
            made: Vec::new(),
        };
        let is_settled = present.settle(&mut settled).is_ok() && settled == *document;
        let ends = |holder: &Holder| {
            let left = shared.sightings.left_of(holder, now, wall);
            now + left.unwrap_or_default()
        };
        // One that has ended already is the reason to wake someone, not to look again.
        let holders = document.holders.iter().map(ends);
        let holders = holders.filter(|end| *end > now);
        if !terms.queue {
            let free = settled.holders.is_empty();
            return Self {
                wake: all().take(usize::from(free)).collect(),
                pace: terms.pace(0),
                ends: holders.min(),
                sign_due: None,
            };
        }
        let mut places: Vec<_> = waiting
            .iter()
            .map(|(claim, id)| (document.position(claim), *id))
            .collect();
        places.sort_unstable_by_key(|(place, _)| *place);
        // Not in the queue: it was handed the lock, or taken out of the queue, or never was in this document.
        let mut wake: Vec<_> = places
            .iter()
            .filter(|(place, _)| place.is_none())
            .map(|(_, id)| *id)
            .collect();
        let first = places
            .iter()
            .find_map(|(place, id)| Some((place.as_ref().copied()?, *id)));
        if let Some((_, id)) = first.filter(|_| !is_settled) {
            wake.push(id);
        }
        let place = first.map_or(0, |(place, _)| place);
        let ends = (place == 0).then(|| holders.min()).flatten();
        let own = document
            .queue
            .iter()
            .filter(|waiter| waiting.iter().any(|(claim, _)| *claim == waiter.claim));
        let sign_due = own.map(|waiter| {
            let since = shared
                .sightings
                .sight(&waiter.life)
                .map_or(now, |sight| sight.at);
            since + Duration::from_millis(waiter.ttl / SIGNS)
        });
        Self {
            wake,
            pace: terms.pace(place),
            ends,
            sign_due: sign_due.min(),
        }
    }
}
