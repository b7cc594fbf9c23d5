//! How a claim's node is named, so that other programs' locks on the same path exclude it and are excluded by it.
//!
//! A node's name is who, a marker, and the ten digits that the server appends. Every kind is read, whichever is
//! written.

use crate::claim::{Claim, ClaimId, Mode};

/// How many digits the server appends.
const DIGITS: usize = 10;

/// What stands before the digits. What is none of these counts as exclusive.
const MARKERS: [&str; 5] = ["__rlock__", "__lock__", "lock-", "__READ__", "__WRIT__"];

/// Whose locks the nodes are named like. All programs that use a lock must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// kazoo's `Lock`, `ReadLock` and `WriteLock`.
    Kazoo,
    /// Curator's `InterProcessMutex`.
    Curator,
    /// Curator's `InterProcessReadWriteLock`.
    CuratorReadWrite,
}

impl Layout {
    pub(crate) const KNOWN: [(&str, Layout); 3] = [
        ("kazoo", Layout::Kazoo),
        ("curator", Layout::Curator),
        ("curator-rw", Layout::CuratorReadWrite),
    ];

    /// The name of a claim's node, without its digits. To other programs a permit is exclusive, since they know none; so is
    /// a reader where their lock knows none.
    pub(crate) fn name(self, claim: &Claim) -> String {
        let id = claim.id.reveal();
        let uuid = dashed(&id);
        match (self, claim.mode) {
            (Layout::Kazoo, Mode::Exclusive) => format!("{id}__lock__"),
            (Layout::Kazoo, Mode::Shared) => format!("{id}__rlock__"),
            (Layout::Kazoo, Mode::Permit { of }) => format!("{id}-p{of}__lock__"),
            (Layout::Curator, Mode::Exclusive) => format!("_c_{uuid}-lock-"),
            (Layout::Curator, Mode::Shared) => format!("_c_{uuid}-r-lock-"),
            (Layout::Curator, Mode::Permit { of }) => format!("_c_{uuid}-p{of}-lock-"),
            (Layout::CuratorReadWrite, Mode::Exclusive) => format!("_c_{uuid}-__WRIT__"),
            (Layout::CuratorReadWrite, Mode::Shared) => format!("_c_{uuid}-__READ__"),
            (Layout::CuratorReadWrite, Mode::Permit { of }) => {
                format!("_c_{uuid}-p{of}-__WRIT__")
            }
        }
    }
}

/// As the Java clients write it.
fn dashed(id: &str) -> String {
    let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
    parts.join("-")
}

/// One node in a lock's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) sequence: i32,
}

impl Node {
    /// `None` for a node that is in no queue: the server has appended no digits.
    fn read(name: &str) -> Option<Self> {
        let (rest, digits) = name.split_at_checked(name.len().checked_sub(DIGITS)?)?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // Past 2^31 the server goes on below zero.
        let below_zero = rest
            .strip_suffix('-')
            .filter(|rest| MARKERS.iter().any(|marker| rest.ends_with(marker)));
        let (rest, number) = match below_zero {
            Some(rest) => (rest, format!("-{digits}")),
            None => (rest, digits.to_owned()),
        };
        Some(Self {
            name: name.to_owned(),
            mode: mode(rest),
            sequence: number.parse().ok()?,
        })
    }

    pub(crate) fn is_of(&self, id: &ClaimId) -> bool {
        let id = id.reveal();
        self.name.contains(&id) || self.name.contains(&dashed(&id))
    }
}

fn mode(before_the_digits: &str) -> Mode {
    let marker = MARKERS
        .iter()
        .find_map(|marker| Some((before_the_digits.strip_suffix(marker)?, *marker)));
    match marker {
        Some((_, "__rlock__" | "__READ__")) => Mode::Shared,
        Some((who, _)) => our_own_mode(who).unwrap_or(Mode::Exclusive),
        None => Mode::Exclusive,
    }
}

