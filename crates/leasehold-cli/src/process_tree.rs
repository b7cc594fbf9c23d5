//! Finds the process groups that belong to CMD: its own, and those of nested `run`s and shells below it.

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
    stopped: bool,
}

/// These process groups and those of all their descendants; never the group of this process, which others share.
pub(crate) fn groups_below(leaders: impl IntoIterator<Item = Pid>) -> BTreeSet<Pid> {
    let leaders = leaders.into_iter().map(Pid::as_raw).collect();
    let groups = groups_in(&processes_of_others(), leaders);
    groups.into_iter().map(Pid::from_raw).collect()
}

/// The same for one group, without groups in which every process is stopped.
pub(crate) fn running_groups_below(leader: Pid) -> BTreeSet<Pid> {
    let processes = processes_of_others();
    let mut groups = groups_in(&processes, BTreeSet::from([leader.as_raw()]));
    groups.retain(|group| !is_stopped(&processes, *group));
    groups.into_iter().map(Pid::from_raw).collect()
}

/// Whether any process of these groups, or of the groups below them, runs: is neither dead nor stopped. True where that cannot be known.
pub(crate) fn is_running(leaders: &BTreeSet<Pid>) -> bool {
    let processes = processes_of_others();
    let groups = groups_in(&processes, leaders.iter().map(|it| it.as_raw()).collect());
    let runs =
        |process: &Process| groups.contains(&process.group) && !process.dead && !process.stopped;
    processes.is_empty() || processes.iter().any(runs)
}

fn processes_of_others() -> Vec<Process> {
    let mut processes = processes();
    processes.retain(|process| process.group != getpgrp().as_raw());
    processes
}

/// Whether every living process of the group is stopped; false for an unknown group.
fn is_stopped(processes: &[Process], group: i32) -> bool {
    let mut members = processes
        .iter()
        .filter(|process| process.group == group && !process.dead)
        .peekable();
    members.peek().is_some() && members.all(|process| process.stopped)
}

fn groups_in(processes: &[Process], leaders: BTreeSet<i32>) -> BTreeSet<i32> {
    let mut family = leaders.clone();
    let mut groups = leaders;
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

/// Whether no process of the group is alive.
///
/// Zombies do not count: in a container there may be no process that reaps them.
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

/// All processes of the machine; none where there is no `/proc`.
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
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads: u32 = fields
        .nth(14)
        .and_then(|count| count.parse().ok())
        .unwrap_or(1);
    Some(Process {
        id: head.split(' ').next()?.parse().ok()?,
        parent,
        group,
        // The state is that of the first thread, which may have ended before the others.
        dead: matches!(state, "Z" | "X") && threads <= 1,
        stopped: matches!(state, "T" | "t"),
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
            stopped: false,
        }
    }

    #[test]
    fn name_with_parentheses_is_parsed() {
        let read = parse("42 (a) S 9 9) Z 1 40 40 0").unwrap();
        let dead = Process {
            dead: true,
            ..process(42, 1, 40)
        };
        assert_eq!(read, dead);
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn process_whose_first_thread_has_ended_is_alive() {
        let stat =
            |threads| format!("42 (a) Z 1 40 40 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 {threads} 0 1");
        assert!(!parse(&stat(2)).unwrap().dead);
        assert!(parse(&stat(1)).unwrap().dead);
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
        let below = |leader| groups_in(&table, BTreeSet::from([leader]));
        assert_eq!(below(10), BTreeSet::from([10, 12]));
        // A group that is gone is not searched for again: its number may have been reused.
        assert_eq!(below(12), BTreeSet::from([12]));
    }

    #[test]
    fn group_is_stopped_if_all_living_members_are() {
        let stopped = |id, group| Process {
            stopped: true,
            ..process(id, 1, group)
        };
        let dead = Process {
            dead: true,
            ..process(12, 1, 10)
        };
        let table = [
            stopped(10, 10),
            stopped(11, 10),
            dead,
            stopped(20, 20),
            process(21, 20, 20),
        ];
        assert!(is_stopped(&table, 10));
        assert!(!is_stopped(&table, 20));
        assert!(!is_stopped(&table, 30));
    }

    #[test]
    fn own_group_is_not_gone() {
        assert!(!is_gone(getpgrp()));
    }
}
