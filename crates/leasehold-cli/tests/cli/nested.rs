//! A `run` within a `run`.

use super::sandbox::{Done, Sandbox};

/// Runs `script` under lock `a`; `$L` is the binary.
fn within(sandbox: &Sandbox, options: &[&str], script: &str) -> Done {
    let args = [&["run", "a"], options, &["--", "sh", "-c", script]].concat();
    let mut command = sandbox.leasehold(&args);
    command.env("L", env!("CARGO_BIN_EXE_leasehold"));
    sandbox.start_command(command).wait()
}

#[test]
fn nested_run_of_the_same_lock_shares_its_token() {
    let sandbox = Sandbox::new();
    let script =
        "echo $LEASEHOLD_TOKEN; \"$L\" run a --wait 0 -- sh -c 'echo $LEASEHOLD_TOKEN; exit 9'";
    let done = within(&sandbox, &[], script);
    assert_eq!(done.code, 9, "{}", done.stderr);
    let tokens: Vec<_> = done.stdout.lines().collect();
    assert!(tokens.len() == 2 && tokens[0] == tokens[1], "{tokens:?}");
}

#[test]
fn through_another_lock_too() {
    let sandbox = Sandbox::new();
    let script = "\"$L\" run b --wait 0 -- \"$L\" run a --wait 0 -- sh -c 'echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN'; echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN";
    let done = within(&sandbox, &[], script);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let told: Vec<_> = done.stdout.lines().collect();
    assert!(told.len() == 2 && told[0] == told[1], "{told:?}");
}

#[test]
fn relative_url_is_the_same_file_elsewhere() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("sub")).unwrap();
    let script = "cd sub; \"$L\" run a --wait 0 -- echo in";
    let done = within(&sandbox, &["--url", "sqlite:relative.db"], script);
    done.assert_prints("in\n");
}

#[test]
fn another_database_is_another_lock() {
    let sandbox = Sandbox::new();
    let script = "T=$LEASEHOLD_TOKEN; export T; \"$L\" --url sqlite:other.db run a -- sh -c 'test $T != $LEASEHOLD_TOKEN'";
    assert_eq!(within(&sandbox, &[], script).code, 0);
}

#[test]
fn a_writer_may_read_but_a_reader_may_not_write() {
    let sandbox = Sandbox::new();
    let read = "\"$L\" run a --shared --wait 0 -- echo in";
    let write = "\"$L\" run a --wait 0 -- echo in";
    assert_eq!(within(&sandbox, &[], read).stdout, "in\n");
    assert_eq!(within(&sandbox, &["--shared"], read).stdout, "in\n");
    let refused = within(&sandbox, &["--shared"], write);
    assert_eq!(refused.code, 64);
    assert!(
        refused.stderr.contains("would wait for itself"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_nested_permit_is_another_permit() {
    let sandbox = Sandbox::new();
    let script = "T=$LEASEHOLD_TOKEN; export T; \"$L\" run a --permits 2 --wait 0 -- sh -c 'test $T != $LEASEHOLD_TOKEN && \"$L\" run a --permits 2 --wait 0 -- true'";
    let done = within(&sandbox, &["--permits", "2"], script);
    assert_eq!(done.code, 75, "the third of two permits: {}", done.stderr);
}

#[test]
fn inner_run_does_not_start_after_the_outer_lost() {
    let sandbox = Sandbox::new();
    let script = "\"$L\" break a >/dev/null; \"$L\" run a -- touch ran";
    let done = within(&sandbox, &[], script);
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("enclosing"), "{}", done.stderr);
    assert!(!sandbox.has("ran"));
}

#[test]
fn what_cannot_be_read_is_refused() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["run", "a", "--", "true"]);
    command.env("LEASEHOLD_HELD", "nonsense");
    let done = sandbox.start_command(command).wait();
    assert_eq!(done.code, 64);
    assert!(done.stderr.contains("LEASEHOLD_HELD"), "{}", done.stderr);
}

/// They bound the hold, which is the outer run's.
#[test]
fn what_a_nested_run_cannot_do_is_refused() {
    let sandbox = Sandbox::new();
    for option in [
        "--max-hold 1s",
        "--at-least 1s",
        "--on-revoke USR1",
        "--once-per 1h",
    ] {
        let script = format!("\"$L\" run a {option} -- touch ran");
        let done = within(&sandbox, &[], &script);
        assert_eq!(done.code, 64, "{option}: {}", done.stderr);
        let name = option.split(' ').next().unwrap();
        assert!(done.stderr.contains(name), "{option}: {}", done.stderr);
        assert!(!sandbox.has("ran"), "{option}");
    }
}
