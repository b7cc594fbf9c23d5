//! `elect`: the command on exactly one host.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::engines::{On, on_each};
use super::place::{Running, is_alive, until};

/// Writes its term all the time: an older one must never write after a newer one.
const WORK: &str = "echo $$ > $LEASEHOLD_TOKEN.pid.new; mv $LEASEHOLD_TOKEN.pid.new $LEASEHOLD_TOKEN.pid; \
     while :; do echo $LEASEHOLD_TOKEN >> history; sleep 0.02; done";

fn candidate(on: &On, script: &str) -> Running {
    let args = [
        "elect",
        "leader",
        "--ttl",
        "1s",
        "--restart-delay",
        "50ms",
        "--max-restart-delay",
        "1s",
    ];
    let args = [&args[..], &["--", "sh", "-c", script]].concat();
    on.place.start_command(on.place.on(&on.url, &args))
}

fn terms(on: &On) -> Vec<u64> {
    let lines = on.place.lines("history");
    // The last line may be half written.
    let mut terms: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    terms.pop();
    terms
}

/// Waits for a term after `last`; returns it, and the candidate's command.
fn next_term(on: &On, last: u64) -> (u64, Pid) {
    let mut found = 0;
    until("someone leads", || {
        found = terms(on).last().copied().unwrap_or_default();
        found > last && on.place.has(&format!("{found}.pid"))
    });
    (found, on.place.pid_in(&format!("{found}.pid")))
}

/// The candidate whose command this is.
fn leader_of(candidates: &mut Vec<Running>, cmd: Pid) -> Running {
    let stat = std::fs::read_to_string(format!("/proc/{cmd}/stat")).unwrap();
    let after_name = stat.rsplit(") ").next().unwrap();
    let parent: i32 = after_name.split(' ').nth(1).unwrap().parse().unwrap();
    let nth = candidates
        .iter()
        .position(|one| one.pid().as_raw() == parent);
    candidates.remove(nth.unwrap())
}

#[test]
fn never_two_leaders_while_leaders_are_killed_stopped_and_told_to_end() {
    on_each(|on| {
        let mut candidates: Vec<_> = (0..4).map(|_| candidate(on, WORK)).collect();
        let (term, cmd) = next_term(on, 0);

        leader_of(&mut candidates, cmd).signal(Signal::SIGKILL);
        let (term, cmd) = next_term(on, term);

        let stopped = leader_of(&mut candidates, cmd);
        stopped.signal(Signal::SIGSTOP);
        killpg(cmd, Signal::SIGSTOP).unwrap();
        let (term, next) = next_term(on, term);
        assert!(is_alive(cmd));
        stopped.signal(Signal::SIGCONT);
        until("the former leader's command is ended", || !is_alive(cmd));
        candidates.push(stopped);

        let leaves = leader_of(&mut candidates, next);
        leaves.signal(Signal::SIGTERM);
        let done = leaves.wait();
        assert_eq!(done.code, 143, "{}", done.stderr);
        let told = format!("in term {term}");
        assert!(done.stderr.contains(&told), "{}", done.stderr);
        let (_, cmd) = next_term(on, term);

        // Those who only stand by leave at once.
        let last = leader_of(&mut candidates, cmd);
        for waits in candidates {
            waits.signal(Signal::SIGTERM);
            assert_eq!(waits.wait().code, 143);
        }
        last.signal(Signal::SIGTERM);
        assert_eq!(last.wait().code, 143);
        let terms = terms(on);
        assert!(
            terms.is_sorted(),
            "an older leader wrote after a newer one: {}",
            on.url
        );
    });
}

#[test]
fn a_command_that_fails_is_started_again_and_the_lead_handed_over() {
    on_each(|on| {
        let script = "echo $LEASEHOLD_TOKEN >> history; exit 3";
        let both = [candidate(on, script), candidate(on, script)];
        until("ten terms", || terms(on).len() >= 10);
        let owners = both.map(|one| {
            one.signal(Signal::SIGTERM);
            let done = one.wait();
            assert!(
                done.stderr.contains("ended with 3; standing again"),
                "{}",
                done.stderr
            );
            done.stderr.matches("leading").count()
        });
        assert!(
            owners.iter().all(|led| *led > 0),
            "one never led: {owners:?}"
        );
        assert!(terms(on).is_sorted_by(|a, b| a < b));
    });
}

#[test]
fn a_broken_lead_ends_the_command_and_a_missing_command_the_candidacy() {
    on_each(|on| {
        let leader = candidate(on, WORK);
        let (term, cmd) = next_term(on, 0);
        assert!(
            on.place
                .on(&on.url, &["break", "leader"])
                .status()
                .unwrap()
                .success()
        );
        until("it was ended", || !is_alive(cmd));
        next_term(on, term);
        leader.signal(Signal::SIGTERM);
        let done = leader.wait();
        assert!(done.stderr.contains("no longer leading"), "{}", done.stderr);
        let missing = on
            .place
            .on(&on.url, &["elect", "x", "--", "./not-there"])
            .output();
        assert_eq!(missing.unwrap().status.code(), Some(127));
    });
}
