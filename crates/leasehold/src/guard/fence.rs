//! For services that guard something themselves: the highest token seen of each lock.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::record::{Fenced, Pass};
use super::store::Store;
use crate::error::Result;
use crate::name::LockName;
use crate::token::FencingToken;

/// What a fence says of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// No higher one has been seen.
    Admitted,
    /// A later holder was here already.
    Refused {
        /// The highest token seen.
        highest: FencingToken,
    },
}

/// Something that remembers the highest token of each lock.
#[async_trait]
pub trait Fencing: Debug + Send + Sync + 'static {
    /// Lets the token pass unless a higher one has passed before, and remembers it.
    async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Admission>;
}

/// A fence in memory. It forgets when the process ends: where that matters, use a [`StoredFence`].
///
/// It remembers one number for each lock that it has seen, for ever.
#[derive(Debug, Default)]
pub struct Fence(Mutex<HashMap<LockName, FencingToken>>);

impl Fence {
    /// A fence that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the token pass unless a higher one has passed before, and remembers it.
    pub fn check(&self, lock: &LockName, token: FencingToken) -> Admission {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get_mut(lock) {
            Some(highest) if token < *highest => Admission::Refused { highest: *highest },
            Some(highest) => {
                *highest = token;
                Admission::Admitted
            }
            None => {
                seen.insert(lock.clone(), token);
                Admission::Admitted
            }
        }
    }
}

#[async_trait]
impl Fencing for Fence {
    async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Admission> {
        Ok(Fence::check(self, lock, token))
    }
}

/// A fence that a [`Store`] remembers, for all who share the store: an empty record of the lock's name.
///
/// The check and the work that it admits are two steps: a later holder may come in between. What must not be overwritten
/// belongs into a guarded record itself.
#[derive(Debug, Clone)]
pub struct StoredFence(Store);

impl StoredFence {
    /// A fence in this store.
    pub fn new(store: Store) -> Self {
        Self(store)
    }
}

#[async_trait]
impl Fencing for StoredFence {
    async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Admission> {
        let pass = Pass {
            token,
            lock: Some(lock.clone()),
        };
        Ok(match self.0.write_fenced(lock.as_str(), "", pass).await? {
            Fenced::Written { .. } => Admission::Admitted,
            Fenced::Refused { highest } => Admission::Refused { highest },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_highest_of_each_lock_stands(calls in prop::collection::vec((0u8..3, 0u64..50), 0..80)) {
            let fence = Fence::new();
            let mut highest = [None; 3];
            for (lock, number) in calls {
                let name = LockName::new(format!("lock-{lock}")).unwrap();
                let token = FencingToken::new(number).unwrap();
                let seen = &mut highest[usize::from(lock)];
                match fence.check(&name, token) {
                    Admission::Admitted => {
                        prop_assert!(seen.is_none_or(|seen| token >= seen));
                        *seen = Some(token);
                    }
                    Admission::Refused { highest } => {
                        prop_assert_eq!(Some(highest), *seen);
                        prop_assert!(token < highest);
                    }
                }
            }
        }
    }
}
