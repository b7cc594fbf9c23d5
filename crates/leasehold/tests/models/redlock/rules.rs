//! The switches: what the world may do, within which bounds, and which safeguards are on.

use super::properties::Asked;

/// What a client's clock may say when it proposes a token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clocks {
    /// Anything from one up to this. `max(clock, greatest seen + 1)` is among it.
    Arbitrary(u8),
    /// Never less than what was proposed earlier, and the same only until a node has answered.
    Right,
}

/// When a node may drop a claim that nobody released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Whenever it likes; and clients believe for as long as they like.
    AtAnyTime,
    /// Not before the validity that the client counts has ended: it counts from before sending.
    AfterValidity,
    /// As above, but the client counts from the reply: a claim whose reply is under way can expire.
    AfterReply,
}

/// When a client hears what a node has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    /// As soon as it is said, which is when it can do most harm. A client that acts as if it had
    /// not heard gives up, and it may do so at any time.
    AtOnce,
    /// At any time later, or never.
    Travel,
}

/// Where a renewal puts a claim that the node does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planting {
    /// By the rules of a grant: the lock is free and the token beats the register.
    LikeAGrant,
    /// Where the lock is free, whatever the register says.
    WhereFree,
    /// Also over the claim of another.
    Anywhere,
}

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) asked: Vec<Asked>,

    pub(crate) claims_per_client: usize,
    pub(crate) renewals: u8,
    pub(crate) restarts: u8,
    /// Whether nodes save what they remember, once before each restart, and may come back with that.
    pub(crate) nodes_save: bool,
    pub(crate) clocks: Clocks,
    pub(crate) expiry: Expiry,
    pub(crate) replies: Replies,
    /// Takes states that differ only in the names of nodes and clients for one. Paths get hard to
    /// follow, as the names change on the way.
    pub(crate) symmetry: bool,

    pub(crate) quorum: usize,
    pub(crate) token_check: bool,
    pub(crate) quarantine: bool,
    /// Whether a node that comes back with an old memory is known by its mark, and kept in quarantine.
    pub(crate) mark_names_the_run: bool,
    pub(crate) planting: Planting,
    pub(crate) blank_votes_on_renewal: bool,
    pub(crate) release_checks_claim: bool,
}

impl Rules {
    /// All safeguards on, three nodes' majority, and a world that is as bad as it may be.
    pub(crate) fn new(expiry: Expiry, asked: &[Asked]) -> Self {
        Self {
            asked: asked.to_vec(),
            claims_per_client: 1,
            renewals: 1,
            restarts: 0,
            nodes_save: false,
            clocks: Clocks::Arbitrary(3),
            expiry,
            replies: Replies::AtOnce,
            symmetry: true,
            quorum: 2,
            token_check: true,
            quarantine: true,
            mark_names_the_run: true,
            planting: Planting::LikeAGrant,
            blank_votes_on_renewal: false,
            release_checks_claim: true,
        }
    }

    pub(crate) fn watches_the_order(&self) -> bool {
        self.asked.contains(&Asked::TokensFollowTheGrants)
    }
}
