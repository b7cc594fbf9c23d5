//! Signals go to the command, and its end comes back.

use std::os::unix::process::CommandExt;

use nix::sys::signal::{Signal, killpg};

use super::sandbox::{Sandbox, is_alive, is_stopped, until, with_default_signals};

#[test]
fn signals_are_passed_on_to_the_command() {
    let sandbox = Sandbox::new();
    let table = [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ];
    for (signal, name) in table {
        let script = format!("trap 'exit 5' {name}; while :; do sleep 0.01; done");
        let script = format!("trap 'exit 5' {name}; echo $$ > {name}; {script}");
        let running = sandbox.start(&["run", name, "--", "sh", "-c", &script]);
        until(name, || {
            std::fs::read_to_string(sandbox.path(name)).is_ok_and(|text| text.ends_with('\n'))
        });
        running.signal(signal);
        assert_eq!(running.wait().code, 5, "{name}");
        assert_eq!(sandbox.show(name)["held"], false);
    }
}

#[test]
fn a_command_that_dies_of_the_signal_says_so() {
    let sandbox = Sandbox::new();
    let (running, _) = sandbox.start_in(&["a"], "exec sleep 60", "in");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, 143);
}

#[test]
fn the_whole_group_gets_the_signal() {
    let sandbox = Sandbox::new();
    let (running, _) = sandbox.start_in(&["a"], "sleep 60 & echo $! > kid; wait", "in");
    until("the kid is there", || {
        std::fs::read_to_string(sandbox.path("kid")).is_ok_and(|t| t.ends_with('\n'))
    });
    let kid = sandbox.pid_in("kid");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, 143);
    until("the kid is gone", || !is_alive(kid));
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let sandbox = Sandbox::new();
    let script = "trap '' HUP; exec \"$0\" run a -- sh -c 'echo $$ > in; sleep 0.5; exit 3'";
    let mut command = with_default_signals("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_leasehold")])
        .current_dir(sandbox.path(""))
        .env("LEASEHOLD_URL", sandbox.url());
    let running = sandbox.start_command(command);
    until("it is in", || sandbox.has("in"));
    running.signal(Signal::SIGHUP);
    assert_eq!(running.wait().code, 3);
}

#[test]
fn a_command_left_in_the_background_is_left_alone() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&[
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "sleep 2 >/dev/null 2>&1 & echo $! > kid",
    ]);
    assert_eq!(done.code, 0);
    assert!(is_alive(sandbox.pid_in("kid")));
    assert_eq!(sandbox.show("a")["held"], false);
}

#[test]
fn kill_9_ends_the_command_and_a_waiter_enters() {
    let sandbox = Sandbox::new();
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "1s"], "exec sleep 60", "in");
    let waiter = sandbox.start(&["run", "a", "--wait", "forever", "--", "true"]);
    until("it waits", || sandbox.waiters("a") == 1);
    let killed = std::time::Instant::now();
    holder.signal(Signal::SIGKILL);
    until("the command is gone", || !is_alive(cmd));
    assert_eq!(waiter.wait().code, 0);
    let took = killed.elapsed();
    assert!(
        took < std::time::Duration::from_secs(5),
        "{took:?} with a TTL of 1 s"
    );
}

/// A nested run has made a group of its own for its command.
#[test]
fn stop_and_continue_reach_nested_commands() {
    let sandbox = Sandbox::new();
    let work = "echo $$ > in.new; mv in.new in; while [ ! -e go ]; do sleep 0.02; done";
    let program = env!("CARGO_BIN_EXE_leasehold");
    let args = [
        "run", "a", "--", program, "run", "b", "--", "bash", "-c", work,
    ];
    let mut command = sandbox.leasehold(&args);
    // As a shell starts a job: the system ignores TSTP for a group that nobody could continue.
    command.process_group(0);
    let running = sandbox.start_command(command);
    let worker = sandbox.pid_in("in");
    running.signal(Signal::SIGTSTP);
    until("leasehold is stopped", || is_stopped(running.pid()));
    until("the nested run's command is stopped", || is_stopped(worker));
    running.signal(Signal::SIGCONT);
    until("it goes on", || !is_stopped(worker));
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(running.wait().code, 0);
}

#[test]
fn group_stopped_before_is_not_continued() {
    let sandbox = Sandbox::new();
    let script = "setsid sleep 60 >/dev/null 2>&1 & echo $! > kid.new; mv kid.new kid; trap 'echo > told' USR1; echo $$ > in.new; mv in.new in; while [ ! -e go ]; do sleep 0.02; done; kill -KILL $!";
    let mut command = sandbox.leasehold(&["run", "a", "--", "bash", "-c", script]);
    command.process_group(0);
    let running = sandbox.start_command(command);
    let (cmd, kid) = (sandbox.pid_in("in"), sandbox.pid_in("kid"));
    killpg(kid, Signal::SIGSTOP).unwrap();
    until("the job is stopped", || is_stopped(kid));
    running.signal(Signal::SIGTSTP);
    until("all are stopped", || {
        is_stopped(running.pid()) && is_stopped(cmd)
    });
    running.signal(Signal::SIGCONT);
    // Passed on after all that is to be continued was.
    running.signal(Signal::SIGUSR1);
    until("the command goes on", || sandbox.has("told"));
    assert!(is_stopped(kid));
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(running.wait().code, 0);
}
