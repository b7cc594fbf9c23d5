//! Who waits in this process, and what rings for them: for engines that hear of a hand-over by message.

use std::collections::HashMap;
#[cfg(feature = "postgres")]
use std::collections::HashSet;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::claim::ClaimId;
#[cfg(feature = "postgres")]
use crate::engine::Grant;
#[cfg(feature = "postgres")]
use crate::name::LockName;

/// Waiters by claim, and by the number that messages name them by.
#[derive(Debug)]
pub(crate) struct Waiters<M>(Mutex<Known<M>>);

#[derive(Debug)]
struct Known<M> {
    bells: HashMap<u64, Arc<Bell<M>>>,
    numbers: HashMap<ClaimId, u64>,
    #[cfg(feature = "postgres")]
    names: HashMap<ClaimId, LockName>,
}

/// Rings for one waiter. Keeps the messages until the waiter listens.
#[derive(Debug)]
pub(crate) struct Bell<M> {
    #[cfg(feature = "postgres")]
    pub(crate) id: ClaimId,
    rung: Notify,
    messages: Mutex<Vec<M>>,
    /// What another of this process has passed on to it.
    #[cfg(feature = "postgres")]
    grant: Mutex<Option<Grant>>,
}

impl<M> Default for Waiters<M> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            bells: HashMap::new(),
            numbers: HashMap::new(),
            #[cfg(feature = "postgres")]
            names: HashMap::new(),
        }))
    }
}

impl<M> Bell<M> {
    #[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
    pub(crate) fn ring(&self, message: M) {
        self.messages().push(message);
        self.rung.notify_one();
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn pass_on(&self, grant: Grant) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant);
        self.rung.notify_one();
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn passed_on(&self) -> Option<Grant> {
        let mut grant = self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        grant.take()
    }

    /// Only to look again.
    pub(crate) fn nudge(&self) {
        self.rung.notify_one();
    }

    /// Forgets what has become void.
    #[cfg(feature = "redis")]
    pub(crate) fn keep_only(&self, still_counts: impl FnMut(&M) -> bool) {
        self.messages().retain(still_counts);
    }

    /// Returns what has been said since the last time; nothing means only to look again.
    pub(crate) async fn heard(&self) -> Vec<M> {
        self.rung.notified().await;
        std::mem::take(&mut *self.messages())
    }

    fn messages(&self) -> MutexGuard<'_, Vec<M>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Waiters<M> {
    fn known(&self) -> MutexGuard<'_, Known<M>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for a waiter; to be called before anyone else can see it in the queue.
    pub(crate) fn expect(&self, id: ClaimId, number: u64) {
        let mut known = self.known();
        if known.numbers.insert(id, number) != Some(number) {
            let bell = Bell {
                #[cfg(feature = "postgres")]
                id,
                rung: Notify::new(),
                messages: Mutex::default(),
                #[cfg(feature = "postgres")]
                grant: Mutex::default(),
            };
            known.bells.insert(number, Arc::new(bell));
        }
    }

    /// As `expect`, with the number that it has, or the next one of this process.
    #[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
    pub(crate) fn expect_next(&self, id: ClaimId) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        if let Some((number, _)) = self.waiter(&id) {
            return number;
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.expect(id, number);
        number
    }

    /// As `expect_next`, and notes what for.
    #[cfg(feature = "postgres")]
    pub(crate) fn expect_next_for(&self, id: ClaimId, name: &LockName) -> u64 {
        self.known().names.insert(id, name.clone());
        self.expect_next(id)
    }

    /// All locks that are waited for.
    #[cfg(feature = "postgres")]
    pub(crate) fn names(&self) -> HashSet<LockName> {
        self.known().names.values().cloned().collect()
    }

    /// Whether nobody waits.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.known().bells.is_empty()
    }

    /// A waiter's number and its bell.
    pub(crate) fn waiter(&self, id: &ClaimId) -> Option<(u64, Arc<Bell<M>>)> {
        let known = self.known();
        let number = *known.numbers.get(id)?;
        Some((number, Arc::clone(known.bells.get(&number)?)))
    }

    /// The bell of the waiter with this number.
    pub(crate) fn bell(&self, number: u64) -> Option<Arc<Bell<M>>> {
        self.known().bells.get(&number).cloned()
    }

    /// A waiter has what it waited for, or waits no more.
    pub(crate) fn forget(&self, id: &ClaimId) {
        let mut known = self.known();
        #[cfg(feature = "postgres")]
        known.names.remove(id);
        if let Some(number) = known.numbers.remove(id) {
            known.bells.remove(&number);
        }
    }

    /// Nobody knows what has been missed: all look again.
    pub(crate) fn ring_all(&self) {
        for bell in self.known().bells.values() {
            bell.nudge();
        }
    }
}
