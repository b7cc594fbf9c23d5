//! The places in queues that claims have through this server, and what becomes of them when nobody asks for them any more.
//!
//! A claim that queues has its entry in the engine, under an id that its client chose. The client may die, or come back through another
//! server. Who gives up the entry then?
//!
//! - Where this server is the only one that the engine can have (locks of one process or one machine), nobody else can have got the
//!   lock for the claim: it is released.
//! - Behind an engine that other servers reach, a claim may hold the lock through one of those. So this server only leaves the queue,
//!   which takes nothing away from a holder. Where the engine passes over waiters that do not answer, it does not even do that for a client that keeps
//!   its place, since the client may be waiting elsewhere: when the turn of that entry comes, it costs the others less than a second. On other
//!   engines an entry that nobody waits for would keep the others waiting for ever.
//! - A claim whose id this server has made itself is always released.
//!
//! Every attempt of a claim is a visit, also one that does not queue: so nothing that an earlier request left to be given up is given up after
//! a later one has got the lock.
//!
//! A request may also arrive after the one that was sent later, as when its connection stood still until its client had come back over another one. So it is
//! remembered which claims have got the lock through this server: what such a request leaves behind takes nothing away from them. A server that was started
//! since does not know them any more: so a claim of which it has seen no attempt is never released, it only leaves the queue.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::{Broker, Claim, ClaimId, Ttl};
use tokio::sync::Notify;

use crate::limits::Slot;
use crate::problem::Problem;

/// What becomes of a place when the last request for it has ended without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// There is none: the claim does not queue.
    NoPlace,
    /// It is given up at once.
    AtOnce,
    /// It is kept for so long.
    Later(Duration),
    /// The connection has ended while it waited: it is kept for so long, in case the client connects again, and then given up.
    BrokenOff(Duration),
    /// It is given up at once, and with it the lock, if it was granted meanwhile: nobody else knows the claim.
    Own,
}

#[derive(Debug)]
pub(crate) struct Places {
    broker: Broker,
    /// No other server can have granted a claim of these.
    alone: bool,
    /// The engine passes over waiters that do not answer.
    passes_over: bool,
    known: Mutex<HashMap<ClaimId, Place>>,
    /// Where no other server can have granted a claim: those that got the lock.
    granted: Mutex<Granted>,
    /// A place was given up, or its claim is no longer being renewed.
    settled: Notify,
    /// Until then a claim may hold the lock that got it before this server was started.
    all_known_from: Moment,
}

/// Claims that got the lock and were not released, and when they end unless they are renewed.
#[derive(Debug, Default)]
struct Granted {
    ends: HashMap<ClaimId, Moment>,
    /// How many there may be before those that have ended are forgotten.
    room: usize,
}

impl Granted {
    fn insert(&mut self, claim: &Claim, now: Moment) {
        if self.ends.len() >= self.room {
            self.ends.retain(|_, end| *end > now);
            self.room = 1024.max(2 * self.ends.len());
        }
        let end = now + claim.ttl.get();
        let known = self.ends.entry(claim.id).or_insert(end);
        *known = end.max(*known);
    }
}

#[derive(Debug)]
struct Place {
    claim: Claim,
    /// How many requests there are for it just now.
    open: usize,
    /// Counts them, so that a timer of an earlier one does nothing.
    visits: u64,
    is_being_given_up: bool,
    /// Whether an attempt of the claim was made through this server. If not, another one may have granted it, or this one before it was started.
    was_attempted: bool,
    /// Whether an attempt has shown that the claim did not hold the lock.
    has_waited: bool,
    /// The claim was released while there were requests for it.
    was_released: bool,
    /// How many renewals of its claim are under way: it is not given up before they have ended.
    renewals: usize,
    /// A later request has come.
    visited: Arc<Notify>,
    /// Whether the claim may have an entry in the queue.
    queues: bool,
    /// Counts it among those of its client, for as long as it is known.
    slot: Option<Slot>,
}

impl Places {
    pub(crate) fn new(broker: Broker, alone: bool, passes_over: bool) -> Arc<Self> {
        let all_known_from = broker.clock().now() + Ttl::MAX.get();
        Self::all_known_from(all_known_from, broker, alone, passes_over)
    }

