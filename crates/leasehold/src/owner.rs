//! Reentrancy: one owner takes a lock again that it holds.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::OwnedMutexGuard;

use crate::acquire::Wait;
use crate::claim::Mode;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, Terms};
use crate::name::LockName;
use crate::sync::Mutex;

type Slot = Arc<tokio::sync::Mutex<Weak<Hold>>>;

/// What one owner holds, by name.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    by_name: HashMap<LockName, Slot>,
    /// At this size unused slots are swept; doubles with what is in use, so sweeping stays cheap.
    sweep_at: usize,
}

/// One owner's slot for one lock. While an acquire is in flight the owner's other requests for that
/// lock wait for its outcome, so that they can join it.
#[derive(Debug)]
pub(crate) struct Entry(OwnedMutexGuard<Weak<Hold>>);

impl Owner {
    /// `None` if another request of this owner is still in flight at the end of `wait`.
    pub(crate) async fn enter(&self, name: &LockName, wait: Wait, clock: &Clock) -> Option<Entry> {
        let slot = self.slot(name);
        let locked = match wait {
            Wait::Forever => Some(slot.lock_owned().await),
            Wait::UpTo(time) => tokio::select! {
                biased;
                locked = Arc::clone(&slot).lock_owned() => Some(locked),
                () = clock.sleep_until(clock.now() + time) => None,
            },
        };
        locked.map(Entry)
    }

    fn slot(&self, name: &LockName) -> Slot {
        let mut slots = self.slots.lock();
        if slots.by_name.len() >= slots.sweep_at {
            let unused = |slot: &Slot| {
                Arc::strong_count(slot) == 1
                    && slot.try_lock().is_ok_and(|held| held.strong_count() == 0)
            };
            slots.by_name.retain(|_, slot| !unused(slot));
            slots.sweep_at = 2 * slots.by_name.len().max(16);
        }
        Arc::clone(slots.by_name.entry(name.clone()).or_default())
    }
}

impl Entry {
    /// What the owner holds, counted once more, if it is still good.
    pub(crate) fn held(&self, now: Moment) -> Option<Arc<Hold>> {
        self.0.upgrade().filter(|hold| hold.join(now))
    }

    pub(crate) fn remember(&mut self, hold: &Arc<Hold>) {
        *self.0 = Arc::downgrade(hold);
    }

    /// Whoever holds a lock exclusively may also read; whoever reads cannot become the writer,
    /// since two readers that both tried would wait for each other.
    pub(crate) fn may_join(held: Mode, asked: Mode, terms: Terms) -> Result<()> {
        if terms.max_hold.or(terms.hold_at_least).is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this owner holds it already, and how long it may or must be held cannot be changed",
            )
            .advise("set `max_hold` and `hold_at_least` where it is taken first"));
        }
        if held == asked || held == Mode::Exclusive {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "this owner holds it in {held} mode and cannot take it in {asked} mode as well"
            ),
        )
        .advise("release it first, or take it in exclusive mode from the start"))
    }
}
