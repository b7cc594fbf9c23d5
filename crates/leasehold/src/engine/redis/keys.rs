//! Which keys a lock has. The lock itself is `prefix + name`, where other Redis clients look for it; what
//! belongs to it lies beside, behind a control character, which no lock name can contain.

use crate::guard::Key;
use crate::name::LockName;

/// Tokens are counted per stripe of names, so that the register stays small; names that share one only see
/// their tokens grow faster.
const STRIPES: u64 = 1024;

#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

/// What a script gets: its five keys, and the stripe.
#[derive(Debug, Clone)]
pub(crate) struct LockKeys {
    pub(crate) keys: [String; 5],
    pub(crate) stripe: String,
}

impl Keys {
    pub(crate) fn under(prefix: String) -> Self {
        Self { prefix }
    }

    pub(crate) fn of(&self, name: &LockName) -> LockKeys {
        let beside = |what| format!("{}\u{1}{what}\u{1}{}", self.prefix, name.as_str());
        LockKeys {
            keys: [
                format!("{}{}", self.prefix, name.as_str()),
                beside("holders"),
                beside("queue"),
                beside("waiters"),
                format!("{}\u{1}register", self.prefix),
            ],
            stripe: (fnv(name.as_str().as_bytes()) % STRIPES).to_string(),
        }
    }

    /// Where a guarded record is.
    pub(crate) fn record(&self, key: &Key) -> String {
        format!("{}\u{1}record\u{1}{}", self.prefix, key.as_str())
    }

    /// Where a process hears of what happens to its waiters.
    pub(crate) fn channel(&self, process: &str) -> String {
        format!("{}\u{1}wake\u{1}{process}", self.prefix)
    }

    /// The patterns that match all keys of locks whose names begin with this: held ones, and queues.
    pub(crate) fn patterns(&self, beginning: &str) -> [String; 2] {
        [String::new(), "\u{1}queue\u{1}".to_owned()]
            .map(|kind| format!("{}*", escape(&format!("{}{kind}{beginning}", self.prefix))))
    }

    /// The lock that a key belongs to, if it is a lock's or a queue's.
    pub(crate) fn name_of(&self, key: &str) -> Option<LockName> {
        let rest = key.strip_prefix(&self.prefix)?;
        let name = rest.strip_prefix("\u{1}queue\u{1}").unwrap_or(rest);
        LockName::new(name).ok()
    }
}

/// Stable over versions and machines, which the standard library's hash is not: all clients must agree.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// For MATCH, which has wildcards.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(char);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_reaches_another_locks_keys() {
        let keys = Keys::under("p:".to_owned());
        let all: Vec<_> = ["a", "b", "aqueue", "register", ":a"]
            .iter()
            .flat_map(|name| {
                let LockKeys { keys, .. } = keys.of(&LockName::new(name).unwrap());
                keys[..4].to_vec()
            })
            .collect();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(keys.name_of("p:a").unwrap().as_str(), "a");
        assert_eq!(keys.name_of("p:\u{1}queue\u{1}a").unwrap().as_str(), "a");
        assert!(keys.name_of("p:\u{1}holders\u{1}a").is_none());
        assert!(keys.name_of("p:\u{1}register").is_none());
    }

    #[test]
    fn wildcards_in_a_prefix_are_letters() {
        let keys = Keys::under("p*".to_owned());
        assert_eq!(keys.patterns("a[1]?")[0], r"p\*a\[1\]\?*");
    }
}
