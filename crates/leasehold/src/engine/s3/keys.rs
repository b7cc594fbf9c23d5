//! Which object a lock or a record is.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::guard::Key;
use crate::name::LockName;

/// All that is no letter, digit, dash or underscore: no dot either, so that no part of a path is `.` or `..`.
const NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

#[derive(Debug, Clone)]
pub(super) struct Keys {
    locks: String,
    records: String,
    /// The object that conditions are probed on.
    pub(super) probe: String,
}

impl Keys {
    pub(super) fn under(prefix: &str) -> Self {
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self {
            locks: format!("{prefix}{slash}locks/"),
            records: format!("{prefix}{slash}records/"),
            probe: format!("{prefix}{slash}probe"),
        }
    }

    pub(super) fn lock(&self, name: &LockName) -> String {
        self.beginning(name.as_str())
    }

    /// What all locks begin with whose names begin with this: each byte is written by itself.
    pub(super) fn beginning(&self, of_names: &str) -> String {
        format!("{}{}", self.locks, utf8_percent_encode(of_names, NAME))
    }

    pub(super) fn record(&self, key: &Key) -> String {
        format!(
            "{}{}",
            self.records,
            utf8_percent_encode(key.as_str(), NAME)
        )
    }

    /// The lock that an object is.
    pub(super) fn name_of(&self, key: &str) -> Option<LockName> {
        let name = key.strip_prefix(&self.locks)?;
        let name = percent_decode_str(name).decode_utf8().ok()?;
        LockName::stored(name).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_an_object_of_its_own_and_read_back() {
        let keys = Keys::under("app");
        for name in [
            "a",
            "A",
            "a/b",
            "..",
            ".",
            "%2E",
            "\u{1f512}",
            "a b",
            "&<>\"'",
        ] {
            let name = LockName::new(name).unwrap();
            let key = keys.lock(&name);
            assert!(
                key[10..]
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"%-_".contains(&b)),
                "{key}"
            );
            assert_eq!(keys.name_of(&key), Some(name));
        }
        assert_eq!(keys.name_of("app/records/a"), None);
        assert_eq!(Keys::under("").probe, "probe");
    }
}
