//! A lease that can no longer be relied on: the command is ended first.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use leasehold::conformance::unless_stalled;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::sandbox::{
    Done, Running, Sandbox, is_alive, started_watchdog_of, until, with_default_signals,
};

const STUBBORN: &str = "trap '' TERM; MARK; while :; do sleep 0.05; done";

#[test]
fn broken_lock_kills_a_command_that_ignores_term() {
    let sandbox = Sandbox::new();
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "1s"], STUBBORN, "in");
    assert_eq!(sandbox.run(&["break", "a"]).stdout, "broken\n");
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("broke"), "{}", done.stderr);
    assert!(!is_alive(cmd));
}

/// The waiter looks for those before it: they must be gone, grandchildren and nested groups too.
#[test]
fn max_hold_ends_the_tree_before_the_next_enters() {
    let sandbox = Sandbox::new();
    let script = |name: &str, text: String| std::fs::write(sandbox.path(name), text).unwrap();
    let stubborn = |mark| format!("trap '' TERM; echo $$ > {mark}; while :; do sleep 0.05; done");
    script("kid.sh", stubborn("kid"));
    script("deep.sh", stubborn("deep"));
    script("nested.sh", format!("sh deep.sh & {}", stubborn("nested")));
    // Whatever is left of it must not keep the test waiting for the end of its output.
    let tree = "exec >/dev/null 2>&1; sh kid.sh & \"$BIN\" run other -- sh nested.sh &";
    script("tree.sh", format!("{tree} {}", stubborn("tree")));
    script(
        "look.sh",
        "for f in tree kid nested deep; do s=/proc/$(cat $f)/status; \
         if [ -e $s ] && ! grep -q '^State:.Z' $s; then echo $f; fi; done"
            .to_owned(),
    );
    let mut command = sandbox.leasehold(&["run", "a", "--max-hold", "8s", "--", "sh", "tree.sh"]);
    command.env("BIN", env!("CARGO_BIN_EXE_leasehold"));
    let holder = sandbox.start_command(command);
    let marks = ["tree", "kid", "nested", "deep"];
    for mark in marks {
        until(mark, || {
            std::fs::read_to_string(sandbox.path(mark)).is_ok_and(|text| text.ends_with('\n'))
        });
    }
    assert!(marks.iter().all(|mark| is_alive(sandbox.pid_in(mark))));
    let waiter = sandbox.start(&["run", "a", "--wait", "forever", "--", "sh", "look.sh"]);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("max_hold"), "{}", done.stderr);
    let waiter = waiter.wait();
    assert_eq!((waiter.code, waiter.stdout.as_str()), (0, ""));
}

#[test]
fn a_stopped_command_is_continued_so_that_it_can_end() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > tidied; exit 0' TERM; MARK; while :; do sleep 0.02; done";
    let (holder, cmd) = sandbox.start_in(&["a", "--max-hold", "3s"], script, "in");
    killpg(cmd, Signal::SIGSTOP).unwrap();
    assert_eq!(holder.wait().code, 76);
    assert!(sandbox.has("tidied"));
}

#[test]
fn a_command_may_end_in_good_order_when_it_is_told_to() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo tidied > tidied; exit 0' TERM; MARK; while :; do sleep 0.02; done";
    let (holder, _) = sandbox.start_in(&["a", "--max-hold", "4s"], script, "in");
    assert_eq!(holder.wait().code, 76);
    assert!(sandbox.has("tidied"));
}

#[test]
fn stopped_past_its_ttl_is_ended_when_it_resumes() {
    let sandbox = Sandbox::new();
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "2s"], STUBBORN, "in");
    holder.signal(Signal::SIGSTOP);
    killpg(cmd, Signal::SIGSTOP).unwrap();
    let next = sandbox.run(&["run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    assert!(is_alive(cmd));
    let resumed = Instant::now();
    holder.signal(Signal::SIGCONT);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(!is_alive(cmd));
    assert!(resumed.elapsed() < Duration::from_secs(10));
    assert!(done.stderr.contains("time ran out"), "{}", done.stderr);
}

/// The watchdog ends the command before the next one enters.
#[test]
fn command_ends_while_only_leasehold_is_stopped() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(unless_stalled(Duration::from_millis(50), async || {
        let sandbox = Sandbox::new();
        let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "4s"], STUBBORN, "in");
        started_watchdog_of(holder.pid());
        holder.signal(Signal::SIGSTOP);
        let look = format!("grep ^State /proc/{cmd}/status");
        let next = sandbox.run(&["run", "a", "--wait", "forever", "--", "sh", "-c", &look]);
        assert_eq!(next.code, 0, "{}", next.stderr);
        holder.signal(Signal::SIGCONT);
        assert_eq!(holder.wait().code, 76);
        match next.stdout.contains("zombie") {
            true => Ok(()),
            false => Err(next.stdout),
        }
    }));
}

