//! What happens with the locks, as far as this server knows: events, holds that have ended, how long claims waited.
//!
//! What goes through this server is known at once and exactly. What others do is seen by looking at all locks every now and then, so that a hold
//! which is shorter than that may be missed. Nothing here decides anything: it is for people.

mod event;
mod history;
#[cfg(feature = "history")]
mod history_file;
mod observer;
mod waits;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Claim, ClaimId, Claimant, FencingToken, LockInfo, LockName, Mode};
use tokio::sync::broadcast;

pub(crate) use event::{Event, Happening};
pub(crate) use history::{Filter, History, PastHold};
#[cfg(feature = "history")]
pub(crate) use history_file::HistoryFile;
pub(crate) use waits::Series;

use crate::shapes::{ModeShape, Who};
use crate::time::millis;

/// How many events are kept.
const EVENTS: usize = 10_000;

/// How many a slow reader may be behind before it is told that it has missed some.
const BEHIND: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Activity {
    instance: Arc<str>,
    state: Mutex<State>,
    history: History,
    live: broadcast::Sender<Arc<Event>>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    events: VecDeque<Arc<Event>>,
    holds: HashMap<(LockName, FencingToken), Hold>,
    /// The holds of the claims that this server has granted or renewed.
    by_claim: HashMap<ClaimId, (LockName, FencingToken)>,
    /// Who waits through this server, and who waits in all as of the last look.
    waiting_here: HashMap<WaiterKey, usize>,
    waiting_elsewhere: HashMap<WaiterKey, usize>,
    asked: HashMap<LockName, Asked>,
    waits: waits::Waits,
    latest: Option<Latest>,
}

type WaiterKey = (LockName, Claimant);

/// What the last look saw.
#[derive(Debug, Clone)]
pub(crate) struct Latest {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    pub(crate) took: Duration,
    pub(crate) at: Instant,
}

/// Someone asked for a lock through this server.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) by: Option<Arc<str>>,
    pub(crate) reason: String,
    pub(crate) at: SystemTime,
    token: Option<FencingToken>,
}

#[derive(Debug, Clone)]
struct Hold {
    claimant: Claimant,
    mode: Mode,
    reason: Option<String>,
    acquired_at: SystemTime,
    since: Instant,
    waited: Option<Duration>,
    here: bool,
    /// When it ends unless it is renewed, as of the last look.
    expires: Option<Instant>,
    claim: Option<ClaimId>,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Expired,
    Broken,
    /// It stays taken until its time is over.
    Kept,
    /// Elsewhere; nobody here knows how.
    Gone,
}

impl End {
    pub(crate) fn name(self) -> &'static str {
        match self {
            End::Released => "released",
            End::Expired => "expired",
            End::Broken => "broken",
            End::Kept => "kept",
            End::Gone => "gone",
        }
    }
}

