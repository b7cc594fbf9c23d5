//! Which processes belong to CMD: its group, and the groups of nested `run`s and shells below it.

use std::collections::BTreeSet;

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::unistd::{Pid, getpgrp};

#[derive(Debug, PartialEq, Eq)]
struct Process {
    id: i32,
    parent: i32,
    group: i32,
    dead: bool,
}

/// The process groups of `leader` and of everything below it; never our own, which others share.
pub(crate) fn groups_below(leader: Pid) -> BTreeSet<Pid> {
    let mut processes = processes();
    processes.retain(|process| process.group != getpgrp().as_raw());
    let groups = groups_in(&processes, leader.as_raw());
    groups.into_iter().map(Pid::from_raw).collect()
}

fn groups_in(processes: &[Process], leader: i32) -> BTreeSet<i32> {
    let mut family = BTreeSet::from([leader]);
    let mut groups = BTreeSet::from([leader]);
    loop {
        let before = family.len();
        for process in processes {
            if family.contains(&process.parent) || groups.contains(&process.group) {
                family.insert(process.id);
                groups.insert(process.group);
            }
        }
        if family.len() == before {
            return groups;
        }
    }
}

/// Whether nothing of the group runs any more.
///
/// The dead that nobody has collected do not count: in a container there may be nobody to do it.
pub(crate) fn is_gone(group: Pid) -> bool {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return true;
    }
    let processes = processes();
    let known = processes
        .iter()
        .any(|process| process.group == group.as_raw());
    let alive = |process: &Process| process.group == group.as_raw() && !process.dead;
    known && !processes.iter().any(alive)
}

/// All processes of the machine, where it tells (`/proc`).
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbered = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    numbered
        .filter_map(|entry| std::fs::read(entry.path().join("stat")).ok())
        .filter_map(|stat| parse(&String::from_utf8_lossy(&stat)))
        .collect()
}

/// `42 (any name) S 1 42 …`: the name may contain anything, so its end is the last parenthesis.
fn parse(stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let mut fields = tail.split(' ');
    Some(Process {
        id: head.split(' ').next()?.parse().ok()?,
        dead: matches!(fields.next()?, "Z" | "X"),
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32, parent: i32, group: i32) -> Process {
        Process {
            id,
            parent,
            group,
            dead: false,
        }
    }

    #[test]
    fn a_name_may_look_like_the_rest() {
        let read = parse("42 (a) S 9 9) Z 1 40 40 0").unwrap();
        let dead = Process {
            dead: true,
            ..process(42, 1, 40)
        };
        assert_eq!(read, dead);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn nested_groups_are_found_in_any_order() {
        let table = [
            process(13, 12, 12),
            process(12, 10, 12),
            process(11, 1, 10),
            process(10, 2, 10),
            process(99, 1, 99),
        ];
        assert_eq!(groups_in(&table, 10), BTreeSet::from([10, 12]));
    }

    #[test]
    fn our_own_group_is_not_gone() {
        assert!(!is_gone(getpgrp()));
    }
}
