//! What the doctor finds in a deployment that is set up wrongly in one way.

use leasehold::engine::doctor::Weight;

use crate::support::findings::{weight, wrong};
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn nodes_are_counted_and_told_apart() {
    let nodes = [(); 3].map(|()| RedisServer::start());
    let at = |host: &str, nth: usize| format!("{host}:{}", nodes[nth].port);
    let url = |nodes: &[String]| format!("redlock://{}", nodes.join(","));
    let [a, b, c] = [0, 1, 2].map(|nth| at("127.0.0.1", nth));
    let good = url(&[a.clone(), b.clone(), c.clone()]);
    assert_eq!(wrong(&good).await, [""; 0]);
    assert_eq!(wrong(&url(&[a.clone(), b.clone()])).await, ["nodes"]);
    let twice = url(&[a.clone(), b.clone(), at("localhost", 0)]);
    assert_eq!(wrong(&twice).await, ["independence"]);
    assert_eq!(weight(&twice, "independence").await, Weight::Unfit);

    nodes[0].command("CONFIG SET save \"3600 1\"");
    assert_eq!(wrong(&good).await, ["persistence"]);
    nodes[0].command("CONFIG SET save \"\"");
    assert_eq!(wrong(&good).await, [""; 0]);

    nodes[2].kill();
    assert_eq!(wrong(&good).await, ["unreachable"]);
}
