//! PgBouncer, which gives each transaction another session.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::postgres_server::{PostgresServer, answers, as_user, folder};
use super::server_process::ServerProcess;

pub struct PgBouncer {
    pub port: u16,
    process: ServerProcess,
}

impl PgBouncer {
    /// In transaction mode, with so many connections to the server.
    pub fn before(server: &PostgresServer, size: usize) -> Self {
        let server = server.port;
        let start = move |port, folder: &Path| {
            let settings = settings(server, port, size);
            fs::write(folder.join("pgbouncer.ini"), settings).unwrap();
            fs::write(folder.join("users"), "\"postgres\" \"\"\n").unwrap();
            let mut command = as_user("postgres", pgbouncer());
            command.args(["-q", "pgbouncer.ini"]).current_dir(folder);
            command
        };
        let process = ServerProcess::start(folder(), start, answers);
        Self {
            port: process.port,
            process,
        }
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// kill -9.
    pub fn kill(&self) {
        self.process.stop(Signal::SIGKILL);
    }

    /// Starts it again on the same port.
    pub fn revive(&self) {
        self.process.revive();
    }
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

/// Debian keeps it where only an administrator looks.
fn pgbouncer() -> &'static str {
    match std::path::Path::new("/usr/sbin/pgbouncer").exists() {
        true => "/usr/sbin/pgbouncer",
        false => "pgbouncer",
    }
}
