//! Real servers, as the library's tests start them.

#![allow(dead_code, unreachable_pub)]

#[path = "../../../leasehold/tests/support/bent_clock.rs"]
pub mod bent_clock;
#[path = "../../../leasehold/tests/support/deployment.rs"]
pub mod deployment;
#[path = "../../../leasehold/tests/support/etcd_cluster.rs"]
pub mod etcd_cluster;
#[path = "../../../leasehold/tests/support/etcd_links.rs"]
pub mod etcd_links;
#[path = "../../../leasehold/tests/support/postgres_server.rs"]
pub mod postgres_server;
#[path = "../../../leasehold/tests/support/proxy.rs"]
pub mod proxy;
#[path = "../../../leasehold/tests/support/redis_server.rs"]
pub mod redis_server;
#[path = "../../../leasehold/tests/support/zookeeper_cluster.rs"]
pub mod zookeeper_cluster;

#[path = "../../../leasehold/tests/support/server_process.rs"]
pub mod server_process;
#[path = "../../../leasehold/tests/support/server_user.rs"]
pub mod server_user;

/// A port that nobody listens on just now.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
