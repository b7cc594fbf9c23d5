//! A standard error that nobody reads: whatever is said, the lease goes on, and so does its supervision.

use std::io::PipeReader;

use nix::sys::signal::Signal;

use super::sandbox::{Running, Sandbox, full_pipe, until};

/// Starts it with such a standard error; CMD's own is another.
fn start(sandbox: &Sandbox, args: &[&str], script: &str) -> (Running, PipeReader) {
    let (reader, writer) = full_pipe();
    let script = format!("exec 2>/dev/null; {script}");
    let args = [args, &["--", "sh", "-c", &script]].concat();
    let mut command = sandbox.leasehold(&args);
    command.stderr(writer);
    (sandbox.start_with_own_stderr(command), reader)
}

#[test]
fn a_request_to_the_holder_does_not_stop_its_renewals() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > told' USR1; echo > in; while [ ! -e go ]; do sleep 0.02; done";
    let args = ["run", "a", "--ttl", "2s", "--on-revoke", "USR1"];
    let (holder, _unread) = start(&sandbox, &args, script);
    until("it is in", || sandbox.has("in"));
    assert_eq!(sandbox.run(&["ask", "a", "--reason", "a fix"]).code, 0);
    until("it was told", || sandbox.has("told"));
    let next = sandbox.run(&["run", "a", "--wait", "4s", "--", "true"]);
    assert_eq!(next.code, 75, "a second one is in");
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(holder.wait().code, 0);
}

#[test]
fn a_leader_leads_and_ends_when_told_to() {
    let sandbox = Sandbox::new();
    let script = "trap 'exit 3' TERM; echo > in; while :; do sleep 0.02; done";
    let (leader, _unread) = start(&sandbox, &["elect", "a", "--ttl", "2s"], script);
    until("it leads", || sandbox.has("in"));
    let next = sandbox.run(&["run", "a", "--wait", "4s", "--", "true"]);
    assert_eq!(next.code, 75, "a second one is in");
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.wait().code, 3);
}

#[test]
fn a_reader_that_comes_late_still_reads_all_of_it() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > told' USR1; echo > in; while [ ! -e go ]; do sleep 0.02; done";
    let args = ["run", "a", "--ttl", "5s", "--on-revoke", "USR1"];
    let (holder, unread) = start(&sandbox, &args, script);
    until("it is in", || sandbox.has("in"));
    assert_eq!(sandbox.run(&["ask", "a", "--reason", "a fix"]).code, 0);
    until("it was told", || sandbox.has("told"));
    let reads = std::thread::spawn(move || std::io::read_to_string(unread).unwrap());
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(holder.wait().code, 0);
    let said = reads.join().unwrap();
    assert!(
        said.ends_with(": a fix\n"),
        "{:?}",
        said.trim_start_matches('x')
    );
}
