//! Claim ids sign locks: none may appear in an error.

use super::sandbox::{Done, Sandbox};

fn claim_of(sandbox: &Sandbox) -> String {
    let taken = sandbox.run(&["acquire", "a", "--json"]);
    let taken: serde_json::Value = serde_json::from_str(&taken.stdout).unwrap();
    taken["claim"].as_str().unwrap().to_owned()
}

fn with_claim(sandbox: &Sandbox, args: &[&str], claim: &str) -> Done {
    let mut command = sandbox.leasehold(args);
    command.env("LEASEHOLD_CLAIM", claim);
    sandbox.start_command(command).wait()
}

#[test]
fn blanks_around_a_claim_do_no_harm() {
    let sandbox = Sandbox::new();
    let claim = claim_of(&sandbox);
    let renewed = with_claim(&sandbox, &["renew", "a"], &format!(" {claim}\n"));
    assert_eq!(renewed.code, 0, "{}", renewed.stderr);
    let released = with_claim(&sandbox, &["release", "a"], &format!("{claim} "));
    assert_eq!(released.stdout, "released\n", "{}", released.stderr);
}

#[test]
fn a_claim_that_cannot_be_read_is_not_shown() {
    let sandbox = Sandbox::new();
    let claim = claim_of(&sandbox);
    for command in ["renew", "release"] {
        for wrong in [
            format!("claim={claim}"),
            format!("{claim}0"),
            format!("'{claim}'"),
        ] {
            for json in [false, true] {
                let args = [command, "a", "--json"];
                let args = &args[..if json { 3 } else { 2 }];
                let option = format!("--claim={wrong}");
                let of_environment = with_claim(&sandbox, args, &wrong);
                let of_option = sandbox.run(&[args, &[option.as_str()]].concat());
                let of_word = sandbox.run(&[args, &[wrong.as_str()]].concat());
                let of_token = sandbox.run(&["store", "put", "x", "y", "--token", &wrong]);
                for done in [of_environment, of_option, of_word, of_token] {
                    assert_eq!(done.code, 64, "{}", done.stderr);
                    assert!(!done.stderr.contains(&claim), "{}", done.stderr);
                    assert!(!done.stderr.is_empty());
                }
            }
        }
    }
}

#[test]
fn what_runs_hold_is_not_shown_if_it_cannot_be_read() {
    let sandbox = Sandbox::new();
    let inner = "cat /proc/self/environ | tr '\\0' '\\n' | sed -n 's/^LEASEHOLD_HELD=//p'";
    let held = sandbox.run(&["run", "a", "--", "sh", "-c", inner]).stdout;
    let held = held.trim();
    let list: serde_json::Value = serde_json::from_str(held).unwrap();
    let claim = list[0]["claim"].as_str().unwrap();
    let quoted_twice = serde_json::to_string(held).unwrap();
    let wrong_field = held.replace("\"token\":", &format!("\"token\":\"{claim}\",\"x\":"));
    for wrong in [quoted_twice, wrong_field] {
        let mut command = sandbox.leasehold(&["run", "b", "--", "true"]);
        command.env("LEASEHOLD_HELD", &wrong);
        let done = sandbox.start_command(command).wait();
        assert_eq!(done.code, 64, "{}", done.stderr);
        assert!(done.stderr.contains("LEASEHOLD_HELD"), "{}", done.stderr);
        assert!(!done.stderr.contains(claim), "{}", done.stderr);
    }
}
