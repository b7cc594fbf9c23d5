//! Real servers for tests: each on a free port of the loopback, in a folder of its own, ended when dropped.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod authority;
#[cfg(any(feature = "dynamodb", feature = "s3"))]
pub mod aws_server;
pub mod bad_input;
pub mod bent_clock;
#[cfg(feature = "conformance")]
pub mod crowd;
#[cfg(feature = "conformance")]
pub mod database_faults;
pub mod database_handover;
pub mod deadline;
pub mod deployment;
pub mod etcd_cluster;
pub mod etcd_links;
#[cfg(feature = "conformance")]
pub mod failover;
pub mod findings;
#[cfg(any(feature = "dynamodb", feature = "s3"))]
pub mod http_faults;
pub mod lost_connections;
#[cfg(feature = "mysql")]
pub mod mariadb_server;
pub mod of_use;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres_server;
pub mod preload;
#[cfg(feature = "conformance")]
pub mod process;
pub mod proxy;
#[cfg(feature = "redis")]
pub mod redis_cluster;
pub mod redis_sentinels;
pub mod redis_server;
pub mod requests;
pub mod running;
pub mod server_process;
pub mod server_user;
pub mod stuck_disk;
pub mod times;
pub mod tls_refusals;
pub mod zookeeper_cluster;

use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use leasehold::{Claim, ClaimId, LockName, Ttl};

/// An exclusive claim that does not queue.
pub fn claim(name: &str, ttl: Duration) -> Claim {
    let id = ClaimId::random().unwrap();
    let mut claim = Claim::new(LockName::new(name).unwrap(), id);
    claim.ttl = Ttl::new(ttl).unwrap();
    claim
}

/// A port that nobody listens on just now.
pub fn free_port() -> u16 {
    // Each is given once: a server that fails to bind would be taken for another's that answers on its port.
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    deadline::begin();
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut given = GIVEN.lock().unwrap();
        if !given.contains(&port) {
            given.push(port);
            return port;
        }
    }
}
