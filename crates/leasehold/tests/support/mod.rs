//! Real servers for tests: each on a free port of the loopback, in a folder of its own, ended when dropped.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod authority;
pub mod bad_input;
pub mod bent_clock;
#[cfg(feature = "conformance")]
pub mod crowd;
#[cfg(feature = "conformance")]
pub mod database_faults;
pub mod deployment;
pub mod etcd_cluster;
pub mod etcd_links;
#[cfg(feature = "mysql")]
pub mod mariadb_server;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres_server;
#[cfg(feature = "conformance")]
pub mod process;
pub mod proxy;
pub mod redis_server;
pub mod server_process;
pub mod server_user;
pub mod tls_refusals;
pub mod zookeeper_cluster;

use std::net::TcpListener;

/// A port that nobody listens on just now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
