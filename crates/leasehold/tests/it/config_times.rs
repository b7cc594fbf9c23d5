//! Times in configurations made without a URL: those that a URL could not give are refused, before anything is connected.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use leasehold::ErrorKind;

use crate::support::bad_input::check;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const OUT_OF_RANGE: [(Duration, &str); 4] = [
    (Duration::ZERO, "is zero"),
    (Duration::from_micros(500), "is out of range"),
    (
        DAY.saturating_add(Duration::from_nanos(1)),
        "is out of range",
    ),
    (Duration::MAX, "is out of range"),
];

/// Refuses each time that is out of range, whichever of the settings has it.
macro_rules! refuses {
    ($name:ident, $config:expr, [$($setting:ident),+]) => {
        #[tokio::test]
        async fn $name() {
            for (time, what) in OUT_OF_RANGE {
                $(
                    let error = $config.$setting(time).connect().await.unwrap_err();
                    let says = format!("{} {what}", stringify!($setting));
                    check(&error, ErrorKind::InvalidConfig, &says, "");
                    assert!(error.advice().unwrap().contains("1ms to 1day"), "{error}");
                )+
            }
        }
    };
}

#[cfg(feature = "sqlite")]
refuses!(
    sqlite,
    leasehold::engine::sqlite::SqliteConfig::new("/nonexistent/locks.db"),
    [busy_timeout]
);

#[cfg(feature = "redis")]
refuses!(
    redis,
    leasehold::engine::redis::RedisConfig::default(),
    [timeout, connect_timeout]
);

#[cfg(feature = "redis")]
refuses!(
    redlock,
    leasehold::engine::redlock::RedlockConfig::new([("a", 1), ("b", 1), ("c", 1)]),
    [node_timeout]
);

#[cfg(feature = "redis")]
refuses!(
    redis_sentinel,
    leasehold::engine::redis::sentinel::SentinelConfig::new([("a", 26379)], "primary"),
    [timeout, connect_timeout]
);

#[cfg(feature = "redis")]
refuses!(
    redis_cluster,
    leasehold::engine::redis::cluster::ClusterConfig::new([("a", 6379)]),
    [timeout, connect_timeout]
);

#[cfg(feature = "postgres")]
refuses!(
    postgres,
    leasehold::engine::postgres::PostgresConfig::default(),
    [timeout, connect_timeout]
);

#[cfg(feature = "mysql")]
refuses!(
    mysql,
    leasehold::engine::mysql::MysqlConfig::new("127.0.0.1", 3306, "locks"),
    [timeout, connect_timeout]
);

#[cfg(feature = "etcd")]
refuses!(
    etcd,
    leasehold::engine::etcd::EtcdConfig::default(),
    [timeout, attempt_timeout]
);

#[cfg(feature = "zookeeper")]
refuses!(
    zookeeper,
    leasehold::engine::zookeeper::ZookeeperConfig::default(),
    [timeout, session_timeout]
);

#[cfg(feature = "dynamodb")]
refuses!(
    dynamodb,
    leasehold::engine::dynamodb::DynamoDbConfig::new("locks").region("eu-west-1"),
    [poll, waiter_ttl, max_clock_skew, timeout]
);

#[cfg(feature = "s3")]
refuses!(
    s3,
    leasehold::engine::s3::S3Config::new("locks").region("eu-west-1"),
    [poll, waiter_ttl, max_clock_skew, timeout]
);

/// The longest that is allowed.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_day_is_not_out_of_range() {
    let folder = tempfile::tempdir().unwrap();
    let config = leasehold::engine::sqlite::SqliteConfig::new(folder.path().join("locks.db"));
    let locks = leasehold::Locks::new(config.busy_timeout(DAY).connect().await.unwrap());
    let held = locks.lock("x").acquire().await.unwrap();
    held.release().await.unwrap();
}
