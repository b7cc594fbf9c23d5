//! What is done to the clients, and to the server if its user says how.

use std::time::Duration;

use clap::ValueEnum;
use leasehold::Registry;
use leasehold::torture::proxy::{Link, Proxy};
use leasehold::url::Server;
use serde::Serialize;

use crate::exit::{Outcome, unexpected};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// A client is stopped for longer than its TTL
    Pause,
    /// A client is killed, and another is started
    Kill,
    /// The connections of a client are cut, hang, or carry one direction only
    Cut,
    /// The connections of a client are slow
    Delay,
    /// The wall clock of a client is stepped
    Clock,
    /// The server is killed and started again.
    #[value(skip)]
    Server,
}

impl Fault {
    pub(super) const ALL: [Fault; 6] = [
        Fault::Pause,
        Fault::Kill,
        Fault::Cut,
        Fault::Delay,
        Fault::Clock,
        Fault::Server,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Fault::Pause => "pause",
            Fault::Kill => "kill",
            Fault::Cut => "cut",
            Fault::Delay => "delay",
            Fault::Clock => "clock",
            Fault::Server => "server",
        }
    }

    /// For a timeline.
    pub(super) const fn describe(self) -> &'static str {
        match self {
            Fault::Pause => "is stopped (SIGSTOP)",
            Fault::Kill => "is killed (SIGKILL)",
            Fault::Cut => "has its connections cut",
            Fault::Delay => "has slow connections",
            Fault::Clock => "has its wall clock stepped",
            Fault::Server => "the server is killed",
        }
    }
}

/// A fault that is planned. Everything about it comes from the seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) fault: Fault,
    /// Which of the clients.
    pub(super) slot: usize,
    /// Whether to wait until the client holds the lock.
    pub(super) inside: bool,
    pub(super) length: Duration,
    /// For a cut or slow connection.
    pub(super) link: Link,
    /// For a clock, in microseconds.
    pub(super) step: i64,
    /// How long after this the next is planned.
    pub(super) pause_after: Duration,
}

impl Plan {
    pub(super) fn draw(
        random: &mut fastrand::Rng,
        among: &[Fault],
        clients: usize,
        ttl: Duration,
    ) -> Self {
        let fault = among[random.usize(..among.len())];
        let inside = random.bool();
        let part = random.f64();
        let cut = [
            Link::Refuse,
            Link::Forsake,
            Link::HangThere,
            Link::HangBack,
            Link::Swallow,
        ];
        let cut = cut[random.usize(..cut.len())];
        let slow = Duration::from_millis(random.u64(5..=150));
        Self {
            fault,
            slot: random.usize(..clients),
            inside: inside && matches!(fault, Fault::Pause | Fault::Kill | Fault::Cut),
            length: match fault {
                Fault::Pause => ttl.mul_f64(1.2 + part),
                Fault::Cut => ttl.mul_f64(0.1 + 1.4 * part),
                Fault::Delay => ttl.mul_f64(0.5 + 1.5 * part),
                Fault::Server => Duration::from_millis(500) + ttl.mul_f64(part),
                Fault::Kill | Fault::Clock => Duration::ZERO,
            },
            link: match fault {
                Fault::Delay => Link::Slow(slow),
                _ => cut,
            },
            step: random.i64(-30_000_000..=30_000_000),
            pause_after: Duration::from_millis(random.u64(200..=1000)),
        }
    }
}

/// The servers whose connections can be led through a proxy.
///
/// # Errors
///
/// Why not.
pub(super) fn servers(url: &str) -> Result<Vec<Server>, String> {
    let url = Registry::builtin()
        .parse(url)
        .map_err(|error| error.to_string())?;
    let port = match url.scheme.as_str() {
        "redis" | "redlock" => 6379,
        "postgres" | "postgresql" => 5432,
        "mysql" | "mariadb" => 3306,
        "etcd" => 2379,
        "zookeeper" => 2181,
        "http" => 80,
        "sqlite" => return Err("sqlite: has no connections".to_owned()),
        "redis+cluster" | "redis+sentinel" => {
            return Err("the servers tell their own addresses to the clients".to_owned());
        }
        _ => {
            return Err(format!(
                "connections of {}: URLs cannot be led through a proxy: they are encrypted",
                url.scheme
            ));
        }
    };
    if url.hosts.is_empty() {
        return Err("the URL names no host".to_owned());
    }
    if url.option("sslmode").is_some() {
        return Err("the connections are encrypted".to_owned());
    }
    url.servers(port).map_err(|error| error.to_string())
}

/// A proxy in front of each server, for one client.
#[derive(Debug, Default)]
pub(super) struct Network(Vec<Proxy>);

impl Network {
    pub(super) async fn to(servers: &[Server]) -> Outcome<Self> {
        let mut proxies = Vec::new();
        for server in servers {
            let proxy = Proxy::to(server.clone()).await;
            proxies.push(proxy.map_err(|cause| unexpected("cannot open a port", cause))?);
        }
        Ok(Self(proxies))
    }

    pub(super) fn set(&self, link: Link) {
        for proxy in &self.0 {
            proxy.set(link);
        }
    }

    /// The URL, with the proxies instead of its hosts.
    pub(super) fn url(&self, url: &str) -> String {
        let ports: Vec<_> = self.0.iter().map(|proxy| proxy.port).collect();
        with_ports(url, &ports)
    }
}

fn with_ports(url: &str, ports: &[u16]) -> String {
    let (Some((scheme, rest)), false) = (url.split_once("://"), ports.is_empty()) else {
        return url.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let user = authority
        .rsplit_once('@')
        .map(|(user, _)| format!("{user}@"));
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    format!(
        "{scheme}://{}{}{path}",
        user.unwrap_or_default(),
        hosts.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_replaced_and_the_rest_stays() {
        let table = [
            ("redis://h", "redis://127.0.0.1:1"),
            (
                "redis://:p%40@h:7/2?prefix=a",
                "redis://:p%40@127.0.0.1:1/2?prefix=a",
            ),
            ("postgres://u:p@h/db", "postgres://u:p@127.0.0.1:1/db"),
            ("sqlite:/a.db", "sqlite:/a.db"),
        ];
        for (url, expected) in table {
            assert_eq!(with_ports(url, &[1]), expected);
        }
        assert_eq!(
            with_ports("redlock://a,b,c?max_ttl=5s", &[1, 2, 3]),
            "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?max_ttl=5s"
        );
        assert_eq!(with_ports("redis://h", &[]), "redis://h");
    }

    #[test]
    fn a_seed_repeats_its_plans() {
        let plans = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let second = Duration::from_secs(1);
            let draw = |_| format!("{:?}", Plan::draw(&mut random, &Fault::ALL, 5, second));
            (0..20).map(draw).collect::<Vec<_>>()
        };
        assert_eq!(plans(7), plans(7));
        assert_ne!(plans(7), plans(8));
    }

    #[test]
    fn pauses_outlast_the_ttl() {
        let mut random = fastrand::Rng::with_seed(1);
        let ttl = Duration::from_secs(1);
        for _ in 0..100 {
            let plan = Plan::draw(&mut random, &[Fault::Pause], 2, ttl);
            assert!(plan.length > ttl && plan.slot < 2);
        }
    }
}
