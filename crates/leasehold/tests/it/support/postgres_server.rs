//! A PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use super::server_process::{ServerProcess, copy, data, put, said, send, template};
pub use super::server_user::{as_user, folder};

pub struct PostgresServer {
    pub port: u16,
    process: ServerProcess,
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
        copy(&files(), &data(folder.path()));
        Self::in_folder(folder, settings, environment)
    }

    /// With TLS: the certificate `server.pem` and its key. Who may connect, and how, is said as in `pg_hba.conf`.
    pub fn secured(certificates: &Path, who_may: &str) -> Self {
        let folder = folder();
        let data = data(folder.path());
        copy(&files(), &data);
        for name in ["server.pem", "server-key.pem"] {
            put(&data, name, &fs::read(certificates.join(name)).unwrap());
        }
        put(&data, "pg_hba.conf", who_may.as_bytes());
        let tls = [
            "ssl=on",
            "ssl_cert_file=server.pem",
            "ssl_key_file=server-key.pem",
        ];
        Self::in_folder(folder, &tls, &[])
    }

    /// A standby of this one, which only reads.
    pub fn standby(&self) -> Self {
        let folder = folder();
        let copied = as_postgres("pg_basebackup")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", "postgres", "-R", "-X", "stream"])
            .args(["--checkpoint=fast", "--no-sync", "-D"])
            .arg(data(folder.path()))
            .status();
        assert!(copied.unwrap().success(), "pg_basebackup");
        Self::in_folder(folder, &[], &[])
    }

    fn in_folder(
        folder: tempfile::TempDir,
        settings: &[&str],
        environment: &[(String, String)],
    ) -> Self {
        let settings: Vec<_> = settings
            .iter()
            .map(|setting| (*setting).to_owned())
            .collect();
        let environment = environment.to_vec();
        let start = move |port, folder: &Path| {
            let mut command = postgres(port, folder);
            for setting in &settings {
                command.args(["-c", setting]);
            }
            command.envs(environment.iter().cloned());
            command
        };
        let process = ServerProcess::start(folder, start, answers);
        Self {
            port: process.port,
            process,
        }
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
        self.process.data()
    }

    /// Runs SQL as the superuser, and returns what it says: a line a row, columns apart by `|`.
    pub fn sql(&self, sql: &str) -> String {
        match self.try_sql("postgres", sql) {
            Ok(said) => said,
            Err(said) => panic!("{sql}: {said}"),
        }
    }

    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        said(
            Command::new(program("psql"))
                .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
                .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
                .args(["-U", "postgres", "-d", database, "-c", sql]),
        )
    }

    /// Ends it.
    pub fn stop(&self, how: Stop) {
        match how {
            Stop::Fast => self.process.stop(Signal::SIGINT),
            Stop::Immediate => self.process.stop(Signal::SIGQUIT),
            Stop::Kill => {
                // Before their parent is gone and nobody knows them any more.
                let children = children_of(self.process.pid());
                self.process.signal(Signal::SIGKILL);
                for child in children {
                    send(child, Signal::SIGKILL);
                }
                self.process.stop(Signal::SIGKILL);
            }
        }
    }

    /// Starts it again on the same port, with all that is on its disk.
    pub fn revive(&self) {
        self.process.revive();
    }

    /// Sends a signal to the server and all its processes: SIGSTOP lets it stand still.
    pub fn signal_all(&self, signal: Signal) {
        for child in children_of(self.process.pid()) {
            send(child, signal);
        }
        self.process.signal(signal);
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.signal_all(Signal::SIGCONT);
        self.stop(Stop::Immediate);
    }
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

/// What initdb makes.
fn files() -> PathBuf {
    let initdb = program("initdb");
    let version = initdb.iter().rev().nth(2).unwrap().to_string_lossy();
    template(&format!("postgres-template-{version}"), |folder| {
        let made = as_postgres("initdb")
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8"])
            .args(["--locale=C", "--no-sync", "-D"])
            .arg(data(folder.path()))
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("initdb").success(), "initdb");
        folder
    })
}

fn postgres(port: u16, folder: &Path) -> Command {
    // Left behind by kill -9.
    let _ = fs::remove_file(data(folder).join("postmaster.pid"));
    let mut command = as_postgres("postgres");
    command
        .arg("-D")
        .arg(data(folder))
        .args(["-p", &port.to_string(), "-h", "127.0.0.1"])
        .args(["-c", "unix_socket_directories="])
        .args(["-c", "max_connections=1000"])
        // What was written outlives kill -9 all the same, and the machine's disk is not what is tested.
        .args(["-c", "fsync=off"]);
    command
}

pub fn answers(port: u16) -> bool {
    let ready = Command::new(program("pg_isready"))
        .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
        .args(["-U", "postgres", "-d", "postgres"])
        .status();
    ready.is_ok_and(|ready| ready.success())
}
