//! Which nodes this process has made for its claims.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::claim::ClaimId;
use crate::token::FencingToken;

/// A claim's node. Its path names the claim, so it is never printed.
#[derive(Clone)]
pub(crate) struct Place {
    /// The session that it ends with.
    pub(crate) session: u64,
    pub(crate) path: String,
    /// Its number, by which it stands in line.
    pub(crate) sequence: i64,
    pub(crate) token: FencingToken,
    pub(crate) standing: Stands,
    /// Whether it stood behind others: then there are likely others behind it.
    pub(crate) has_waited: bool,
}

#[derive(Clone)]
pub(crate) enum Stands {
    Holds,
    Waits {
        /// The paths of the nodes of which one must go first.
        watched: Vec<String>,
        /// Nobody else is ahead: when one of them has gone, it holds the lock.
        is_next: bool,
        /// It watches one exclusive claim, and nobody in between keeps it out: once that one says that it has held the lock, it
        /// holds the lock.
        hears: bool,
    },
    /// One has gone, as this session's server knows.
    Woken,
}

/// By claim. Held for microseconds and never across an await, so a std Mutex.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<ClaimId, Place>>);

impl Places {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: &ClaimId) -> Option<Place> {
        self.lock().get(id).cloned()
    }

    pub(crate) fn wake(&self, id: &ClaimId) {
        if let Some(place) = self.lock().get_mut(id)
            && matches!(place.standing, Stands::Waits { .. })
        {
            place.standing = Stands::Woken;
        }
    }

    pub(crate) fn forget(&self, id: &ClaimId) {
        self.lock().remove(id);
    }
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Places({})", self.lock().len())
    }
}
