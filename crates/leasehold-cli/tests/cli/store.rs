//! Guarded records as a script uses them.

use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::sandbox::{Done, Sandbox, until};

fn put_stdin(sandbox: &Sandbox, args: &[&str], value: &[u8]) -> Done {
    let mut command = sandbox.leasehold(args);
    command.stdin(Stdio::piped());
    let mut running = sandbox.start_command(command);
    // A put that is refused at once reads nothing.
    let _ = running.child().stdin.take().unwrap().write_all(value);
    running.wait()
}

#[test]
fn value_round_trips_and_stale_writes_are_refused() {
    let sandbox = Sandbox::new();
    let value = b"line\nsecond line without an end";
    let put = put_stdin(&sandbox, &["store", "put", "k", "--token", "7"], value);
    let version: u64 = version(&put);
    assert_eq!(sandbox.run(&["store", "get", "k"]).stdout.as_bytes(), value);
    let stale = sandbox.run(&["store", "put", "k", "late", "--token", "6"]);
    assert_eq!(stale.code, 76);
    assert!(
        stale.stderr.contains("7 has written already"),
        "{}",
        stale.stderr
    );
    let changed = sandbox.run(&["store", "put", "k", "late", "--if-version", "0"]);
    assert_eq!(changed.code, 75);
    let now = format!("version {version} now");
    assert!(changed.stderr.contains(&now), "{}", changed.stderr);
    assert_eq!(sandbox.run(&["store", "put", "k", "v", "--new"]).code, 75);
    assert_eq!(
        sandbox.run(&["store", "get", "k"]).stdout.as_bytes(),
        value,
        "nothing has changed"
    );
    assert_eq!(
        sandbox
            .run(&[
                "store",
                "put",
                "k",
                "v2",
                "--if-version",
                &version.to_string()
            ])
            .code,
        0
    );
    let stat = sandbox.run(&["store", "get", "k", "--stat"]);
    let next = version + 1;
    assert_eq!(stat.stdout, format!("version={next}\ntoken=7\nlock=\n"));
}

fn version(put: &Done) -> u64 {
    assert_eq!(put.code, 0, "{}", put.stderr);
    let version = put.stdout.trim_end().strip_prefix("version=");
    version.and_then(|version| version.parse().ok()).unwrap()
}

