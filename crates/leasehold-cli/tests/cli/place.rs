//! A folder with a database of its own, and what tests do there.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(args)
            .current_dir(self.0.path())
            .env("LEASEHOLD_URL", self.url())
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
        Done::of(self.leasehold(args).output().unwrap())
    }

    /// Starts it and lets it go on.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.start_command(self.leasehold(args))
    }

    pub(crate) fn start_command(&self, mut command: Command) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
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

/// Without its numbers: what a test looks at.
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
}

/// Ended with the test, whatever happens.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.as_ref().unwrap().id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub(crate) fn wait(mut self) -> Done {
        Done::of(self.0.take().unwrap().wait_with_output().unwrap())
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
const PATIENCE: Duration = Duration::from_secs(30);

#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the process runs; the dead that nobody has collected do not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with(['Z', 'X']))
}