/// What only we write, between who and the marker: `-r` or `-p` and a number.
fn our_own_mode(who: &str) -> Option<Mode> {
    let (id, sign) = who.strip_suffix('-').unwrap_or(who).rsplit_once('-')?;
    let id = id.strip_prefix("_c_").unwrap_or(id).replace('-', "");
    id.parse::<ClaimId>().ok()?;
    match sign.strip_prefix('p') {
        Some(of) => of.parse().ok().map(|of| Mode::Permit { of }),
        None => (sign == "r").then_some(Mode::Shared),
    }
}

/// All who hold a lock or wait for it, the first first.
#[derive(Debug, Default)]
pub(crate) struct Queue(pub(crate) Vec<Node>);

impl Queue {
    pub(crate) fn of(children: &[String]) -> Self {
        let mut queue: Vec<_> = children.iter().filter_map(|c| Node::read(c)).collect();
        // Counted from any of them, so that the order holds where the numbers begin anew.
        if let Some(base) = queue.first().map(|node| node.sequence) {
            queue.sort_by_key(|node| node.sequence.wrapping_sub(base));
        }
        Self(queue)
    }

    pub(crate) fn modes(&self) -> Vec<Mode> {
        self.0.iter().map(|node| node.mode).collect()
    }

    /// All nodes of a claim, and their positions; more than one only after a reply was lost.
    pub(crate) fn of_claim<'a>(
        &'a self,
        id: &'a ClaimId,
    ) -> impl Iterator<Item = (usize, &'a Node)> + 'a {
        let nodes = self.0.iter().enumerate();
        nodes.filter(|(_, node)| node.is_of(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(mode: Mode) -> Claim {
        Claim {
            mode,
            ..Claim::example(7)
        }
    }

    #[test]
    fn name_is_read_back_in_every_layout() {
        for (_, layout) in Layout::KNOWN {
            for mode in [
                Mode::Exclusive,
                Mode::Shared,
                Mode::Permit { of: 1 },
                Mode::Permit { of: 4_000_000_000 },
            ] {
                let claim = claim(mode);
                for sequence in ["0000000007", "2147483647", "-2147483648"] {
                    let node = format!("{}{sequence}", layout.name(&claim));
                    let read = Node::read(&node).unwrap();
                    assert_eq!(read.mode, mode, "{node}");
                    assert_eq!(read.sequence, sequence.parse::<i32>().unwrap(), "{node}");
                    assert!(read.is_of(&claim.id), "{node}");
                }
            }
        }
    }

    #[test]
    fn names_of_other_programs_are_read() {
        let table = [
            ("9a1b__lock__0000000001", Some(Mode::Exclusive)),
            ("9a1b__rlock__0000000001", Some(Mode::Shared)),
            ("_c_0a-1b-4c-lock-0000000001", Some(Mode::Exclusive)),
            ("_c_0a-1b-4c-__READ__0000000001", Some(Mode::Shared)),
            ("_c_0a-1b-4c-__WRIT__0000000001", Some(Mode::Exclusive)),
            ("x-72057594037927936-0000000001", Some(Mode::Exclusive)),
            ("n_0000000001", Some(Mode::Exclusive)),
            ("their-p3-lock-0000000001", Some(Mode::Exclusive)),
            ("their-r-lock-0000000001", Some(Mode::Exclusive)),
            ("0000000001", Some(Mode::Exclusive)),
            ("leases", None),
            ("", None),
            ("\u{e9}00000000", None),
        ];
        for (node, mode) in table {
            assert_eq!(Node::read(node).map(|node| node.mode), mode, "{node}");
        }
    }

    #[test]
    fn queue_is_ordered_where_the_digits_begin_anew() {
        let nodes = [
            "a__lock__-2147483648",
            "b__lock__2147483647",
            "c__rlock__2147483646",
            "other",
        ];
        let queue = Queue::of(&nodes.map(str::to_owned));
        let order: Vec<_> = queue.0.iter().map(|node| &node.name[..1]).collect();
        assert_eq!(order, ["c", "b", "a"]);
    }
}
