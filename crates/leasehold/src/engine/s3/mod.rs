//! `s3://`: a bucket of S3, or of a store that honours the same conditions on writes.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs`, `failure.rs` | URLs and errors |
//! | `client.rs` | the calls of S3 |
//! | `keys.rs` | which object a lock is |
//! | `probe.rs` | whether the store honours conditions |
//! | `protocol.rs` | a lock as an object |
//! | `records.rs` | guarded records |

mod client;
mod config;
mod doctor;
mod failure;
mod keys;
mod probe;
mod protocol;
mod records;

pub use self::config::S3Config;

use crate::engine::Driver;

/// How `s3:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["s3"],
    options: config::OPTIONS,
    example: "s3://bucket/prefix?region=eu-west-1",
    connect: |url| Box::pin(async move { S3Config::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: None,
};
