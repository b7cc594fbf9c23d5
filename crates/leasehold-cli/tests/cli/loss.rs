//! A lease that can no longer be relied on: the command is ended first.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};

use super::place::{Place, is_alive, until};

const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.05; done";

#[test]
fn a_broken_lock_ends_the_command_even_if_it_ignores_term() {
    let place = Place::new();
    let (holder, cmd) = place.start_in(&["a", "--ttl", "1s"], STUBBORN, "in");
    assert_eq!(place.run(&["break", "a"]).stdout, "broken\n");
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("broke"), "{}", done.stderr);
    assert!(!is_alive(cmd));
}

/// The waiter looks for the one before it: it must be gone, grandchildren and nested groups too.
#[test]
fn max_hold_ends_the_whole_tree_before_another_gets_in() {
    let place = Place::new();
    let tree = "leasehold() { \"$BIN\" \"$@\"; }; sh -c 'trap \"\" TERM; echo $$ > kid; while :; do sleep 0.05; done' & \
        \"$BIN\" run other -- sh -c 'trap \"\" TERM; echo $$ > nested; while :; do sleep 0.05; done' & trap '' TERM; echo $$ > in; \
        while :; do sleep 0.05; done";
    let mut command =
        place.leasehold(&["run", "a", "--max-hold", "1500ms", "--", "sh", "-c", tree]);
    command.env("BIN", env!("CARGO_BIN_EXE_leasehold"));
    let holder = place.start_command(command);
    for mark in ["in", "kid", "nested"] {
        until(mark, || {
            std::fs::read_to_string(place.path(mark)).is_ok_and(|text| text.ends_with('\n'))
        });
    }
    let pids = ["in", "kid", "nested"].map(|mark| place.pid_in(mark));
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    let waiter = place.start(&[
        "run", "a", "--wait", "forever", "--", "sh", "-c",
        "for f in in kid nested; do p=$(cat $f); if [ -d /proc/$p ] && ! grep -q '^State:.Z' /proc/$p/status; then echo $f; fi; done",
    ]);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("max_hold"), "{}", done.stderr);
    let waiter = waiter.wait();
    assert_eq!((waiter.code, waiter.stdout.as_str()), (0, ""));
}

#[test]
fn a_command_may_end_in_good_order_when_it_is_told_to() {
    let place = Place::new();
    let script = "trap 'echo tidied > tidied; exit 0' TERM; while :; do sleep 0.02; done";
    let (holder, _) = place.start_in(&["a", "--max-hold", "1s"], script, "in");
    assert_eq!(holder.wait().code, 76);
    assert!(place.has("tidied"));
}

#[test]
fn stopped_past_the_ttl_the_next_enters_and_the_first_is_ended_when_it_resumes() {
    let place = Place::new();
    let (holder, cmd) = place.start_in(&["a", "--ttl", "500ms"], STUBBORN, "in");
    holder.signal(Signal::SIGSTOP);
    killpg(cmd, Signal::SIGSTOP).unwrap();
    let next = place.run(&["run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    assert!(is_alive(cmd));
    let resumed = Instant::now();
    holder.signal(Signal::SIGCONT);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(!is_alive(cmd));
    assert!(resumed.elapsed() < Duration::from_secs(10));
    assert!(done.stderr.contains("time ran out"), "{}", done.stderr);
}

/// As above, but both are continued at the same time.
#[test]
fn a_resumed_command_does_not_work_on() {
    let place = Place::new();
    let work = "while :; do echo x >> work; sleep 0.02; done";
    let (holder, cmd) = place.start_in(&["a", "--ttl", "300ms"], work, "in");
    holder.signal(Signal::SIGSTOP);
    killpg(cmd, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    killpg(cmd, Signal::SIGCONT).unwrap();
    kill(holder.pid(), Signal::SIGCONT).unwrap();
    assert_eq!(holder.wait().code, 76);
    until("it is gone", || !is_alive(cmd));
}

#[test]
fn a_database_that_goes_away_ends_the_command_while_the_lease_still_holds() {
    let place = Place::new();
    let (holder, cmd) = place.start_in(&["a", "--ttl", "2s"], STUBBORN, "in");
    let busy = rusqlite::Connection::open(place.path("locks.db")).unwrap();
    busy.busy_timeout(Duration::from_secs(5)).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(!is_alive(cmd));
    assert!(done.stderr.contains("renewals failed"), "{}", done.stderr);
}

#[test]
fn a_lease_lost_while_the_command_was_ending_is_told() {
    let place = Place::new();
    let script = "\"$BIN\" break a >/dev/null; sleep 0.2; exit 0";
    let mut command = place.leasehold(&["run", "a", "--ttl", "300ms", "--", "sh", "-c", script]);
    command.env("BIN", env!("CARGO_BIN_EXE_leasehold"));
    assert_eq!(place.start_command(command).wait().code, 76);
}

#[test]
fn a_long_command_outlives_many_ttls() {
    let place = Place::new();
    let done = place.run(&["run", "a", "--ttl", "200ms", "--", "sleep", "1"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}
