//! `--on-acquire`, `--on-lost` and `--on-skip`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::sandbox::{Running, Sandbox, is_alive, started_watchdog_of, until};

/// Appends what a hook is told to a file.
const TELL: &str = "echo $LEASEHOLD_HOOK $LEASEHOLD_NAME ${LEASEHOLD_TOKEN:-none} >> told";

fn told(sandbox: &Sandbox) -> Vec<String> {
    sandbox.lines("told")
}

#[test]
fn hooks_are_told_of_an_acquired_lock_and_keep_stdout_free() {
    let sandbox = Sandbox::new();
    let hook = format!("{TELL}; echo noise; env > hook.env");
    let command = "cat told; echo $LEASEHOLD_TOKEN";
    let done = sandbox.run(&[
        "run",
        "a",
        "--on-acquire",
        &hook,
        "--on-lost",
        TELL,
        "--on-skip",
        TELL,
        "--",
        "sh",
        "-c",
        command,
    ]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let (first, token) = done.stdout.trim().split_once('\n').unwrap();
    assert_eq!(first, format!("acquire a {token}"));
    assert_eq!(told(&sandbox), [first]);
    assert_eq!(done.stderr, "noise\n");
    let environment = std::fs::read_to_string(sandbox.path("hook.env")).unwrap();
    assert!(environment.contains("LEASEHOLD_URL="));
    assert!(
        !environment.contains("LEASEHOLD_CLAIM") && !environment.contains("LEASEHOLD_HELD"),
        "{environment}"
    );
}

#[test]
fn hook_is_told_of_a_run_that_is_skipped() {
    let sandbox = Sandbox::new();
    sandbox.run(&["acquire", "a"]);
    let done = sandbox.run(&[
        "run",
        "a",
        "--wait",
        "0",
        "--on-acquire",
        TELL,
        "--on-skip",
        TELL,
        "--",
        "true",
    ]);
    assert_eq!(done.code, 75, "{}", done.stderr);
    let once = [
        "run",
        "b",
        "--once-per",
        "1h",
        "--exit-if-skipped",
        "3",
        "--on-skip",
        TELL,
        "--",
        "true",
    ];
    assert_eq!(sandbox.run(&once).code, 0);
    assert_eq!(sandbox.run(&once).code, 3);
    assert_eq!(told(&sandbox), ["skip a none", "skip b none"]);
}

#[test]
fn hook_is_told_of_a_lost_lease_after_the_command_has_ended() {
    let sandbox = Sandbox::new();
    let hook = format!("{TELL}; readlink /proc/$(cat in)/exe || echo gone >> told");
    let (running, _) = sandbox.start_in(
        &["a", "--ttl", "1s", "--on-lost", &hook],
        "exec sleep 60",
        "in",
    );
    assert_eq!(sandbox.run(&["break", "a"]).stdout, "broken\n");
    let done = running.wait();
    assert_eq!(done.code, 76, "{}", done.stderr);
    let told = told(&sandbox);
    assert!(told[0].starts_with("lost a "), "{told:?}");
    assert_eq!(told[1], "gone");
}

/// Starts `run` with a hook that does not end by itself within the test, and waits until it runs.
fn start_in_hook(sandbox: &Sandbox, ttl: &str) -> (Running, Pid) {
    let hook = "echo $$ > in.new; mv in.new in; exec sleep 90";
    let args = [
        "run",
        "a",
        "--ttl",
        ttl,
        "--on-acquire",
        hook,
        "--",
        "touch",
        "ran",
    ];
    let running = sandbox.start(&args);
    let hook = sandbox.pid_in("in");
    (running, hook)
}

#[test]
fn broken_lock_terminates_the_acquire_hook() {
    let sandbox = Sandbox::new();
    let (running, hook) = start_in_hook(&sandbox, "1s");
    assert_eq!(sandbox.run(&["break", "a"]).stdout, "broken\n");
    let done = running.wait();
    assert_eq!(done.code, 76, "{}", done.stderr);
    let told = "the hook --on-acquire was terminated";
    assert!(done.stderr.contains(told), "{}", done.stderr);
    assert!(!is_alive(hook) && !sandbox.has("ran"));
}

#[test]
fn killed_leasehold_takes_the_acquire_hook_with_it() {
    let sandbox = Sandbox::new();
    let (running, hook) = start_in_hook(&sandbox, "10m");
    running.signal(Signal::SIGKILL);
    until("the hook is gone", || !is_alive(hook));
}

#[test]
fn acquire_hook_ends_while_only_leasehold_is_stopped() {
    let sandbox = Sandbox::new();
    let (running, hook) = start_in_hook(&sandbox, "4s");
    started_watchdog_of(running.pid());
    running.signal(Signal::SIGSTOP);
    until("the hook is gone", || !is_alive(hook));
    running.signal(Signal::SIGCONT);
    let done = running.wait();
    assert_eq!(done.code, 76, "{}", done.stderr);
    assert!(!sandbox.has("ran"));
}

#[test]
fn signal_during_the_acquire_hook_is_for_the_command() {
    let sandbox = Sandbox::new();
    let hook = "touch in; while [ ! -e go ]; do sleep 0.02; done; touch done";
    let args = ["run", "a", "--on-acquire", hook, "--", "sleep", "90"];
    let running = sandbox.start(&args);
    until("the hook runs", || sandbox.has("in"));
    running.signal(Signal::SIGTERM);
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(running.wait().code, 128 + Signal::SIGTERM as i32);
    assert!(sandbox.has("done"));
}

#[test]
fn hook_that_fails_or_hangs_is_a_warning() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&[
        "run",
        "a",
        "--on-acquire",
        "exit 4",
        "--",
        "sh",
        "-c",
        "exit 5",
    ]);
    assert_eq!(done.code, 5);
    assert!(
        done.stderr.contains("--on-acquire ended with 4"),
        "{}",
        done.stderr
    );
    let start = Instant::now();
    let done = sandbox.run(&[
        "run",
        "a",
        "--ttl",
        "2s",
        "--on-acquire",
        "sleep 100",
        "--",
        "echo",
        "in",
    ]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "in\n"),
        "{}",
        done.stderr
    );
    assert!(done.stderr.contains("killed after 10s"), "{}", done.stderr);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn nested_run_refuses_hooks_of_its_hold() {
    let sandbox = Sandbox::new();
    let inner = [
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "a",
        "--on-lost",
        "true",
        "--",
        "true",
    ];
    let done = sandbox.run(&[&["run", "a", "--"], &inner[..]].concat());
    assert_eq!(done.code, 64, "{}", done.stderr);
    assert!(
        done.stderr.contains("--on-lost needs a hold of its own"),
        "{}",
        done.stderr
    );
}

#[test]
fn elect_tells_hooks_of_each_term() {
    let sandbox = Sandbox::new();
    let running = sandbox.start(&[
        "elect",
        "l",
        "--ttl",
        "1s",
        "--on-acquire",
        TELL,
        "--on-lost",
        TELL,
        "--",
        "sleep",
        "60",
    ]);
    until("it leads", || told(&sandbox).len() == 1);
    until("it can be broken", || {
        sandbox.run(&["break", "l"]).stdout == "broken\n"
    });
    until("it leads again", || told(&sandbox).len() >= 3);
    let told = told(&sandbox);
    let events: Vec<_> = told
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(events[..3], ["acquire", "lost", "acquire"], "{told:?}");
    drop(running);
}
