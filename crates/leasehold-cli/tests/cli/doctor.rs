//! `doctor`: its exit codes, and what it prints.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::sandbox::{Done, Sandbox};
use super::support::redis_server::RedisServer;

fn on(sandbox: &Sandbox, url: &str, args: &[&str]) -> Done {
    sandbox.run(&[&["--url", url], args].concat())
}

#[track_caller]
fn report(done: &Done) -> Value {
    assert_eq!(done.stderr, "");
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(report["exit_code"], done.code);
    report
}

/// The names of the findings with this member.
fn named(report: &Value, is: impl Fn(&Value) -> bool) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap().iter();
    let named = findings.filter(|finding| is(finding));
    named
        .map(|finding| finding["id"].as_str().unwrap())
        .collect()
}

#[test]
fn a_good_file_is_fit_and_a_bad_one_until_it_is_accepted_is_not() {
    let sandbox = Sandbox::new();
    let good = sandbox.run(&["doctor"]);
    assert_eq!(
        (good.code, good.stderr.as_str()),
        (0, ""),
        "{}",
        good.stdout
    );
    assert!(
        good.stdout.contains("Verdict: fit for correctness"),
        "{}",
        good.stdout
    );
    let good = report(&sandbox.run(&["doctor", "--json", "--strict"]));
    assert_eq!(good["verdict"], "correctness");
    assert_eq!(named(&good, |finding| finding["weight"] != "good"), [""; 0]);

    set_permissions(sandbox.path("locks.db"), Permissions::from_mode(0o666)).unwrap();
    let open = sandbox.run(&["doctor"]);
    assert_eq!(open.code, 1, "{}", open.stdout);
    let line = open.stdout.lines().find(|line| line.starts_with("warning"));
    let line = line.unwrap();
    for part in ["permissions", "mode 666", "every user", "chmod o-w"] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(sandbox.run(&["doctor", "--strict"]).code, 78);

    let accepting = format!("{}?accept=permissions", sandbox.url());
    let accepted = on(&sandbox, &accepting, &["doctor", "--json", "--strict"]);
    assert_eq!(accepted.code, 0, "{}", accepted.stdout);
    let accepted = report(&accepted);
    assert_eq!(
        named(&accepted, |finding| finding["accepted"] == true),
        ["permissions"]
    );
}

#[test]
fn a_server_is_fit_for_efficiency_with_or_without_warnings_or_unfit() {
    let sandbox = Sandbox::new();
    let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let url = server.url();
    let weak = on(&sandbox, &url, &["doctor", "--json"]);
    assert_eq!(weak.code, 1, "{}", weak.stdout);
    let weak = report(&weak);
    assert_eq!(weak["verdict"], "efficiency");
    assert_eq!(
        named(&weak, |finding| finding["weight"] == "efficiency"),
        ["eviction"]
    );

    // What a user knows is no news to `run` either.
    let accepting = format!("{url}?accept=eviction,restart");
    let run = on(&sandbox, &accepting, &["run", "a", "--", "true"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_eq!(on(&sandbox, &accepting, &["doctor"]).code, 0);

    let replica = RedisServer::with(&["--replicaof", &format!("127.0.0.1 {}", server.port)]);
    let unfit = on(&sandbox, &replica.url(), &["doctor", "--json"]);
    assert_eq!(unfit.code, 78);
    let unfit = report(&unfit);
    assert_eq!(
        (&unfit["verdict"], named(&unfit, |_| true)),
        (&"unfit".into(), vec!["refused"])
    );
}

#[test]
fn bad_input_is_refused_with_what_is_known() {
    let sandbox = Sandbox::new();
    let unknown = format!("{}?accept=evictions", sandbox.url());
    for args in [&["doctor"][..], &["list"]] {
        let done = on(&sandbox, &unknown, args);
        assert_eq!(done.code, 64);
        for part in ["evictions", "eviction, ", "round_trip"] {
            assert!(done.stderr.contains(part), "{}", done.stderr);
        }
    }
    assert_eq!(sandbox.run(&["doctor", "--ttl", "0"]).code, 64);
    assert_eq!(on(&sandbox, "redis://127.0.0.1:1", &["doctor"]).code, 69);
}
