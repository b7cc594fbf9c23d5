//! What the doctor finds in a cluster that is set up wrongly in one way, and that the fix ends it.

use std::io::{Read, Write};
use std::net::TcpStream;

use leasehold::Locks;
use leasehold::engine::doctor::Weight;

use crate::support::etcd_cluster::EtcdCluster;
use crate::support::findings::{until_wrong, weight};

/// Posts to the gateway, for which etcdctl has no command.
fn post(port: u16, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn one_member_is_too_few_and_alarms_are_heard() {
    let cluster = EtcdCluster::start(1);
    let url = cluster.url();
    until_wrong(&url, &["members"]).await;

    assert_eq!(weight(&url, "compaction").await, Weight::Unknown);
    let locks = Locks::connect(&url).await.unwrap();
    for _ in 0..3 {
        locks
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    cluster.etcdctl(&["compact", "3"]);
    assert_eq!(weight(&url, "compaction").await, Weight::Good);

    let body = r#"{"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "0"}"#;
    let answer = post(cluster.client_port(0), "/v3/maintenance/alarm", body);
    assert!(answer.contains("NOSPACE"), "{answer}");
    until_wrong(&url, &["alarms", "members"]).await;
    assert_eq!(weight(&url, "alarms").await, Weight::Unfit);
    cluster.etcdctl(&["alarm", "disarm"]);
    until_wrong(&url, &["members"]).await;
}

#[tokio::test]
async fn three_members_are_enough() {
    let cluster = EtcdCluster::start(3);
    assert_eq!(weight(&cluster.url(), "members").await, Weight::Good);
}
