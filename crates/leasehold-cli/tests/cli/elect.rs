//! `elect`: the command on exactly one host.

use std::io::BufRead;
use std::os::unix::net::UnixDatagram;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::engines::{On, on_each};
use super::sandbox::{Running, Sandbox, is_alive, parent_of, until};
use super::support::redis_server::RedisServer;

/// Writes its term all the time: an older one must never write after a newer one.
const WORK: &str = "echo $$ > $LEASEHOLD_TOKEN.pid.new; mv $LEASEHOLD_TOKEN.pid.new $LEASEHOLD_TOKEN.pid; \
     while :; do echo $LEASEHOLD_TOKEN >> history; sleep 0.02; done";

fn candidate(on: &On, script: &str) -> Running {
    let args = [
        "elect",
        "leader",
        "--ttl",
        "3s",
        "--restart-delay",
        "50ms",
        "--max-restart-delay",
        "1s",
    ];
    let args = [&args[..], &["--", "sh", "-c", script]].concat();
    on.sandbox.start_command(on.sandbox.on(&on.url, &args))
}

fn terms(on: &On) -> Vec<u64> {
    let lines = on.sandbox.lines("history");
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
        found > last && on.sandbox.has(&format!("{found}.pid"))
    });
    (found, on.sandbox.pid_in(&format!("{found}.pid")))
}

/// The candidate whose command this is.
fn leader_of(candidates: &mut Vec<Running>, cmd: Pid) -> Running {
    let parent = parent_of(cmd);
    let nth = candidates.iter().position(|one| one.pid() == parent);
    candidates.remove(nth.unwrap())
}

#[test]
fn killed_and_stopped_leaders_never_overlap() {
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
fn failed_command_restarts_and_hands_the_lead_over() {
    on_each(|on| {
        let script = "echo $LEASEHOLD_TOKEN >> history; exit 3";
        let both = [candidate(on, script), candidate(on, script)];
        until("ten terms", || terms(on).len() >= 10);
        let owners = both.map(|one| {
            one.signal(Signal::SIGTERM);
            let done = one.wait();
            assert!(
                done.stderr.contains("ended with 3; candidate again"),
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
fn broken_lead_or_missing_command_ends_candidacy() {
    on_each(|on| {
        let leader = candidate(on, WORK);
        let (term, cmd) = next_term(on, 0);
        assert!(
            on.sandbox
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
            .sandbox
            .on(&on.url, &["elect", "x", "--", "./not-there"])
            .output();
        assert_eq!(missing.unwrap().status.code(), Some(127));
    });
}

#[test]
fn ending_candidate_does_not_stand_again_after_a_loss() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > told' TERM; echo x >> starts; while :; do sleep 0.02; done";
    let leader = sandbox.start(&["elect", "a", "--ttl", "1s", "--", "sh", "-c", script]);
    until("it leads", || sandbox.has("starts"));
    leader.signal(Signal::SIGTERM);
    until("it was told", || sandbox.has("told"));
    assert_eq!(sandbox.run(&["break", "a"]).stdout, "broken\n");
    let done = leader.wait();
    assert_eq!(done.code, 76, "{}", done.stderr);
    assert_eq!(sandbox.lines("starts").len(), 1);
}

#[test]
fn unreachable_engine_is_tried_again() {
    let sandbox = Sandbox::new();
    let server = RedisServer::start();
    server.kill();
    let script = "echo > in; while :; do sleep 0.02; done";
    let args = ["elect", "a", "--restart-delay", "50ms", "--", "sh", "-c"];
    let start =
        || sandbox.start_command(sandbox.on(&server.url(), &[&args[..], &[script]].concat()));
    let mut waits = start();
    let mut said = std::io::BufReader::new(waits.child().stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("trying again in"), "{line}");
    waits.signal(Signal::SIGTERM);
    assert_eq!(waits.wait().code, 143);

    let waits = start();
    server.revive();
    until("it leads", || sandbox.has("in"));
    waits.signal(Signal::SIGTERM);
    assert_eq!(waits.wait().code, 143);
}

#[test]
fn systemd_is_told_that_a_candidate_is_ready_and_who_leads() {
    let sandbox = Sandbox::new();
    let socket = UnixDatagram::bind(sandbox.path("notify")).unwrap();
    let mut command = sandbox.leasehold(&["elect", "leader", "--", "sleep", "60"]);
    command.env("NOTIFY_SOCKET", sandbox.path("notify"));
    let leader = sandbox.start_command(command);
    let mut told = [0; 200];
    let mut next = || {
        let size = socket.recv(&mut told).unwrap();
        String::from_utf8(told[..size].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1\nSTATUS=candidate for \"leader\"\n");
    let leading = next();
    assert!(
        leading.starts_with("READY=1\nSTATUS=leading \"leader\" in term "),
        "{leading}"
    );
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.wait().code, 128 + 15);
}
