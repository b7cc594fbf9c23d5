//! Waiting, and leaving the queue.

use nix::sys::signal::Signal;

use super::place::{Place, until};

#[test]
fn a_signal_while_waiting_leaves_the_queue_at_once() {
    let place = Place::new();
    let (_holder, _) = place.start_in(&["a"], "exec sleep 60", "in");
    let table = [
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
        (Signal::SIGHUP, 129),
    ];
    for (signal, code) in table {
        for command in [
            &["run", "a", "--wait", "forever", "--", "touch", "ran"] as &[_],
            &["acquire", "a", "--wait", "forever"],
        ] {
            let waiter = place.start(command);
            until("it waits", || place.waiters("a") == 1);
            waiter.signal(signal);
            let done = waiter.wait();
            assert_eq!((done.code, done.stderr.as_str()), (code, ""));
            assert_eq!(place.waiters("a"), 0, "{signal} {command:?}");
        }
    }
    assert!(!place.has("ran"));
}

#[test]
fn waiters_enter_in_the_order_they_came() {
    let place = Place::new();
    let (holder, _) = place.start_in(&["a"], "while [ ! -e go ]; do sleep 0.02; done", "in");
    let mut waiters = Vec::new();
    for nth in 1..=4 {
        let script = format!("echo {nth} >> order");
        waiters.push(place.start(&["run", "a", "--wait", "forever", "--", "sh", "-c", &script]));
        until("it waits", || place.waiters("a") == nth);
    }
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(holder.wait().code, 0);
    for waiter in waiters {
        assert_eq!(waiter.wait().code, 0);
    }
    assert_eq!(
        std::fs::read_to_string(place.path("order")).unwrap(),
        "1\n2\n3\n4\n"
    );
}

#[test]
fn nothing_is_shown_off_a_terminal() {
    let place = Place::new();
    let (_holder, _) = place.start_in(&["a"], "sleep 1", "in");
    let done = place.run(&["run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (0, "", "")
    );
}
