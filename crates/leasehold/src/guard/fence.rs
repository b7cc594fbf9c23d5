//! For services that guard something themselves: the highest token seen of each lock.

use std::collections::HashMap;
use std::fmt::Debug;

use async_trait::async_trait;

use super::record::{Content, Fenced, Key, Pass};
use super::store::Store;
use crate::error::Result;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// The answer of a fence.
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
    ///
    /// # Errors
    ///
    /// If the highest token cannot be read or written. The token has not passed then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the token may or may not be remembered. It can be checked again.
    async fn check(&self, lock: &LockName, token: FencingToken) -> Result<Admission>;
}

/// A fence in memory: one number for each lock that it has seen. It is lost when the process ends; where that matters, use a
/// [`StoredFence`].
///
/// ```
/// use leasehold::guard::{Admission, Fence};
/// use leasehold::{FencingToken, LockName};
///
/// # fn main() -> leasehold::Result<()> {
/// let fence = Fence::new();
/// let orders = LockName::new("orders")?;
/// let [early, late] = [41, 42].map(|token| FencingToken::new(token).unwrap());
/// assert_eq!(fence.check(&orders, late), Admission::Admitted);
/// assert_eq!(fence.check(&orders, early), Admission::Refused { highest: late });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Fence(Mutex<HashMap<LockName, FencingToken>>);

impl Fence {
    /// A fence that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the token pass unless a higher one has passed before, and remembers it.
    pub fn check(&self, lock: &LockName, token: FencingToken) -> Admission {
        let mut seen = self.0.lock();
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

/// A fence that a [`Store`] remembers, for all who share the store: a record of its own for each lock, under a key that no other
/// record can have. It is forgotten a while after the last token was let through, as long as that of a deleted record:
/// [`Store::remember_deleted`].
///
/// The check and the work that it admits are two steps: a later holder may come in between. What must not be overwritten
/// belongs into a guarded record itself.
///
/// ```
/// use leasehold::Locks;
/// use leasehold::guard::{Admission, Fencing, StoredFence};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = Locks::connect("memory:").await?; // for a service: a store that outlives it
/// let fence = StoredFence::new(locks.store()?);
/// let lease = locks.lock("orders").acquire().await?;
/// assert_eq!(fence.check(lease.name(), lease.token()).await?, Admission::Admitted);
/// # Ok(())
/// # }
/// ```
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
        let pass = Pass::new(token, lock.clone());
        let seen = self.0.at(Key::beside(lock, "fence"));
        let content = Content::passing(b"", self.0.remembers());
        Ok(match seen.write_fenced(content, pass).await? {
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
