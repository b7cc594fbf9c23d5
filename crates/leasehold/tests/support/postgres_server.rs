//! A PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::free_port;
pub use super::server_user::{as_user, folder};

pub struct PostgresServer {
    pub port: u16,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Mutex<Child>,
}

/// How a server is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Transactions are rolled back, and all is written.
    Fast,
    /// As after a crash, but in good order.
    Immediate,
    /// kill -9 of all its processes.
    Kill,
}

impl PostgresServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With more settings, each as `name=value`.
    pub fn with(settings: &[&str]) -> Self {
        Self::within(settings, &[])
    }

    /// With more in its environment too.
    pub fn within(settings: &[&str], environment: &[(String, String)]) -> Self {
        let folder = folder();
        copy(template(), &folder.path().join("data"));
        Self::in_folder(folder, settings, environment)
    }

    /// A standby of this one, which only reads.
    pub fn standby(&self) -> Self {
        let folder = folder();
        let data = folder.path().join("data");
        let copied = as_postgres("pg_basebackup")
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-U",
                "postgres",
                "-R",
                "-X",
                "stream",
            ])
            .args(["--checkpoint=fast", "--no-sync", "-D"])
            .arg(&data)
            .status();
        assert!(copied.unwrap().success(), "pg_basebackup");
        Self::in_folder(folder, &[], &[])
    }

    fn in_folder(
        folder: tempfile::TempDir,
        settings: &[&str],
        environment: &[(String, String)],
    ) -> Self {
        let arguments: Vec<_> = settings
            .iter()
            .flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()])
            .collect();
        // Another process may take a free port before the server does.
        for _ in 0..20 {
            let port = free_port();
            let mut process = spawn(port, folder.path(), &arguments, environment);
            if answers(port, &mut process) {
                return Self {
                    port,
                    folder,
                    arguments,
                    environment: environment.to_vec(),
                    process: Mutex::new(process),
                };
            }
        }
        let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        panic!("postgres does not start: {log}");
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// As this user.
    pub fn url_of(&self, user: &str, password: &str, database: &str) -> String {
        format!(
            "postgres://{user}:{password}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// Where its files are.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Runs SQL as the superuser, and returns what it says: a line a row, columns apart by `|`.
    pub fn sql(&self, sql: &str) -> String {
        match self.try_sql("postgres", sql) {
            Ok(said) => said,
            Err(said) => panic!("{sql}: {said}"),
        }
    }

    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let port = self.port.to_string();
        let output = Command::new(program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "postgres",
                "-d",
                database,
                "-c",
                sql,
            ])
            .stdin(Stdio::null())
            .output()
            .expect("psql is missing: ./test.sh installs it");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    /// Ends it.
    pub fn stop(&self, how: Stop) {
        let mut process = self.process.lock().unwrap();
        let signal = match how {
            Stop::Fast => Signal::SIGINT,
            Stop::Immediate => Signal::SIGQUIT,
            Stop::Kill => Signal::SIGKILL,
        };
        // Before its parent is gone and nobody knows them any more.
        let children = match how {
            Stop::Kill => children_of(process.id()),
            _ => Vec::new(),
        };
        send(process.id(), signal);
        for child in children {
            send(child, signal);
        }
        let _ = process.wait();
    }

    /// Starts it again on the same port, with all that is on its disk.
    pub fn revive(&self) {
        let mut process = self.process.lock().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // Left behind by kill -9.
            let _ = fs::remove_file(self.data().join("postmaster.pid"));
            *process = spawn(
                self.port,
                self.folder.path(),
                &self.arguments,
                &self.environment,
            );
            if answers(self.port, &mut process) {
                return;
            }
            assert!(Instant::now() < deadline, "postgres does not start again");
        }
    }

    /// Sends a signal to the server and all its processes: SIGSTOP lets it stand still.
    pub fn signal_all(&self, signal: Signal) {
        let pid = self.process.lock().unwrap().id();
        for child in children_of(pid) {
            send(child, signal);
        }
        send(pid, signal);
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.signal_all(Signal::SIGCONT);
        self.stop(Stop::Immediate);
    }
}

fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid as i32), signal);
}

fn children_of(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    listed
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// The newest that is installed.
pub fn program(name: &str) -> PathBuf {
    let mut found: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .expect("postgresql is missing: ./test.sh installs it")
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(name)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found
        .pop()
        .unwrap_or_else(|| panic!("{name} of postgresql is missing: ./test.sh installs it"))
}

fn as_postgres(name: &str) -> Command {
    as_user("postgres", program(name))
}

/// What initdb makes, once for all servers of a test.
fn template() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let folder = folder();
        let mut initdb = as_postgres("initdb");
        initdb
            .args([
                "-A",
                "trust",
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
                "-D",
            ])
            .arg(folder.path().join("data"))
            .stdout(Stdio::null());
        assert!(initdb.status().expect("initdb").success(), "initdb");
        folder
    });
    Box::leak(made.path().join("data").into_boxed_path())
}

fn copy(from: &Path, to: &Path) {
    let mut cp = as_user("postgres", "cp");
    let copied = cp.arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "cp");
}

fn spawn(
    port: u16,
    folder: &Path,
    arguments: &[String],
    environment: &[(String, String)],
) -> Child {
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    as_postgres("postgres")
        .arg("-D")
        .arg(folder.join("data"))
        .args(["-p", &port.to_string(), "-h", "127.0.0.1"])
        .args([
            "-c",
            "unix_socket_directories=",
            "-c",
            "max_connections=1000",
        ])
        // What was written outlives kill -9 all the same, and the machine's disk is not what is tested.
        .args(["-c", "fsync=off"])
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("postgres is missing: ./test.sh installs it")
}

fn answers(port: u16, process: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        let ready = Command::new(program("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
            .status();
        if ready.is_ok_and(|ready| ready.success()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
