//! Which keys a lock has: `prefix + name + "/" + claim`, one for each claim, where etcd's own lock and `etcdctl lock` put
//! theirs. The name is escaped, so that no lock's keys lie among another's.

use crate::claim::{Claim, ClaimId};
use crate::guard::Key;
use crate::name::LockName;

/// All keys that begin alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn under(prefix: String) -> Self {
        Self { prefix }
    }

    /// The keys of all claims on a lock.
    pub(crate) fn queue(&self, name: &LockName) -> Span {
        Span::of(format!("{}{}/", self.prefix, escape(name.as_str())))
    }

    /// The key of one claim. A secret, as the claim id is.
    pub(crate) fn claim(&self, claim: &Claim) -> Vec<u8> {
        self.of(&claim.name, &claim.id)
    }

    fn of(&self, name: &LockName, id: &ClaimId) -> Vec<u8> {
        let name = escape(name.as_str());
        format!("{}{name}/{}", self.prefix, id.reveal()).into_bytes()
    }

    /// The keys of all locks whose names begin with this.
    pub(crate) fn beginning(&self, with: &str) -> Span {
        Span::of(format!("{}{}", self.prefix, escape(with)))
    }

    /// A key that lives as long as a lease of ours; no lock's, since no name has a control character.
    pub(crate) fn session(&self, lease: i64) -> Vec<u8> {
        format!("{}\u{1}session\u{1}{lease:x}", self.prefix).into_bytes()
    }

    /// Where a guarded record is; no lock's either.
    pub(crate) fn record(&self, key: &Key) -> Vec<u8> {
        format!("{}\u{1}record\u{1}{}", self.prefix, key.as_str()).into_bytes()
    }

    /// The lock that a key belongs to, if it is a claim's.
    pub(crate) fn name_of(&self, key: &[u8]) -> Option<LockName> {
        let key = std::str::from_utf8(key).ok()?;
        let (name, _) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        LockName::stored(unescape(name)).ok()
    }
}

impl Span {
    fn of(beginning: String) -> Self {
        let start = beginning.into_bytes();
        let mut end = start.clone();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        match end.last_mut() {
            Some(last) => *last += 1,
            // Everything: the protocol's way to say so.
            None => {
                return Self {
                    start: vec![0],
                    end: vec![0],
                };
            }
        }
        Self { start, end }
    }
}

/// A slash would end the name.
fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

fn unescape(name: &str) -> String {
    name.replace("%2F", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id() -> ClaimId {
        ClaimId::from_bytes([7; 16])
    }

    #[test]
    fn plain_name_is_written_as_etcdctl_does() {
        let keys = Keys::under("jobs/".to_owned());
        let queue = keys.queue(&LockName::new("report").unwrap());
        assert_eq!(queue.start, b"jobs/report/");
        assert_eq!(queue.end, b"jobs/report0");
    }

    #[test]
    fn empty_prefix_finds_everything() {
        let all = Keys::under(String::new()).beginning("");
        assert_eq!((all.start, all.end), (vec![0], vec![0]));
    }

    proptest! {
        #[test]
        fn claim_is_in_no_other_locks_queue(one in "[a%/2F5]{1,6}", other in "[a%/2F5]{1,6}") {
            let keys = Keys::under("p/".to_owned());
            let (one, other) = (LockName::new(one).unwrap(), LockName::new(other).unwrap());
            let key = keys.of(&one, &id());
            let queue = keys.queue(&other);
            prop_assert_eq!(queue.start <= key && key < queue.end, one == other);
            prop_assert_eq!(keys.name_of(&key), Some(one));
        }

        #[test]
        fn prefix_finds_names_with_it(name in "[a%/2F5]{1,6}", with in "[a%/2F5]{0,3}") {
            let keys = Keys::under("p/".to_owned());
            let key = keys.of(&LockName::new(&name).unwrap(), &id());
            let found = keys.beginning(&with);
            prop_assert_eq!(found.start <= key && key < found.end, format!("{name}/").starts_with(&with) && name.starts_with(&with));
        }
    }
}
