//! Results on stdout, nothing else; and a stdout that nobody reads.

use super::place::Place;

#[test]
fn columns_for_people_without_colours_off_a_terminal() {
    let place = Place::new();
    assert_eq!(place.run(&["show", "a"]).stdout, "\"a\" is free\n");
    place.run(&["acquire", "a", "--owner", "me", "--reason", "a good one"]);
    let listed = place.run(&["list"]);
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
    assert!(place.run(&["show", "a"]).stdout.contains("a good one"));
}

#[test]
fn a_closed_stdout_is_a_quiet_end() {
    let place = Place::new();
    place.run(&["acquire", "a"]);
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
            .current_dir(place.path(""))
            .env("LEASEHOLD_URL", place.url());
        let done = place.start_command(shell).wait();
        assert_eq!(done.stdout, "0\n", "{args}");
    }
}

#[test]
fn a_claim_that_nobody_could_read_is_released() {
    let place = Place::new();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = place
        .leasehold(&["acquire", "a"])
        .stdout(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(70));
    assert_eq!(place.show("a")["held"], false);
}

#[test]
fn run_adds_nothing_to_what_the_command_prints() {
    let place = Place::new();
    let done = place.run(&["run", "a", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(
        (done.stdout.as_str(), done.stderr.as_str()),
        ("out\n", "err\n")
    );
}

#[test]
fn a_command_gets_the_usual_sigpipe() {
    let place = Place::new();
    let done = place.run(&["run", "a", "--", "sh", "-c", "yes | head -n 1"]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("y\n", ""));
}
