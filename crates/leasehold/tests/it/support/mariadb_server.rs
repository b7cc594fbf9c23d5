//! A MariaDB server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use super::server_process::{ServerProcess, copy, data, put, said, template};
use super::server_user::{as_user, folder, folder_on_disk};
use super::stuck_disk::StuckDisk;

pub struct MariadbServer {
    pub port: u16,
    process: ServerProcess,
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
        copy(&files(), &data(folder.path()));
        Self::in_folder(folder, arguments, environment)
    }

    /// On a disk that can stand still.
    pub fn on(disk: &StuckDisk) -> Self {
        let folder = folder_on_disk();
        copy(&files(), &data(folder.path()));
        Self::in_folder(folder, &[], &disk.environment())
    }

    /// With TLS: the certificate `server.pem` and its key.
    pub fn secured(certificates: &Path, arguments: &[&str]) -> Self {
        let folder = folder();
        let data = data(folder.path());
        copy(&files(), &data);
        for name in ["server.pem", "server-key.pem"] {
            put(&data, name, &fs::read(certificates.join(name)).unwrap());
        }
        let tls = ["--ssl-cert=server.pem", "--ssl-key=server-key.pem"];
        Self::in_folder(folder, &[&tls, arguments].concat(), &[])
    }

    fn in_folder(
        folder: tempfile::TempDir,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let environment = environment.to_vec();
        let start = move |port, folder: &Path| {
            let mut command = mariadbd(port, folder);
            command.args(&arguments).envs(environment.iter().cloned());
            command
        };
        let process = ServerProcess::start(folder, start, answers);
        Self {
            port: process.port,
            process,
        }
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

    /// As this user.
    pub fn try_sql_of(&self, user: &str, password: &str, sql: &str) -> Result<String, String> {
        let who = [format!("-u{user}"), format!("-p{password}")];
        said(client(self.port, "locks").args(who).args(["-e", sql]))
    }

    /// A session of its own, which goes on until it is dropped.
    pub fn session(&self, sql: &str) -> Session {
        Session(
            client(self.port, "locks")
                .args(["-e", sql])
                .spawn()
                .unwrap(),
        )
    }

    /// As this user.
    pub fn session_of(&self, user: &str, password: &str, sql: &str) -> Session {
        let mut client = client(self.port, "locks");
        let who = [format!("-u{user}"), format!("-p{password}")];
        let child = client.args(who).args(["-e", sql]).spawn().unwrap();
        Session(child)
    }

    /// Ends it: TERM lets it write all, KILL is a crash.
    pub fn stop(&self, signal: Signal) {
        self.process.stop(signal);
    }

    /// SIGSTOP lets it stand still.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Starts it again on the same port, with all that is on its disk.
    pub fn revive(&self) {
        self.process.revive();
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
        .args(["-uroot", "-N", "-B", "--ssl", database])
        .stdin(Stdio::null());
    command
}

fn ask(port: u16, database: &str, sql: &str) -> Result<String, String> {
    said(client(port, database).args(["-e", sql]))
}

/// What mariadb-install-db makes.
fn files() -> PathBuf {
    template("mariadb-template", |folder| {
        let mut install = as_user("mysql", "mariadb-install-db");
        install
            .arg("--no-defaults")
            .arg(format!("--datadir={}", data(folder.path()).display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let installed = install.status();
        let installed = installed.expect("mariadb-server is missing: ./test.sh installs it");
        assert!(installed.success(), "mariadb-install-db");
        // With a database, made by a server that ends in good order: so copies begin at once.
        ServerProcess::start(folder, mariadbd, answers).leave()
    })
}

fn mariadbd(port: u16, folder: &Path) -> Command {
    let data = data(folder);
    let mut command = as_user("mysql", "mariadbd");
    command
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()))
        // Of its own: a server that starts removes what others keep in one that they share.
        .arg(format!("--tmpdir={}", data.display()))
        .arg(format!("--port={port}"))
        .arg(format!("--socket={}", data.join("s.sock").display()))
        .arg(format!("--pid-file={}", data.join("pid").display()))
        .args(["--bind-address=127.0.0.1", "--skip-log-bin"])
        .args(["--innodb-buffer-pool-size=32M", "--performance-schema=0"])
        .args(["--skip-name-resolve", "--max-connections=1000"]);
    command
}

/// Whether it serves; it then has the database too.
fn answers(port: u16) -> bool {
    let serves = ask(port, "mysql", "SELECT 1 FROM mysql.user LIMIT 1").is_ok();
    if serves {
        let _ = ask(port, "mysql", "CREATE DATABASE IF NOT EXISTS locks");
    }
    serves
}