#[test]
fn stopped_alone_lets_the_command_end_in_good_order() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo > tidied; exit 0' TERM; MARK; while :; do sleep 0.02; done";
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "4s"], script, "in");
    started_watchdog_of(holder.pid());
    holder.signal(Signal::SIGSTOP);
    until("the command has ended", || !is_alive(cmd));
    assert!(sandbox.has("tidied"));
    holder.signal(Signal::SIGCONT);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(done.stderr.contains("watchdog"), "{}", done.stderr);
}

/// Of those below the command, the system would kill none.
#[test]
fn killed_leasehold_takes_the_whole_tree_with_it() {
    let sandbox = Sandbox::new();
    let kid = STUBBORN.replace("MARK", "echo $$ > kid.new; mv kid.new kid");
    std::fs::write(sandbox.path("kid.sh"), kid).unwrap();
    // With job control, the kid has a group of its own. It is started after the watchdog has looked for the first time.
    let script = "set -m; while [ ! -e go ]; do sleep 0.02; done; sh kid.sh & wait";
    let (holder, _) = sandbox.start_in(&["a", "--ttl", "10m"], script, "in");
    let watchdog = started_watchdog_of(holder.pid());
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(sandbox.path("go"), "").unwrap();
    let kid = sandbox.pid_in("kid");
    assert!(is_alive(kid));
    // Until it has looked again, which it does every second.
    std::thread::sleep(Duration::from_secs(4));
    holder.signal(Signal::SIGKILL);
    until("all are gone", || !is_alive(kid) && !is_alive(watchdog));
}

/// TERM ends the shell, and its child in another group is then nobody's.
#[test]
fn stopped_alone_ends_groups_that_term_orphans() {
    let sandbox = Sandbox::new();
    let kid = STUBBORN.replace("MARK", "echo $$ > kid.new; mv kid.new kid");
    std::fs::write(sandbox.path("kid.sh"), kid).unwrap();
    let (holder, _) = sandbox.start_in(&["a", "--ttl", "4s"], "set -m; sh kid.sh & wait", "in");
    let kid = sandbox.pid_in("kid");
    started_watchdog_of(holder.pid());
    holder.signal(Signal::SIGSTOP);
    until("the kid is gone", || !is_alive(kid));
    holder.signal(Signal::SIGCONT);
    assert_eq!(holder.wait().code, 76);
}

#[test]
fn killed_watchdog_is_replaced() {
    let sandbox = Sandbox::new();
    let script = "while [ ! -e go ]; do sleep 0.02; done";
    let (holder, _) = sandbox.start_in(&["a", "--ttl", "2s"], script, "in");
    let first = started_watchdog_of(holder.pid());
    kill(first, Signal::SIGKILL).unwrap();
    let second = started_watchdog_of(holder.pid());
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(holder.wait().code, 0);
    until("it has ended", || !is_alive(second));
}

/// As above, but both are continued at the same time.
#[test]
fn a_resumed_command_does_not_work_on() {
    let sandbox = Sandbox::new();
    let work = "while :; do echo x >> work; sleep 0.02; done";
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "2s"], work, "in");
    holder.signal(Signal::SIGSTOP);
    killpg(cmd, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    killpg(cmd, Signal::SIGCONT).unwrap();
    kill(holder.pid(), Signal::SIGCONT).unwrap();
    assert_eq!(holder.wait().code, 76);
    until("it is gone", || !is_alive(cmd));
}

#[test]
fn lost_database_ends_the_command_within_the_lease() {
    let sandbox = Sandbox::new();
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "2s"], STUBBORN, "in");
    let busy = rusqlite::Connection::open(sandbox.path("locks.db")).unwrap();
    busy.busy_timeout(Duration::from_secs(5)).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let done = holder.wait();
    assert_eq!(done.code, 76);
    assert!(!is_alive(cmd));
    assert!(done.stderr.contains("renewals failed"), "{}", done.stderr);
}

#[test]
fn command_that_outlived_its_lease_is_76() {
    let sandbox = Sandbox::new();
    let script = "while [ ! -e go ]; do sleep 0.02; done";
    let (holder, cmd) = sandbox.start_in(&["a", "--ttl", "2s"], script, "in");
    kill(started_watchdog_of(holder.pid()), Signal::SIGSTOP).unwrap();
    holder.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(2100));
    std::fs::write(sandbox.path("go"), "").unwrap();
    until("the command has ended", || !is_alive(cmd));
    holder.signal(Signal::SIGCONT);
    let done = holder.wait();
    assert_eq!(done.code, 76);
    let told = "lost before the command ended";
    assert!(done.stderr.contains(told), "{}", done.stderr);
}

#[test]
fn a_long_command_outlives_many_ttls() {
    let sandbox = Sandbox::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(unless_stalled(Duration::from_millis(30), async || {
        let done = sandbox.run(&["run", "a", "--ttl", "200ms", "--", "sleep", "1"]);
        match (done.code, done.stderr.as_str()) {
            (0, "") => Ok(()),
            (code, told) => Err(format!("{code}: {told}")),
        }
    }));
}

