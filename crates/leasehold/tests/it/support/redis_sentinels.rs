//! A Redis primary, its replicas, and the sentinels that watch over them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::redis_server::{RedisServer, talk};
use super::server_process::ServerProcess;

/// The name by which the sentinels know the primary.
pub const SERVICE: &str = "mymaster";

/// How many of three must agree that the primary is gone.
const QUORUM: usize = 2;

/// A failover takes two to four seconds of an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Sentinels {
    /// The first was the primary when they started.
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<ServerProcess>,
}

impl Sentinels {
    /// A primary, two replicas, three sentinels.
    pub fn start() -> Self {
        Self::with(&[], &[])
    }

    /// With more arguments for the servers, and more lines in the configuration of the sentinels.
    pub fn with(arguments: &[&str], lines: &[&str]) -> Self {
        let with = |more: &[&str]| {
            let at_once = ["--repl-diskless-sync-delay", "0"];
            let all: Vec<_> = at_once.iter().chain(arguments).chain(more).collect();
            let all: Vec<_> = all.into_iter().copied().collect();
            RedisServer::with(&all)
        };
        let primary = with(&[]);
        let of = format!("127.0.0.1 {}", primary.port);
        let replicas = [with(&["--replicaof", &of]), with(&["--replicaof", &of])];
        let port = primary.port;
        let sentinels = (0..3).map(|_| sentinel(port, lines)).collect();
        let all = Self {
            servers: std::iter::once(primary).chain(replicas).collect(),
            sentinels,
        };
        all.settle();
        all.until("the replicas follow", || all.replicas_of(0) == 2);
        all
    }

    pub fn url(&self) -> String {
        self.url_with("")
    }

    pub fn url_with(&self, options: &str) -> String {
        let ports = self.sentinels.iter().map(|sentinel| sentinel.port);
        url(ports, &format!("{SERVICE}{options}"))
    }

    /// The number of the server that most sentinels name.
    pub fn primary(&self) -> usize {
        let ports: Vec<_> = self
            .sentinels
            .iter()
            .filter_map(|s| named(s.port))
            .collect();
        let votes =
            |server: &RedisServer| ports.iter().filter(|port| **port == server.port).count();
        let servers = self.servers.iter().enumerate();
        let (most, _) = servers.max_by_key(|(_, server)| votes(server)).unwrap();
        most
    }

    /// How many replicas are in step with a server.
    pub fn replicas_of(&self, server: usize) -> usize {
        let told = talk(self.servers[server].port, "INFO replication").unwrap_or_default();
        match told.contains("role:master") {
            true => told.matches("state=online").count(),
            false => 0,
        }
    }

    /// Waits until the sentinels know each other, the primary and two replicas that are up: the next failover has what it needs.
    pub fn settle(&self) {
        self.until("the sentinels know all", || {
            self.sentinels.iter().all(|sentinel| {
                let ask = |what: &str| talk(sentinel.port, &format!("SENTINEL {what} {SERVICE}"));
                let (primary, replicas) = (ask("MASTER"), ask("REPLICAS"));
                let (primary, replicas) =
                    (primary.unwrap_or_default(), replicas.unwrap_or_default());
                let up = fields(&replicas, "flags").filter(|flags| *flags == "slave");
                fields(&primary, "flags").next() == Some("master")
                    && fields(&primary, "num-other-sentinels").next() == Some("2")
                    && up.count() == 2
            }) && self.replicas_of(self.primary()) == 2
        });
    }

    /// Waits until another server than this one is the primary, and has a replica. Returns its number.
    pub fn failed_over(&self, from: usize) -> usize {
        self.until("the failover", || {
            let now = self.primary();
            let named = |sentinel: &ServerProcess| named(sentinel.port);
            let all_agree = self
                .sentinels
                .iter()
                .all(|sentinel| named(sentinel).is_some_and(|port| port == self.servers[now].port));
            let told = || talk(self.servers[now].port, "INFO replication").unwrap_or_default();
            all_agree && now != from && told().contains("role:master")
        });
        let now = self.primary();
        // As the sentinels would, a while later.
        let others = (0..self.servers.len()).filter(|nth| ![now, from].contains(nth));
        others.for_each(|other| self.follow(other, now));
        self.until("a replica follows", || self.replicas_of(now) > 0);
        now
    }

    /// Makes a server that has come back a replica, as the sentinels do after some seconds.
    pub fn follow(&self, server: usize, primary: usize) {
        let port = self.servers[primary].port;
        let follows = self.servers[server].command(&format!("REPLICAOF 127.0.0.1 {port}"));
        assert!(follows.contains("OK"), "{follows}");
        self.until("it follows", || {
            let told = talk(self.servers[server].port, "INFO replication");
            told.is_some_and(|told| told.contains("master_link_status:up"))
        });
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < deadline, "{what}: not in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub fn url(ports: impl IntoIterator<Item = u16>, rest: &str) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts: Vec<_> = hosts.collect();
    format!("redis+sentinel://{}/{rest}", hosts.join(","))
}

/// One sentinel for the server at this port.
pub fn sentinel(of: u16, lines: &[&str]) -> ServerProcess {
    let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
    let start = move |port: u16, folder: &Path| {
        let file = folder.join("sentinel.conf");
        // It notes in there what it learns.
        if !file.exists() {
            let own = [
                "bind 127.0.0.1".to_owned(),
                format!("dir {}", folder.display()),
                format!("sentinel monitor {SERVICE} 127.0.0.1 {of} {QUORUM}"),
                // A host that stalls for less than that causes no failover.
                format!("sentinel down-after-milliseconds {SERVICE} 1500"),
                format!("sentinel failover-timeout {SERVICE} 1000"),
            ];
            let all: Vec<_> = own.iter().chain(&lines).map(String::as_str).collect();
            fs::write(&file, all.join("\n") + "\n").unwrap();
        }
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel");
        command.args(["--port", &port.to_string()]);
        command
    };
    let answers = |port| talk(port, "PING").is_some();
    ServerProcess::start(tempfile::tempdir().unwrap(), start, answers)
}

/// The port of the server that this sentinel names.
fn named(sentinel: u16) -> Option<u16> {
    let answer = talk(
        sentinel,
        &format!("SENTINEL get-master-addr-by-name {SERVICE}"),
    )?;
    answer.lines().nth(4)?.trim().parse().ok()
}

/// The values of this name in flat lists of names and values.
fn fields<'a>(answer: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let lines: Vec<_> = answer.lines().map(str::trim_end).collect();
    let values: Vec<_> = lines
        .windows(3)
        .filter(|lines| lines[0] == name)
        .map(|lines| lines[2])
        .collect();
    values.into_iter()
}
