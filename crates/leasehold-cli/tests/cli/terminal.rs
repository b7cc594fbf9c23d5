//! On a terminal: `script` gives each test one of its own.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use super::place::{Place, Running, is_alive, until};

/// A program on a terminal: what it shows, and keys to press.
struct Session {
    running: Running,
    screen: Arc<Mutex<String>>,
}

impl Session {
    fn start(place: &Place, command: &str) -> Self {
        let mut script = Command::new("script");
        script
            .args(["-qefc", command, "/dev/null"])
            .current_dir(place.path(""))
            .env("LEASEHOLD_URL", place.url())
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env_remove("LEASEHOLD_HELD")
            .stdin(Stdio::piped());
        let mut running = place.start_command(script);
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
fn who_holds_it_is_shown_while_waiting_and_ctrl_c_leaves_the_queue() {
    let place = Place::new();
    let (holder, _) = place.start_in(&["a", "--owner", "the-holder"], "exec sleep 60", "in");
    let mut session = Session::start(
        &place,
        "stty cols 200 rows 24; \"$L\" run a --wait forever -- true",
    );
    session.shows(" for \"a\", 1 of 1 in line: ");
    session.shows("held by the-holder on");
    session.shows(&format!("(pid {}) for", holder.pid()));
    session.press("\x03");
    assert_eq!(session.running.wait().code, 130);
    assert_eq!(place.waiters("a"), 0);
}

#[test]
fn a_command_reads_from_the_terminal_and_gets_its_ctrl_c() {
    let place = Place::new();
    let script = "read line; echo \"got <$line>\"; echo $$ > in; sleep 60";
    let mut session = Session::start(&place, &format!("\"$L\" run a -- sh -c '{script}'"));
    until("it runs", || place.show("a")["held"] == true);
    session.press("hello\n");
    session.shows("got <hello>");
    until("it waits for a signal", || place.has("in"));
    session.press("\x03");
    assert_eq!(session.running.wait().code, 130);
    assert_eq!(place.show("a")["held"], false);
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_them() {
    let place = Place::new();
    let mut session = Session::start(&place, "bash --norc -i");
    session.press("PS1='ready> '; \"$L\" run a -- sh -c 'echo $$ > cmd; while [ ! -e go ]; do sleep 0.05; done; read x; echo got-$x'\n");
    until("it runs", || place.has("cmd"));
    let state = |pid: nix::unistd::Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().unwrap_or_default().chars().next()
    };
    let cmd = place.pid_in("cmd");
    session.press("\x1a");
    session.shows("Stopped");
    assert_eq!(state(cmd), Some('T'));
    session.press("echo the-shell-is-$((40+2))\n");
    session.shows("the-shell-is-42");
    session.press("fg\n");
    until("it goes on", || {
        state(cmd).is_some_and(|state| state != 'T')
    });
    std::fs::write(place.path("go"), "").unwrap();
    session.press("word\n");
    session.shows("got-word");
    until("it is gone", || !is_alive(cmd));
    session.press("echo back-$((1+1)); exit 0\n");
    session.shows("back-2");
    assert_eq!(session.running.wait().code, 0);
    assert_eq!(place.show("a")["held"], false);
}

#[test]
fn break_asks_first() {
    let place = Place::new();
    place.run(&["acquire", "a", "--owner", "someone"]);
    let mut session = Session::start(&place, "\"$L\" break a");
    session.shows("held by someone");
    session.press("n\n");
    session.shows("left as it is");
    session.running.wait();
    assert_eq!(place.show("a")["held"], true);

    let mut session = Session::start(&place, "\"$L\" break a");
    session.shows("[y/N]");
    session.press("y\n");
    session.running.wait();
    assert_eq!(place.show("a")["held"], false);
}

#[test]
fn colours_on_a_terminal_unless_no_color() {
    let place = Place::new();
    place.run(&["acquire", "a"]);
    let session = Session::start(&place, "\"$L\" list");
    session.shows("\u{1b}[1m");
    session.running.wait();
    let session = Session::start(&place, "NO_COLOR=1 \"$L\" list; echo the-end");
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
    let place = Place::new();
    let mut session = Session::start(&place, "\"$L\" watch --interval 20ms");
    session.shows("0 locks in use");
    place.run(&["acquire", "a"]);
    session.shows("1 locks in use");
    session.press("\x03");
    session.running.wait();
}
