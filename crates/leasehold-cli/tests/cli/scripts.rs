//! acquire, renew, release and break: for scripts that hold a lock themselves.

use serde_json::Value;

use super::sandbox::Sandbox;

fn acquired(sandbox: &Sandbox, options: &[&str]) -> Value {
    let done = sandbox.run(&[&["acquire", "a", "--json"], options].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn a_claim_is_held_renewed_and_released() {
    let sandbox = Sandbox::new();
    let first = acquired(
        &sandbox,
        &["--ttl", "1m", "--owner", "me", "--reason", "because"],
    );
    let claim = first["claim"].as_str().unwrap();
    assert!((50_000..=60_000).contains(&first["valid_ms"].as_u64().unwrap()));
    let holder = &sandbox.show("a")["holders"][0];
    assert_eq!(
        (&holder["owner"], &holder["reason"]),
        (&"me".into(), &"because".into())
    );
    assert_eq!(holder["token"], first["token"]);

    let renewed = sandbox.run(&["renew", "a", "--claim", claim, "--ttl", "2m", "--json"]);
    let renewed: Value = serde_json::from_str(&renewed.stdout).unwrap();
    assert_eq!(renewed["token"], first["token"]);
    assert!(renewed["valid_ms"].as_u64().unwrap() > 60_000);

    let released = sandbox.run(&["release", "a", "--claim", claim]);
    assert_eq!((released.code, released.stdout.as_str()), (0, "released\n"));
    let again = sandbox.run(&["release", "a", "--claim", claim]);
    assert_eq!((again.code, again.stdout.as_str()), (0, "not held\n"));
    assert_eq!(sandbox.run(&["renew", "a", "--claim", claim]).code, 76);

    let second = acquired(&sandbox, &[]);
    assert!(second["token"].as_u64() > first["token"].as_u64());
}

#[test]
fn what_acquire_prints_can_be_evaluated_by_a_shell() {
    let sandbox = Sandbox::new();
    let script = "set -e; eval \"$($L acquire a)\"; test $valid_ms -gt 20000; test $token -gt 0; LEASEHOLD_CLAIM=$claim $L renew a >/dev/null; printf %s $claim | $L release a --claim -";
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", script])
        .env("L", env!("CARGO_BIN_EXE_leasehold"))
        .env("LEASEHOLD_URL", sandbox.url());
    let done = sandbox.start_command(shell).wait();
    done.assert_prints("released\n");
}

#[test]
fn the_claim_may_come_from_the_environment() {
    let sandbox = Sandbox::new();
    let first = acquired(&sandbox, &[]);
    let mut command = sandbox.leasehold(&["release", "a"]);
    command.env("LEASEHOLD_CLAIM", first["claim"].as_str().unwrap());
    assert_eq!(sandbox.start_command(command).wait().stdout, "released\n");
}

#[test]
fn only_the_claim_that_holds_it_can_release_it() {
    let sandbox = Sandbox::new();
    acquired(&sandbox, &[]);
    let done = sandbox.run(&["release", "a", "--claim", &"f".repeat(32)]);
    assert_eq!(done.stdout, "not held\n");
    assert_eq!(sandbox.show("a")["held"], true);
}

#[test]
fn a_lease_that_nobody_renews_ends_with_its_ttl() {
    let sandbox = Sandbox::new();
    acquired(&sandbox, &["--ttl", "50ms"]);
    let done = sandbox.run(&["run", "a", "--wait", "20s", "--", "true"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[test]
fn breaking_takes_the_lock_away_and_tokens_still_grow() {
    let sandbox = Sandbox::new();
    let first = acquired(&sandbox, &[]);
    let broken = sandbox.run(&["break", "a"]);
    assert_eq!((broken.code, broken.stdout.as_str()), (0, "broken\n"));
    assert_eq!(sandbox.run(&["break", "a"]).stdout, "not held\n");
    let json: Value = serde_json::from_str(&sandbox.run(&["break", "a", "--json"]).stdout).unwrap();
    assert_eq!(json, serde_json::json!({"name": "a", "broken": false}));
    let second = acquired(&sandbox, &[]);
    assert!(second["token"].as_u64() > first["token"].as_u64());
}

#[test]
fn nobody_learns_a_claim_from_a_list() {
    let sandbox = Sandbox::new();
    let claim = acquired(&sandbox, &[])["claim"]
        .as_str()
        .unwrap()
        .to_owned();
    for args in [
        &["list"] as &[_],
        &["list", "--json"],
        &["show", "a"],
        &["show", "a", "--json"],
    ] {
        assert!(!sandbox.run(args).stdout.contains(&claim), "{args:?}");
    }
}
