//! A server that runs: ended when dropped, and also when this process ends without dropping anything.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};

/// Kills the server once its standard input ends, which it does with this process, whatever ends that.
const GUARD: &str = r#"trap '' INT TERM HUP; read -r _; kill -9 "$1""#;

pub struct Running {
    server: Child,
    guard: Child,
}

impl Running {
    /// `missing` is said if there is no such program.
    pub fn start(command: &mut Command, missing: &str) -> Self {
        let server = command.spawn().expect(missing);
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "sh", &server.id().to_string()]);
        let guard = guard
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let guard = guard.expect("a shell");
        Self { server, guard }
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.server
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.server
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The guard first: another process may get the server's number.
        for process in [&mut self.guard, &mut self.server] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
