//! The name of a lock. Names are data: whatever they contain, engines escape them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Stands between a lock's name and what belongs to that lock alone: see [`LockName::beside`]. No name that a user makes has it.
pub(crate) const BESIDE: char = '\u{1f}';

/// Stands beside a lock, and remembers that its work was done in this period.
pub(crate) const RUN: &str = "once";

/// The name of a lock: 1 to 255 bytes of UTF-8 without control characters.
///
/// ```
/// use leasehold::LockName;
/// assert!(LockName::new("orders/42").is_ok());
/// assert!(LockName::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Checks the name.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(invalid("a lock name cannot be empty".to_owned()));
        }
        if name.len() > Self::MAX_BYTES {
            let long = name.len();
            return Err(invalid(format!("a lock name of {long} bytes is too long")));
        }
        if let Some(control) = name.chars().find(|c| c.is_control()) {
            let code = u32::from(control);
            return Err(invalid(format!(
                "the lock name {name:?} has a control character (U+{code:04X})"
            )));
        }
        Ok(Self(name.into()))
    }

    /// The name of a lock of the crate's own that belongs to this one. [`LockName::new`] makes no such name, so no user's lock
    /// can be in its way.
    pub(crate) fn beside(&self, what: &str) -> Result<Self> {
        let name = format!("{}{BESIDE}{what}", self.as_str());
        if name.len() > Self::MAX_BYTES {
            let room = Self::MAX_BYTES + self.as_str().len() - name.len();
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!(
                    "the name {self} is too long for this: a lock of its own has to stand beside it"
                ),
            )
            .advise(format!("use a name of up to {room} bytes")));
        }
        Ok(Self(name.into()))
    }

    /// Whether the lock is one of the crate's own.
    pub(crate) fn is_beside(&self) -> bool {
        self.0.contains(BESIDE)
    }

    /// The name, or that of the user's lock which this one is beside.
    pub(crate) fn as_user_knows_it(&self) -> &str {
        let user = self.0.split_once(BESIDE);
        user.map_or(&self.0, |(user, _)| user)
    }

    /// For engines: the name of a lock as the engine has stored it. That is a user's, or one of the crate's own that recipes keep beside a user's lock, which
    /// [`new`](Self::new) refuses.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] if no lock can have that name.
    pub fn stored(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        match name.split_once(BESIDE) {
            Some((user, what)) if !what.chars().any(char::is_control) => {
                Self::new(user)?.beside(what)
            }
            _ => Self::new(name),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidName, what)
        .advise("use 1 to 255 bytes of UTF-8 without control characters")
}

/// In quotes, with anything that could disturb a terminal escaped.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_limits() {
        assert!(LockName::new("x".repeat(255)).is_ok());
        for bad in [
            "",
            &"x".repeat(256),
            "a\0b",
            "a\nb",
            "\u{7f}",
            "\u{85}",
            "\t",
        ] {
            let error = LockName::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            assert!(error.advice().is_some());
        }
    }

    #[test]
    fn no_user_reaches_what_stands_beside() {
        let user = LockName::new("report").unwrap();
        let own = user.beside("once").unwrap();
        assert!(own.is_beside() && !user.is_beside());
        assert!(LockName::new(own.as_str()).is_err());
        assert_eq!(LockName::stored(own.as_str()).unwrap(), own);
        assert_eq!(LockName::stored("report").unwrap(), user);
        for bad in ["\u{1f}once", "a\u{1f}b\u{1f}c", "a\u{1f}\n", "a\nb", ""] {
            assert!(LockName::stored(bad).is_err(), "{bad:?}");
        }
        let longest = LockName::new("x".repeat(250)).unwrap();
        assert!(longest.beside("once").is_ok());
        let error = longest.beside("once!").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        assert!(error.advice().unwrap().contains("249"), "{error}");
    }

    proptest! {
        #[test]
        fn a_name_is_kept_as_given(name in "\\PC{1,60}") {
            let kept = LockName::new(&name).unwrap();
            prop_assert_eq!(kept.as_str(), name);
        }
    }
}
