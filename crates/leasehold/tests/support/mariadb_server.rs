//! A MariaDB server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::free_port;
use super::server_user::{as_user, folder};

pub struct MariadbServer {
    pub port: u16,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Mutex<Child>,
}

impl MariadbServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With more arguments.
    pub fn with(arguments: &[&str]) -> Self {
        Self::within(arguments, &[])
    }

    /// With more in its environment too.
    pub fn within(arguments: &[&str], environment: &[(String, String)]) -> Self {
        let folder = folder();
        copy(template(), &folder.path().join("data"));
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
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
        panic!("mariadbd does not start: {log}");
    }

    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/locks", self.port)
    }

    /// As this user.
    pub fn url_of(&self, user: &str, password: &str, database: &str) -> String {
        format!(
            "mysql://{user}:{password}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// Runs SQL as root, and returns what it says: a line a row, columns apart by tabs.
    pub fn sql(&self, sql: &str) -> String {
        match self.try_sql(sql) {
            Ok(said) => said,
            Err(said) => panic!("{sql}: {said}"),
        }
    }

    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        ask(self.port, "locks", sql)
    }

    /// A session of its own, which goes on until it is dropped.
    pub fn session(&self, sql: &str) -> Session {
        let mut client = client(self.port, "locks");
        let child = client.args(["-e", sql]).spawn().unwrap();
        Session(child)
    }

    /// Ends it: TERM lets it write all, KILL is a crash.
    pub fn stop(&self, signal: Signal) {
        let mut process = self.process.lock().unwrap();
        let _ = kill(Pid::from_raw(process.id() as i32), signal);
        let _ = process.wait();
    }

    /// SIGSTOP lets it stand still.
    pub fn signal(&self, signal: Signal) {
        let pid = self.process.lock().unwrap().id();
        let _ = kill(Pid::from_raw(pid as i32), signal);
    }

    /// Starts it again on the same port, with all that is on its disk.
    pub fn revive(&self) {
        let mut process = self.process.lock().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            *process = spawn(
                self.port,
                self.folder.path(),
                &self.arguments,
                &self.environment,
            );
            if answers(self.port, &mut process) {
                return;
            }
            assert!(Instant::now() < deadline, "mariadbd does not start again");
        }
    }
}

impl Drop for MariadbServer {
    fn drop(&mut self) {
        self.stop(Signal::SIGKILL);
    }
}

/// Ended when dropped.
pub struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn client(port: u16, database: &str) -> Command {
    let mut command = Command::new("mariadb");
    command
        .args(["--no-defaults", "-h", "127.0.0.1", "-P", &port.to_string()])
        .args(["-u", "root", "-N", "-B", database])
        .stdin(Stdio::null());
    command
}

fn ask(port: u16, database: &str, sql: &str) -> Result<String, String> {
    let output = client(port, database).args(["-e", sql]).output();
    let output = output.expect("mariadb-client is missing: ./test.sh installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// What mariadb-install-db makes, once for all servers of a test.
fn template() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        // Shared by all tests of this build: it takes seconds to make.
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mariadb-template");
        if made.join("ready").exists() {
            return made.join("data");
        }
        let folder = folder();
        let data = folder.path().join("data");
        let mut install = as_user("mysql", "mariadb-install-db");
        install
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data.display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let installed = install.status();
        let installed = installed.expect("mariadb-server is missing: ./test.sh installs it");
        assert!(installed.success(), "mariadb-install-db");
        // With a database, made by a server that ends in good order: so copies begin at once.
        let port = free_port();
        let mut process = spawn(port, folder.path(), &[], &[]);
        assert!(answers(port, &mut process), "mariadbd");
        let _ = kill(Pid::from_raw(process.id() as i32), Signal::SIGTERM);
        let _ = process.wait();
        // Another test binary may do the same: whole, or not at all.
        let unique = made.with_extension(std::process::id().to_string());
        fs::create_dir_all(&unique).unwrap();
        copy(&data, &unique.join("data"));
        fs::write(unique.join("ready"), "").unwrap();
        let _ = fs::rename(&unique, &made);
        let _ = fs::remove_dir_all(&unique);
        made.join("data")
    })
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
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
    let data = folder.join("data");
    as_user("mysql", "mariadbd")
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()))
        .arg(format!("--port={port}"))
        .arg(format!("--socket={}", data.join("s.sock").display()))
        .arg(format!("--pid-file={}", data.join("pid").display()))
        .args(["--bind-address=127.0.0.1", "--skip-log-bin"])
        .args(["--innodb-buffer-pool-size=32M", "--performance-schema=0"])
        .args(["--skip-name-resolve", "--max-connections=1000"])
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("mariadb-server is missing: ./test.sh installs it")
}

/// Whether it serves; it then has the database too.
fn answers(port: u16, process: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        let made = ask(port, "mysql", "SELECT 1 FROM mysql.user LIMIT 1");
        if made.is_ok() {
            let _ = ask(port, "mysql", "CREATE DATABASE IF NOT EXISTS locks");
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
