//! `redis+cluster://a,b,c`: the primaries of a Redis Cluster, each of which has some of the locks.
//!
//! All keys of a lock are in one slot, so each lock is kept by one primary, and what that does is what one server does. What is
//! added is finding it: by a map of the slots, which is read anew when a node says that a slot is elsewhere (MOVED), when a node
//! cannot be reached, and once a second while somebody waits. Whatever is refused with MOVED, ASK, TRYAGAIN or CLUSTERDOWN was not
//! carried out, and is sent again.
//!
//! A waiter counts as alive if its process is subscribed at the node that has the lock. A process that waits is therefore
//! subscribed at all primaries, so that its waiters keep their positions when their slot moves to another node.
//!
//! | file | what is there |
//! |---|---|
//! | `slots.rs` | which primary has which slot |
//! | `nodes.rs` | the primaries, a client for each, and the map |
//! | `route.rs` | the way to the node that has a slot, and where to go on from an answer |
//! | `config.rs` | URLs |

mod config;
pub(super) mod nodes;
pub(super) mod route;
mod slots;

pub use self::config::ClusterConfig;
use crate::engine::Driver;

const SCHEME: &str = "redis+cluster";

/// How `redis+cluster:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &[SCHEME, "rediss+cluster"],
    options: config::OPTIONS,
    example: "redis+cluster://a:6379,b:6379,c:6379",
    connect: |url| Box::pin(async move { ClusterConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: None,
};
