//! What a server costs: how long a cycle takes, and how much memory thousands of long polls or hold streams need. See docs/dev/http.md.
//!
//! ```sh
//! load cycle   URL
//! load waiters URL PID COUNT
//! load streams URL PID COUNT
//! ```
//!
//! `PID` is the server's process, whose memory is read from `/proc`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use leasehold::ClaimId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::main]
async fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["cycle", url] => cycle(host(url)).await,
        ["waiters", url, pid, count] => {
            many("acquire", host(url), pid, count.parse().unwrap()).await;
        }
        ["streams", url, pid, count] => {
            many("hold", host(url), pid, count.parse().unwrap()).await;
        }
        _ => eprintln!("usage: load cycle URL | load waiters|streams URL PID COUNT"),
    }
}

fn host(url: &str) -> &str {
    url.trim_start_matches("http://").trim_end_matches('/')
}

struct Client {
    stream: TcpStream,
    host: String,
}

impl Client {
    async fn connect(host: &str) -> Self {
        let stream = TcpStream::connect(host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            host: host.to_owned(),
        }
    }

    async fn send(&mut self, line: &str, nth: u128, body: &str) {
        let (claim, length) = (ClaimId::from_bytes(nth.to_be_bytes()).reveal(), body.len());
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nLeasehold-Claim: {claim}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
            self.host
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
    }

    /// Reads until it has said this.
    async fn says(&mut self, what: &str) {
        let (mut said, mut more) = (String::new(), [0; 4096]);
        while !said.contains(what) {
            let count = self.stream.read(&mut more).await.unwrap();
            assert!(count > 0, "closed: {said}");
            said.push_str(&String::from_utf8_lossy(&more[..count]));
        }
    }
}

async fn cycle(host: &str) {
    const TIMES: u32 = 5_000;
    let mut client = Client::connect(host).await;
    for round in 0..3 {
        let began = Instant::now();
        for _ in 0..TIMES {
            client.send("GET /healthz", 1, "").await;
            client.says("ok\n").await;
        }
        let health = began.elapsed() / TIMES;
        let began = Instant::now();
        for nth in 0..TIMES {
            let claim = u128::from(nth) + 1;
            client
                .send("POST /v1/locks/load/acquire", claim, "{}")
                .await;
            client.says("\"token\"").await;
            client
                .send("POST /v1/locks/load/release", claim, "{}")
                .await;
            client.says("\"released\":true").await;
        }
        let cycle = began.elapsed() / TIMES;
        println!("round {round}: GET /healthz {health:?}, acquire and release {cycle:?}");
    }
}

/// Long polls or hold streams for one lock.
async fn many(action: &str, host: &str, pid: &str, count: u128) {
    let mut holder = Client::connect(host).await;
    let long = "{\"ttl\": \"1h\"}";
    holder.send("POST /v1/locks/load/acquire", 1, long).await;
    holder.says("\"token\"").await;
    let before = resident(pid);
    let began = Instant::now();
    let mut clients = Vec::new();
    for nth in 0..count {
        let mut client = Client::connect(host).await;
        let (line, body) = match action {
            "hold" => ("POST /v1/locks/load/hold", "{}"),
            _ => ("POST /v1/locks/load/acquire", "{\"wait\": \"5m\"}"),
        };
        client.send(line, nth + 2, body).await;
        clients.push(client);
    }
    until_waiting(host, count).await;
    let after = resident(pid);
    println!(
        "{count} wait after {:?}: {} KiB more, {:.1} KiB each",
        began.elapsed(),
        after - before,
        (after - before) as f64 / count as f64
    );
    let began = Instant::now();
    // The server has closed the holder's connection if nothing was said on it for long.
    let mut holder = Client::connect(host).await;
    holder.send("POST /v1/locks/load/release", 1, "{}").await;
    holder.says("\"released\":true").await;
    // In the order of the queue, which need not be that of the connections.
    let mut turns = tokio::task::JoinSet::new();
    for (nth, mut client) in clients.into_iter().enumerate() {
        let releases = action != "hold";
        turns.spawn(async move {
            let granted = if releases {
                "\"valid_ms\""
            } else {
                "event: acquired"
            };
            client.says(granted).await;
            if releases {
                let line = "POST /v1/locks/load/release";
                client.send(line, nth as u128 + 2, "{}").await;
                client.says("\"released\":true").await;
            }
        });
    }
    turns.join_all().await;
    println!("all were granted in turn in {:?}", began.elapsed());
}

async fn until_waiting(host: &str, count: u128) {
    let gauge = format!("leasehold_places {count}\n");
    loop {
        let mut client = Client::connect(host).await;
        client.send("GET /metrics", 1, "").await;
        let (mut said, mut more) = (String::new(), vec![0; 1 << 16]);
        while !said.contains("leasehold_draining ") {
            let read = client.stream.read(&mut more).await.unwrap();
            said.push_str(&String::from_utf8_lossy(&more[..read]));
        }
        if said.contains(&gauge) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// In KiB.
fn resident(pid: &str) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}
