//! The examples in the README and in the pages for users, compiled and run as doctests of this crate. They are not in the library, since
//! its package does not contain the pages.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../../docs/choosing-an-engine.md")]
    mod choosing_an_engine {}
    #[doc = include_str!("../../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../../docs/recipes.md")]
    mod recipes {}
    #[doc = include_str!("../../docs/operating.md")]
    mod operating {}
    #[doc = include_str!("../../docs/guarantees.md")]
    mod guarantees {}
    #[doc = include_str!("../../docs/writing-an-engine.md")]
    mod writing_an_engine {}
    #[doc = include_str!("../../docs/faq.md")]
    mod faq {}
    #[doc = include_str!("../../docs/engines/sqlite.md")]
    mod sqlite {}
    #[doc = include_str!("../../docs/engines/redis.md")]
    mod redis {}
    #[doc = include_str!("../../docs/engines/redis-sentinel.md")]
    mod redis_sentinel {}
    #[doc = include_str!("../../docs/engines/redis-cluster.md")]
    mod redis_cluster {}
    #[doc = include_str!("../../docs/engines/redlock.md")]
    mod redlock {}
    #[doc = include_str!("../../docs/engines/postgres.md")]
    mod postgres {}
    #[doc = include_str!("../../docs/engines/mysql.md")]
    mod mysql {}
    #[doc = include_str!("../../docs/engines/etcd.md")]
    mod etcd {}
    #[doc = include_str!("../../docs/engines/zookeeper.md")]
    mod zookeeper {}
    #[doc = include_str!("../../docs/engines/dynamodb.md")]
    mod dynamodb {}
    #[doc = include_str!("../../docs/engines/s3.md")]
    mod s3 {}
    #[doc = include_str!("../../docs/engines/http.md")]
    mod http {}
}