impl Activity {
    pub(crate) fn new(instance: Arc<str>, history: History) -> Self {
        Self {
            instance,
            state: Mutex::default(),
            history,
            live: broadcast::channel(BEHIND).0,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// A claim of a client begins to wait. It waits until what is returned is dropped.
    pub(crate) fn waiting(self: &Arc<Self>, claim: &Claim, ahead: Option<usize>) -> Waiting {
        let key = (claim.name.clone(), (*claim.claimant).clone());
        let mut state = self.state();
        *state.waiting_here.entry(key.clone()).or_default() += 1;
        let happening = Happening::Waiting { ahead };
        self.publish(&mut state, Event::of_claim(claim, happening));
        Waiting {
            activity: Arc::clone(self),
            claim: claim.clone(),
            key,
            since: Instant::now(),
            granted: false,
        }
    }

    /// A claim of a client was granted; once for each grant, however often it is told.
    pub(crate) fn acquired(&self, claim: &Claim, token: FencingToken, waited: Option<Duration>) {
        let mut state = self.state();
        let key = (claim.name.clone(), token);
        state.by_claim.insert(claim.id, key.clone());
        if let Some(hold) = state.holds.get_mut(&key) {
            hold.claim = Some(claim.id);
            return;
        }
        let now = Instant::now();
        let hold = Hold {
            claimant: (*claim.claimant).clone(),
            mode: claim.mode,
            reason: claim.reason.as_deref().map(str::to_owned),
            acquired_at: SystemTime::now(),
            since: now,
            waited,
            here: true,
            expires: Some(now + claim.ttl.get()),
            claim: Some(claim.id),
        };
        self.begin(&mut state, &claim.name, token, hold);
    }

    /// A claim of a client was renewed.
    pub(crate) fn renewed(&self, claim: &Claim, token: FencingToken) {
        let mut state = self.state();
        let key = (claim.name.clone(), token);
        // One that is not known was acquired elsewhere, and may be released there: nobody here would forget it.
        if let Some(hold) = state.holds.get_mut(&key) {
            hold.expires = Some(Instant::now() + claim.ttl.get());
            hold.claim = Some(claim.id);
            state.by_claim.insert(claim.id, key);
        }
    }

    /// A claim of a client ended its hold.
    pub(crate) fn ended(&self, name: &LockName, id: &ClaimId, end: End) {
        let mut state = self.state();
        let Some((known, token)) = state.by_claim.remove(id) else {
            return;
        };
        if known == *name {
            self.finish(&mut state, name, token, end, None);
        }
    }

    /// An operator took a lock away.
    pub(crate) fn broken(&self, name: &LockName, by: Option<Arc<str>>, reason: Option<String>) {
        let mut state = self.state();
        let held = state.holds.keys().filter(|(lock, _)| lock == name);
        let tokens: Vec<_> = held.map(|(_, token)| *token).collect();
        for token in tokens {
            self.finish(&mut state, name, token, End::Broken, by.clone());
        }
        let happening = Happening::Broken { by, reason };
        self.publish(&mut state, Event::of_lock(name, happening));
    }

    /// Someone asked for a lock.
    pub(crate) fn asked(&self, name: &LockName, by: Option<Arc<str>>, reason: String) {
        let mut state = self.state();
        let held = state.holds.keys().filter(|(lock, _)| lock == name);
        let asked = Asked {
            by: by.clone(),
            reason: reason.clone(),
            at: SystemTime::now(),
            token: held.map(|(_, token)| *token).max(),
        };
        state.asked.insert(name.clone(), asked);
        let happening = Happening::Asked { by, reason };
        self.publish(&mut state, Event::of_lock(name, happening));
    }

    /// Whether the holder of a lock was asked for it through this server.
    pub(crate) fn asked_for(&self, lock: &LockInfo) -> Option<Asked> {
        let state = self.state();
        let asked = state.asked.get(&lock.name)?;
        let latest = lock.holders.iter().map(|holder| holder.token).max()?;
        let still = asked.token.is_none_or(|token| latest <= token);
        still.then(|| asked.clone())
    }

    /// The latest events of a lock, the newest first.
    pub(crate) fn events_of(&self, name: &LockName, limit: usize) -> Vec<Arc<Event>> {
        let state = self.state();
        let events = state.events.iter().rev();
        let of_lock = events.filter(|event| event.lock == name.as_str());
        of_lock.take(limit).cloned().collect()
    }

    pub(crate) fn latest(&self) -> Option<Latest> {
        self.state().latest.clone()
    }

    pub(crate) fn series(&self) -> Series {
        self.state().waits.series()
    }

    /// The locks that were waited for most in the last hour.
    pub(crate) fn contention(
        &self,
        limit: usize,
        is_asked_for: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<u64>)> {
        self.state().waits.most_contended(limit, is_asked_for)
    }

    /// Events from now on, after those that are kept and come after `after`. `None` instead of those if some of them are missing.
    pub(crate) fn subscribe(&self, from: &From) -> (Option<Vec<Arc<Event>>>, Subscription) {
        let state = self.state();
        let receiver = self.live.subscribe();
        let kept = || state.events.iter();
        let replay = match from {
            From::Now => Some(Vec::new()),
            From::Last(count) => {
                let skipped = state.events.len().saturating_sub(*count);
                Some(kept().skip(skipped).cloned().collect())
            }
            From::After(id) => {
                let after = id
                    .strip_prefix(&*self.instance)
                    .and_then(|rest| rest.strip_prefix('-')?.parse::<u64>().ok());
                let first = kept()
                    .next()
                    .map_or(state.last_id + 1, |event| event.number);
                after
                    .filter(|after| *after + 1 >= first && *after <= state.last_id)
                    .map(|after| kept().filter(|it| it.number > after).cloned().collect())
            }
        };
        (replay, receiver)
    }

    fn begin(&self, state: &mut State, name: &LockName, token: FencingToken, hold: Hold) {
        let happening = Happening::Acquired {
            token: token.get(),
            waited_ms: hold.waited.map(millis),
        };
        self.publish(state, Event::of_hold(name, &hold, happening));
        state.holds.insert((name.clone(), token), hold);
    }

    fn finish(
        &self,
        state: &mut State,
        name: &LockName,
        token: FencingToken,
        end: End,
        by: Option<Arc<str>>,
    ) {
        let Some(hold) = state.holds.remove(&(name.clone(), token)) else {
            return;
        };
        if let Some(claim) = hold.claim {
            state.by_claim.remove(&claim);
        }
        let held = hold.since.elapsed();
        if matches!(end, End::Expired | End::Broken) {
            state.waits.lost(end);
        }
        let happening = Happening::Ended {
            token: token.get(),
            held_ms: millis(held),
            end: end.name(),
        };
        self.publish(state, Event::of_hold(name, &hold, happening));
        self.history.add(PastHold {
            number: 0,
            lock: name.as_str().to_owned(),
            who: Who::from(&hold.claimant),
            mode: ModeShape::from(hold.mode),
            reason: hold.reason,
            token: token.get(),
            acquired_at: hold.acquired_at,
            ended_at: SystemTime::now(),
            held_ms: millis(held),
            waited_ms: hold.waited.map(millis),
            end: end.name(),
            by: by.map(|by| by.to_string()),
            here: hold.here,
        });
    }

    fn publish(&self, state: &mut State, mut event: Event) {
        state.last_id += 1;
        event.number = state.last_id;
        event.id = format!("{}-{}", self.instance, event.number);
        let event = Arc::new(event);
        if state.events.len() >= EVENTS {
            state.events.pop_front();
        }
        state.events.push_back(Arc::clone(&event));
        // Nobody may be listening.
        let _ = self.live.send(event);
    }
}

/// Where a reader of events begins.
#[derive(Debug)]
pub(crate) enum From {
    Now,
    Last(usize),
    After(String),
}

pub(crate) type Subscription = broadcast::Receiver<Arc<Event>>;

/// A claim of a client waits through this server.
#[derive(Debug)]
pub(crate) struct Waiting {
    activity: Arc<Activity>,
    claim: Claim,
    key: WaiterKey,
    since: Instant,
    granted: bool,
}

impl Waiting {
    /// It was granted; returns how long it waited.
    pub(crate) fn granted(mut self) -> Duration {
        self.granted = true;
        self.since.elapsed()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        if let Some(count) = state.waiting_here.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                state.waiting_here.remove(&self.key);
            }
        }
        if !self.granted {
            let waited_ms = millis(self.since.elapsed());
            let event = Event::of_claim(&self.claim, Happening::Left { waited_ms });
            self.activity.publish(&mut state, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::engine::HolderInfo;

    fn activity() -> (Activity, Claim, FencingToken) {
        let name = LockName::new("x").unwrap();
        (
            Activity::new("a".into(), History::default()),
            Claim::new(name, ClaimId::from_bytes([1; 16])),
            FencingToken::new(7).unwrap(),
        )
    }

    #[test]
    fn claim_that_was_released_elsewhere_is_forgotten() {
        let (activity, claim, token) = activity();
        activity.renewed(&claim, token);
        assert!(activity.state().by_claim.is_empty());
    }

    #[test]
    fn claim_that_was_seen_before_it_was_told_is_forgotten() {
        let (activity, claim, token) = activity();
        let holder = HolderInfo::new((*claim.claimant).clone(), claim.mode, token);
        let mut lock = LockInfo::new(claim.name.clone());
        lock.holders.push(holder);
        activity.saw(&[lock], Instant::now(), Duration::ZERO);
        activity.acquired(&claim, token, None);
        assert_eq!(activity.state().by_claim.len(), 1);
        activity.saw(&[], Instant::now(), Duration::ZERO);
        assert!(activity.state().by_claim.is_empty());
    }
}
