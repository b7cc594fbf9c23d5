//! The library against real servers, one folder an engine, and what needs no server at all.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(any(
    feature = "sqlite",
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper",
    feature = "dynamodb",
    feature = "s3"
))]
mod config_times;
mod core;
mod doctor;
#[cfg(feature = "files")]
mod files;
mod layers;
#[cfg(feature = "postgres")]
mod properties;
// On every engine.
#[cfg(all(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper"
))]
mod records_left;
mod rustdoc;
// On engines whose connections are made anew on whatever runtime is there.
#[cfg(all(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper"
))]
mod runtimes;
mod support;

/// Other people's locks.
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "dynamodb"))]
mod fleets {
    pub(crate) mod client;
    pub(crate) mod other;
    #[cfg(feature = "zookeeper")]
    pub(crate) mod recipe;
    #[cfg(feature = "redis")]
    pub(crate) mod rslock;
    pub(crate) mod script;
}

#[cfg(feature = "redis")]
mod cluster {
    mod common;
    mod config;
    mod doctor;
    mod faults;
    mod fleets;
    mod input;
    mod slots;
}

#[cfg(feature = "dynamodb")]
mod dynamodb {
    mod conditions;
    mod credentials;
    mod doctor;
    mod expiry;
    mod faults;
    mod fleets;
    mod input;
    mod leftovers;
    mod load;
    mod records;
}

#[cfg(feature = "s3")]
mod s3 {
    mod doctor;
    mod faults;
    mod input;
    mod records;
}

#[cfg(feature = "etcd")]
mod etcd {
    mod config;
    mod doctor;
    mod faults;
    mod fleets;
    mod input;
    mod load;
    mod sessions;
    mod take_over;
    mod tls;
    mod two_processes;
    mod waiting;
}

#[cfg(feature = "mysql")]
mod mysql {
    mod checked_transactions;
    mod config;
    mod doctor;
    mod faults;
    mod fenced_tables;
    mod handover;
    mod input;
    mod tls;
}

#[cfg(feature = "postgres")]
mod postgres {
    mod checked_transactions;
    mod config;
    mod doctor;
    mod faults;
    mod fenced_tables;
    mod handover;
    mod input;
    mod limits;
    mod load;
    mod roles;
    mod tls;
}

#[cfg(feature = "redis")]
mod redis {
    mod common;
    mod config;
    mod doctor;
    mod faults;
    mod fleets;
    mod foreign;
    mod hung_waiters;
    mod input;
    mod leftovers;
    mod limits;
    mod load;
    mod messages;
    mod two_processes;
    mod waiters;
}

#[cfg(feature = "redis")]
mod redlock {
    mod doctor;
    mod faults;
}

#[cfg(feature = "redis")]
mod sentinel {
    mod config;
    mod doctor;
    mod faults;
    mod input;
}

#[cfg(feature = "sqlite")]
mod sqlite {
    mod common;
    mod doctor;
    mod faults;
    mod file;
    mod leftovers;
    mod owner;
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    mod config;
    mod doctor;
    mod faults;
    mod fleets;
    mod input;
    mod load;
    mod queue;
    mod records;
    mod sessions;
    #[cfg(feature = "zookeeper-tls")]
    mod tls;
}
