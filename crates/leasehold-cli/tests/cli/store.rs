//! Guarded records as a script uses them.

use std::io::Write;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::place::{Done, Place, until};

fn put_stdin(place: &Place, args: &[&str], value: &[u8]) -> Done {
    let mut command = place.leasehold(args);
    command.stdin(Stdio::piped());
    let mut running = place.start_command(command);
    // A put that is refused at once reads nothing.
    let _ = running.child().stdin.take().unwrap().write_all(value);
    running.wait()
}

#[test]
fn a_value_comes_back_as_it_was_and_stale_writes_do_not_get_in() {
    let place = Place::new();
    let value = b"line\nsecond line without an end";
    let put = put_stdin(&place, &["store", "put", "k", "--token", "7"], value);
    assert_eq!(
        (put.code, put.stdout.as_str()),
        (0, "version=1\n"),
        "{}",
        put.stderr
    );
    assert_eq!(place.run(&["store", "get", "k"]).stdout.as_bytes(), value);
    let stale = place.run(&["store", "put", "k", "late", "--token", "6"]);
    assert_eq!(stale.code, 76);
    assert!(
        stale.stderr.contains("7 has written already"),
        "{}",
        stale.stderr
    );
    let changed = place.run(&["store", "put", "k", "late", "--if-version", "0"]);
    assert_eq!(changed.code, 75);
    assert!(changed.stderr.contains("version 1"), "{}", changed.stderr);
    assert_eq!(place.run(&["store", "put", "k", "v", "--new"]).code, 75);
    assert_eq!(
        place.run(&["store", "get", "k"]).stdout.as_bytes(),
        value,
        "nothing has changed"
    );
    assert_eq!(
        place
            .run(&["store", "put", "k", "v2", "--if-version", "1"])
            .code,
        0
    );
    let stat = place.run(&["store", "get", "k", "--stat"]);
    assert_eq!(stat.stdout, "version=2\ntoken=7\nlock=\n");
}

#[test]
fn within_run_the_token_comes_from_the_environment() {
    let place = Place::new();
    let bin = env!("CARGO_BIN_EXE_leasehold");
    let script = format!("echo \"$LEASEHOLD_TOKEN\" > token; {bin} store put k paid");
    let run = place.run(&["run", "orders", "--", "sh", "-c", &script]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let token: u64 = std::fs::read_to_string(place.path("token"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let shown = place.run(&["store", "get", "k", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(
        (&shown["value"], &shown["token"]),
        (&"paid".into(), &token.into())
    );
    assert_eq!(shown["lock"], "orders");
    // Under another lock its tokens mean nothing.
    let other = place.run(&["run", "other", "--", bin, "store", "put", "k", "x"]);
    assert_eq!(other.code, 64);
    assert!(other.stderr.contains("\"orders\""), "{}", other.stderr);
    assert_eq!(place.run(&["store", "get", "k"]).stdout, "paid");
}

#[test]
fn bad_input_is_said_and_changes_nothing() {
    let place = Place::new();
    let missing = place.run(&["store", "get", "nothing"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (66, ""));
    assert!(
        missing.stderr.contains("no record \"nothing\""),
        "{}",
        missing.stderr
    );
    let json = place.run(&["store", "get", "nothing", "--json"]);
    assert_eq!(json.code, 66);
    assert!(json.stderr.contains("\"no_record\""), "{}", json.stderr);
    for (args, says) in [
        (&["store", "put", "k", "v"][..], "--if-version"),
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
        let bad = place.run(args);
        assert_eq!(bad.code, 64, "{args:?}: {}", bad.stderr);
        assert!(bad.stderr.contains(says), "{args:?}: {}", bad.stderr);
    }
    let large = vec![b'x'; 1_000_001];
    let large = put_stdin(&place, &["store", "put", "k", "--token", "1"], &large);
    assert_eq!(large.code, 64);
    assert!(large.stderr.contains("too large"), "{}", large.stderr);
    assert_eq!(
        place.run(&["store", "get", "k"]).code,
        66,
        "nothing was written"
    );
}

/// The famous story, on plain files: A has the lock and is stopped past its TTL; B gets it and writes; A wakes and writes.
#[test]
fn a_sleeper_is_refused_by_a_guarded_file_and_not_by_a_plain_one() {
    let place = Place::new();
    let bin = env!("CARGO_BIN_EXE_leasehold");
    let sleeper = format!(
        "eval \"$({bin} acquire x --ttl 1s)\"; echo ready > ready; kill -STOP $$; \
         {bin} store put guarded 'by the sleeper' --token $token --lock x --dir files; echo $? > code; \
         printf 'by the sleeper' > plain"
    );
    std::fs::write(place.path("sleeper.sh"), sleeper).unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .arg("sleeper.sh")
        .current_dir(place.path(""))
        .env("LEASEHOLD_URL", place.url());
    let sleeping = place.start_command(command);
    until("the sleeper holds the lock", || place.has("ready"));
    let script = format!(
        "{bin} store put guarded 'by the second' --dir files && printf 'by the second' > plain"
    );
    let second = place.run(&["run", "x", "--wait", "forever", "--", "sh", "-c", &script]);
    assert_eq!(second.code, 0, "{}", second.stderr);
    sleeping.signal(Signal::SIGCONT);
    let woken = sleeping.wait();
    assert!(
        woken.stderr.contains("has written already"),
        "{}",
        woken.stderr
    );
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    assert_eq!(read("code").trim(), "76");
    assert_eq!(read("files/guarded"), "by the second", "nothing is lost");
    assert_eq!(
        read("plain"),
        "by the sleeper",
        "this is what the fence is for"
    );
}
