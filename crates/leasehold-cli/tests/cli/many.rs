//! Many processes at once.

use super::sandbox::Sandbox;

#[test]
fn twenty_processes_count_with_rising_tokens() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("count"), "0").unwrap();
    let script =
        "n=$(cat count); sleep 0.01; echo $((n + 1)) > count; echo $LEASEHOLD_TOKEN >> tokens";
    let all: Vec<_> = (0..20)
        .map(|_| {
            sandbox.start(&[
                "run", "counter", "--wait", "forever", "--", "sh", "-c", script,
            ])
        })
        .collect();
    for one in all {
        let done = one.wait();
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    assert_eq!(
        std::fs::read_to_string(sandbox.path("count"))
            .unwrap()
            .trim(),
        "20"
    );
    let tokens = std::fs::read_to_string(sandbox.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn readers_share_and_permits_are_counted() {
    let sandbox = Sandbox::new();
    let (_one, _) = sandbox.start_in(&["r", "--shared"], "exec sleep 60", "one");
    assert_eq!(
        sandbox
            .run(&["run", "r", "--shared", "--wait", "0", "--", "true"])
            .code,
        0
    );
    assert_eq!(
        sandbox.run(&["run", "r", "--wait", "0", "--", "true"]).code,
        75
    );

    let (_two, _) = sandbox.start_in(&["p", "--permits", "2"], "exec sleep 60", "two");
    assert_eq!(
        sandbox
            .run(&["run", "p", "--permits", "2", "--wait", "0", "--", "true"])
            .code,
        0
    );
    let (_three, _) = sandbox.start_in(&["p", "--permits", "2"], "exec sleep 60", "three");
    assert_eq!(
        sandbox
            .run(&["run", "p", "--permits", "2", "--wait", "0", "--", "true"])
            .code,
        75
    );
}

#[test]
fn at_least_keeps_a_lock_after_a_quick_command() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox
            .run(&["run", "a", "--at-least", "1m", "--", "true"])
            .code,
        0
    );
    assert_eq!(
        sandbox.run(&["run", "a", "--wait", "0", "--", "true"]).code,
        75
    );
    let left = sandbox.show("a")["holders"][0]["time_left_ms"]
        .as_u64()
        .unwrap();
    assert!((30_000..=60_000).contains(&left), "{left}");
}

/// To switch a new file to WAL, SQLite needs it alone for a moment, and may say that it is busy without waiting.
#[test]
fn many_processes_may_open_a_new_file_at_once() {
    for _ in 0..10 {
        let sandbox = Sandbox::new();
        let all: Vec<_> = (0..16).map(|_| sandbox.start(&["list"])).collect();
        for one in all {
            let done = one.wait();
            assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        }
    }
}
