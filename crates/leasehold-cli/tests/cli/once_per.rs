//! `run --once-per`: one of many hosts, once in a period.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::engines::{On, on_each};
use super::sandbox::{Done, Running, is_alive, until};
use super::support::bent_clock::BentClock;

const RAN: &str = "echo $LEASEHOLD_TOKEN >> ran";

fn run(on: &On, options: &[&str], script: &str) -> Done {
    start(on, options, script).wait()
}

fn start(on: &On, options: &[&str], script: &str) -> Running {
    let args = [&["run", "job"], options, &["--", "sh", "-c", script]].concat();
    on.sandbox.start_command(on.sandbox.on(&on.url, &args))
}

fn runs(on: &On) -> usize {
    on.sandbox.lines("ran").len()
}

/// Hosts whose clocks differ by up to half a day, within two seconds of each other.
#[test]
fn ten_processes_with_clocks_that_differ_make_one_run() {
    on_each(|on| {
        // Where the hosts' clocks count, they must agree to much less than the period.
        let apart = if on.clock { 8640 } else { 10 };
        let clocks: Vec<_> = (0..10)
            .map(|nth| BentClock::off_by((nth - 5) * apart))
            .collect();
        let mut all = Vec::new();
        for (nth, clock) in clocks.iter().enumerate() {
            let script = format!("{RAN}; sleep 0.3");
            let mut args = vec![
                "run",
                "job",
                "--once-per",
                "1h",
                "--ttl",
                "5s",
                "--wait",
                "30s",
            ];
            if nth % 2 == 1 {
                args.push("--retry-failed");
            }
            let args = [&args[..], &["--", "sh", "-c", &script]].concat();
            let mut command = on.sandbox.on(&on.url, &args);
            command.envs(clock.environment());
            all.push(on.sandbox.start_command(command));
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..200)));
        }
        for one in all {
            let done = one.wait();
            assert_eq!(done.code, 0, "{}", done.stderr);
        }
        assert_eq!(runs(on), 1, "{}", on.url);
        // Long after the first has finished.
        let late = run(on, &["--once-per", "1h"], RAN);
        assert_eq!((late.code, runs(on)), (0, 1));
        assert!(late.stderr.contains("may run again in "), "{}", late.stderr);
    });
}

#[test]
fn a_failed_run_counts_unless_it_may_be_retried() {
    on_each(|on| {
        let retry: &[&str] = &["--once-per", "1h", "--retry-failed"];
        let fails = format!("{RAN}; exit 3");
        assert_eq!(run(on, retry, &fails).code, 3);
        assert_eq!(run(on, retry, &fails).code, 3);
        assert_eq!(run(on, retry, RAN).code, 0);
        assert_eq!(runs(on), 3);
        assert_eq!((run(on, retry, RAN).code, runs(on)), (0, 3));
        // By whoever is not content with that.
        on.let_run_again("job");
        assert_eq!(run(on, &["--once-per", "1h"], &fails).code, 3);
        assert_eq!((run(on, &["--once-per", "1h"], RAN).code, runs(on)), (0, 4));
    });
}

#[test]
fn the_next_period_has_its_own_run() {
    on_each(|on| {
        let once: &[&str] = &["--once-per", "2s"];
        assert_eq!(run(on, once, RAN).code, 0);
        until("it runs again", || {
            assert_eq!(run(on, once, RAN).code, 0);
            runs(on) == 2
        });
        let tokens = on.sandbox.lines("ran");
        let tokens: Vec<u64> = tokens.iter().map(|token| token.parse().unwrap()).collect();
        assert!(tokens[0] < tokens[1]);
    });
}

/// `kill -9` in the midst of the work: it counts as failed.
#[test]
fn a_killed_run_may_be_retried_or_not() {
    on_each(|on| {
        let slow = format!("{RAN}; echo $$ > pid.new; mv pid.new pid; exec sleep 60");
        for (retry, runs_after) in [(false, 1), (true, 3)] {
            let name = format!("killed-{retry}");
            let mut options = vec!["--once-per", "1h", "--ttl", "1s", "--wait", "20s"];
            if retry {
                options.push("--retry-failed");
            }
            let start = |script: &str| {
                let args = [&["run", &name], &options[..], &["--", "sh", "-c", script]].concat();
                on.sandbox.start_command(on.sandbox.on(&on.url, &args))
            };
            let running = start(&slow);
            let cmd = on.sandbox.pid_in("pid");
            running.signal(Signal::SIGKILL);
            drop(running);
            until("the command went with it", || !is_alive(cmd));
            let next = start(RAN).wait();
            assert_eq!(next.code, 0, "{}", next.stderr);
            assert_eq!(runs(on), runs_after, "{}", on.url);
            std::fs::remove_file(on.sandbox.path("pid")).unwrap();
        }
    });
}

/// Stopped past its lease while another takes over: the late end of the first does not count.
#[test]
fn run_stopped_past_its_lease_does_not_count() {
    on_each(|on| {
        let options: &[&str] = &[
            "--once-per",
            "1h",
            "--retry-failed",
            "--ttl",
            "1s",
            "--wait",
            "20s",
        ];
        let slow = format!("{RAN}; echo $$ > pid.new; mv pid.new pid; exec sleep 60");
        let first = start(on, options, &slow);
        let cmd: Pid = on.sandbox.pid_in("pid");
        first.signal(Signal::SIGSTOP);
        killpg(cmd, Signal::SIGSTOP).unwrap();
        let second = run(on, options, RAN);
        assert_eq!((second.code, runs(on)), (0, 2), "{}", second.stderr);
        first.signal(Signal::SIGCONT);
        let first = first.wait();
        assert_eq!(first.code, 76, "{}", first.stderr);
        assert!(!is_alive(cmd));
        assert_eq!((run(on, options, RAN).code, runs(on)), (0, 2));
    });
}

#[test]
fn at_least_and_max_hold_fit_in() {
    on_each(|on| {
        let options: &[&str] = &["--once-per", "1h", "--at-least", "1m", "--max-hold", "2s"];
        let done = run(on, options, &format!("{RAN}; exec sleep 60"));
        assert_eq!((done.code, runs(on)), (76, 1), "{}", done.stderr);
        // Not run, and so not kept from others.
        assert_eq!((run(on, &["--once-per", "1h"], RAN).code, runs(on)), (0, 1));
    });
}

#[test]
fn skipped_run_is_in_json_and_bad_options_are_refused() {
    on_each(|on| {
        assert_eq!(run(on, &["--once-per", "1h"], "exit 0").code, 0);
        let done = run(on, &["--once-per", "1h", "--json"], "echo no");
        assert_eq!((done.code, done.stdout.as_str()), (0, ""));
        let told: serde_json::Value =
            serde_json::from_str(done.stderr.lines().last().unwrap()).unwrap();
        let skipped = &told["skipped"];
        assert_eq!(
            (&skipped["lock"], &skipped["ran_by"]["owner"]),
            (&"job".into(), &"sh".into())
        );
        let next = skipped["next_in_ms"].as_u64().unwrap();
        assert!((3_000_000..=3_600_000).contains(&next), "{next}");
        for bad in [
            &["--once-per", "25h"][..],
            &["--once-per", "1h", "--shared"],
            &["--retry-failed"],
            &["--once-per", "0"],
        ] {
            assert_eq!(run(on, bad, "exit 0").code, 64, "{bad:?}");
        }
    });
}
