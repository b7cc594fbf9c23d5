//! A ZooKeeper cluster of one or more servers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::free_port;
use super::proxy::{Link, Proxy};
use super::running::Running;
use super::server_user::folder;

const JAR: &str = "/usr/share/java/zookeeper.jar";

/// What a secure port needs beside it; they come with the same package.
const MORE_JARS: &str = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";

/// Half a tick is how often servers tell their leader of sessions; two ticks are the shortest session.
pub const TICK: Duration = Duration::from_millis(100);

const PATIENCE: Duration = Duration::from_secs(40);

pub struct ZooKeeperCluster {
    pub nodes: Vec<ZooKeeperNode>,
    /// By who follows and who leads: through these a follower talks to its leader. None unless asked for.
    links: Vec<Vec<Proxy>>,
}

/// The ports of one server: for clients, for those who follow it, and for elections.
type Ports = (u16, u16, u16);

pub struct ZooKeeperNode {
    pub port: u16,
    folder: tempfile::TempDir,
    process: Mutex<Running>,
}

impl ZooKeeperCluster {
    pub fn start(nodes: usize) -> Self {
        Self::with(nodes, "")
    }

    /// With more lines in each server's configuration; those that begin with -D are for Java.
    pub fn with(nodes: usize, more: &str) -> Self {
        assert!(
            Path::new(JAR).exists(),
            "{JAR} is missing: ./test.sh installs it"
        );
        // Another process may take a free port before a server does.
        for _ in 0..5 {
            let cluster = Self::spawn(&free_ports(nodes), Vec::new(), &vec![more; nodes]);
            if cluster.is_up() {
                return cluster;
            }
        }
        panic!("the ZooKeeper servers do not start");
    }

    /// A server for each of these settings; what one says to another can be held up.
    pub async fn linked(settings: &[&str]) -> Self {
        for _ in 0..5 {
            let ports = free_ports(settings.len());
            let mut links = Vec::new();
            for _ in settings {
                let mut of_one = Vec::new();
                for (_, leader, _) in &ports {
                    of_one.push(Proxy::to(*leader).await);
                }
                links.push(of_one);
            }
            let cluster = Self::spawn(&ports, links, settings);
            if tokio::task::block_in_place(|| cluster.is_up()) {
                return cluster;
            }
        }
        panic!("the ZooKeeper servers do not start");
    }

    /// How it stands between this server and the others.
    pub fn link(&self, node: usize, link: Link) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            self.links[node][other].set(link);
            self.links[other][node].set(link);
        }
    }

    fn spawn(ports: &[Ports], links: Vec<Vec<Proxy>>, more: &[&str]) -> Self {
        let members = |of: usize| {
            let mut members = String::new();
            for (nth, (_, peers, election)) in ports.iter().enumerate() {
                let through = links.get(of).filter(|_| of != nth);
                let peers = through.map_or(*peers, |links| links[nth].port);
                members += &format!("server.{}=127.0.0.1:{peers}:{election}\n", nth + 1);
            }
            if ports.len() > 1 {
                members
            } else {
                String::new()
            }
        };
        let node = |(nth, (port, ..)): (usize, &Ports)| {
            let (members, more) = (members(nth), more[nth]);
            let folder = folder();
            let tick = TICK.as_millis();
            let path = folder.path().display();
            let (java, more): (Vec<_>, Vec<_>) = more.lines().partition(|l| l.starts_with("-D"));
            std::fs::write(folder.path().join("java"), java.join("\n")).unwrap();
            let more = more.join("\n");
            let settings = format!(
                "tickTime={tick}\ninitLimit=100\nsyncLimit=50\ndataDir={path}\nclientPort={port}\n\
                 clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
                 maxClientCnxns=0\n{members}{more}\n"
            );
            std::fs::write(folder.path().join("zoo.cfg"), settings).unwrap();
            std::fs::write(folder.path().join("myid"), (nth + 1).to_string()).unwrap();
            ZooKeeperNode {
                port: *port,
                process: Mutex::new(spawn(folder.path())),
                folder,
            }
        };
        let nodes = ports.iter().enumerate().map(node).collect();
        Self { nodes, links }
    }

    fn is_up(&self) -> bool {
        self.nodes.iter().all(ZooKeeperNode::serves)
    }

    /// The URL of all servers, with the locks at the top.
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.hosts())
    }

    /// The URL of these servers alone.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let hosts = nodes
            .iter()
            .map(|nth| format!("127.0.0.1:{}", self.nodes[*nth].port));
        format!("zookeeper://{}", hosts.collect::<Vec<_>>().join(","))
    }

    pub fn hosts(&self) -> String {
        let hosts = self.nodes.iter().map(|n| format!("127.0.0.1:{}", n.port));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Which server leads, once one does; a single server leads itself.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leads = |node: &ZooKeeperNode| {
                let says = node.ask("srvr").unwrap_or_default();
                says.contains("Mode: leader") || says.contains("Mode: standalone")
            };
            if let Some(leader) = self.nodes.iter().position(leads) {
                return leader;
            }
            assert!(Instant::now() < deadline, "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends all servers and starts them again with what they have on disk.
    pub fn restart(&self) {
        self.nodes.iter().for_each(ZooKeeperNode::kill);
        self.nodes.iter().for_each(ZooKeeperNode::revive);
        assert!(self.is_up(), "the servers do not start again");
    }
}

impl ZooKeeperNode {
    /// `kill -9`.
    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Starts it again with what it has on disk; returns before it serves.
    pub fn revive(&self) {
        *self.process.lock().unwrap() = spawn(self.folder.path());
    }

    /// Adds a line to its configuration, which counts from when it is started again; the last of a kind counts.
    pub fn set_up(&self, line: &str) {
        let path = self.folder.path().join("zoo.cfg");
        let settings = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{settings}{line}\n")).unwrap();
    }

    /// Waits until it is part of a quorum; false if it has ended.
    pub fn serves(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.process.lock().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            let says = self.ask("srvr").unwrap_or_default();
            if says.contains("Mode: ") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Lets it stand still where it is.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.lock().unwrap().id();
        kill(Pid::from_raw(pid as i32), signal).unwrap();
    }

    /// A four-letter word, and what the server says.
    pub fn ask(&self, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// One number of `mntr`.
    pub fn count(&self, name: &str) -> f64 {
        let says = self.ask("mntr").unwrap_or_default();
        let mut lines = says.lines().filter_map(|line| line.split_once('\t'));
        let line = lines.find(|(key, _)| *key == format!("zk_{name}"));
        line.map_or(0.0, |(_, value)| value.trim().parse().unwrap())
    }

    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for ZooKeeperNode {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_ports(nodes: usize) -> Vec<Ports> {
    let ports = (0..nodes).map(|_| (free_port(), free_port(), free_port()));
    ports.collect()
}

fn spawn(folder: &Path) -> Running {
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let properties = std::fs::read_to_string(folder.join("java")).unwrap();
    let mut command = Command::new("java");
    command
        .args(["-Xmx128m", "-Xms32m", "-XX:+UseSerialGC"])
        .args(["-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1"])
        .args(["-Dzookeeper.jmx.log4j.disable=true"])
        .args(properties.lines())
        .args(["-cp", &format!("{JAR}:{MORE_JARS}")])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(folder.join("zoo.cfg"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    Running::start(&mut command, "java is missing: ./test.sh installs it")
}
