//! What people read before they start.

use super::place::Place;

const COMMANDS: [&str; 17] = [
    "run",
    "acquire",
    "renew",
    "release",
    "show",
    "list",
    "watch",
    "break",
    "elect",
    "ask",
    "ids",
    "store",
    "fence",
    "bench",
    "schema",
    "completions",
    "man",
];

#[test]
fn every_command_has_help_with_an_example() {
    let place = Place::new();
    let top = place.run(&["--help"]);
    assert_eq!(top.code, 0);
    assert!(top.stdout.contains("Examples:") && top.stdout.contains("76 lease lost"));
    assert!(
        !top.stdout.contains("bench-worker"),
        "a hidden command is shown"
    );
    for command in COMMANDS {
        assert!(top.stdout.contains(&format!("\n  {command} ")), "{command}");
        let help = place.run(&[command, "--help"]);
        assert_eq!(help.code, 0);
        let example = "Examples:\n  ";
        assert!(help.stdout.contains(example), "{command}: {}", help.stdout);
        assert!(
            help.stdout.contains(&format!("leasehold {command}")),
            "{command}"
        );
    }
}

#[test]
fn help_does_not_show_what_is_secret() {
    let place = Place::new();
    let mut command = place.leasehold(&["renew", "--help"]);
    command
        .env("LEASEHOLD_CLAIM", "5ec2e7")
        .env("LEASEHOLD_URL", "x://me:5ec2e7@h");
    let help = command.output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("5ec2e7"));
}

#[test]
fn version() {
    let done = Place::new().run(&["--version"]);
    assert_eq!(
        done.stdout.trim(),
        format!("leasehold {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_for_each_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = place.run(&["completions", shell]);
        assert_eq!(done.code, 0);
        assert!(done.stdout.contains("max-hold"), "{shell}");
    }
    std::fs::write(
        place.path("c.bash"),
        place.run(&["completions", "bash"]).stdout,
    )
    .unwrap();
    let read = std::process::Command::new("bash")
        .arg("-n")
        .arg(place.path("c.bash"))
        .status();
    assert!(read.unwrap().success());
}

#[test]
fn man_pages() {
    let place = Place::new();
    let page = place.run(&["man"]);
    assert_eq!(page.code, 0);
    assert!(page.stdout.contains(".TH leasehold 1"));
    assert_eq!(place.run(&["man", "--out", "pages"]).code, 0);
    for page in ["leasehold.1", "leasehold-run.1", "leasehold-break.1"] {
        let text = std::fs::read_to_string(place.path("pages").join(page)).unwrap();
        assert!(text.contains("Examples"), "{page}");
    }
    assert!(!place.has("pages/leasehold-bench-worker.1"));
}
