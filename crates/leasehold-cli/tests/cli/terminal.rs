//! On a terminal: `script` gives each test one of its own.

use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use super::sandbox::{
    Running, Sandbox, has_its_terminal, is_alive, is_stopped, parent_of, until,
    with_default_signals,
};

/// A program on a terminal: what it shows, and keys to press.
struct Session {
    running: Running,
    screen: Arc<Mutex<String>>,
}

impl Session {
    fn start(sandbox: &Sandbox, command: &str) -> Self {
        let mut script = with_default_signals("script");
        script
            .args(["-qefc", command, "/dev/null"])
            .current_dir(sandbox.path(""))
            .env("LEASEHOLD_URL", sandbox.url())
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env_remove("LEASEHOLD_HELD")
            .stdin(Stdio::piped());
        let mut running = sandbox.start_command(script);
        let screen = Arc::new(Mutex::new(String::new()));
        let mut shown = running.child().stdout.take().unwrap();
        std::thread::spawn({
            let screen = Arc::clone(&screen);
            move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = shown.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    screen.lock().unwrap().push_str(&text);
                }
            }
        });
        Self { running, screen }
    }

    fn press(&mut self, keys: &str) {
        let stdin = self.running.child().stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        until(&format!("the screen shows {text:?}"), || {
            self.screen().contains(text)
        });
    }
}

#[test]
fn waiting_shows_the_holder_and_ctrl_c_leaves() {
    let sandbox = Sandbox::new();
    let (holder, _) = sandbox.start_in(&["a", "--owner", "the-holder"], "exec sleep 60", "in");
    let mut session = Session::start(
        &sandbox,
        "stty cols 200 rows 24; \"$L\" run a --wait forever -- true",
    );
    session.shows(" for \"a\", 1 of 1 in the queue: ");
    session.shows("held by the-holder on");
    session.shows(&format!("(pid {}) for", holder.pid()));
    session.press("\x03");
    assert_eq!(session.running.wait().code, 130);
    assert_eq!(sandbox.waiters("a"), 0);
}

#[test]
fn command_reads_the_terminal_and_gets_ctrl_c() {
    let sandbox = Sandbox::new();
    let script = "read line; echo \"got <$line>\"; echo $$ > in; sleep 60";
    let mut session = Session::start(&sandbox, &format!("\"$L\" run a -- sh -c '{script}'"));
    until("it runs", || sandbox.show("a")["held"] == true);
    session.press("hello\n");
    session.shows("got <hello>");
    until("it waits for a signal", || sandbox.has("in"));
    session.press("\x03");
    assert_eq!(session.running.wait().code, 130);
    assert_eq!(sandbox.show("a")["held"], false);
}

// Commands that are to be stopped are bash here: a shell that starts programs with vfork(2) cannot be stopped while the program
// was stopped before it began.

#[test]
fn ctrl_z_stops_both_and_fg_continues_them() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "bash --norc -i");
    session.press("PS1='ready> '; \"$L\" run a -- bash -c 'echo $$ > cmd; while [ ! -e go ]; do sleep 0.05; done; read x; echo got-$x'\n");
    until("it runs", || sandbox.has("cmd"));
    let cmd = sandbox.pid_in("cmd");
    session.press("\x1a");
    session.shows("Stopped");
    assert!(is_stopped(cmd));
    session.press("echo the-shell-is-$((40+2))\n");
    session.shows("the-shell-is-42");
    session.press("fg\n");
    until("it goes on", || !is_stopped(cmd));
    std::fs::write(sandbox.path("go"), "").unwrap();
    session.press("word\n");
    session.shows("got-word");
    until("it is gone", || !is_alive(cmd));
    session.press("echo back-$((1+1)); exit 0\n");
    session.shows("back-2");
    assert_eq!(session.running.wait().code, 0);
    assert_eq!(sandbox.show("a")["held"], false);
}

/// Starts a job in the background that reads a line once `go` is there, and lets the shell bring it to the foreground.
fn job_brought_to_the_foreground(sandbox: &Sandbox, ttl: &str) -> (Session, nix::unistd::Pid) {
    let mut session = Session::start(sandbox, "bash --norc -i");
    session.press(&format!("PS1='ready> '; \"$L\" run a --ttl {ttl} -- "));
    session.press("bash -c 'echo $$ > cmd.new; mv cmd.new cmd; while [ ! -e go ]; do sleep 0.05; done; read x; echo got-$x' &\n");
    let cmd = sandbox.pid_in("cmd");
    session.press("fg\n");
    until("the job has the terminal", || {
        has_its_terminal(parent_of(cmd))
    });
    (session, cmd)
}

