//! Results on stdout, nothing else; and a stdout that nobody reads.

use std::process::Stdio;

use super::sandbox::{Sandbox, full_pipe, until};

#[test]
fn columns_for_people_without_colours_off_a_terminal() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run(&["show", "a"]).stdout, "\"a\" is free\n");
    sandbox.run(&["acquire", "a", "--owner", "me", "--reason", "a good one"]);
    let listed = sandbox.run(&["list"]);
    let mut lines = listed.stdout.lines();
    let header: Vec<_> = lines
        .next()
        .unwrap()
        .split("  ")
        .map(str::trim)
        .filter(|h| !h.is_empty())
        .collect();
    assert_eq!(
        header,
        [
            "NAME",
            "MODE",
            "HOLDER",
            "HOST",
            "PID",
            "HELD FOR",
            "TIME LEFT",
            "TOKEN",
            "WAITERS"
        ]
    );
    let row = lines.next().unwrap();
    assert!(
        row.starts_with('a') && row.contains("exclusive") && row.contains("me"),
        "{row}"
    );
    assert!(!listed.stdout.contains('\u{1b}'));
    assert!(sandbox.run(&["show", "a"]).stdout.contains("a good one"));
}

#[test]
fn a_closed_stdout_is_a_quiet_end() {
    let sandbox = Sandbox::new();
    sandbox.run(&["acquire", "a"]);
    let program = env!("CARGO_BIN_EXE_leasehold");
    for args in [
        "list",
        "list --json",
        "show a",
        "man",
        "completions bash",
        "watch --json --interval 10ms",
        "--help",
    ] {
        let script = format!(
            "\"{program}\" {args} 2>err | true; exec 3>&1; {{ {{ \"{program}\" {args} 3>&-; echo $? >&3; }} 2>>err | true; }} 3>code; cat code err"
        );
        let mut shell = std::process::Command::new("bash");
        shell
            .args(["-c", &script])
            .current_dir(sandbox.path(""))
            .env("LEASEHOLD_URL", sandbox.url());
        let done = sandbox.start_command(shell).wait();
        assert_eq!(done.stdout, "0\n", "{args}");
    }
}

#[test]
fn a_claim_that_nobody_could_read_is_released() {
    let sandbox = Sandbox::new();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = sandbox
        .leasehold(&["acquire", "a"])
        .stdout(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(70));
    assert_eq!(sandbox.show("a")["held"], false);
}

/// Unlike a list that nobody reads to its end: whoever goes on must not believe that it holds the lock.
#[test]
fn claim_into_a_closed_pipe_is_released() {
    let sandbox = Sandbox::new();
    for json in [false, true] {
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let args = ["acquire", "a", "--json"];
        let mut command = sandbox.leasehold(&args[..if json { 3 } else { 2 }]);
        let done = command.stdout(closed).output().unwrap();
        assert_eq!(done.status.code(), Some(70));
        let told = String::from_utf8(done.stderr).unwrap();
        assert!(told.contains("cannot write to stdout"), "{told}");
        assert_eq!(sandbox.show("a")["held"], false);
    }
}

/// Nothing renews the lease while the write to stdout blocks.
#[test]
fn claim_that_expires_unread_is_76() {
    let sandbox = Sandbox::new();
    let (reader, full) = full_pipe();
    let mut command = sandbox.leasehold(&["acquire", "a", "--ttl", "3s"]);
    command.stdout(full).stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    drop(command);
    until("it is acquired", || sandbox.show("a")["held"] == true);
    until("it has expired", || sandbox.show("a")["held"] == false);
    let printed = std::io::read_to_string(reader).unwrap();
    assert!(printed.contains("claim="), "{printed}");
    let done = running.wait_with_output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(76), "{told}");
    assert!(told.contains("lost"), "{told}");
}

#[test]
fn renewal_that_expires_unread_is_76() {
    let sandbox = Sandbox::new();
    let acquired = sandbox.run(&["acquire", "a", "--ttl", "3s", "--json"]);
    let acquired: serde_json::Value = serde_json::from_str(&acquired.stdout).unwrap();
    let claim = acquired["claim"].as_str().unwrap();
    let (reader, full) = full_pipe();
    let mut command = sandbox.leasehold(&["renew", "a", "--ttl", "4s"]);
    command.env("LEASEHOLD_CLAIM", claim);
    command.stdout(full).stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    drop(command);
    until("it has expired", || sandbox.show("a")["held"] == false);
    drop(std::io::read_to_string(reader).unwrap());
    let done = running.wait_with_output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(76), "{told}");
}

#[test]
fn run_adds_nothing_to_what_the_command_prints() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&["run", "a", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(
        (done.stdout.as_str(), done.stderr.as_str()),
        ("out\n", "err\n")
    );
}

#[test]
fn a_command_gets_the_usual_sigpipe() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&["run", "a", "--", "sh", "-c", "yes | head -n 1"]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("y\n", ""));
}
