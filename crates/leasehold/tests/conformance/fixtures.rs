//! The stores to test on: a line for each engine.

use std::sync::Arc;

use leasehold::conformance::Need::{self, *};
use leasehold::conformance::Suite;
use tokio::runtime::Runtime;

#[cfg(any(feature = "dynamodb", feature = "s3"))]
mod aws;
#[cfg(feature = "redis")]
mod cluster;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "http")]
mod http;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod pgbouncer;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(feature = "redis")]
mod sentinel;
mod sqlite;
#[cfg(feature = "redis")]
pub(crate) mod valkey;
#[cfg(feature = "zookeeper")]
mod zookeeper;

/// What an engine lacks that has all modes: the cases for engines without.
const ALL_MODES: [Need; 2] = [NoShared, NoPermits];

/// A suite for each engine, with what the engine lacks: the cases that need it are left out.
pub(crate) fn all(runtime: &Arc<Runtime>) -> Vec<Arc<Suite>> {
    macro_rules! suite {
        ($name:literal lacks $lacks:expr, $fixture:path) => {
            Arc::new(Suite::new(runtime, $name, &$lacks, <$fixture>::start))
        };
        ($name:literal lacks $lacks:expr, $fixture:path, $start:ident, $at_a_time:expr) => {{
            let suite = Suite::new(runtime, $name, &$lacks, <$fixture>::$start);
            Arc::new(suite.at_a_time($at_a_time))
        }};
    }
    #[allow(unused_mut)]
    let mut suites = vec![
        suite!("memory" lacks [NoShared, NoPermits, Processes, SurvivesRestart], memory::InMemory),
        suite!("sqlite" lacks ALL_MODES, sqlite::Sqlite),
        #[cfg(feature = "redis")]
        suite!("redis" lacks [NoShared, NoPermits, SurvivesRestart], redis::Redis),
        #[cfg(feature = "redis")]
        suite!("redis+sentinel" lacks [NoShared, NoPermits, SurvivesRestart], sentinel::Sentinel),
        #[cfg(feature = "redis")]
        suite!("redis+cluster" lacks [NoShared, NoPermits, SurvivesRestart], cluster::Cluster),
        #[cfg(feature = "redis")]
        suite!("redlock" lacks [NoShared, Permits, Fifo, Store], redlock::Redlock),
        #[cfg(feature = "etcd")]
        suite!("etcd" lacks ALL_MODES, etcd::Etcd),
        #[cfg(feature = "zookeeper")]
        suite!("zookeeper" lacks [NoShared, NoPermits, OwnTtl], zookeeper::Cluster),
        #[cfg(feature = "postgres")]
        suite!("postgres" lacks ALL_MODES, postgres::Postgres),
        #[cfg(feature = "postgres")]
        suite!("pgbouncer" lacks ALL_MODES, pgbouncer::PgBouncer),
        #[cfg(feature = "mysql")]
        suite!("mysql" lacks ALL_MODES, mysql::Mysql),
        #[cfg(feature = "dynamodb")]
        suite!("dynamodb" lacks ALL_MODES, aws::Aws, ministack, aws::AT_A_TIME),
        #[cfg(feature = "dynamodb")]
        suite!("dynalite" lacks ALL_MODES, aws::Aws, dynalite, aws::AT_A_TIME),
        #[cfg(feature = "s3")]
        suite!("s3" lacks ALL_MODES, aws::Aws, s3, aws::AT_A_TIME),
        #[cfg(feature = "http")]
        suite!("http" lacks [NoShared, NoPermits, SurvivesRestart], http::Http<memory::InMemory>),
        #[cfg(feature = "http")]
        suite!("http-sqlite" lacks ALL_MODES, http::Http<sqlite::Sqlite>),
        #[cfg(all(feature = "http", feature = "redis"))]
        suite!("http-redis" lacks [NoShared, NoPermits, SurvivesRestart], http::Http<redis::Redis>),
        #[cfg(all(feature = "http", feature = "postgres"))]
        suite!("http-postgres" lacks ALL_MODES, http::Http<postgres::Postgres>),
    ];
    #[cfg(feature = "redis")]
    if valkey::is_there() {
        let lacks = [NoShared, NoPermits, SurvivesRestart];
        let suite = Suite::new(runtime, "valkey", &lacks, valkey::start);
        suites.push(Arc::new(suite));
    }
    suites
}
