//! Each exit code of the design.

use super::sandbox::Sandbox;

#[test]
fn a_commands_own_code_is_passed_on() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 7, 64, 255] {
        let done = sandbox.run(&["run", "a", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(done.code, code, "{}", done.stderr);
        assert_eq!(done.stderr, "");
    }
}

#[test]
fn a_command_ended_by_a_signal_is_128_and_its_number() {
    let sandbox = Sandbox::new();
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("35", 163)] {
        let done = sandbox.run(&["run", "a", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(done.code, code, "{}", done.stderr);
    }
}

#[test]
fn missing_command_is_127_and_frees_the_lock() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&["run", "a", "--", "no-such-command"]);
    assert_eq!(done.code, 127);
    assert!(done.stderr.contains("no-such-command"), "{}", done.stderr);
    assert_eq!(sandbox.show("a")["held"], false);
}

#[test]
fn a_command_that_is_not_executable_is_126() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("data"), "not a program").unwrap();
    assert_eq!(sandbox.run(&["run", "a", "--", "./data"]).code, 126);
    assert_eq!(sandbox.run(&["run", "a", "--", "/"]).code, 126);
}

#[test]
fn bad_usage_names_and_urls_are_64_and_say_what_to_do() {
    let sandbox = Sandbox::new();
    let table: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["frobnicate"], "frobnicate"),
        (&["run", "a"], "CMD"),
        (&["run", "a", "--ttl", "10", "--", "true"], "30s"),
        (&["run", "a", "--ttl", "1ms", "--", "true"], "10ms to 24h"),
        (&["run", "", "--", "true"], "1 to 255 bytes"),
        (&["run", "a\nb", "--", "true"], "control character"),
        (
            &["run", "a", "--shared", "--permits", "2", "--", "true"],
            "--permits",
        ),
        (&["run", "a", "--permits", "0", "--", "true"], "1 or more"),
        (&["--url", "nonsense:", "list"], "sqlite:"),
        (&["--url", "sqlite:a.db?colour=red", "list"], "busy_timeout"),
        (&["renew", "a", "--claim", "123"], "32 hexadecimal digits"),
        (&["renew", "a"], "--claim"),
    ];
    for (args, told) in table {
        let done = sandbox.run(args);
        assert_eq!(done.code, 64, "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(told), "{args:?}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{args:?}");
    }
}

#[test]
fn an_engine_that_does_not_answer_is_69() {
    let sandbox = Sandbox::new();
    let busy = rusqlite::Connection::open(sandbox.path("busy.db")).unwrap();
    busy.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let done = sandbox.run(&[
        "--url",
        "sqlite:busy.db?busy_timeout=20ms",
        "run",
        "a",
        "--",
        "true",
    ]);
    assert_eq!(done.code, 69, "{}", done.stderr);
    assert!(done.stderr.contains("busy.db"), "{}", done.stderr);
}

#[test]
fn a_result_that_cannot_be_written_is_70() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["list"]);
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = command.stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(70));
}

#[test]
fn lock_not_obtained_is_75_and_names_the_holder() {
    let sandbox = Sandbox::new();
    let (_holder, _) = sandbox.start_in(&["a", "--owner", "the-holder"], "exec sleep 60", "in");
    for wait in ["0", "50ms"] {
        let done = sandbox.run(&["run", "a", "--wait", wait, "--", "touch", "ran"]);
        assert_eq!(done.code, 75);
        assert!(done.stderr.contains("the-holder"), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1);
    }
    assert!(!sandbox.has("ran"));
}

#[test]
fn a_claim_that_is_not_held_is_76() {
    let sandbox = Sandbox::new();
    let claim = "0".repeat(32);
    let done = sandbox.run(&["renew", "a", "--claim", &claim]);
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("not held"), "{}", done.stderr);
}

/// Even root may not make files there.
#[test]
fn a_place_where_nobody_may_write_is_77() {
    let sandbox = Sandbox::new();
    let done = sandbox.run(&[
        "--url",
        "sqlite:/sys/leasehold.db",
        "run",
        "a",
        "--",
        "true",
    ]);
    assert_eq!(done.code, 77, "{}", done.stderr);
}

#[test]
fn a_file_that_is_no_database_is_78() {
    let sandbox = Sandbox::new();
    let text = "To be, or not to be, that is the question. ".repeat(100);
    std::fs::write(sandbox.path("poem.txt"), &text).unwrap();
    let done = sandbox.run(&["--url", "sqlite:poem.txt", "run", "a", "--", "true"]);
    assert_eq!(done.code, 78, "{}", done.stderr);
    assert_eq!(
        std::fs::read_to_string(sandbox.path("poem.txt")).unwrap(),
        text
    );
}

#[test]
fn errors_can_be_json() {
    let sandbox = Sandbox::new();
    let (_holder, _) = sandbox.start_in(&["a"], "exec sleep 60", "in");
    let done = sandbox.run(&["run", "a", "--json", "--wait", "0", "--", "true"]);
    let error: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    let error = &error["error"];
    assert_eq!(done.code, 75);
    assert_eq!(
        (&error["kind"], &error["exit_code"]),
        (&"timed_out".into(), &75.into())
    );
    assert_eq!(
        (&error["lock"], &error["engine"]),
        (&"a".into(), &sandbox.url().into())
    );
    assert_eq!(error["operation"], "acquire");
    assert!(error["message"].as_str().unwrap().contains("held by"));
    assert!(error["advice"].as_str().unwrap().contains("wait longer"));

    let done = sandbox.run(&["--json", "frobnicate"]);
    let error: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!((done.code, &error["error"]["kind"]), (64, &"usage".into()));
}