#[test]
fn ctrl_z_stops_both_after_fg_of_a_job() {
    let sandbox = Sandbox::new();
    let (mut session, cmd) = job_brought_to_the_foreground(&sandbox, "30s");
    let supervisor = parent_of(cmd);
    session.press("\x1a");
    session.shows("Stopped");
    until("both are stopped", || {
        is_stopped(cmd) && is_stopped(supervisor)
    });
    session.press("fg\n");
    until("the command has the terminal", || has_its_terminal(cmd));
    until("it goes on", || !is_stopped(cmd));
    std::fs::write(sandbox.path("go"), "").unwrap();
    session.press("word\n");
    session.shows("got-word");
    session.press("echo back-$((1+1)); exit 0\n");
    session.shows("back-2");
    assert_eq!(session.running.wait().code, 0);
}

#[test]
fn a_job_that_is_continued_after_its_ttl_is_ended() {
    let sandbox = Sandbox::new();
    let (mut session, cmd) = job_brought_to_the_foreground(&sandbox, "1s");
    session.press("\x1a");
    session.shows("Stopped");
    let next = sandbox.run(&["run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(next.code, 0, "{}", next.stderr);
    assert!(is_stopped(cmd));
    session.press("fg\n");
    until("it is ended", || !is_alive(cmd));
    session.press("echo code-$?; exit 0\n");
    session.shows("code-76");
    assert_eq!(session.running.wait().code, 0);
}

#[test]
fn foreground_command_reads_from_the_terminal() {
    let sandbox = Sandbox::new();
    let (mut session, _) = job_brought_to_the_foreground(&sandbox, "30s");
    std::fs::write(sandbox.path("go"), "").unwrap();
    session.press("word\n");
    session.shows("got-word");
    session.press("exit 0\n");
    assert_eq!(session.running.wait().code, 0);
}

/// CMD has the terminal, so that leasehold writes from the background.
#[test]
fn tostop_terminal_does_not_stop_the_supervisor() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "bash --norc -i");
    session.press("stty tostop; \"$L\" run a --ttl 2s --on-revoke USR1 -- bash -c 'trap \"echo > told\" USR1; echo $$ > cmd.new; mv cmd.new cmd; while [ ! -e go ]; do sleep 0.02; done'; exit 5\n");
    let supervisor = parent_of(sandbox.pid_in("cmd"));
    assert_eq!(sandbox.run(&["ask", "a", "--reason", "a fix"]).code, 0);
    until("it was told", || sandbox.has("told"));
    let next = sandbox.run(&["run", "a", "--wait", "4s", "--", "true"]);
    assert_eq!(next.code, 75, "a second one is in");
    assert!(!is_stopped(supervisor));
    session.shows("a fix");
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(session.running.wait().code, 5);
}

#[test]
fn break_asks_first() {
    let sandbox = Sandbox::new();
    sandbox.run(&["acquire", "a", "--owner", "someone"]);
    let mut session = Session::start(&sandbox, "\"$L\" break a");
    session.shows("held by someone");
    session.press("n\n");
    session.shows("left as it is");
    session.running.wait();
    assert_eq!(sandbox.show("a")["held"], true);

    let mut session = Session::start(&sandbox, "\"$L\" break a");
    session.shows("[y/N]");
    session.press("y\n");
    session.running.wait();
    assert_eq!(sandbox.show("a")["held"], false);
}

#[test]
fn colours_on_a_terminal_unless_no_color() {
    let sandbox = Sandbox::new();
    sandbox.run(&["acquire", "a"]);
    let session = Session::start(&sandbox, "\"$L\" list");
    session.shows("\u{1b}[1m");
    session.running.wait();
    let session = Session::start(&sandbox, "NO_COLOR=1 \"$L\" list; echo the-end");
    session.shows("the-end");
    assert!(
        !session.screen().contains('\u{1b}'),
        "{:?}",
        session.screen()
    );
    session.running.wait();
}

#[test]
fn watch_redraws_on_a_terminal() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "\"$L\" watch --interval 20ms");
    session.shows("0 locks in use");
    sandbox.run(&["acquire", "a"]);
    session.shows("1 locks in use");
    session.press("\x03");
    session.running.wait();
}
