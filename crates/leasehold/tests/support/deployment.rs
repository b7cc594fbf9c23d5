//! Several independent Redis servers, as Redlock uses them.

use std::time::Duration;

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
        Self {
            nodes: (0..nodes).map(|_| RedisServer::start()).collect(),
            max_ttl,
            options: options.to_owned(),
        }
    }

    pub fn url(&self) -> String {
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
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
        let max_ttl = self.max_ttl.as_millis();
        node.command(&format!(r#"HSET "leasehold:\x01register" mark {max_ttl}"#));
    }
}