#[test]
fn a_renewal_within_the_command_does_not_cut_its_lock() {
    let sandbox = Sandbox::new();
    let script = "\"$L\" renew a --ttl 1s && MARK && while [ ! -e go ]; do sleep 0.02; done";
    let mut command = sandbox.leasehold(&["run", "a", "--ttl", "60s", "--", "sh", "-c"]);
    command
        .arg(script.replace("MARK", "echo $$ > in"))
        .env("L", env!("CARGO_BIN_EXE_leasehold"));
    let holder = sandbox.start_command(command);
    until("it has renewed", || sandbox.has("in"));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(
        sandbox.run(&["run", "a", "--wait", "0", "--", "true"]).code,
        75
    );
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(holder.wait().code, 0);
}

/// A command that we may not end: within `script`, `$ROOT` runs its arguments as root, while leasehold is nobody.
fn unendable(sandbox: &Sandbox, options: &[&str], script: &str) -> Option<Running> {
    if std::fs::metadata(sandbox.path("")).unwrap().uid() != 0 {
        println!("not tried: only root can make a program that changes its user");
        return None;
    }
    let permit = |name: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(sandbox.path(name), permissions).unwrap();
    };
    permit("", 0o777);
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"];
    let setpriv = setpriv.iter().find(|path| std::fs::exists(path).unwrap());
    std::fs::copy(setpriv.unwrap(), sandbox.path("become-root")).unwrap();
    permit("become-root", 0o4755);
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), sandbox.path("leasehold")).unwrap();
    let mut command = with_default_signals("setpriv");
    command
        .args(["--reuid=65534", "--clear-groups", "./leasehold"])
        .args(options)
        .args(["--", "sh", "-c", script])
        .current_dir(sandbox.path(""))
        .env("ROOT", "./become-root --reuid=0")
        .env("LEASEHOLD_URL", sandbox.url())
        .env_remove("LEASEHOLD_HELD");
    Some(sandbox.start_command(command))
}

/// Writes its id and user, and works on.
const AS_ROOT: &str =
    "$ROOT sh -c 'id -u > id; echo $$ > in.new; mv in.new in; exec sleep 60 >/dev/null 2>&1'";

/// Waits for the end of `holder`, and makes sure that `cmd` outlives it.
fn ends_without(holder: Running, cmd: Pid) -> Done {
    let done = holder.wait();
    assert!(is_alive(cmd), "{}", done.stderr);
    assert_eq!(done.code, 76, "{}", done.stderr);
    assert!(!done.stderr.contains("was terminated"), "{}", done.stderr);
    let told = "still runs: process group ";
    assert!(done.stderr.contains(told), "{}", done.stderr);
    done
}

#[test]
fn unendable_command_is_not_said_to_have_ended() {
    let sandbox = Sandbox::new();
    let args = ["run", "a", "--ttl", "2s"];
    let Some(holder) = unendable(&sandbox, &args, &format!("exec {AS_ROOT}")) else {
        return;
    };
    let cmd = sandbox.pid_in("in");
    assert_eq!(
        sandbox.lines("id"),
        ["0"],
        "the file system allows no setuid"
    );
    assert_eq!(sandbox.run(&["break", "a"]).stdout, "broken\n");
    let done = ends_without(holder, cmd);
    kill(cmd, Signal::SIGKILL).unwrap();
    let told = format!("still runs: process group {cmd}");
    assert!(done.stderr.contains(&told), "{}", done.stderr);
}

#[test]
fn unendable_command_keeps_the_lock_after_max_hold() {
    for recipe in [
        &["--reason", "none"][..],
        &["--once-per", "1h", "--retry-failed"],
    ] {
        let sandbox = Sandbox::new();
        let args = [&["run", "a", "--max-hold", "2s"], recipe].concat();
        let Some(holder) = unendable(&sandbox, &args, &format!("exec {AS_ROOT}")) else {
            return;
        };
        let cmd = sandbox.pid_in("in");
        ends_without(holder, cmd);
        let lock = sandbox.show("a");
        kill(cmd, Signal::SIGKILL).unwrap();
        assert_eq!(lock["held"], true, "{recipe:?}");
    }
}

/// Renewals fail until the command is told to end, and succeed again afterwards.
#[test]
fn unendable_leader_keeps_a_renewed_lock() {
    let sandbox = Sandbox::new();
    let script = format!("trap 'echo > told' TERM; {AS_ROOT} & while :; do wait; done");
    let args = ["elect", "a", "--ttl", "12s"];
    let Some(holder) = unendable(&sandbox, &args, &script) else {
        return;
    };
    let cmd = sandbox.pid_in("in");
    let busy = rusqlite::Connection::open(sandbox.path("locks.db")).unwrap();
    busy.busy_timeout(Duration::from_secs(5)).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    until("the command is told to end", || sandbox.has("told"));
    busy.execute_batch("COMMIT").unwrap();
    ends_without(holder, cmd);
    let lock = sandbox.show("a");
    kill(cmd, Signal::SIGKILL).unwrap();
    assert_eq!(lock["held"], true);
}
