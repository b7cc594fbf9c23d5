//! An etcd cluster.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use leasehold::Locks;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::etcd_links::Links;
use super::free_port;
use super::running::Running;
use super::server_user::folder;

const CLIENTS_SHOW_CERTIFICATES: &str = "--client-cert-auth";

pub struct EtcdCluster {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    nodes: Vec<Node>,
}

struct Node {
    ports: Ports,
    /// Where the other members find it: its peer port, or what leads there.
    peer_port: u16,
    process: Mutex<Running>,
}

#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    peer: u16,
    /// Where it says without TLS whether it is well.
    health: u16,
}

impl Ports {
    fn free(secured: bool) -> Self {
        let client = free_port();
        Self {
            client,
            peer: free_port(),
            health: if secured { free_port() } else { client },
        }
    }

    fn are_secured(&self) -> bool {
        self.health != self.client
    }
}

impl EtcdCluster {
    /// So many members that answer.
    pub fn start(members: usize) -> Self {
        Self::with(members, &[])
    }

    /// With more arguments for each.
    pub fn with(members: usize, arguments: &[&str]) -> Self {
        Self::start_with(members, arguments, None)
    }

    /// With TLS for clients: the certificates `server.pem` with its key, and `ca.pem` for those of the clients, which
    /// must show one.
    pub fn secured(members: usize, certificates: &Path) -> Self {
        let file = |name: &str| certificates.join(name).display().to_string();
        let (certificate, key, ca) = (file("server.pem"), file("server-key.pem"), file("ca.pem"));
        let arguments = [
            "--cert-file",
            &certificate,
            "--key-file",
            &key,
            "--trusted-ca-file",
            &ca,
            CLIENTS_SHOW_CERTIFICATES,
        ];
        Self::start_with(members, &arguments, None)
    }

    /// Whose members talk to each other over these.
    pub fn linked_by(links: &Links) -> Self {
        Self::start_with(links.peer_ports().len(), &[], Some(links))
    }

