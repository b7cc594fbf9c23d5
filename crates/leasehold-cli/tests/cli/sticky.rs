//! `acquire --until`: a lock that is held without a process.

use std::time::Duration;

use serde_json::Value;

use super::sandbox::{Done, Sandbox};
use super::support::deployment::Deployment;
use super::support::redis_server::RedisServer;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Done {
    sandbox.run(&[&["--url", url], args].concat())
}

fn json(done: &Done) -> Value {
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

fn freeze(sandbox: &Sandbox, url: &str, until: &str) -> Done {
    on(
        sandbox,
        url,
        &[
            "acquire", "deploy", "--until", until, "--reason", "holidays", "--json",
        ],
    )
}

fn from_freeze_to_release(url: &str) {
    let sandbox = Sandbox::new();
    let leasehold = |args: &[&str]| on(&sandbox, url, args);
    let forever = json(&freeze(&sandbox, url, "forever"));
    let shown = json(&leasehold(&["show", "deploy", "--json"]));
    let holder = &shown["holders"][0];
    assert_eq!(
        (&holder["sticky"], &holder["reason"]),
        (&true.into(), &"holidays".into())
    );
    assert!(
        holder["time_left_ms"].as_u64() > Some(3_650 * DAY_MS),
        "{holder}"
    );
    for args in [&["show", "deploy"][..], &["list"]] {
        let text = leasehold(args).stdout;
        assert!(
            text.contains("sticky") && text.contains("forever"),
            "{text}"
        );
    }
    let refused = leasehold(&["run", "deploy", "--wait", "0", "--", "true"]);
    assert_eq!(refused.code, 75, "{}", refused.stderr);

    let claim = forever["claim"].as_str().unwrap();
    assert_eq!(
        leasehold(&["release", "deploy", "--claim", claim]).stdout,
        "released\n"
    );
    let days = json(&freeze(&sandbox, url, "3days"));
    assert!(days["valid_ms"].as_u64() > Some(2 * DAY_MS), "{days}");
    assert_eq!(leasehold(&["break", "deploy"]).stdout, "broken\n");

    // An ordinary lock is not listed as such.
    json(&leasehold(&["acquire", "deploy", "--json"]));
    let shown = json(&leasehold(&["show", "deploy", "--json"]));
    assert_eq!(shown["holders"][0]["sticky"], false);
}

#[test]
fn freeze_on_sqlite() {
    from_freeze_to_release(&Sandbox::new().url());
}

#[test]
fn freeze_on_redis() {
    let server = RedisServer::start();
    from_freeze_to_release(&server.url());
    let limited = format!("{}?max_ttl=1h", server.url());
    let refused = freeze(&Sandbox::new(), &limited, "3days");
    assert_eq!(refused.code, 64, "{}", refused.stderr);
    assert!(refused.stderr.contains("max_ttl"), "{}", refused.stderr);
}

#[test]
fn freeze_ends_by_itself() {
    let sandbox = Sandbox::new();
    json(&freeze(&sandbox, &sandbox.url(), "1s"));
    let done = sandbox.run(&["run", "deploy", "--wait", "30s", "--", "echo", "in"]);
    done.assert_prints("in\n");
}

#[test]
fn freeze_that_cannot_be_is_refused() {
    let sandbox = Sandbox::new();
    let redlock = Deployment::with(3, Duration::from_secs(1), "node_timeout=500ms");
    redlock.has_stood_a_while();
    let sqlite = sandbox.url();
    let table = [
        (sqlite.as_str(), "2001-01-01T00:00", "past"),
        (&sqlite, "tomorrow", "2days"),
        (&sqlite, "11years", "10 years"),
        ("memory:", "forever", "ends with the process"),
        (&redlock.url(), "3days", "max_ttl"),
    ];
    for (url, until, says) in table {
        let done = freeze(&sandbox, url, until);
        assert_eq!(done.code, 64, "{url}: {}", done.stderr);
        assert!(done.stderr.contains(says), "{url}: {}", done.stderr);
    }
    let args = ["acquire", "deploy", "--until", "forever"];
    assert!(sandbox.run(&args).stderr.contains("--reason"));
}
