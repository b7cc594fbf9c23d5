//! Arguments of the commands on the resource's side: guarded records and fenced tables.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use leasehold::guard::Version;
use leasehold::guard::sql::Dialect;

/// Read, write and delete records that reject stale writes
///
/// A record stores its version and the highest fencing token that has written it. A write with a lower token, or one based
/// on an old version, is rejected and changes nothing. A deleted record keeps its token for 7 days.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold run orders -- sh -c './work | leasehold store put orders/42'    with the token of the run
  leasehold store get orders/42
  leasehold store get orders/42 --stat                                      version, token and lock
  leasehold store put orders/42 paid --if-version 7                         only if nobody has written since
  leasehold store put orders/42 --new < order.json                          only if there is none
  leasehold store put report.txt --dir /srv/reports < report.txt            a plain file in a directory
  leasehold store delete orders/42 --token \"$LEASEHOLD_TOKEN\"              unless a later holder has written
  leasehold store delete orders/42 --if-version 7                           only if nobody has written since

Exit codes: 66 no such record; 76 a later holder has written; 75 the record has another version")]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Print a record's value as it is
    Get(GetArgs),
    /// Write a record unless the write is stale; print its version
    Put(PutArgs),
    /// Delete a record unless the deletion is stale; lower tokens are rejected for another 7 days
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StoreLocation {
    /// Use files in this directory instead of the engine's records
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The key of the record: 1 to 255 bytes
    pub(crate) key: String,

    /// Print version, token and lock instead of the value
    #[arg(long)]
    pub(crate) stat: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// What a write is checked against.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// The fencing token of the lease under which the record is written
    #[arg(
        long,
        value_name = "T",
        env = "LEASEHOLD_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<u64>,

    /// The lock that issued the token; a record rejects tokens of any other lock than its own
    #[arg(
        long,
        value_name = "NAME",
        env = "LEASEHOLD_NAME",
        hide_env_values = true
    )]
    pub(crate) lock: Option<String>,

    /// Only if the record still has this version, whatever its token
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<Version>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The key of the record: 1 to 255 bytes
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) guard: GuardArgs,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The key of the record: 1 to 255 bytes
    pub(crate) key: String,

    /// The value [default: read from stdin]
    pub(crate) value: Option<String>,

    #[command(flatten)]
    pub(crate) guard: GuardArgs,

    /// Only if there is no such record
    #[arg(long, conflicts_with = "if_version")]
    pub(crate) new: bool,

    #[command(flatten)]
    pub(crate) location: StoreLocation,
}

/// Make a table of your own reject stale tokens
///
/// Adds a column for the highest fencing token and a trigger to a table in the database of --url (PostgreSQL, MySQL or
/// MariaDB). From then on an UPDATE that sets a lower token fails in the database, whoever sends it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold --url postgres://app@db/shop fence install --table orders
  leasehold --url mysql://app@db/shop fence install --table shop.orders --column lease
  leasehold fence print --table orders --for postgres | psql shop
  leasehold --url postgres://app@db/shop fence remove --table orders")]
pub(crate) struct FenceArgs {
    #[command(subcommand)]
    pub(crate) command: FenceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Add the column and the trigger; may be repeated
    Install(FenceTableArgs),
    /// Remove both
    Remove(FenceTableArgs),
    /// Print the SQL that `install` runs
    Print {
        #[command(flatten)]
        table: FenceTableArgs,

        /// The SQL dialect: postgres or mysql
        #[arg(long = "for", value_name = "DATABASE")]
        dialect: Dialect,
    },
}

#[derive(Debug, Args)]
pub(crate) struct FenceTableArgs {
    /// The table, as TABLE or SCHEMA.TABLE
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: String,

    /// The column for the highest token
    #[arg(long, value_name = "COLUMN", default_value = leasehold::guard::sql::COLUMN)]
    pub(crate) column: String,
}
