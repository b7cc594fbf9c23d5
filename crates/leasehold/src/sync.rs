//! A mutex whose lock cannot fail.

use std::sync::{PoisonError, TryLockError};

pub(crate) use std::sync::MutexGuard;

/// As [`std::sync::Mutex`], without poisoning: what is kept in one here is changed in single steps, so that a panic while it
/// is locked leaves nothing half done.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if it is locked already.
    #[allow(dead_code)] // not every engine that is compiled in uses it
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
