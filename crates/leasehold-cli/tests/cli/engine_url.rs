//! Where the URL comes from.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use nix::sys::stat::Mode;

use super::sandbox::{Done, Sandbox};

/// A command without a URL, whose configuration is in the sandbox.
fn leasehold(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.leasehold(args);
    command
        .env_remove("LEASEHOLD_URL")
        .env("XDG_CONFIG_HOME", sandbox.path(".config"));
    command
}

/// The same as a user who owns nothing, if we are root. That user may not be able to reach the program where it was built.
fn as_nobody(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = leasehold(sandbox, args);
    if nix::unistd::geteuid().is_root() {
        let program = sandbox.path("leasehold");
        fs::copy(env!("CARGO_BIN_EXE_leasehold"), &program).unwrap();
        let mut as_nobody = Command::new("setpriv");
        as_nobody
            .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"])
            .arg(program)
            .args(args)
            .env_remove("LEASEHOLD_URL")
            .env_remove("LEASEHOLD_URL_FILE")
            .env("XDG_CONFIG_HOME", sandbox.path(".config"));
        command = as_nobody;
    }
    command
}

fn acquire(sandbox: &Sandbox, more: &[&str], variables: &[(&str, &str)]) -> Done {
    let args = [
        &["run", "x"],
        more,
        &["--", "sh", "-c", "echo $LEASEHOLD_URL"],
    ]
    .concat();
    let mut command = leasehold(sandbox, &args);
    command.envs(variables.iter().copied());
    sandbox.start_command(command).wait()
}

fn write(sandbox: &Sandbox, file: &str, text: &str) -> String {
    let path = sandbox.path(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

const CONFIG: &str = ".config/leasehold/config.toml";

#[test]
fn arguments_precede_variables_and_those_the_configuration() {
    let sandbox = Sandbox::new();
    let url = |name: &str| format!("sqlite:{}", sandbox.path(name).display());
    let config = format!(
        "url = '@prod'\n[urls]\nprod = '{}'\ntest = '{}'\n",
        url("prod"),
        url("test")
    );
    write(&sandbox, CONFIG, &config);
    let file = write(&sandbox, "url", &format!("\n{}\n", url("file")));
    let named = write(&sandbox, "named", "@test");
    let (given, variable) = (url("given"), url("variable"));
    type Row<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], String);
    let table: &[Row<'_>] = &[
        (&[], &[], url("prod")),
        (&["--url", "@test"], &[], url("test")),
        (
            &["--url", &given],
            &[("LEASEHOLD_URL", &variable)],
            url("given"),
        ),
        (
            &["--url-file", &file],
            &[("LEASEHOLD_URL", &variable)],
            url("file"),
        ),
        (
            &[],
            &[("LEASEHOLD_URL", &variable), ("LEASEHOLD_URL_FILE", &file)],
            url("variable"),
        ),
        (
            &[],
            &[("LEASEHOLD_URL", ""), ("LEASEHOLD_URL_FILE", &file)],
            url("file"),
        ),
        (&[], &[("LEASEHOLD_URL_FILE", &named)], url("test")),
        (&[], &[("LEASEHOLD_URL", "@test")], url("test")),
    ];
    for (args, variables, expected) in table {
        let done = acquire(&sandbox, args, variables);
        assert_eq!(done.code, 0, "{args:?} {variables:?}: {}", done.stderr);
        assert_eq!(done.stdout.trim(), expected, "{args:?} {variables:?}");
    }
}

