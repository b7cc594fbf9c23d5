//! The shapes of docs/cli.md.

use serde_json::{Value, json};

use super::sandbox::{Sandbox, until};

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

const LOCK: [&str; 4] = ["held", "holders", "name", "waiters"];
const HOLDER: [&str; 10] = [
    "held_ms",
    "host",
    "mode",
    "owner",
    "permits",
    "pid",
    "reason",
    "sticky",
    "time_left_ms",
    "token",
];
const WAITER: [&str; 7] = [
    "host",
    "mode",
    "owner",
    "permits",
    "pid",
    "reason",
    "waited_ms",
];

#[test]
fn a_lock_with_holder_and_waiter() {
    let sandbox = Sandbox::new();
    let (holder, _) = sandbox.start_in(
        &["a", "--permits", "1", "--reason", "why"],
        "exec sleep 60",
        "in",
    );
    let waiting = sandbox.start(&[
        "run",
        "a",
        "--permits",
        "1",
        "--wait",
        "forever",
        "--owner",
        "next",
        "--",
        "true",
    ]);
    until("it waits", || sandbox.waiters("a") == 1);
    let lock = sandbox.show("a");
    assert_eq!(keys(&lock), LOCK);
    assert_eq!((&lock["name"], &lock["held"]), (&json!("a"), &json!(true)));
    let held = &lock["holders"][0];
    assert_eq!(keys(held), HOLDER);
    assert_eq!(
        (&held["mode"], &held["permits"]),
        (&json!("permit"), &json!(1))
    );
    assert_eq!(
        (&held["owner"], &held["reason"]),
        (&json!("sh"), &json!("why"))
    );
    assert_eq!(held["pid"], holder.pid().as_raw());
    let waiter = &lock["waiters"][0];
    assert_eq!(keys(waiter), WAITER);
    assert_eq!(
        (&waiter["owner"], &waiter["pid"]),
        (&json!("next"), &json!(waiting.pid().as_raw()))
    );
    assert_eq!(waiter["reason"], Value::Null);

    let listed = sandbox.run(&["list", "--json"]).stdout;
    let listed: Value = serde_json::from_str(listed.trim()).unwrap();
    assert_eq!(keys(&listed), LOCK);
}

#[test]
fn a_free_lock() {
    let free = Sandbox::new().show("a");
    assert_eq!(
        free,
        json!({"name": "a", "held": false, "holders": [], "waiters": []})
    );
}

#[test]
fn list_prints_an_object_a_line_by_prefix() {
    let sandbox = Sandbox::new();
    for name in ["x/1", "x/2", "y"] {
        assert_eq!(sandbox.run(&["acquire", name]).code, 0);
    }
    let names = |args: &[&str]| -> Vec<String> {
        let listed = sandbox.run(args).stdout;
        let lines = listed
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["list", "--json"]), ["x/1", "x/2", "y"]);
    assert_eq!(names(&["list", "x/", "--json"]), ["x/1", "x/2"]);
    assert_eq!(names(&["list", "z", "--json"]), [""; 0]);
}

#[test]
fn watch_tells_each_change_in_a_line() {
    use std::io::{BufRead, BufReader};
    let sandbox = Sandbox::new();
    let mut watch = sandbox.start(&["watch", "--json", "--interval", "20ms"]);
    let mut lines = BufReader::new(watch.child().stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();

    let claim = sandbox.run(&["acquire", "a", "--json"]).stdout;
    let claim: Value = serde_json::from_str(&claim).unwrap();
    let event = next();
    assert_eq!(keys(&event), ["event", "holder", "lock"]);
    assert_eq!(
        (&event["event"], &event["lock"]),
        (&json!("acquired"), &json!("a"))
    );
    assert_eq!(
        (keys(&event["holder"]), &event["holder"]["token"]),
        (HOLDER.to_vec(), &claim["token"])
    );

    let until_go = "while [ ! -e go ]; do sleep 0.02; done";
    let waiter = ["run", "a", "--wait", "forever", "--", "sh", "-c", until_go];
    let waiter = sandbox.start(&waiter);
    let event = next();
    assert_eq!(
        (keys(&event), &event["event"]),
        (vec!["event", "lock", "waiter"], &json!("waiting"))
    );
    assert_eq!(keys(&event["waiter"]), WAITER);

    sandbox.run(&["release", "a", "--claim", claim["claim"].as_str().unwrap()]);
    let events = [next(), next(), next()].map(|event| event["event"].as_str().unwrap().to_owned());
    assert_eq!(events, ["ended", "left", "acquired"]);
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(waiter.wait().code, 0);
    assert_eq!(next()["event"], "ended");
}

#[test]
fn bench_reports_both_sides_without_overlaps() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&["bench", "--seconds", "1", "--waiters", "4", "--json"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        keys(&report),
        [
            "counter",
            "cycle",
            "engine",
            "handoff",
            "handoff_in_process",
            "parallel",
            "processor",
            "seconds"
        ]
    );
    assert_eq!(report["engine"], sandbox.url().as_str());
    assert!(report["cycle"]["ours"]["p50_us"].as_f64().unwrap() > 0.0);
    assert!(report["parallel"]["ours_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["processor"].is_null(), "a file has no server");
    for (row, waiters) in [("handoff", "processes"), ("handoff_in_process", "threads")] {
        let handoff = &report[row];
        assert_eq!(
            (&handoff["waiters"], &handoff["waiters_are"]),
            (&json!(4), &json!(waiters))
        );
        for lane in ["ours", "baseline"] {
            assert!(handoff[lane]["per_s"].as_f64().unwrap() > 0.0, "{lane}");
            assert_eq!(handoff[lane]["overlaps"], 0, "{lane}");
        }
    }
    for row in [
        "cycle",
        "parallel",
        "handoff",
        "handoff_in_process",
        "counter",
    ] {
        assert!(report[row]["runs"].as_u64().unwrap() >= 1, "{row}");
        assert!(report[row]["steal"].as_f64().is_some(), "{row}");
    }
    assert!(sandbox.run(&["list", "--json"]).stdout.is_empty());
}
