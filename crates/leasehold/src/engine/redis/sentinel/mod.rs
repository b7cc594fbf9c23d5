//! `redis+sentinel://s1,s2,s3/mymaster`: one Redis server after the other, as sentinels name them.
//!
//! All is as on one server but who is asked: each connection is made to the server that the sentinels name, if that one agrees
//! that it is the primary. A connection ends when its server answers that it is a replica, when an answer does not come in time,
//! and when the sentinels name another one, which they are asked once a second. A former primary that comes back is therefore
//! left alone within that time, even by a client that has not heard of the failover.
//!
//! | file | what is there |
//! |---|---|
//! | `sentinels.rs` | asking the sentinels, and what to make of their answers |
//! | `watch.rs` | ends a connection when they name another server |
//! | `config.rs` | URLs |

mod config;
pub(super) mod sentinels;
pub(super) mod watch;

pub use self::config::SentinelConfig;
use crate::engine::Driver;

const SCHEME: &str = "redis+sentinel";

/// How `redis+sentinel:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &[SCHEME, "rediss+sentinel"],
    options: config::OPTIONS,
    example: "redis+sentinel://s1:26379,s2:26379,s3:26379/mymaster",
    connect: |url| Box::pin(async move { SentinelConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: None,
};