#[test]
fn bad_files_and_names_are_refused_with_advice() {
    let sandbox = Sandbox::new();
    let secret = "redis://:s3cret@h";
    let empty = write(&sandbox, "empty", " \n");
    let two = write(&sandbox, "two", &format!("{secret}\n{secret}\n"));
    let missing = sandbox.path("missing").to_str().unwrap().to_owned();
    let folder = sandbox.path("").to_str().unwrap().to_owned();
    let wrong = write(&sandbox, "wrong", "s3cret");
    let unknown = write(&sandbox, "unknown", "redis://:s3cret@h?colour=red");
    let latin = sandbox.path("latin").to_str().unwrap().to_owned();
    fs::write(&latin, b"redis://:p\xe4ss@h").unwrap();
    let open = write(&sandbox, "open", secret);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o622)).unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["--url-file", &empty], "is empty; write the engine's URL"),
        (&["--url-file", &two], "several lines"),
        (&["--url-file", &missing], "there is no file"),
        (&["--url-file", &folder], "is a folder; name a file"),
        (
            &["--url-file", &latin],
            "latin is not UTF-8; write it in UTF-8",
        ),
        (&["--url-file", &wrong], "wrong: a URL starts with"),
        (&["--url-file", &unknown], "unknown: "),
        (&["--url-file", &open], "chmod go-w"),
        (&["--url", "@prod"], "name it in"),
        (&["--url", "@"], "name it in"),
        (&["--url", ""], "--url is empty"),
        (
            &["--url", "memory:", "--url-file", &empty],
            "cannot be used with",
        ),
    ];
    let refuse = |args: &[&str], message: &str| {
        let done = acquire(&sandbox, args, &[]);
        assert_eq!(done.code, 64, "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(message), "{args:?}: {}", done.stderr);
        assert!(!done.stderr.contains("s3cret"), "{}", done.stderr);
    };
    for (args, message) in table {
        refuse(args, message);
    }
    for (text, message) in [
        ("urls = 3", "config.toml:1:"),
        ("\nurl = 'redis://:s3cret@h", "config.toml:2:"),
        ("colour = 's3cret'", "unknown field `colour`"),
        ("[urls]\ntest = 'memory:'", "the known names are @test"),
        (
            "[urls]\nprod = 's3cret'",
            "config.toml: @prod: a URL starts with",
        ),
        (
            "[urls]\nprod = '@test'",
            "config.toml: @prod: a URL starts with",
        ),
    ] {
        write(&sandbox, CONFIG, text);
        refuse(&["--url", "@prod"], message);
    }
    for (text, message) in [
        ("url = 's3cret'", "config.toml: url: a URL starts with"),
        ("url = ''", "config.toml: url: a URL starts with"),
        ("url = '@prod'", "config.toml: url: there is no URL named"),
        ("url = 'redis://h?colour=red'", "config.toml: url: "),
    ] {
        write(&sandbox, CONFIG, text);
        refuse(&[], message);
    }
    let config = write(&sandbox, CONFIG, "url = 'memory:'");
    fs::write(&config, b"url = 'memory:' # \xe4").unwrap();
    refuse(&[], "config.toml is not UTF-8");
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    refuse(&[], "config.toml is a folder; remove it");
    fs::remove_dir(&config).unwrap();
    // Nobody writes into it: whoever opened it as a file would wait for ever.
    nix::unistd::mkfifo(config.as_str(), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    refuse(&[], "config.toml is not a regular file; remove it");
    fs::remove_file(&config).unwrap();
    write(&sandbox, CONFIG, "url = 'memory:'");
    assert_eq!(acquire(&sandbox, &[], &[]).code, 0);
    fs::set_permissions(&config, fs::Permissions::from_mode(0o662)).unwrap();
    refuse(&[], "other users may write it");
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    // Only root can give files away.
    if nix::unistd::geteuid().is_root() {
        chown(&config, Some(12345), None).unwrap();
        refuse(&[], "belongs to another user (uid 12345)");
    }
    let done = sandbox
        .start_command(leasehold(&sandbox, &["completions", "bash"]))
        .wait();
    assert_eq!(done.code, 0, "needs no URL: {}", done.stderr);
}

/// The mode does not keep root from reading, so root asks as another user.
#[test]
fn file_that_this_user_may_not_read_is_refused() {
    let sandbox = Sandbox::new();
    let config = write(&sandbox, CONFIG, "url = 'memory:'");
    let file = write(&sandbox, "url", "memory:");
    let is_root = nix::unistd::geteuid().is_root();
    for path in [&config, &file] {
        let mode = if is_root { 0o600 } else { 0o000 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // Every folder on the way may be passed, and only the files may not be read.
    for folder in ["", ".config", ".config/leasehold"] {
        let folder = sandbox.path(folder);
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for args in [&["list"][..], &["list", "--url-file", &file]] {
        let done = sandbox.start_command(as_nobody(&sandbox, args)).wait();
        assert_eq!(done.code, 64, "{args:?}: {}", done.stderr);
        assert!(
            done.stderr.contains("let this user read it"),
            "{args:?}: {}",
            done.stderr
        );
    }
}

/// A pipe of the shell's own, as of `--url-file <(command)`.
#[test]
fn url_file_may_be_a_pipe() {
    let sandbox = Sandbox::new();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(sandbox.url().as_bytes()).unwrap();
    drop(writer);
    let mut command = leasehold(&sandbox, &["list", "--url-file", "/dev/stdin"]);
    command.stdin(reader);
    let done = sandbox.start_command(command).wait();
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[test]
fn a_skipped_run_exits_with_the_code_asked_for() {
    let sandbox = Sandbox::new();
    let run = |more: &[&str]| {
        sandbox.run(&[&["run", "x", "--once-per", "1h"], more, &["--", "true"]].concat())
    };
    let code = ["--exit-if-skipped", "3"];
    assert_eq!(run(&code).code, 0);
    assert_eq!(run(&code).code, 3);
    assert_eq!(run(&[]).code, 0);
    for bad in ["-1", "256", "x"] {
        let option = format!("--exit-if-skipped={bad}");
        assert_eq!(run(&[&option]).code, 64, "{bad}");
    }
    let alone = sandbox.run(&["run", "x", "--exit-if-skipped", "3", "--", "true"]);
    assert_eq!(alone.code, 64, "{}", alone.stderr);
}

/// `$LEASEHOLD_URL` precedes `$LEASEHOLD_URL_FILE`: a unit that sets the first would ignore the second in its environment file.
#[test]
fn systemd_unit_leaves_the_url_to_its_settings() {
    let sandbox = Sandbox::new();
    let url = format!("sqlite:{}", sandbox.path("named.db").display());
    let file = write(&sandbox, "url", &url);
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/systemd/leasehold.service"
    );
    let unit = fs::read_to_string(unit).unwrap();
    let set = unit
        .lines()
        .filter_map(|line| line.strip_prefix("Environment="))
        .map(|set| set.split_once('=').unwrap());
    let variables: Vec<_> = set.chain([("LEASEHOLD_URL_FILE", file.as_str())]).collect();
    assert_eq!(acquire(&sandbox, &[], &variables).stdout.trim_end(), url);
    // Without settings the locks are in the folder of the service, the only one that it may write.
    assert!(unit.contains("\nStateDirectory=leasehold\n"));
    assert!(variables.contains(&("XDG_STATE_HOME", "/var/lib")));
}
