//! A cluster for the tests of this folder.

use std::sync::Arc;
use std::time::Duration;

use crate::support::failover::blocking;
use crate::support::redis_cluster::RedisCluster;

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The key of the lock `x`.
pub(crate) const X: &str = "leasehold:x";

pub(crate) async fn start() -> Arc<RedisCluster> {
    start_with(&[]).await
}

pub(crate) async fn start_with(arguments: &'static [&'static str]) -> Arc<RedisCluster> {
    blocking(|| Arc::new(RedisCluster::with(arguments))).await
}

/// Does something with the servers that takes a while.
pub(crate) async fn on<T: Send + 'static>(
    cluster: &Arc<RedisCluster>,
    work: impl FnOnce(&RedisCluster) -> T + Send + 'static,
) -> T {
    let cluster = Arc::clone(cluster);
    blocking(move || work(&cluster)).await
}

/// Another primary than the one that has the slot.
pub(crate) fn elsewhere(cluster: &RedisCluster, slot: u16) -> usize {
    let owner = cluster.owner(slot);
    let primaries = (0..16384).step_by(1000).map(|slot| cluster.owner(slot));
    primaries.into_iter().find(|other| *other != owner).unwrap()
}
