//! Real servers, as the library's tests start them.

#![allow(dead_code, unreachable_pub)]

#[path = "../../../leasehold/tests/it/support/aws_server.rs"]
pub mod aws_server;
#[path = "../../../leasehold/tests/it/support/bent_clock.rs"]
pub mod bent_clock;
#[path = "../../../leasehold/tests/it/support/deadline.rs"]
pub mod deadline;
#[path = "../../../leasehold/tests/it/support/deployment.rs"]
pub mod deployment;
#[path = "../../../leasehold/tests/it/support/etcd_cluster.rs"]
pub mod etcd_cluster;
#[path = "../../../leasehold/tests/it/support/etcd_links.rs"]
pub mod etcd_links;
#[path = "../../../leasehold/tests/it/support/http_faults.rs"]
pub mod http_faults;
#[path = "../../../leasehold/tests/it/support/postgres_server.rs"]
pub mod postgres_server;
#[path = "../../../leasehold/tests/it/support/preload.rs"]
pub mod preload;
#[path = "../../../leasehold/tests/it/support/proxy.rs"]
pub mod proxy;
#[path = "../../../leasehold/tests/it/support/redis_sentinels.rs"]
pub mod redis_sentinels;
#[path = "../../../leasehold/tests/it/support/redis_server.rs"]
pub mod redis_server;
#[path = "../../../leasehold/tests/it/support/running.rs"]
pub mod running;
#[path = "../../../leasehold/tests/it/support/zookeeper_cluster.rs"]
pub mod zookeeper_cluster;

#[path = "../../../leasehold/tests/it/support/server_process.rs"]
pub mod server_process;
#[path = "../../../leasehold/tests/it/support/server_user.rs"]
pub mod server_user;

/// A port that nobody listens on just now.
pub fn free_port() -> u16 {
    deadline::begin();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
