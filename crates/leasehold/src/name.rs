//! The name of a lock. Names are data: whatever they contain, engines escape them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

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

    proptest! {
        #[test]
        fn a_name_is_kept_as_given(name in "\\PC{1,60}") {
            let kept = LockName::new(&name).unwrap();
            prop_assert_eq!(kept.as_str(), name);
        }
    }
}