    fn all_known_from(
        all_known_from: Moment,
        broker: Broker,
        alone: bool,
        passes_over: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            all_known_from,
            broker,
            alone,
            passes_over,
            known: Mutex::default(),
            granted: Mutex::default(),
            settled: Notify::new(),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn granted(&self) -> MutexGuard<'_, Granted> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.known().len()
    }

    /// Whether no other server can have granted a claim.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether the claim has, or may have, a place through this server.
    pub(crate) fn has(&self, id: &ClaimId) -> bool {
        self.known().contains_key(id)
    }

    /// A request for a place begins, which makes an attempt. If the place is just being given up, it begins after that. A place that is new takes a slot.
    pub(crate) async fn visit(
        self: &Arc<Self>,
        claim: &Claim,
        leaving: Leaving,
        slot: impl Fn() -> Result<Option<Slot>, Problem>,
    ) -> Result<Visit, Problem> {
        self.begin(claim, leaving, slot, true).await
    }

    /// The same for a request that only waits. What it leaves behind takes no lock away, unless an attempt was made as well.
    pub(crate) async fn visit_to_wait(
        self: &Arc<Self>,
        claim: &Claim,
        leaving: Leaving,
        slot: impl Fn() -> Result<Option<Slot>, Problem>,
    ) -> Result<Visit, Problem> {
        self.begin(claim, leaving, slot, false).await
    }

    async fn begin(
        self: &Arc<Self>,
        claim: &Claim,
        leaving: Leaving,
        slot: impl Fn() -> Result<Option<Slot>, Problem>,
        attempts: bool,
    ) -> Result<Visit, Problem> {
        loop {
            let settled = self.settled.notified();
            {
                let mut known = self.known();
                let place = match known.entry(claim.id) {
                    Entry::Occupied(place) => place.into_mut(),
                    Entry::Vacant(free) => free.insert(Place {
                        claim: claim.clone(),
                        open: 0,
                        visits: 0,
                        is_being_given_up: false,
                        was_attempted: false,
                        has_waited: false,
                        was_released: false,
                        renewals: 0,
                        visited: Arc::default(),
                        queues: false,
                        slot: slot()?,
                    }),
                };
                if place.claim.name != claim.name {
                    return Err(Problem::invalid("the claim id is in use for another lock")
                        .advise("choose another claim id for each lock"));
                }
                if !place.is_being_given_up {
                    if place.slot.is_none() {
                        place.slot = slot()?;
                    }
                    place.open += 1;
                    place.visits += 1;
                    place.queues |= leaving != Leaving::NoPlace;
                    place.was_attempted |= attempts;
                    place.was_released = false;
                    place.claim = claim.clone();
                    place.visited.notify_waiters();
                    return Ok(Visit {
                        places: Arc::clone(self),
                        id: claim.id,
                        nth: place.visits,
                        visited: Arc::clone(&place.visited),
                        leaving,
                    });
                }
            }
            settled.await;
        }
    }

