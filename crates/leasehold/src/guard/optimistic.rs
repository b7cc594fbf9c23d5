//! For stores that read a record, decide, and write it if it is still the same: what is left when others always write first.

use super::record::Key;
use crate::error::{Error, ErrorKind};

/// Whoever collides so often with others has been unlucky for long enough.
pub(crate) const TRIES: usize = 100;

pub(crate) fn unlucky(key: &Key) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the record {:?} was not written: in each of {TRIES} tries someone else wrote first",
            key.as_str()
        ),
    )
    .advise("let those who write it take turns with one lock")
}
