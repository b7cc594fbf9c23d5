//! `leasehold torture`: it passes on engines that work, and fails on one that loses its locks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::sandbox::Sandbox;
use super::support::redis_server::RedisServer;

fn json(stdout: &str) -> Value {
    serde_json::from_str(stdout).unwrap_or_else(|cause| panic!("{cause}: {stdout}"))
}

/// Runs it for a few seconds.
fn torture(sandbox: &Sandbox, url: &str, options: &[&str]) -> (i32, Value) {
    let args = [
        &["--url", url, "torture", "--seconds", "5", "--json"],
        options,
    ]
    .concat();
    let done = sandbox.run(&args);
    assert_eq!(done.stderr, "");
    (done.code, json(&done.stdout))
}

#[track_caller]
fn assert_passed(code: i32, report: &Value) {
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(
        (&report["ok"], &report["violation_count"]),
        (&true.into(), &0.into())
    );
    assert!(report["holds"].as_u64() > Some(5), "{report:#}");
    assert_eq!(report["with_token"]["lost"], 0);
    let faults = report["faults"].as_object().unwrap();
    assert!(!faults.is_empty(), "{report:#}");
}

fn is_empty(folder: &std::path::Path) -> bool {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with("leasehold-torture")
        })
        .count()
        == 0
}

#[test]
fn torture_passes_on_sqlite() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&[
        "torture",
        "--seconds",
        "5",
        "--json",
        "--seed",
        "7",
        "--report",
        "r.html",
    ]);
    command.env("TMPDIR", sandbox.path("."));
    let done = sandbox.start_command(command).wait();
    let report = json(&done.stdout);
    assert_passed(done.code, &report);
    assert_eq!(report["seed"], 7);
    assert!(
        report["not_available"]
            .as_str()
            .unwrap()
            .contains("no connections")
    );
    let page = std::fs::read_to_string(sandbox.path("r.html")).unwrap();
    assert!(
        page.contains("<svg") && page.contains("class=\"hold\""),
        "{page}"
    );
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "from elsewhere"
    );
    assert!(is_empty(&sandbox.path(".")), "its folder is left");
}

#[test]
fn torture_passes_on_redis() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let (code, report) = torture(&sandbox, &server.url(), &[]);
    assert_passed(code, &report);
    assert_eq!(report["not_available"], Value::Null);
}

/// The clients are stopped while they hold the lock, again and again: what they write without the token overwrites others.
#[test]
fn updates_without_the_token_are_lost_by_pauses() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let lost = (1..=5).any(|seed| {
        let options = [
            "--faults",
            "pause",
            "--ttl",
            "500ms",
            "--seed",
            &seed.to_string(),
        ];
        let (code, report) = torture(&sandbox, &server.url(), &options);
        assert_passed(code, &report);
        report["without_token"]["lost"].as_u64() > Some(0)
    });
    assert!(lost, "nothing was lost");
}

/// While something is done to the server, again and again.
fn meanwhile(
    disturb: impl Fn() + Send + Sync,
    torture: impl FnOnce() -> (i32, Value),
) -> (i32, Value) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Not forever, if the other one panics.
            for _ in 0..300 {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                disturb();
                thread::sleep(Duration::from_millis(150));
            }
        });
        let done = torture();
        over.store(true, Ordering::Relaxed);
        done
    })
}

#[track_caller]
fn assert_failed(code: i32, report: &Value, kinds: &[&str]) {
    assert_eq!((code, &report["ok"]), (1, &false.into()), "{report:#}");
    let violations = report["violations"].as_array().unwrap();
    let found = |kind: &&str| {
        violations
            .iter()
            .any(|violation| violation["kind"] == **kind)
    };
    assert!(kinds.iter().any(found), "{report:#}");
    let timeline = violations[0]["timeline"].as_array().unwrap();
    assert!((1..=20).contains(&timeline.len()), "{report:#}");
}

#[test]
fn torture_fails_on_a_server_that_is_flushed() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let flush = || drop(server.command("FLUSHALL"));
    let (code, report) = meanwhile(flush, || {
        torture(&sandbox, &server.url(), &["--faults", "kill"])
    });
    assert_failed(code, &report, &["lock_gone", "overlap", "lost_update"]);
}

#[test]
fn torture_fails_if_the_lock_is_deleted_by_hand() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start());
    let delete = || {
        let script = "for _, key in ipairs(redis.call('KEYS', '*leasehold-torture*')) do \
                      if redis.call('TYPE', key).ok == 'string' then redis.call('DEL', key) end end";
        drop(server.command(&format!("EVAL \"{script}\" 0")));
    };
    let (code, report) = meanwhile(delete, || {
        torture(&sandbox, &server.url(), &["--faults", "clock"])
    });
    assert_failed(code, &report, &["lock_gone", "overlap"]);
}

#[test]
fn bad_input_is_refused() {
    let sandbox = Sandbox::new();
    let gone = RedisServer::start();
    gone.kill();
    let sqlite = sandbox.url();
    let table: [(&str, &[&str], i32, &str); 9] = [
        (&sqlite, &["--faults", "pause,earthquake"], 64, "earthquake"),
        (&sqlite, &["--clients", "0"], 64, "--clients"),
        (&sqlite, &["--seconds", "0"], 64, "--seconds"),
        (&sqlite, &["--ttl", "1ms"], 64, "TTL"),
        (
            &sqlite,
            &["--faults", "cut,delay"],
            64,
            "none of these faults",
        ),
        (&sqlite, &["--kill-cmd", "true"], 64, "--restart-cmd"),
        (
            &sqlite,
            &["--report", "/no/such/folder/r.html"],
            64,
            "/no/such/folder",
        ),
        ("memory:", &[], 64, "processes"),
        (&gone.url(), &[], 69, "127.0.0.1"),
    ];
    for (url, options, code, says) in table {
        let done = sandbox.run(&[&["--url", url, "torture"], options].concat());
        assert_eq!(done.code, code, "{options:?}: {}", done.stderr);
        assert!(done.stderr.contains(says), "{options:?}: {}", done.stderr);
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn server_commands_are_run_and_must_succeed() {
    let sandbox = Sandbox::new();
    let args = ["torture", "--seconds", "5", "--faults", "cut", "--json"];
    let commands = [
        "--kill-cmd",
        "echo >> killed",
        "--restart-cmd",
        "echo >> restarted",
    ];
    let done = sandbox.run(&[&args[..], &commands].concat());
    assert_passed(done.code, &json(&done.stdout));
    assert!(!sandbox.lines("killed").is_empty());
    assert_eq!(
        sandbox.lines("killed").len(),
        sandbox.lines("restarted").len()
    );
    let commands = ["--kill-cmd", "exit 3", "--restart-cmd", "true"];
    let done = sandbox.run(&[&args[..], &commands].concat());
    assert_eq!(done.code, 64, "{}", done.stderr);
    assert!(done.stderr.contains("exit 3"), "{}", done.stderr);
}