    /// Renewals of these claims begin, after what is just being given up of them. As long as this is kept, nothing of them is given up: a lock that is
    /// renewed in time stays, however long the engine takes to say so.
    pub(crate) async fn renewing<'a>(
        self: &Arc<Self>,
        ids: impl Iterator<Item = &'a ClaimId>,
    ) -> Renewing {
        let mut renewing = Renewing {
            places: Arc::clone(self),
            ids: Vec::new(),
        };
        for id in ids {
            loop {
                let settled = self.settled.notified();
                match self.known().get_mut(id) {
                    None => break,
                    Some(place) if !place.is_being_given_up => {
                        place.renewals += 1;
                        renewing.ids.push(*id);
                        break;
                    }
                    Some(_) => {}
                }
                settled.await;
            }
        }
        renewing
    }

    /// The claim holds the lock, and its client knows: there is nothing to give up.
    pub(crate) fn holds(&self, claim: &Claim) {
        if self.alone {
            self.granted().insert(claim, self.broker.clock().now());
        }
        self.forget(&claim.id);
    }

    /// An attempt has shown that the claim does not hold the lock.
    pub(crate) fn waits(&self, id: &ClaimId) {
        if let Some(place) = self.known().get_mut(id) {
            place.has_waited = true;
        }
    }

    fn is_granted(&self, id: &ClaimId) -> bool {
        let now = self.broker.clock().now();
        self.granted().ends.get(id).is_some_and(|end| *end > now)
    }

    /// The claim was released, and no request for it makes another attempt.
    pub(crate) fn ended_for_good(&self, id: &ClaimId) {
        self.granted().ends.remove(id);
        self.forget(id);
    }

    fn forget(&self, id: &ClaimId) {
        let mut known = self.known();
        if known.get(id).is_some_and(|it| !it.is_being_given_up) {
            known.remove(id);
        }
    }

    /// The claim is about to be released: requests that still wait for it end, and what they leave behind is given up at once.
    pub(crate) fn end_requests(&self, id: &ClaimId) {
        if let Some(place) = self.known().get_mut(id).filter(|it| it.open > 0) {
            place.visits += 1;
            place.was_released = true;
            place.visited.notify_waiters();
        }
    }

    /// The claim was released, or the lock is only kept for a while. A request that is still open may have made another attempt, and then has its place to give up.
    pub(crate) fn released(&self, id: &ClaimId, is_kept: bool) {
        if !is_kept {
            self.granted().ends.remove(id);
        }
        let mut known = self.known();
        if known
            .get(id)
            .is_some_and(|it| it.open == 0 && !it.is_being_given_up)
        {
            known.remove(id);
        }
    }

    fn ended(self: &Arc<Self>, id: ClaimId, leaving: Leaving) {
        let (visits, leaving) = {
            let mut known = self.known();
            let Some(place) = known.get_mut(&id) else {
                return;
            };
            place.open = place.open.saturating_sub(1);
            if place.open > 0 {
                return;
            }
            match leaving {
                Leaving::NoPlace if !place.queues => {
                    known.remove(&id);
                    return;
                }
                // It had one from an earlier request, and does not want it any more.
                Leaving::NoPlace => (place.visits, Leaving::AtOnce),
                Leaving::Later(_) | Leaving::BrokenOff(_) if place.was_released => {
                    (place.visits, Leaving::AtOnce)
                }
                leaving => (place.visits, leaving),
            }
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(Arc::clone(self).give_up(id, visits, leaving));
    }

    async fn give_up(self: Arc<Self>, id: ClaimId, visits: u64, leaving: Leaving) {
        if let Leaving::Later(time) | Leaving::BrokenOff(time) = leaving {
            tokio::time::sleep(time).await;
        }
        let (claim, was_attempted, has_waited) = loop {
            let settled = self.settled.notified();
            {
                let mut known = self.known();
                let Some(place) = known.get_mut(&id) else {
                    return;
                };
                if place.open > 0 || place.visits != visits || place.is_being_given_up {
                    return;
                }
                if place.renewals == 0 {
                    if !self.alone && self.passes_over && matches!(leaving, Leaving::Later(_)) {
                        // The client may have its place through another server by now: the entry stays, and nobody here waits for it.
                        known.remove(&id);
                        return;
                    }
                    place.is_being_given_up = true;
                    break (place.claim.clone(), place.was_attempted, place.has_waited);
                }
            }
            settled.await;
        };
        // A request that came too late leaves the lock to the one that got it; that may have been before this server was started.
        let is_all_known = self.broker.clock().now() >= self.all_known_from;
        let took_it = has_waited || was_attempted && is_all_known;
        let is_nobodys = self.alone && took_it && !self.is_granted(&id);
        // If it fails, the entry ends as that of a dead waiter.
        match is_nobodys || leaving == Leaving::Own {
            true => drop(self.broker.release(&claim).await),
            false => drop(self.broker.leave_queue(&claim).await),
        }
        self.known().remove(&id);
        self.settled.notify_waiters();
    }
}

/// Renewals that are under way.
#[derive(Debug)]
#[must_use]
pub(crate) struct Renewing {
    places: Arc<Places>,
    ids: Vec<ClaimId>,
}

impl Drop for Renewing {
    fn drop(&mut self) {
        let mut known = self.places.known();
        for id in &self.ids {
            if let Some(place) = known.get_mut(id) {
                place.renewals = place.renewals.saturating_sub(1);
            }
        }
        drop(known);
        self.places.settled.notify_waiters();
    }
}

