//! Looks at all locks every now and then, and tells what others have done.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{LockInfo, Locks, Ttl};

use super::{Activity, Asked, End, Event, Happening, Hold, Latest};

/// A look may take this part of the time between two, so that an engine with very many locks is not kept busy by looking.
const SHARE: u32 = 10;

/// How often a server that does not look ends the holds whose time is over.
const EXPIRE: Duration = Duration::from_secs(2);

impl Activity {
    /// Looks every so often, for as long as the server lives.
    pub(crate) fn observe(self: &Arc<Self>, locks: Locks, every: Duration) {
        let activity = Arc::downgrade(self);
        tokio::spawn(async move { look_repeatedly(activity, locks, every).await });
    }

    /// Ends holds whose time is over every now and then, for as long as the server lives: for a server that does not look.
    pub(crate) fn expire(self: &Arc<Self>) {
        let activity = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(activity) = activity.upgrade() {
                activity.end_expired();
                drop(activity);
                tokio::time::sleep(EXPIRE).await;
            }
        });
    }

    fn end_expired(&self) {
        let mut state = self.state();
        let now = Instant::now();
        let is_over = |hold: &Hold| hold.expires.is_some_and(|end| end <= now);
        let holds = state.holds.iter().filter(|(_, hold)| is_over(hold));
        let expired: Vec<_> = holds.map(|(key, _)| key.clone()).collect();
        for (name, token) in expired {
            self.finish(&mut state, &name, token, End::Expired, None);
        }
        // Who holds a lock that was not acquired here is not known: after a day it may be another.
        let is_old = |asked: &Asked| asked.at.elapsed().is_ok_and(|ago| ago > Ttl::MAX.get());
        state.asked.retain(|_, asked| !is_old(asked));
    }

    /// Applies what a look saw that began at `started`.
    pub(super) fn saw(&self, locks: &[LockInfo], started: Instant, since_last: Duration) {
        let mut state = self.state();
        let now = Instant::now();
        let mut seen = HashSet::new();
        let mut entered = HashSet::new();
        for lock in locks {
            for holder in &lock.holders {
                let key = (lock.name.clone(), holder.token);
                seen.insert(key.clone());
                let expires = Some(now + holder.time_left);
                if let Some(hold) = state.holds.get_mut(&key) {
                    hold.expires = expires;
                    continue;
                }
                entered.insert((lock.name.clone(), holder.claimant.clone()));
                let hold = Hold {
                    claimant: holder.claimant.clone(),
                    mode: holder.mode,
                    reason: holder.reason.clone(),
                    acquired_at: SystemTime::now() - holder.held_for,
                    since: now.checked_sub(holder.held_for).unwrap_or(now),
                    waited: None,
                    here: false,
                    expires,
                    claim: None,
                };
                self.begin(&mut state, &lock.name, holder.token, hold);
            }
        }
        let gone: Vec<_> = state
            .holds
            .iter()
            // One that began after the look did may not be in it.
            .filter(|(key, hold)| !seen.contains(*key) && hold.since < started)
            .map(|(key, hold)| (key.clone(), hold.expires.is_some_and(|end| end <= now)))
            .collect();
        for ((name, token), expired) in gone {
            let end = if expired { End::Expired } else { End::Gone };
            self.finish(&mut state, &name, token, end, None);
        }
        let mut elsewhere: HashMap<_, usize> = HashMap::new();
        for lock in locks {
            for waiter in &lock.waiters {
                let key = (lock.name.clone(), waiter.claimant.clone());
                *elsewhere.entry(key).or_default() += 1;
            }
        }
        elsewhere.retain(|key, count| {
            *count -= state
                .waiting_here
                .get(key)
                .copied()
                .unwrap_or(0)
                .min(*count);
            *count > 0
        });
        let before = std::mem::take(&mut state.waiting_elsewhere);
        for lock in locks {
            for waiter in &lock.waiters {
                let key = (lock.name.clone(), waiter.claimant.clone());
                if elsewhere.contains_key(&key) && !before.contains_key(&key) {
                    let what = Happening::Waiting { ahead: None };
                    let event =
                        Event::of_claimant(&lock.name, &waiter.claimant, waiter.mode, false, what);
                    self.publish(&mut state, event);
                }
            }
        }
        for key in before.keys() {
            if !elsewhere.contains_key(key) && !entered.contains(key) {
                let what = Happening::Left { waited_ms: 0 };
                let mut event = Event::of_lock(&key.0, what);
                event.elsewhere(&key.1);
                self.publish(&mut state, event);
            }
        }
        state.waiting_elsewhere = elsewhere;
        let held = locks.iter().map(|lock| lock.holders.len()).sum();
        let waiting = locks.iter().map(|lock| (&lock.name, lock.waiters.len()));
        state.waits.saw(held, waiting.clone(), since_last);
        state.latest = Some(Latest {
            held,
            waiting: waiting.map(|(_, count)| count).sum(),
            took: now.saturating_duration_since(started),
            at: now,
        });
        let held: HashSet<_> = locks.iter().map(|lock| &lock.name).collect();
        state.asked.retain(|name, _| held.contains(name));
    }
}

async fn look_repeatedly(activity: Weak<Activity>, locks: Locks, every: Duration) {
    let mut last = Instant::now();
    loop {
        let started = Instant::now();
        let listed = locks.list("").await;
        let Some(activity) = activity.upgrade() else {
            return;
        };
        if let Ok(listed) = listed {
            activity.saw(&listed, started, last.elapsed());
        }
        // Time during which the engine did not answer is counted by nobody.
        last = Instant::now();
        drop(activity);
        let took = started.elapsed();
        tokio::time::sleep(every.max(took * SHARE)).await;
    }
}
