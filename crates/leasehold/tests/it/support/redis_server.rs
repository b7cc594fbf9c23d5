//! A Redis server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::free_port;
use super::running::Running;

pub struct RedisServer {
    pub port: u16,
    program: &'static str,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Mutex<Running>,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With more arguments for the server.
    pub fn with(arguments: &[&str]) -> Self {
        Self::within(arguments, &[])
    }

    /// With more in its environment too.
    pub fn within(arguments: &[&str], environment: &[(String, String)]) -> Self {
        Self::run("redis-server", arguments, environment)
    }

    /// Another program of the kind.
    pub fn run(
        program: &'static str,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|a| a.to_string()).collect();
        // Another process may take a free port before the server does.
        for _ in 0..20 {
            let port = free_port();
            let mut process = spawn(program, port, &folder, &arguments, environment);
            if answers(port, &mut process) {
                return Self {
                    port,
                    program,
                    folder,
                    arguments,
                    environment: environment.to_vec(),
                    process: Mutex::new(process),
                };
            }
        }
        panic!("no port was free for {program}");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends it at once, with all that it has in memory.
    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Starts it again on the same port: empty, or with what it has saved.
    pub fn revive(&self) {
        let mut process = self.process.lock().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let (folder, arguments) = (&self.folder, &self.arguments);
            *process = spawn(
                self.program,
                self.port,
                folder,
                arguments,
                &self.environment,
            );
            if answers(self.port, &mut process) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "redis-server does not start again"
            );
        }
    }

    /// Lets it stand still where it is; with `go_on` it goes on with its memory.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.process.lock().unwrap().id();
        kill(Pid::from_raw(pid as i32), signal).unwrap();
    }

    /// Another one after each start.
    pub fn run_id(&self) -> String {
        let info = self.command("INFO server");
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        run.expect("it tells its run").to_owned()
    }

    /// How often it has carried out a command.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.command("INFO commandstats");
        let line = format!("cmdstat_{command}:calls=");
        let Some((_, rest)) = stats.split_once(&line) else {
            return 0;
        };
        rest.split(',').next().unwrap().parse().unwrap()
    }

    /// Writes its memory to disk, for `revive` to find.
    pub fn save(&self) {
        assert_eq!(self.command("SAVE"), "+OK\r\n");
    }

    /// Sends one command as redis-cli would, and returns the beginning of what comes back.
    pub fn command(&self, line: &str) -> String {
        talk(self.port, line).expect("the server answers")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(
    program: &str,
    port: u16,
    folder: &tempfile::TempDir,
    arguments: &[String],
    environment: &[(String, String)],
) -> Running {
    let mut command = Command::new(program);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--dir", &folder.path().display().to_string()])
        .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Running::start(
        &mut command,
        "a Redis server is missing: ./test.sh installs it",
    )
}

fn answers(port: u16, process: &mut Running) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        // Any answer will do, since it may ask for a password; but not that of another test's server, which came first.
        if let Some(told) = talk(port, "INFO server") {
            let mut lines = told.lines();
            let who = lines.find_map(|line| line.strip_prefix("process_id:"));
            return who.is_none_or(|who| who.trim() == process.id().to_string());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

pub fn talk(port: u16, line: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(format!("{line}\r\n").as_bytes()).ok()?;
    let mut answer = [0; 16384];
    let length = loop {
        match stream.read(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => break read.ok()?,
        }
    };
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}
