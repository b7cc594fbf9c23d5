//! What can go wrong, told so that a program can decide and a person can act.

use std::fmt;

use crate::name::LockName;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A failure: its kind, what may have happened at the engine, where, and what to do.
///
/// Contention is not a failure: it is the `None` of [`try_acquire`](crate::LockRequest::try_acquire).
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    operation: Option<&'static str>,
    engine: Option<String>,
    lock: Option<LockName>,
    what: String,
    advice: Option<String>,
    source: Option<Source>,
}

/// What kind of failure it is. Exit codes and HTTP statuses follow from this alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A lock name that no engine takes.
    InvalidName,
    /// A URL, an option or an argument that cannot be used as it is.
    InvalidConfig,
    /// The engine is there, but its own state or set-up makes it unfit: a corrupt file, a layout
    /// from a newer version.
    EngineUnfit,
    /// The engine cannot do what was asked, by its nature.
    Unsupported,
    /// The lock was not obtained before the deadline.
    TimedOut,
    /// The lease can no longer be relied on.
    LeaseLost,
    /// The engine could not be reached, or did not answer in time.
    Unreachable,
    /// The engine refused us: permissions, a password.
    Denied,
    /// Anything else; a bug, here or in the engine.
    Unexpected,
}

/// What a failed request may have done at the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing was changed.
    None,
    /// It may have been carried out; nobody knows.
    Unknown,
}

impl Error {
    /// An error of this kind with no effect at the engine.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            effect: Effect::None,
            operation: None,
            engine: None,
            lock: None,
            what: what.into(),
            advice: None,
            source: None,
        }))
    }

    /// Says what the user can do about it.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Says that the request may or may not have been carried out.
    #[must_use]
    pub fn of_unknown_effect(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Says during which operation it happened, on which engine, unless that is known already.
    #[must_use]
    pub fn during(mut self, operation: &'static str, engine: impl Into<String>) -> Self {
        self.0.operation.get_or_insert(operation);
        self.0.engine.get_or_insert_with(|| engine.into());
        self
    }

    /// Says on which lock it happened, unless that is known already.
    #[must_use]
    pub fn on(mut self, lock: &LockName) -> Self {
        self.0.lock.get_or_insert_with(|| lock.clone());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the request may have done at the engine.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// What was being done.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The engine's URL, without passwords.
    pub fn engine(&self) -> Option<&str> {
        self.0.engine.as_deref()
    }

    /// The lock concerned.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// What failed, without where and what to do.
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// What to do about it.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }
}

/// `cannot acquire lock "orders/42" on sqlite:/var/lib/app.db: the disk is full; free some space`
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        match (inner.operation, &inner.lock) {
            (Some(operation), Some(lock)) => write!(f, "cannot {operation} lock {lock}")?,
            (Some(operation), None) => write!(f, "cannot {operation}")?,
            (None, Some(lock)) => write!(f, "lock {lock}")?,
            (None, None) => {}
        }
        let placed = inner.operation.is_some() || inner.lock.is_some();
        if let Some(engine) = &inner.engine {
            write!(f, "{}{engine}", if placed { " on " } else { "" })?;
        }
        let separator = if placed || inner.engine.is_some() {
            ": "
        } else {
            ""
        };
        write!(f, "{separator}{}", inner.what)?;
        match &inner.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_lock_engine_failure_and_remedy() {
        let lock = LockName::new("orders/42").unwrap();
        let error = Error::new(ErrorKind::Unreachable, "the disk is full")
            .advise("free some space")
            .during("acquire", "sqlite:/var/lib/app.db")
            .on(&lock);
        assert_eq!(
            error.to_string(),
            "cannot acquire lock \"orders/42\" on sqlite:/var/lib/app.db: the disk is full; free some space"
        );
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.effect(), Effect::None);
    }

    #[test]
    fn the_first_place_named_stays() {
        let error = Error::new(ErrorKind::Denied, "no")
            .during("renew", "a:")
            .during("acquire", "b:");
        assert_eq!(
            (error.operation(), error.engine()),
            (Some("renew"), Some("a:"))
        );
    }
}