#[test]
fn a_deleted_record_is_gone_and_its_token_is_not() {
    let sandbox = Sandbox::new();
    for dir in [&[][..], &["--dir", "files"]] {
        let run = |args: &[&str]| sandbox.run(&[&["store"], args, dir].concat());
        let first = version(&run(&["put", "k", "v", "--token", "7"]));
        let stale = run(&["delete", "k", "--token", "6"]);
        assert_eq!(stale.code, 76, "{}", stale.stderr);
        let old = (first - 1).to_string();
        let changed = run(&["delete", "k", "--if-version", &old]);
        assert_eq!(changed.code, 75, "{}", changed.stderr);
        assert!(changed.stderr.contains("not deleted"), "{}", changed.stderr);
        assert_eq!(run(&["get", "k"]).stdout, "v", "nothing has changed");

        let deleted = run(&["delete", "k", "--if-version", &first.to_string()]);
        assert_eq!((deleted.code, &*deleted.stdout), (0, "deleted\n"));
        assert_eq!(run(&["get", "k"]).code, 66);
        assert_eq!(run(&["put", "k", "late", "--token", "6"]).code, 76);
        let again = version(&run(&["put", "k", "new", "--new"]));
        assert!(again > first + 1, "{again} after {first}");

        let deleted = run(&["delete", "k", "--token", "8", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&deleted.stdout).unwrap();
        assert_eq!(json, serde_json::json!({"key": "k", "deleted": true}));
        assert_eq!(run(&["put", "k", "late", "--token", "7"]).code, 76);
        let gone = run(&["delete", "k", "--if-version", &again.to_string()]);
        assert_eq!(gone.code, 75);
        assert!(
            gone.stderr.contains("there is no record"),
            "{}",
            gone.stderr
        );
    }
    let bin = env!("CARGO_BIN_EXE_leasehold");
    let script = format!("{bin} store put k v && {bin} store delete k");
    let within = sandbox.run(&["run", "k", "--", "sh", "-c", &script]);
    assert_eq!(within.code, 0, "{}", within.stderr);
    assert!(within.stdout.ends_with("deleted\n"), "{}", within.stdout);
}

#[test]
fn within_run_the_token_comes_from_the_environment() {
    let sandbox = Sandbox::new();
    let bin = env!("CARGO_BIN_EXE_leasehold");
    let script = format!("echo \"$LEASEHOLD_TOKEN\" > token; {bin} store put k paid");
    let run = sandbox.run(&["run", "orders", "--", "sh", "-c", &script]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let token: u64 = std::fs::read_to_string(sandbox.path("token"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let shown = sandbox.run(&["store", "get", "k", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(
        (&shown["value"], &shown["token"]),
        (&"paid".into(), &token.into())
    );
    assert_eq!(shown["lock"], "orders");
    // Under another lock its tokens mean nothing.
    let other = sandbox.run(&["run", "other", "--", bin, "store", "put", "k", "x"]);
    assert_eq!(other.code, 64);
    assert!(other.stderr.contains("\"orders\""), "{}", other.stderr);
    assert_eq!(sandbox.run(&["store", "get", "k"]).stdout, "paid");
}

#[test]
fn bad_input_is_said_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let missing = sandbox.run(&["store", "get", "nothing"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (66, ""));
    assert!(
        missing.stderr.contains("no record \"nothing\""),
        "{}",
        missing.stderr
    );
    let json = sandbox.run(&["store", "get", "nothing", "--json"]);
    assert_eq!(json.code, 66);
    assert!(json.stderr.contains("\"no_record\""), "{}", json.stderr);
    for (args, says) in [
        (&["store", "put", "k", "v"][..], "--if-version"),
        (&["store", "delete", "k"], "--if-version"),
        (&["store", "delete", "", "--token", "1"], "key"),
        (
            &["store", "put", "k", "v", "--if-version", "seven"],
            "not a number",
        ),
        (
            &["store", "put", "k", "v", "--token", "9007199254740992"],
            "2^53",
        ),
        (&["store", "put", "k", "v", "--token", "seven"], "invalid"),
        (&["store", "put", "", "v", "--token", "1"], "key"),
        (
            &["store", "put", "k", "v", "--token", "1", "--lock", ""],
            "lock",
        ),
    ] {
        let bad = sandbox.run(args);
        assert_eq!(bad.code, 64, "{args:?}: {}", bad.stderr);
        assert!(bad.stderr.contains(says), "{args:?}: {}", bad.stderr);
    }
    let large = vec![b'x'; 1_000_001];
    let large = put_stdin(&sandbox, &["store", "put", "k", "--token", "1"], &large);
    assert_eq!(large.code, 64);
    assert!(large.stderr.contains("too large"), "{}", large.stderr);
    assert_eq!(
        sandbox.run(&["store", "get", "k"]).code,
        66,
        "nothing was written"
    );
}

/// The famous story, on plain files: A has the lock and is stopped past its TTL; B gets it and writes; A wakes and writes.
#[test]
fn stale_writer_is_refused_by_a_guarded_file_only() {
    let sandbox = Sandbox::new();
    let bin = env!("CARGO_BIN_EXE_leasehold");
    let sleeper = format!(
        "eval \"$({bin} acquire x --ttl 1s)\"; echo ready > ready; kill -STOP $$; \
         {bin} store put guarded 'by the sleeper' --token $token --lock x --dir files; echo $? > code; \
         printf 'by the sleeper' > plain"
    );
    std::fs::write(sandbox.path("sleeper.sh"), sleeper).unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .arg("sleeper.sh")
        .current_dir(sandbox.path(""))
        .env("LEASEHOLD_URL", sandbox.url());
    let sleeping = sandbox.start_command(command);
    until("the sleeper holds the lock", || sandbox.has("ready"));
    let script = format!(
        "{bin} store put guarded 'by the second' --dir files && printf 'by the second' > plain"
    );
    let second = sandbox.run(&["run", "x", "--wait", "forever", "--", "sh", "-c", &script]);
    assert_eq!(second.code, 0, "{}", second.stderr);
    sleeping.signal(Signal::SIGCONT);
    let woken = sleeping.wait();
    assert!(
        woken.stderr.contains("has written already"),
        "{}",
        woken.stderr
    );
    let read = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    assert_eq!(read("code").trim(), "76");
    assert_eq!(read("files/guarded"), "by the second", "nothing is lost");
    assert_eq!(
        read("plain"),
        "by the sleeper",
        "this is what the fence is for"
    );
}
