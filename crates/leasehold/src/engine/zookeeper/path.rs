//! Which node a lock has. A name is data: it becomes one component of a path, whatever is in it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::guard::Key;
use crate::name::LockName;

/// Letters, digits and what harms nowhere stay as they are; so do most names that other programs use.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':')
    .remove(b'@')
    .remove(b'+')
    .remove(b'=')
    .remove(b',');

/// The node under which all locks are.
#[derive(Debug, Clone)]
pub(crate) struct Root(String);

impl Root {
    /// A path that starts with a slash and does not end with one, or the root alone.
    pub(crate) fn new(path: &str) -> Self {
        Self(path.trim_end_matches('/').to_owned())
    }

    pub(crate) fn node(&self) -> &str {
        match self.0.as_str() {
            "" => "/",
            path => path,
        }
    }

    /// A lock's own node; the nodes of its claims are its children.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}/{}", self.0, escape(name.as_str()))
    }

    /// The node of all guarded records: no lock's, since no lock's node has such a sign.
    pub(crate) fn records(&self) -> String {
        format!("{}/~records", self.0)
    }

    pub(crate) fn record(&self, key: &Key) -> String {
        format!("{}/{}", self.records(), escape(key.as_str()))
    }

    /// The node of all that says when records end.
    pub(crate) fn endings(&self) -> String {
        format!("{}/~ends", self.0)
    }

    /// The lock whose node this is; `None` for a node that no lock of ours has.
    pub(crate) fn name_of(node: &str) -> Option<LockName> {
        let name = percent_decode_str(node).decode_utf8().ok()?;
        let name = LockName::stored(name).ok()?;
        (escape(name.as_str()) == node).then_some(name)
    }
}

fn escape(name: &str) -> String {
    match name {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        // The server's own, where locks are at the top.
        "zookeeper" => "%7Aookeeper".to_owned(),
        name => utf8_percent_encode(name, ESCAPED).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_mean_something_to_a_server() {
        let root = Root::new("/locks");
        for (name, node) in [
            ("a", "/locks/a"),
            ("orders/42", "/locks/orders%2F42"),
            (".", "/locks/%2E"),
            ("..", "/locks/%2E%2E"),
            ("../x", "/locks/..%2Fx"),
            ("%2E", "/locks/%252E"),
            ("zookeeper", "/locks/%7Aookeeper"),
        ] {
            assert_eq!(root.lock(&LockName::new(name).unwrap()), node);
        }
        assert_eq!(Root::new("/").lock(&LockName::new("a").unwrap()), "/a");
        for foreign in [
            "zookeeper",
            "a b",
            "%zz",
            "%2e",
            "\u{e9}",
            "~records",
            "~ends",
        ] {
            assert_eq!(Root::name_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn what_stands_beside_a_lock_is_no_users() {
        let root = Root::new("/locks");
        let user = LockName::new("a").unwrap();
        let own = user.beside("once").unwrap();
        assert_eq!(root.lock(&own), "/locks/a%1Fonce");
        assert_eq!(Root::name_of("a%1Fonce"), Some(own));
        let key = Key::beside(&user, "fence");
        assert_eq!(root.record(&key), "/locks/~records/a%1Ffence");
        let lookalike = Key::new("a%1Ffence").unwrap();
        assert_eq!(root.record(&lookalike), "/locks/~records/a%251Ffence");
    }

    proptest! {
        #[test]
        fn every_name_has_a_node_of_its_own(name in "\\PC{1,60}") {
            let name = LockName::new(name).unwrap();
            let node = Root::new("/").lock(&name);
            let node = &node[1..];
            prop_assert!(!node.contains('/') && node.is_ascii() && node != "." && node != "..");
            prop_assert_eq!(Root::name_of(node), Some(name));
        }
    }
}
