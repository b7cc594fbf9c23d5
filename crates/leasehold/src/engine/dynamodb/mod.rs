//! `dynamodb://`: a table of DynamoDB.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs`, `failure.rs` | URLs and errors |
//! | `client.rs` | the calls of DynamoDB |
//! | `item.rs` | items: attributes and their types |
//! | `table.rs` | the table: found, checked, made |
//! | `protocol.rs` | a lock as an item, and the conditions of its writes |
//! | `doctor.rs` | what the table's settings mean for locks |
//! | `dialect.rs` | locks as other programs keep them |
//! | `records.rs` | guarded records |

mod client;
mod config;
mod dialect;
mod doctor;
mod failure;
mod item;
mod protocol;
mod records;
mod table;

pub use self::config::{DynamoDbConfig, LockDialect};
pub use self::table::create_table_commands;

use crate::engine::Driver;

/// How `dynamodb:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["dynamodb"],
    options: config::OPTIONS,
    example: "dynamodb://locks?region=eu-west-1",
    connect: |url| Box::pin(async move { DynamoDbConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: None,
};
