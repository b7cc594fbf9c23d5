//! A `run` within a `run`.

use super::place::{Done, Place};

/// Runs `script` under lock `a`; `$L` is the binary.
fn within(place: &Place, options: &[&str], script: &str) -> Done {
    let args = [&["run", "a"], options, &["--", "sh", "-c", script]].concat();
    let mut command = place.leasehold(&args);
    command.env("L", env!("CARGO_BIN_EXE_leasehold"));
    place.start_command(command).wait()
}

#[test]
fn the_same_lock_goes_straight_through_with_the_same_token() {
    let place = Place::new();
    let script =
        "echo $LEASEHOLD_TOKEN; \"$L\" run a --wait 0 -- sh -c 'echo $LEASEHOLD_TOKEN; exit 9'";
    let done = within(&place, &[], script);
    assert_eq!(done.code, 9, "{}", done.stderr);
    let tokens: Vec<_> = done.stdout.lines().collect();
    assert!(tokens.len() == 2 && tokens[0] == tokens[1], "{tokens:?}");
}

#[test]
fn through_another_lock_too() {
    let place = Place::new();
    let script = "\"$L\" run b --wait 0 -- \"$L\" run a --wait 0 -- sh -c 'echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN'; echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN";
    let done = within(&place, &[], script);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let told: Vec<_> = done.stdout.lines().collect();
    assert!(told.len() == 2 && told[0] == told[1], "{told:?}");
}

#[test]
fn a_relative_url_means_the_same_file_from_another_folder() {
    let place = Place::new();
    std::fs::create_dir(place.path("sub")).unwrap();
    let script = "cd sub; \"$L\" run a --wait 0 -- echo in";
    let done = within(&place, &["--url", "sqlite:relative.db"], script);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (0, "in\n"),
        "{}",
        done.stderr
    );
}

#[test]
fn another_database_is_another_lock() {
    let place = Place::new();
    let script = "T=$LEASEHOLD_TOKEN; export T; \"$L\" --url sqlite:other.db run a -- sh -c 'test $T != $LEASEHOLD_TOKEN'";
    assert_eq!(within(&place, &[], script).code, 0);
}

#[test]
fn a_writer_may_read_but_a_reader_may_not_write() {
    let place = Place::new();
    let read = "\"$L\" run a --shared --wait 0 -- echo in";
    let write = "\"$L\" run a --wait 0 -- echo in";
    assert_eq!(within(&place, &[], read).stdout, "in\n");
    assert_eq!(within(&place, &["--shared"], read).stdout, "in\n");
    let refused = within(&place, &["--shared"], write);
    assert_eq!(refused.code, 64);
    assert!(
        refused.stderr.contains("would wait for itself"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_nested_permit_is_another_permit() {
    let place = Place::new();
    let script = "T=$LEASEHOLD_TOKEN; export T; \"$L\" run a --permits 2 --wait 0 -- sh -c 'test $T != $LEASEHOLD_TOKEN && \"$L\" run a --permits 2 --wait 0 -- true'";
    let done = within(&place, &["--permits", "2"], script);
    assert_eq!(done.code, 75, "the third of two permits: {}", done.stderr);
}

#[test]
fn if_the_outer_one_has_lost_it_the_inner_one_does_not_start() {
    let place = Place::new();
    let script = "\"$L\" break a >/dev/null; \"$L\" run a -- touch ran";
    let done = within(&place, &[], script);
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("enclosing"), "{}", done.stderr);
    assert!(!place.has("ran"));
}

#[test]
fn what_cannot_be_read_is_refused() {
    let place = Place::new();
    let mut command = place.leasehold(&["run", "a", "--", "true"]);
    command.env("LEASEHOLD_HELD", "nonsense");
    let done = place.start_command(command).wait();
    assert_eq!(done.code, 64);
    assert!(done.stderr.contains("LEASEHOLD_HELD"), "{}", done.stderr);
}
