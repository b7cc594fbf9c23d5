//! What this process knows of its claims. Their states are in `own_claims.rs`.

use crate::engine::own_claims::{self, Entry, OwnClaims};
use crate::token::FencingToken;

pub(crate) type OwnClaim = own_claims::OwnClaim<QueueEntry>;
pub(crate) type Claims = OwnClaims<QueueEntry>;

/// A claim's node in the queue. Its path names the claim, so it is never printed.
#[derive(Clone)]
pub(crate) struct QueueEntry {
    /// The session that it ends with.
    pub(crate) session: u64,
    pub(crate) path: String,
    pub(crate) token: FencingToken,
}

impl Entry for QueueEntry {
    /// The paths of the nodes of which one must go first. `None` if nobody has looked yet, or one of them has gone, as this session's
    /// server knows.
    type Ahead = Option<Vec<String>>;

    fn is_same(&self, other: &Self) -> bool {
        self.path == other.path
    }
}
