//! What people read before they start.

use super::sandbox::Sandbox;

const COMMANDS: [&str; 21] = [
    "run",
    "acquire",
    "renew",
    "release",
    "show",
    "list",
    "watch",
    "doctor",
    "break",
    "elect",
    "ask",
    "ids",
    "store",
    "fence",
    "serve",
    "token",
    "bench",
    "torture",
    "schema",
    "completions",
    "man",
];

#[test]
fn every_command_has_help_with_an_example() {
    let sandbox = Sandbox::new();
    let top = sandbox.run(&["--help"]);
    assert_eq!(top.code, 0);
    assert!(top.stdout.contains("Examples:") && top.stdout.contains("76 lease lost"));
    assert!(
        !top.stdout.contains("bench-worker"),
        "a hidden command is shown"
    );
    for command in COMMANDS {
        assert!(top.stdout.contains(&format!("\n  {command} ")), "{command}");
        let help = sandbox.run(&[command, "--help"]);
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
    let sandbox = Sandbox::new();
    let mut command = sandbox.leasehold(&["renew", "--help"]);
    command
        .env("LEASEHOLD_CLAIM", "5ec2e7")
        .env("LEASEHOLD_URL", "x://me:5ec2e7@h");
    let help = command.output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("5ec2e7"));
}

#[test]
fn version() {
    let done = Sandbox::new().run(&["--version"]);
    assert_eq!(
        done.stdout.trim(),
        format!("leasehold {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_for_each_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = sandbox.run(&["completions", shell]);
        assert_eq!(done.code, 0);
        assert!(done.stdout.contains("max-hold"), "{shell}");
    }
    std::fs::write(
        sandbox.path("c.bash"),
        sandbox.run(&["completions", "bash"]).stdout,
    )
    .unwrap();
    let read = std::process::Command::new("bash")
        .arg("-n")
        .arg(sandbox.path("c.bash"))
        .status();
    assert!(read.unwrap().success());
}

#[test]
fn man_pages() {
    let sandbox = Sandbox::new();
    let page = sandbox.run(&["man"]);
    assert_eq!(page.code, 0);
    assert!(page.stdout.contains(".TH leasehold 1"));
    assert_eq!(sandbox.run(&["man", "--out", "pages"]).code, 0);
    for page in ["leasehold.1", "leasehold-run.1", "leasehold-break.1"] {
        let text = std::fs::read_to_string(sandbox.path("pages").join(page)).unwrap();
        assert!(text.contains("Examples"), "{page}");
    }
    assert!(!sandbox.has("pages/leasehold-bench-worker.1"));
}
