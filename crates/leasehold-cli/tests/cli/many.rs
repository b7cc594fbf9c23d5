//! Many processes at once.

use super::place::Place;

#[test]
fn twenty_processes_count_to_twenty_with_tokens_in_the_order_of_entry() {
    let place = Place::new();
    std::fs::write(place.path("count"), "0").unwrap();
    let script =
        "n=$(cat count); sleep 0.01; echo $((n + 1)) > count; echo $LEASEHOLD_TOKEN >> tokens";
    let all: Vec<_> = (0..20)
        .map(|_| {
            place.start(&[
                "run", "counter", "--wait", "forever", "--", "sh", "-c", script,
            ])
        })
        .collect();
    for one in all {
        let done = one.wait();
        assert_eq!(done.code, 0, "{}", done.stderr);
    }
    assert_eq!(
        std::fs::read_to_string(place.path("count")).unwrap().trim(),
        "20"
    );
    let tokens = std::fs::read_to_string(place.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 20);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn readers_share_and_permits_are_counted() {
    let place = Place::new();
    let (_one, _) = place.start_in(&["r", "--shared"], "exec sleep 60", "one");
    assert_eq!(
        place
            .run(&["run", "r", "--shared", "--wait", "0", "--", "true"])
            .code,
        0
    );
    assert_eq!(
        place.run(&["run", "r", "--wait", "0", "--", "true"]).code,
        75
    );

    let (_two, _) = place.start_in(&["p", "--permits", "2"], "exec sleep 60", "two");
    assert_eq!(
        place
            .run(&["run", "p", "--permits", "2", "--wait", "0", "--", "true"])
            .code,
        0
    );
    let (_three, _) = place.start_in(&["p", "--permits", "2"], "exec sleep 60", "three");
    assert_eq!(
        place
            .run(&["run", "p", "--permits", "2", "--wait", "0", "--", "true"])
            .code,
        75
    );
}

#[test]
fn at_least_keeps_a_lock_after_a_quick_command() {
    let place = Place::new();
    assert_eq!(
        place
            .run(&["run", "a", "--at-least", "1m", "--", "true"])
            .code,
        0
    );
    assert_eq!(
        place.run(&["run", "a", "--wait", "0", "--", "true"]).code,
        75
    );
    let left = place.show("a")["holders"][0]["time_left_ms"]
        .as_u64()
        .unwrap();
    assert!((30_000..=60_000).contains(&left), "{left}");
}

/// To switch a new file to WAL, SQLite needs it alone for a moment, and may say that it is busy without waiting.
#[test]
fn many_processes_may_open_a_new_file_at_once() {
    for _ in 0..10 {
        let place = Place::new();
        let all: Vec<_> = (0..16).map(|_| place.start(&["list"])).collect();
        for one in all {
            let done = one.wait();
            assert_eq!((done.code, done.stderr.as_str()), (0, ""));
        }
    }
}
