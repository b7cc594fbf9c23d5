//! The error type: a kind for programs, and a message with advice for people.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

/// A result whose error is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// An error: its kind, where it happened, what effect the request may have had, and what to do about it.
///
/// Contention is not a failure: it is the `None` of [`try_acquire`](crate::LockRequest::try_acquire).
/// It can be cloned, since one failure may be the answer to several requests.
///
/// # Engine errors
///
/// Every call that contacts the engine can fail with [`ErrorKind::Unreachable`] (no connection, or no answer in time),
/// [`ErrorKind::Denied`] (permissions, a password), [`ErrorKind::EngineUnfit`] (a corrupt file, a layout from a newer version) and
/// [`ErrorKind::Unexpected`]. If the request may nevertheless have been carried out, [`effect`](Self::effect) is
/// [`Effect::Unknown`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{ErrorKind, Locks};
///
/// let error = Locks::connect("memory:?colour=red").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidConfig);
/// println!("{error}"); // what failed, where, and what to do
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

/// Prints the message and its causes, since this is what a program prints whose `main` returns an error; `{:#?}` shows the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.debug_tuple("Error").field(&self.0).finish();
        }
        write!(f, "{self}")?;
        let mut cause = std::error::Error::source(self);
        while let Some(because) = cause {
            write!(f, "\n  caused by: {because}")?;
            cause = because.source();
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    busy: bool,
    operation: Option<&'static str>,
    engine: Option<String>,
    lock: Option<Arc<str>>,
    what: String,
    advice: Option<String>,
    source: Option<Source>,
}

/// The kind of an error. Exit codes and HTTP status codes depend on nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name of the lock is not valid on any engine.
    InvalidName,
    /// A URL, an option or an argument is not valid.
    InvalidConfig,
    /// The engine answers, but its state or configuration makes it unfit for locks: a corrupt file, a layout
    /// from a newer version.
    EngineUnfit,
    /// The engine does not have the feature that was requested.
    Unsupported,
    /// The lock was not obtained before the deadline.
    TimedOut,
    /// The lease can no longer be relied on.
    LeaseLost,
    /// The engine could not be reached, or did not answer in time.
    Unreachable,
    /// The engine denied access: permissions, a password.
    Denied,
    /// Anything else: a bug, in leasehold or in the engine.
    Unexpected,
}

/// What a failed request may have done at the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing was changed.
    None,
    /// The request may or may not have been carried out.
    Unknown,
}

impl Error {
    /// An error of this kind with no effect at the engine.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            effect: Effect::None,
            busy: false,
            operation: None,
            engine: None,
            lock: None,
            what: what.into(),
            advice: None,
            source: None,
        }))
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Advice, unless there is some already.
    pub(crate) fn advise_if_none(self, advice: impl Into<String>) -> Self {
        match self.advice() {
            Some(_) => self,
            None => self.advise(advice),
        }
    }

    /// Sets the [effect](Self::effect) to [`Effect::Unknown`]: the request may or may not have been carried out.
    #[must_use]
    pub fn of_unknown_effect(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// Marks the error as [busy](Self::is_busy): the engine has reached a limit, such as its maximum number of connections,
    /// it answered too late, or the connection was lost and another one can be made. The same request may succeed later.
    #[must_use]
    pub fn because_busy(mut self) -> Self {
        self.0.busy = true;
        self
    }

    /// Sets the [source](std::error::Error::source).
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
    ) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// Adds the operation that failed and the engine, unless they are known already.
    #[must_use]
    pub fn during(mut self, operation: &'static str, engine: impl Into<String>) -> Self {
        self.0.operation.get_or_insert(operation);
        self.0.engine.get_or_insert_with(|| engine.into());
        self
    }

    /// Puts this before the message, such as the name of one of several servers.
    #[must_use]
    pub fn with_context(mut self, context: impl fmt::Display) -> Self {
        self.0.what = format!("{context}: {}", self.0.what);
        self
    }

    /// Adds the name of the lock, unless it is known already.
    #[must_use]
    pub fn on(mut self, lock: impl AsRef<str>) -> Self {
        self.0.lock.get_or_insert_with(|| lock.as_ref().into());
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the request may have done at the engine.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Whether the engine was too busy: it has reached a limit, such as its maximum number of connections, it granted a lock
    /// so late that the TTL was over, or the connection was lost during the request. An `acquire` that waits retries until its deadline.
    pub fn is_busy(&self) -> bool {
        self.0.busy
    }

    /// The operation that failed, such as `acquire`.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The engine's URL, without passwords.
    pub fn engine(&self) -> Option<&str> {
        self.0.engine.as_deref()
    }

    /// The name of the lock.
    pub fn lock(&self) -> Option<&str> {
        self.0.lock.as_deref()
    }

    /// What failed: the message without operation, engine and advice.
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
            (Some(operation), Some(lock)) => write!(f, "cannot {operation} lock {lock:?}")?,
            (Some(operation), None) => write!(f, "cannot {operation}")?,
            (None, Some(lock)) => write!(f, "lock {lock:?}")?,
            (None, None) => {}
        }
        let placed = inner.operation.is_some() || inner.lock.is_some();
        if let Some(engine) = &inner.engine {
            let preposition = match inner.operation {
                Some("connect") => " to ",
                _ if placed => " on ",
                _ => "",
            };
            write!(f, "{preposition}{engine}")?;
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

/// Lets arguments be values that were checked before, such as a [`Ttl`](crate::Ttl).
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
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
        let error = Error::new(ErrorKind::Unreachable, "the disk is full")
            .advise("free some space")
            .during("acquire", "sqlite:/var/lib/app.db")
            .on("orders/42");
        assert_eq!(
            error.to_string(),
            "cannot acquire lock \"orders/42\" on sqlite:/var/lib/app.db: the disk is full; free some space"
        );
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.effect(), Effect::None);
        let error = Error::new(ErrorKind::Denied, "wrong password").during("connect", "redis://a");
        assert_eq!(
            error.to_string(),
            "cannot connect to redis://a: wrong password"
        );
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
