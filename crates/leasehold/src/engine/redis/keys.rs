//! Which keys a lock has. The lock itself is `prefix + name`, where other Redis clients look for it; what belongs to it lies
//! beside, behind a control character, which no lock name can contain.
//!
//! All keys of a lock are in the slot of the lock itself, as Redis Cluster demands of a script: those beside it contain a hash tag,
//! a number whose slot is the same. So it does not matter which braces a name contains.

use std::sync::LazyLock;

use crate::error::Result;
use crate::guard::Key;
use crate::name::LockName;
use crate::url::invalid;

/// Tokens are counted per stripe of slots, so that the register stays small; names that share one only see
/// their tokens grow faster. The scripts know the number.
const STRIPES: u32 = 1024;

/// Of Redis Cluster.
pub(crate) const SLOTS: usize = 16384;

#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
    registers: Registers,
    /// By which a lock that was taken under this prefix is told from one that was taken under another that reaches the same key: how long
    /// the prefix is. The scripts find it in the same way.
    pub(crate) prefix_mark: usize,
}

/// Where tokens are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Registers {
    /// In one key.
    One,
    /// In a key for each slot, which is one stripe.
    PerSlot,
}

/// What a script gets.
#[derive(Debug, Clone)]
pub(crate) struct LockKeys {
    /// The lock and its queue. The scripts make the names of its waiters and its holders from that of the queue.
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) register: String,
    /// Which member of the register counts its tokens.
    pub(crate) stripe: u32,
}

impl Keys {
    /// On one server, or on several that know nothing of each other.
    pub(crate) fn under(prefix: String) -> Self {
        Self::with(prefix, Registers::One)
    }

    /// On the nodes of a cluster.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the prefix would change the hash tag that stands behind it.
    pub(crate) fn in_cluster(prefix: String) -> Result<Self> {
        if prefix.contains('{') && hash_tag(&prefix).is_none() {
            return Err(invalid(format!(
                "the prefix {prefix:?} contains a brace, and no hash tag"
            ))
            .advise("close it: {tag}; or use a prefix without braces"));
        }
        Ok(Self::with(prefix, Registers::PerSlot))
    }

    fn with(prefix: String, registers: Registers) -> Self {
        let mark = format!("{prefix}\u{1}queue\u{1}").find("\u{1}queue\u{1}");
        Self {
            prefix_mark: mark.unwrap_or(prefix.len()),
            prefix,
            registers,
        }
    }

    pub(crate) fn of(&self, name: &LockName) -> LockKeys {
        let lock = self.lock(name);
        let slot = slot(&lock);
        LockKeys {
            queue: self.beside("queue", slot, name.as_str()),
            register: self.register(slot),
            stripe: TAGS[slot] % STRIPES,
            lock,
        }
    }

    /// All keys that a script may use, those first that it is told of. A node from which their slot is on its way refuses the script before it has
    /// done anything if it lacks one of them.
    pub(crate) fn all_of(&self, name: &LockName) -> [String; 6] {
        let of = self.of(name);
        let beside = |what| self.beside(what, slot(&of.lock), name.as_str());
        let [waiters, holders, watchers] = ["waiters", "holders", "watchers"].map(beside);
        [of.lock, of.queue, of.register, waiters, holders, watchers]
    }

    /// Whether the prefix puts all locks into one slot.
    pub(crate) fn are_in_one_slot(&self) -> bool {
        hash_tag(&self.prefix).is_some()
    }

    /// Whether the scripts must be told where the register is.
    pub(crate) fn has_many_registers(&self) -> bool {
        self.registers == Registers::PerSlot
    }

    /// The lock itself.
    pub(crate) fn lock(&self, name: &LockName) -> String {
        format!("{}{}", self.prefix, name.as_str())
    }

    fn beside(&self, what: &str, slot: usize, name: &str) -> String {
        let tag = TAGS[slot];
        format!("{}\u{1}{what}\u{1}{{{tag}}}{name}", self.prefix)
    }

    /// Where the tokens of the locks in a slot are counted.
    pub(crate) fn register(&self, slot: usize) -> String {
        match self.registers {
            Registers::One => format!("{}\u{1}register", self.prefix),
            Registers::PerSlot => self.beside("register", slot, ""),
        }
    }

    /// Where the tokens of a lock are counted.
    pub(crate) fn register_of(&self, name: &LockName) -> String {
        self.register(slot(&self.lock(name)))
    }

