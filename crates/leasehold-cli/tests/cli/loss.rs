//! A lease that can no longer be relied on: the command is ended first.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};

use super::place::{Place, is_alive, until};

const STUBBORN: &str = "trap '' TERM; MARK; while :; do sleep 0.05; done";

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

/// The waiter looks for those before it: they must be gone, grandchildren and nested groups too.
#[test]
fn max_hold_ends_the_whole_tree_before_another_gets_in() {
    let place = Place::new();
    let script = |name: &str, text: String| std::fs::write(place.path(name), text).unwrap();
    let stubborn = |mark| format!("trap '' TERM; echo $$ > {mark}; while :; do sleep 0.05; done");
    script("kid.sh", stubborn("kid"));
    script("deep.sh", stubborn("deep"));
    script("nested.sh", format!("sh deep.sh & {}", stubborn("nested")));
    // Whatever is left of it must not keep the test waiting for the end of its output.
    let tree = "exec >/dev/null 2>&1; sh kid.sh & \"$BIN\" run other -- sh nested.sh &";
    script("tree.sh", format!("{tree} {}", stubborn("tree")));
    script(
        "look.sh",
        "for f in tree kid nested deep; do s=/proc/$(cat $f)/status; \
         if [ -e $s ] && ! grep -q '^State:.Z' $s; then echo $f; fi; done"
            .to_owned(),
    );
    let mut command = place.leasehold(&["run", "a", "--max-hold", "2s", "--", "sh", "tree.sh"]);
    command.env("BIN", env!("CARGO_BIN_EXE_leasehold"));
    let holder = place.start_command(command);
    let marks = ["tree", "kid", "nested", "deep"];
    for mark in marks {
        until(mark, || {
            std::fs::read_to_string(place.path(mark)).is_ok_and(|text| text.ends_with('\n'))
        });
    }
    assert!(marks.iter().all(|mark| is_alive(place.pid_in(mark))));
    let waiter = place.start(&["run", "a", "--wait", "forever", "--", "sh", "look.sh"]);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("max_hold"), "{}", done.stderr);
    let waiter = waiter.wait();
    assert_eq!((waiter.code, waiter.stdout.as_str()), (0, ""));
}

#[test]
fn a_stopped_command_is_continued_so_that_it_can_end() {
    let place = Place::new();
    let script = "trap 'echo > tidied; exit 0' TERM; MARK; while :; do sleep 0.02; done";
    let (holder, cmd) = place.start_in(&["a", "--max-hold", "3s"], script, "in");
    killpg(cmd, Signal::SIGSTOP).unwrap();
    assert_eq!(holder.wait().code, 76);
    assert!(place.has("tidied"));
}

#[test]
fn a_command_may_end_in_good_order_when_it_is_told_to() {
    let place = Place::new();
    let script = "trap 'echo tidied > tidied; exit 0' TERM; MARK; while :; do sleep 0.02; done";
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
fn a_command_that_ended_after_its_lease_did_not_end_well() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do sleep 0.02; done";
    let (holder, cmd) = place.start_in(&["a", "--ttl", "300ms"], script, "in");
    holder.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(350));
    std::fs::write(place.path("go"), "").unwrap();
    until("the command has ended", || !is_alive(cmd));
    holder.signal(Signal::SIGCONT);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    let told = "lost before the command ended";
    assert!(done.stderr.contains(told), "{}", done.stderr);
}

#[test]
fn a_long_command_outlives_many_ttls() {
    let place = Place::new();
    let done = place.run(&["run", "a", "--ttl", "200ms", "--", "sleep", "1"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}
