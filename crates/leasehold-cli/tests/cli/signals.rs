//! Signals go to the command, and its end comes back.

use nix::sys::signal::Signal;

use super::place::{Place, is_alive, until};

#[test]
fn signals_are_passed_on_to_the_command() {
    let place = Place::new();
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
        let running = place.start(&["run", name, "--", "sh", "-c", &script]);
        until(name, || {
            std::fs::read_to_string(place.path(name)).is_ok_and(|text| text.ends_with('\n'))
        });
        running.signal(signal);
        assert_eq!(running.wait().code, 5, "{name}");
        assert_eq!(place.show(name)["held"], false);
    }
}

#[test]
fn a_command_that_dies_of_the_signal_says_so() {
    let place = Place::new();
    let (running, _) = place.start_in(&["a"], "exec sleep 60", "in");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, 143);
}

#[test]
fn the_whole_group_gets_the_signal() {
    let place = Place::new();
    let (running, _) = place.start_in(&["a"], "sleep 60 & echo $! > kid; wait", "in");
    until("the kid is there", || {
        std::fs::read_to_string(place.path("kid")).is_ok_and(|t| t.ends_with('\n'))
    });
    let kid = place.pid_in("kid");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code, 143);
    until("the kid is gone", || !is_alive(kid));
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let place = Place::new();
    let script = "trap '' HUP; exec \"$0\" run a -- sh -c 'echo $$ > in; sleep 0.5; exit 3'";
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_leasehold")])
        .current_dir(place.path(""))
        .env("LEASEHOLD_URL", place.url());
    let running = place.start_command(command);
    until("it is in", || place.has("in"));
    running.signal(Signal::SIGHUP);
    assert_eq!(running.wait().code, 3);
}

#[test]
fn a_command_left_in_the_background_is_left_alone() {
    let place = Place::new();
    let done = place.run(&[
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "sleep 2 >/dev/null 2>&1 & echo $! > kid",
    ]);
    assert_eq!(done.code, 0);
    assert!(is_alive(place.pid_in("kid")));
    assert_eq!(place.show("a")["held"], false);
}

#[test]
fn kill_9_of_leasehold_ends_the_command_and_a_waiter_enters_within_the_ttl() {
    let place = Place::new();
    let (holder, cmd) = place.start_in(&["a", "--ttl", "1s"], "exec sleep 60", "in");
    let waiter = place.start(&["run", "a", "--wait", "forever", "--", "true"]);
    until("it waits", || place.waiters("a") == 1);
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
