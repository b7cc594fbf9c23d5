//! What the doctor finds in an ensemble that is set up wrongly in one way.

use leasehold::Locks;
use leasehold::engine::doctor::Weight;
use zookeeper_client::{Acls, Client};

use crate::support::findings::{until_wrong, weight};
use crate::support::zookeeper_cluster::ZooKeeperCluster;

#[tokio::test]
async fn one_server_is_too_few_and_open_nodes_are_found() {
    let start = || ZooKeeperCluster::with(1, "maxSessionTimeout=20000");
    let alone = tokio::task::spawn_blocking(start).await.unwrap();
    until_wrong(&alone.url(), &["ensemble"]).await;
    let longer = format!("{}?session_timeout=10m", alone.url());
    until_wrong(&longer, &["ensemble", "session"]).await;

    // A node that was made without a user is open to all.
    let locks = Locks::connect(alone.url()).await.unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let user = "app:s3cret-word";
    let as_user = format!("zookeeper://{user}@{}", alone.hosts());
    until_wrong(&as_user, &["ensemble", "permissions"]).await;
    let connector = Client::connector().with_auth("digest", user.as_bytes());
    let client = connector.connect(&alone.hosts()).await.unwrap();
    let acls = Acls::creator_all();
    client.set_acl("/leasehold", &acls, None).await.unwrap();
    until_wrong(&as_user, &["ensemble"]).await;
    held.detach();
}

#[tokio::test]
async fn three_servers_are_enough() {
    let three = tokio::task::spawn_blocking(|| ZooKeeperCluster::start(3));
    let three = three.await.unwrap();
    assert_eq!(weight(&three.url(), "ensemble").await, Weight::Good);
}