    fn start_with(members: usize, arguments: &[&str], links: Option<&Links>) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|a| a.to_string()).collect();
        // Another process may take a free port before a member does.
        for _ in 0..10 {
            if let Some(cluster) = Self::try_start(members, &arguments, links) {
                return cluster;
            }
        }
        panic!("no ports were free for etcd");
    }

    fn try_start(members: usize, arguments: &[String], links: Option<&Links>) -> Option<Self> {
        let folder = folder();
        let secured = arguments.iter().any(|a| a == CLIENTS_SHOW_CERTIFICATES);
        let ports: Vec<_> = (0..members).map(|_| Ports::free(secured)).collect();
        let peer_ports: Vec<_> = match links {
            Some(links) => links.peer_ports(),
            None => ports.iter().map(|ports| ports.peer).collect(),
        };
        let start = |nth: usize| {
            let process = spawn(folder.path(), nth, ports[nth], &peer_ports, arguments);
            if let Some(links) = links {
                links.lead_to(nth, ports[nth].peer, process.id());
            }
            Node {
                ports: ports[nth],
                peer_port: peer_ports[nth],
                process: Mutex::new(process),
            }
        };
        let nodes: Vec<_> = (0..members).map(start).collect();
        let cluster = Self {
            arguments: arguments.to_vec(),
            nodes,
            folder,
        };
        let all = 0..members;
        all.into_iter()
            .all(|nth| cluster.answers(nth))
            .then_some(cluster)
    }

    /// So many clients, as if each were a process.
    pub async fn connect<const N: usize>(&self) -> [Locks; N] {
        let mut all = Vec::new();
        for _ in 0..N {
            all.push(Locks::connect(self.url()).await.unwrap());
        }
        all.try_into().unwrap()
    }

    /// The URL of the whole cluster.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = (0..self.nodes.len()).map(|nth| self.host(nth)).collect();
        format!("etcd://{}", hosts.join(","))
    }

    pub fn url_of(&self, nth: usize) -> String {
        format!("etcd://{}", self.host(nth))
    }

    /// `127.0.0.1:port`, for clients.
    pub fn host(&self, nth: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[nth].ports.client)
    }

    pub fn client_port(&self, nth: usize) -> u16 {
        self.nodes[nth].ports.client
    }

    pub fn peer_port(&self, nth: usize) -> u16 {
        self.nodes[nth].ports.peer
    }

    pub fn pid(&self, nth: usize) -> u32 {
        self.nodes[nth].process.lock().unwrap().id()
    }

    /// Ends a member at once.
    pub fn kill(&self, nth: usize) {
        end(&mut self.nodes[nth].process.lock().unwrap());
    }

    /// Starts it again on the same ports and with its data, and waits until it answers.
    pub fn revive(&self, nth: usize) {
        self.revive_in_background(nth);
        assert!(self.answers(nth), "etcd does not start again");
    }

    /// The same without waiting.
    pub fn revive_in_background(&self, nth: usize) {
        let peer_ports: Vec<_> = self.nodes.iter().map(|node| node.peer_port).collect();
        let node = &self.nodes[nth];
        let process = spawn(
            self.folder.path(),
            nth,
            node.ports,
            &peer_ports,
            &self.arguments,
        );
        *node.process.lock().unwrap() = process;
    }

    /// All members end at once and start again.
    pub fn restart(&self) {
        (0..self.nodes.len()).for_each(|nth| self.kill(nth));
        (0..self.nodes.len()).for_each(|nth| self.revive_in_background(nth));
        for nth in 0..self.nodes.len() {
            assert!(self.answers(nth), "etcd does not start again");
        }
    }

    /// Lets a member stand still where it is.
    pub fn stop(&self, nth: usize) {
        self.signal(nth, Signal::SIGSTOP);
    }

    pub fn go_on(&self, nth: usize) {
        self.signal(nth, Signal::SIGCONT);
    }

    pub fn signal(&self, nth: usize, signal: Signal) {
        kill(Pid::from_raw(self.pid(nth) as i32), signal).unwrap();
    }

    /// Which member leads, by what those who answer say.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            for nth in 0..self.nodes.len() {
                if self.leads(nth) {
                    return nth;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the cluster has no leader");
    }

    fn leads(&self, nth: usize) -> bool {
        let status = self.status(nth);
        status["leader"].is_number() && status["leader"] == status["header"]["member_id"]
    }

    /// What a member says of itself; nothing if it does not answer.
    fn status(&self, nth: usize) -> serde_json::Value {
        let output = self.ask(nth, &["endpoint", "status", "-w", "json"]);
        let status = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        status.unwrap_or_default()[0]["Status"].clone()
    }

    /// Makes the member after the leader the leader; that may fail.
    pub fn move_leader(&self) {
        let leader = self.leader();
        let next = self.status((leader + 1) % self.nodes.len());
        let id = next["header"]["member_id"].as_u64().unwrap_or_default();
        self.ask(leader, &["move-leader", &format!("{id:x}")]);
    }

    /// `etcdctl` on the whole cluster; returns what it prints.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        let hosts: Vec<_> = (0..self.nodes.len()).map(|nth| self.host(nth)).collect();
        let output = self.etcdctl_command(&hosts.join(","), arguments).output();
        let output = output.expect("etcdctl is missing: ./test.sh installs it");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "etcdctl {arguments:?}: {out}{err}");
        out
    }

    /// `etcdctl` on one member; it may fail.
    pub fn ask(&self, nth: usize, arguments: &[&str]) -> Output {
        let mut command = self.etcdctl_command(&self.host(nth), arguments);
        command
            .output()
            .expect("etcdctl is missing: ./test.sh installs it")
    }

    /// `etcdctl` as a command that has not been started.
    pub fn etcdctl_command(&self, hosts: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", hosts, "--command-timeout", "3s"])
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// The keys under the prefix, one a line.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let printed = self.etcdctl(&["get", "--prefix", "--keys-only", prefix]);
        let keys = printed.lines().filter(|line| !line.is_empty());
        keys.map(str::to_owned).collect()
    }

    /// A counter of the first member.
    pub fn metric(&self, name: &str) -> u64 {
        self.metric_of(0, name)
    }

    /// A metric of one member.
    pub fn metric_of(&self, nth: usize, name: &str) -> u64 {
        let answer = ask_http(self.nodes[nth].ports.health, "/metrics").unwrap();
        let lines = answer.lines().filter(|line| line.starts_with(name));
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
        lines.map(value).sum()
    }

    /// Whether a member answers soon, with a quorum behind it.
    pub fn answers(&self, nth: usize) -> bool {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            let ended = self.nodes[nth].process.lock().unwrap().try_wait().unwrap();
            if ended.is_some() {
                return false;
            }
            if is_healthy(self.nodes[nth].ports.health).unwrap_or(false) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|nth| self.kill(nth));
    }
}

fn spawn(
    folder: &Path,
    nth: usize,
    ports: Ports,
    peer_ports: &[u16],
    arguments: &[String],
) -> Running {
    let address = |port: u16| format!("http://127.0.0.1:{port}");
    let (client, more) = match ports.are_secured() {
        true => (
            format!("https://127.0.0.1:{}", ports.client),
            vec!["--listen-metrics-urls".to_owned(), address(ports.health)],
        ),
        false => (address(ports.client), Vec::new()),
    };
    let member = |(nth, port): (usize, &u16)| format!("n{nth}={}", address(*port));
    let members: Vec<_> = peer_ports.iter().enumerate().map(member).collect();
    let log = std::fs::File::create(folder.join(format!("n{nth}.log"))).unwrap();
    let mut command = Command::new("etcd");
    command
        .args(["--name", &format!("n{nth}")])
        .args([
            "--data-dir",
            &folder.join(format!("n{nth}")).display().to_string(),
        ])
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &address(ports.peer)])
        .args(["--initial-advertise-peer-urls", &address(peer_ports[nth])])
        .args(["--initial-cluster", &members.join(",")])
        .args(["--initial-cluster-token", &format!("t{}", peer_ports[0])])
        .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
        .args(more)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    Running::start(&mut command, "etcd is missing: ./test.sh installs it")
}

fn end(process: &mut Running) {
    let _ = process.kill();
    let _ = process.wait();
}

fn is_healthy(port: u16) -> std::io::Result<bool> {
    Ok(ask_http(port, "/health")?.contains("\"true\""))
}

fn ask_http(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