    /// Locks whose keys one script may use together: those of one group.
    pub(crate) fn group(&self, name: &LockName) -> usize {
        match self.registers {
            Registers::One => 0,
            Registers::PerSlot => slot(&self.lock(name)),
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

    /// The same where offers come into a list of this name. The scripts know it by its name.
    pub(crate) fn inbox(&self, process: &str) -> String {
        format!("{}\u{1}inbox\u{1}{process}", self.prefix)
    }

    /// The patterns that match all keys of locks whose names begin with this: held ones, and queues. They match some others too.
    pub(crate) fn patterns(&self, beginning: &str) -> [String; 2] {
        let (prefix, beginning) = (escape(&self.prefix), escape(beginning));
        [
            format!("{prefix}{beginning}*"),
            format!("{prefix}\u{1}queue\u{1}{{*}}{beginning}*"),
        ]
    }

    /// The lock that a key belongs to, if it is a lock's or a queue's.
    pub(crate) fn name_of(&self, key: &str) -> Option<LockName> {
        let rest = key.strip_prefix(&self.prefix)?;
        let name = match rest.strip_prefix("\u{1}queue\u{1}{") {
            Some(tagged) => tagged.split_once('}')?.1,
            None => rest,
        };
        LockName::stored(name).ok()
    }
}

/// For each slot the least number whose digits are in it.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; SLOTS];
    let mut left = SLOTS;
    for number in 0.. {
        let tag = &mut tags[slot(&number.to_string())];
        if *tag == u32::MAX {
            *tag = number;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    tags
});

/// The slot of a key in Redis Cluster: that of its hash tag, if it has one.
pub(crate) fn slot(key: &str) -> usize {
    let hashed = hash_tag(key).unwrap_or(key);
    usize::from(crc16(hashed.as_bytes())) % SLOTS
}

/// What is between the first opening brace and the next closing one, unless that is nothing.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    static TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = (byte as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| {
        (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]
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
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn no_name_reaches_another_locks_keys() {
        let keys = Keys::under("p:".to_owned());
        let names = ["a", "b", "aqueue", "register", ":a", "{1}a", "1}a", "}a"];
        let all: Vec<_> = names
            .iter()
            .flat_map(|text| {
                let LockKeys { lock, queue, .. } = keys.of(&name(text));
                assert_eq!(keys.name_of(&lock).unwrap().as_str(), *text);
                assert_eq!(keys.name_of(&queue).unwrap().as_str(), *text);
                [lock, queue]
            })
            .collect();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(keys.name_of("p:\u{1}register").is_none());
        assert!(keys.name_of("p:\u{1}holders\u{1}{1}a").is_none());
        assert!(keys.name_of("p:\u{1}queue\u{1}a").is_none());
    }

    /// Tests of the engine read and write these keys.
    #[test]
    fn keys_of_a_lock_are_known_to_others() {
        let of = Keys::under("leasehold:".to_owned()).of(&name("x"));
        assert_eq!(of.lock, "leasehold:x");
        assert_eq!(of.queue, "leasehold:\u{1}queue\u{1}{436}x");
        assert_eq!(of.register, "leasehold:\u{1}register");
    }

    #[test]
    fn wildcards_in_a_prefix_are_letters() {
        let keys = Keys::under("p*".to_owned());
        assert_eq!(keys.patterns("a[1]?")[0], r"p\*a\[1\]\?*");
    }

    /// As CLUSTER KEYSLOT tells.
    #[test]
    fn slots_are_those_of_redis() {
        for (key, of) in [
            ("", 0),
            ("123456789", 12739),
            ("foo", 12182),
            ("{foo}", 12182),
            ("a{foo}b{bar}", 12182),
            ("foo{}{bar}", 8363),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(slot(key), of, "{key:?}");
        }
        assert_eq!(TAGS.iter().filter(|tag| **tag == u32::MAX).count(), 0);
    }

    #[test]
    fn prefix_with_half_a_hash_tag_is_refused() {
        for half in ["{", "a{", "{}", "a{}b", "}{"] {
            let error = Keys::in_cluster(half.to_owned()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{half:?}");
            assert!(error.advice().is_some());
        }
    }

    proptest! {
        #[test]
        fn all_keys_of_a_lock_are_in_one_slot(
            prefix in prop::sample::select(vec!["", "leasehold:", "{a}", "x{a}:", "}", "a}b", "{a}{", "\u{1}{a}"]),
            text in "[a{}1:*\\PC]{1,20}",
        ) {
            let keys = Keys::in_cluster(prefix.to_owned()).unwrap();
            let name = name(&text);
            let of = keys.of(&name);
            for key in [&of.queue, &of.register, &of.queue.replacen("queue", "waiters", 1)] {
                prop_assert_eq!(slot(key), slot(&of.lock), "{:?} beside {:?}", key, &of.lock);
            }
            prop_assert_eq!(keys.name_of(&of.lock), Some(name.clone()));
            prop_assert_eq!(keys.name_of(&of.queue), Some(name));
        }

        #[test]
        fn keys_beside_different_names_are_different(one in "[a{}1]{1,5}", other in "[a{}1]{1,5}") {
            let keys = Keys::under("p:".to_owned());
            let of = |text: &str| keys.of(&name(text));
            prop_assert_eq!(of(&one).queue == of(&other).queue, one == other);
            prop_assert_ne!(of(&one).queue, of(&other).lock);
        }
    }
}
