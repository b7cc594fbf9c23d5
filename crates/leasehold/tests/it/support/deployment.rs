//! Several independent Redis servers, as Redlock uses them.

use std::time::Duration;

use super::proxy::Proxy;
use super::redis_server::RedisServer;

pub struct Deployment {
    pub nodes: Vec<RedisServer>,
    max_ttl: Duration,
    options: String,
}

impl Deployment {
    /// For the suite: any TTL, and patience with a loaded machine.
    pub fn start(nodes: usize) -> Self {
        Self::with(nodes, Duration::from_secs(24 * 60 * 60), "node_timeout=1s")
    }

    pub fn with(nodes: usize, max_ttl: Duration, options: &str) -> Self {
        let nodes = (0..nodes).map(|_| RedisServer::start()).collect();
        Self::of(nodes, max_ttl, options)
    }

    pub fn of(nodes: Vec<RedisServer>, max_ttl: Duration, options: &str) -> Self {
        Self {
            nodes,
            max_ttl,
            options: options.to_owned(),
        }
    }

    /// As it is for tests that break nodes, with a short memory of what may be held; it votes at once.
    pub fn brittle(max_ttl: Duration, options: &str) -> Self {
        let deployment = Self::with(5, max_ttl, &format!("node_timeout=1s&{options}"));
        deployment.has_stood_a_while();
        deployment
    }

    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port)
    }

    pub fn url(&self) -> String {
        self.url_through(self.nodes.iter().map(|node| node.port))
    }

    /// A proxy before each node, and the URL that leads through them.
    pub async fn through_proxies(&self) -> (Vec<Proxy>, String) {
        let mut proxies = Vec::new();
        for node in &self.nodes {
            proxies.push(Proxy::to(node.port).await);
        }
        let url = self.url_through(proxies.iter().map(|proxy| proxy.port));
        (proxies, url)
    }

    /// The nodes in their order, but on other ports.
    fn url_through(&self, ports: impl IntoIterator<Item = u16>) -> String {
        let nodes: Vec<_> = ports
            .into_iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let max_ttl = self.max_ttl.as_millis();
        format!(
            "redlock://{}?max_ttl={max_ttl}ms&{}",
            nodes.join(","),
            self.options
        )
    }

    /// As if it had been up for longer than its max_ttl.
    pub fn has_stood_a_while(&self) {
        for node in &self.nodes {
            self.mark(node);
        }
    }

    pub fn mark(&self, node: &RedisServer) {
        mark(node, "leasehold:", self.max_ttl);
    }
}

/// As if the server had voted in this run already.
pub fn mark(node: &RedisServer, prefix: &str, max_ttl: Duration) {
    let (max_ttl, run) = (max_ttl.as_millis(), node.run_id());
    let marked = node.command(&format!(
        r#"ZADD "{prefix}\x01register" 0 mark:{max_ttl}:{run}"#
    ));
    assert!(marked.starts_with(':'), "{marked}");
}
