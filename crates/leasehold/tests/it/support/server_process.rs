//! A server in a folder of its own, on a free port, that can be ended and started again.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::free_port;
use super::running::Running;
use super::server_user::folder;

type Start = Box<dyn Fn(u16, &Path) -> Command + Send + Sync>;

/// Ended when dropped.
pub struct ServerProcess {
    pub port: u16,
    folder: tempfile::TempDir,
    start: Start,
    answers: fn(u16) -> bool,
    process: Mutex<Running>,
}

impl ServerProcess {
    /// `start` tells the command for a port and a folder; `answers` whether it serves on that port.
    pub fn start(
        folder: tempfile::TempDir,
        start: impl Fn(u16, &Path) -> Command + Send + Sync + 'static,
        answers: fn(u16) -> bool,
    ) -> Self {
        // Another process may take a free port before the server does.
        for _ in 0..20 {
            let port = free_port();
            let mut process = spawn(start(port, folder.path()), folder.path());
            if serves(port, &mut process, answers) {
                return Self {
                    port,
                    folder,
                    start: Box::new(start),
                    answers,
                    process: Mutex::new(process),
                };
            }
        }
        let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        panic!("the server does not start: {log}");
    }

    /// Where its files are.
    pub fn data(&self) -> PathBuf {
        data(self.folder.path())
    }

    /// The folder, once it has ended in good order.
    pub fn leave(self) -> tempfile::TempDir {
        self.stop(Signal::SIGTERM);
        let Self { folder, .. } = self;
        folder
    }

    pub fn pid(&self) -> u32 {
        self.process.lock().unwrap().id()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits until it has ended.
    pub fn stop(&self, signal: Signal) {
        let mut process = self.process.lock().unwrap();
        send(process.id(), signal);
        let _ = process.wait();
    }

    /// Starts it again on the same port, with all that is on its disk.
    pub fn revive(&self) {
        let mut process = self.process.lock().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let folder = self.folder.path();
            *process = spawn((self.start)(self.port, folder), folder);
            if serves(self.port, &mut process, self.answers) {
                return;
            }
            assert!(Instant::now() < deadline, "the server does not start again");
        }
    }
}

pub fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid as i32), signal);
}

/// Where a server's files are in its folder.
pub fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// A file among the server's own that is nobody else's: as a key has to be.
pub fn put(data: &Path, name: &str, contents: &[u8]) {
    let (file, owner) = (data.join(name), fs::metadata(data).unwrap());
    fs::write(&file, contents).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
}

pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "cp");
}

/// The files of a new server, made once for all tests of this build: it takes seconds.
pub fn template(name: &str, make: impl FnOnce(tempfile::TempDir) -> tempfile::TempDir) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap();
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !made.exists() {
        let folder = make(folder());
        // Another test binary may do the same: whole, or not at all.
        let unique = made.with_extension(std::process::id().to_string());
        fs::create_dir_all(&unique).unwrap();
        copy(&data(folder.path()), &data(&unique));
        let _ = fs::rename(&unique, &made);
        let _ = fs::remove_dir_all(&unique);
    }
    data(&made)
}

/// What a client program says: what is asked for, or what is wrong.
pub fn said(client: &mut Command) -> Result<String, String> {
    let output = client.stdin(Stdio::null()).output();
    let output = output.expect("a client is missing: ./test.sh installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn spawn(mut command: Command, folder: &Path) -> Running {
    let mut options = fs::File::options();
    let log = options.create(true).append(true).open(folder.join("log"));
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.unwrap());
    Running::start(command, "a server is missing: ./test.sh installs it")
}

fn serves(port: u16, process: &mut Running, answers: fn(u16) -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        if answers(port) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
