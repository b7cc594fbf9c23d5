//! What the doctor finds in a cluster that is set up wrongly in one way.

use crate::support::findings::until_wrong;
use crate::support::redis_cluster::RedisCluster;

#[tokio::test]
async fn a_primary_needs_a_replica_that_takes_over_in_time() {
    let start = || RedisCluster::of_one_with(&["--appendonly", "yes"]);
    let mut cluster = tokio::task::spawn_blocking(start).await.unwrap();
    until_wrong(&cluster.url(), &["failover"]).await;
    let cluster = tokio::task::spawn_blocking(move || {
        let replica = cluster.add_node();
        let primary: String = cluster.tell(0, &["CLUSTER", "MYID"]);
        let _: () = cluster.tell(replica, &["CLUSTER", "REPLICATE", &primary]);
        cluster.until("it follows", || cluster.replicas_of(0) == 1);
        cluster
    });
    let cluster = cluster.await.unwrap();
    until_wrong(&cluster.url_with("?wait_replicas=0"), &["replicas"]).await;
    let url = cluster.url_with("?wait_replicas=1&timeout=10s");
    until_wrong(&url, &[]).await;

    cluster.nodes[0].command("CONFIG SET cluster-node-timeout 60000");
    until_wrong(&url, &["failover_time"]).await;
    cluster.nodes[0].command("CONFIG SET cluster-node-timeout 5000");
    until_wrong(&url, &[]).await;
}
