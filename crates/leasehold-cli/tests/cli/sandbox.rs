//! A directory with its own database, and what tests do there.

use std::io::{PipeReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::support::deadline;

pub(crate) struct Sandbox(TempDir);

impl Sandbox {
    pub(crate) fn new() -> Self {
        deadline::begin();
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    /// `leasehold` with these arguments, in this folder, on its database.
    pub(crate) fn leasehold(&self, args: &[&str]) -> Command {
        let mut command = with_default_signals(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(args)
            .current_dir(self.0.path())
            .env("LEASEHOLD_URL", self.url())
            .env_remove("LEASEHOLD_URL_FILE")
            .env_remove("LEASEHOLD_HELD")
            .env_remove("LEASEHOLD_CLAIM")
            .stdin(Stdio::null());
        command
    }

    /// The same on another engine.
    pub(crate) fn on(&self, url: &str, args: &[&str]) -> Command {
        let mut command = self.leasehold(args);
        command.env("LEASEHOLD_URL", url);
        command
    }

    /// The lines of a file that commands append to.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        self.start(args).wait()
    }

    /// Starts it and lets it go on.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.start_command(self.leasehold(args))
    }

    pub(crate) fn start_command(&self, mut command: Command) -> Running {
        command.stderr(Stdio::piped());
        self.start_with_own_stderr(command)
    }

    /// The same, with the standard error that the command has been given.
    pub(crate) fn start_with_own_stderr(&self, mut command: Command) -> Running {
        command.stdout(Stdio::piped());
        Running::start(command)
    }

    /// Starts `run` of a shell script that writes `mark` with its process id where it says MARK, or first, so
    /// that it is known to be in.
    pub(crate) fn start_in(&self, options: &[&str], script: &str, mark: &str) -> (Running, Pid) {
        let marking = format!("echo $$ > {mark}.new; mv {mark}.new {mark}");
        let script = match script.contains("MARK") {
            true => script.replace("MARK", &marking),
            false => format!("{marking}; {script}"),
        };
        let args = [&["run"], options, &["--", "sh", "-c", &script]].concat();
        let running = self.start(&args);
        let pid = self.pid_in(mark);
        (running, pid)
    }

    pub(crate) fn pid_in(&self, mark: &str) -> Pid {
        let path = self.path(mark);
        until(&format!("{mark} is written"), || path.exists());
        let text = std::fs::read_to_string(path).unwrap();
        Pid::from_raw(text.trim().parse().unwrap())
    }

    pub(crate) fn show(&self, name: &str) -> Value {
        let shown = self.run(&["show", name, "--json"]);
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        serde_json::from_str(&shown.stdout).unwrap()
    }

    pub(crate) fn waiters(&self, name: &str) -> usize {
        self.show(name)["waiters"].as_array().unwrap().len()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }
}

/// A program whose signals do what they do by default, even if the tests were started by a shell that ignores some, as
/// for a job in the background.
pub(crate) fn with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

/// The end of a process.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("ended by a signal"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// It succeeded and printed this.
    #[track_caller]
    pub(crate) fn assert_prints(&self, stdout: &str) {
        let ended = (self.code, self.stdout.as_str());
        assert_eq!(ended, (0, stdout), "{}", self.stderr);
    }
}

/// Ended with the test, whatever happens.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.as_ref().unwrap().id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// Waits for its end, and that of its output.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Done {
        let pid = self.pid();
        let child = self.0.take().unwrap();
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
        match ended.recv_timeout(PATIENCE) {
            Ok(output) => Done::of(output),
            Err(_) => {
                let _ = kill(pid, Signal::SIGKILL);
                panic!("not in time: the end of process {pid}");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Generous, since the machine may be busy: it only costs time if the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A pipe that takes nothing more, as long as the reader is kept.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    for size in [4096, 1] {
        while writer.write(&vec![b'x'; size]).is_ok() {}
    }
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

/// What the system tells of a process after its name: state, parent, group, session, terminal, the terminal's group...
/// Nothing if there is none.
fn stat_of(pid: Pid) -> Vec<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let stat = stat.unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    after_name.split_whitespace().map(str::to_owned).collect()
}

/// Whether the process runs; the dead that nobody has collected do not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    stat_of(pid)
        .first()
        .is_some_and(|state| !["Z", "X"].contains(&state.as_str()))
}

pub(crate) fn is_stopped(pid: Pid) -> bool {
    stat_of(pid).first().is_some_and(|state| state == "T")
}

pub(crate) fn parent_of(pid: Pid) -> Pid {
    let parent = stat_of(pid).get(1).map(|number| number.parse().unwrap());
    Pid::from_raw(parent.unwrap_or(0))
}

/// The second process of a `run`, if it has one.
pub(crate) fn watchdog_of(supervisor: Pid) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.map(Pid::from_raw).find(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_one = command.starts_with(b"leasehold\0watchdog\0");
        is_one && is_alive(*pid) && parent_of(*pid) == supervisor
    })
}

/// Waits for it.
pub(crate) fn started_watchdog_of(supervisor: Pid) -> Pid {
    until("the watchdog runs", || watchdog_of(supervisor).is_some());
    watchdog_of(supervisor).unwrap()
}

/// Whether the process is of the group that has its terminal.
pub(crate) fn has_its_terminal(pid: Pid) -> bool {
    let stat = stat_of(pid);
    stat.len() > 5 && stat[2] == stat[5]
}
