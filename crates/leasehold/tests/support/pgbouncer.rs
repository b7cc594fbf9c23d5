//! PgBouncer, which gives each transaction another session.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::free_port;
use super::postgres_server::{PostgresServer, as_user, folder, program};

pub struct PgBouncer {
    pub port: u16,
    process: Mutex<Child>,
    folder: tempfile::TempDir,
}

impl PgBouncer {
    /// In transaction mode, with so many connections to the server.
    pub fn before(server: &PostgresServer, size: usize) -> Self {
        for _ in 0..20 {
            let (port, folder) = (free_port(), folder());
            let settings = settings(server.port, port, size);
            fs::write(folder.path().join("pgbouncer.ini"), settings).unwrap();
            let users = "\"postgres\" \"\"\n";
            fs::write(folder.path().join("users"), users).unwrap();
            let mut process = spawn(&folder);
            if answers(port, &mut process) {
                return Self {
                    port,
                    process: Mutex::new(process),
                    folder,
                };
            }
        }
        panic!("pgbouncer does not start: ./test.sh installs it");
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// kill -9.
    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Starts it again on the same port.
    pub fn revive(&self) {
        let mut process = self.process.lock().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            *process = spawn(&self.folder);
            if answers(self.port, &mut process) {
                return;
            }
            assert!(Instant::now() < deadline, "pgbouncer does not start again");
        }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &tempfile::TempDir) -> Child {
    as_user("postgres", pgbouncer())
        .arg("-q")
        .arg(folder.path().join("pgbouncer.ini"))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("pgbouncer is missing: ./test.sh installs it")
}

fn settings(server: u16, port: u16, size: usize) -> String {
    format!(
        "[databases]\n\
         postgres = host=127.0.0.1 port={server}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = trust\n\
         auth_file = users\n\
         admin_users = postgres\n\
         pool_mode = transaction\n\
         default_pool_size = {size}\n\
         max_client_conn = 2000\n"
    )
}

fn answers(port: u16, process: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        let ready = Command::new(program("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()])
            .args(["-U", "postgres", "-d", "postgres"])
            .status();
        if ready.is_ok_and(|ready| ready.success()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Debian keeps it where only an administrator looks.
fn pgbouncer() -> &'static str {
    match std::path::Path::new("/usr/sbin/pgbouncer").exists() {
        true => "/usr/sbin/pgbouncer",
        false => "pgbouncer",
    }
}