/// A request for a place. When it is dropped, the place is given up, unless the claim got the lock or another request is there.
#[derive(Debug)]
#[must_use]
pub(crate) struct Visit {
    places: Arc<Places>,
    id: ClaimId,
    nth: u64,
    visited: Arc<Notify>,
    leaving: Leaving,
}

impl Visit {
    /// Returns when there is a later request for the place, or the place is gone.
    pub(crate) async fn superseded(&self) {
        loop {
            let visited = self.visited.notified();
            if self.is_superseded() {
                return;
            }
            visited.await;
        }
    }

    /// Whether there is a later request for the place, or the place is gone.
    pub(crate) fn is_superseded(&self) -> bool {
        let last = self.places.known().get(&self.id).map(|it| it.visits);
        last != Some(self.nth)
    }

    /// Whether the claim may have, or have had, an entry in the queue.
    pub(crate) fn has_queued(&self) -> bool {
        let known = self.places.known();
        known.get(&self.id).is_some_and(|it| it.queues)
    }

    /// The claim holds the lock.
    pub(crate) fn granted(self) {
        let claim = self.places.known().get(&self.id).map(|it| it.claim.clone());
        if let Some(claim) = claim {
            self.places.holds(&claim);
        }
    }

    /// From now on, if the request ends, this becomes of the place.
    pub(crate) fn then(&mut self, leaving: Leaving) {
        self.leaving = leaving;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.places.ended(self.id, self.leaving);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::engine::Attempt;
    use leasehold::{LockName, Locks};

    async fn ground() -> (Locks, Arc<Places>) {
        let locks = Locks::connect("memory:").await.unwrap();
        let now = locks.broker().clock().now();
        let places = Places::all_known_from(now, locks.broker(), true, false);
        (locks, places)
    }

    fn claim(nth: u8) -> Claim {
        let name = LockName::new("x").unwrap();
        let mut claim = Claim::new(name, ClaimId::from_bytes([nth; 16]));
        claim.queues = true;
        claim
    }

    async fn ask(places: &Arc<Places>, leaving: Leaving) -> Visit {
        let claim = claim(1);
        let visit = places.visit(&claim, leaving, || Ok(None));
        visit.await.unwrap()
    }

    async fn waiters(locks: &Locks) -> usize {
        locks.inspect("x").await.unwrap().waiters.len()
    }

    async fn until_waiting(locks: &Locks, count: usize) {
        let reached = async {
            while waiters(locks).await != count {
                tokio::task::yield_now().await;
            }
        };
        let within = Duration::from_secs(30);
        tokio::time::timeout(within, reached).await.unwrap();
    }

    #[tokio::test]
    async fn a_place_is_given_up_with_its_last_request() {
        let (locks, places) = ground().await;
        let _held = locks.lock("x").acquire().await.unwrap();
        let one = ask(&places, Leaving::AtOnce).await;
        let two = ask(&places, Leaving::AtOnce).await;
        assert!(matches!(
            locks.broker().try_acquire(&claim(1)).await,
            Ok(Attempt::Held(_))
        ));
        drop(one);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(waiters(&locks).await, 1);
        drop(two);
        until_waiting(&locks, 0).await;
        assert_eq!(places.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_place_outlives_its_request_for_a_while() {
        let (locks, places) = ground().await;
        let _held = locks.lock("x").wait_forever().acquire().await.unwrap();
        let kept = Leaving::Later(Duration::from_secs(3));
        let visit = ask(&places, kept).await;
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        drop(visit);
        tokio::time::sleep(Duration::from_secs(2)).await;
        // It comes back in time.
        let visit = ask(&places, kept).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(waiters(&locks).await, 1);
        drop(visit);
        tokio::time::sleep(Duration::from_secs(4)).await;
        until_waiting(&locks, 0).await;
    }

    /// As over etcd, ZooKeeper, DynamoDB and S3.
    #[tokio::test(start_paused = true)]
    async fn kept_place_is_left_where_nobody_is_passed_over() {
        let locks = Locks::connect("memory:").await.unwrap();
        let places = Places::new(locks.broker(), false, false);
        let held = locks.lock("x").acquire().await.unwrap();
        let visit = ask(&places, Leaving::Later(Duration::from_secs(3))).await;
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        drop(visit);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(waiters(&locks).await, 1);
        tokio::time::sleep(Duration::from_secs(2)).await;
        until_waiting(&locks, 0).await;
        held.release().await.unwrap();
        assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
    }

    /// As over an engine that other servers reach.
    #[tokio::test]
    async fn a_lock_granted_elsewhere_is_not_taken_away() {
        let locks = Locks::connect("memory:").await.unwrap();
        let places = Places::new(locks.broker(), false, true);
        let held = locks.lock("x").acquire().await.unwrap();
        let visit = ask(&places, Leaving::AtOnce).await;
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        // The other server, through which its client has come back.
        held.release().await.unwrap();
        let granted = locks.broker().try_acquire(&claim(1)).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
        drop(visit);
        until_known(&places, 0).await;
        let holders = locks.inspect("x").await.unwrap().holders;
        assert!(
            holders[0].time_left > Duration::from_secs(20),
            "{holders:?}"
        );
    }

    #[tokio::test]
    async fn a_queue_shared_with_others_is_left_unless_the_place_is_kept() {
        let locks = Locks::connect("memory:").await.unwrap();
        let places = Places::new(locks.broker(), false, true);
        let _held = locks.lock("x").acquire().await.unwrap();
        let kept = Leaving::Later(Duration::from_millis(1));
        let broken_off = Leaving::BrokenOff(Duration::from_millis(1));
        for (leaving, left) in [(Leaving::AtOnce, 0), (broken_off, 0), (kept, 1)] {
            let visit = ask(&places, leaving).await;
            let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
            drop(visit);
            until_known(&places, 0).await;
            assert_eq!(waiters(&locks).await, left, "{leaving:?}");
        }
    }

    async fn until_known(places: &Places, count: usize) {
        let reached = async {
            while places.count() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let within = Duration::from_secs(30);
        tokio::time::timeout(within, reached).await.unwrap();
    }

    #[tokio::test]
    async fn a_claim_that_got_the_lock_keeps_it() {
        let (locks, places) = ground().await;
        let visit = ask(&places, Leaving::AtOnce).await;
        let second = ask(&places, Leaving::AtOnce).await;
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        visit.granted();
        drop(second);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
    }

    /// As of a client whose first connection stood still until it had got the lock over another one.
    #[tokio::test]
    async fn request_that_arrives_after_the_grant_takes_nothing_away() {
        let (locks, places) = ground().await;
        let visit = ask(&places, Leaving::AtOnce).await;
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        visit.granted();
        for leaving in [
            Leaving::AtOnce,
            Leaving::BrokenOff(Duration::from_millis(1)),
        ] {
            drop(ask(&places, leaving).await);
            until_known(&places, 0).await;
            let holders = locks.inspect("x").await.unwrap().holders;
            assert_eq!(holders.len(), 1, "{leaving:?}");
        }
        // Once it is released, whatever a late request gets is given up as ever.
        let _ = locks.broker().release(&claim(1)).await.unwrap();
        places.released(&claim(1).id, false);
        let late = ask(&places, Leaving::AtOnce).await;
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        drop(late);
        until_known(&places, 0).await;
        assert!(locks.inspect("x").await.unwrap().holders.is_empty());
    }

    #[tokio::test]
    async fn late_request_after_a_restart_takes_nothing_away() {
        let locks = Locks::connect("memory:").await.unwrap();
        let granted = locks.broker().try_acquire(&claim(1)).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)));
        // A server that has just been started, and does not know of the grant.
        let places = Places::new(locks.broker(), true, false);
        drop(ask(&places, Leaving::AtOnce).await);
        until_known(&places, 0).await;
        assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
        // A claim that was seen to wait can have got the lock only since.
        let _ = locks.broker().release(&claim(1)).await.unwrap();
        let visit = ask(&places, Leaving::AtOnce).await;
        places.waits(&claim(1).id);
        let _ = locks.broker().try_acquire(&claim(1)).await.unwrap();
        drop(visit);
        until_known(&places, 0).await;
        assert!(locks.inspect("x").await.unwrap().holders.is_empty());
    }
}
