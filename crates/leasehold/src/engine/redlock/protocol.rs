//! What is sent to a node, besides what is sent to a single server.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;

use crate::claim::Claim;
use crate::engine::Renew;
use crate::engine::meta::Meta;
use crate::engine::redis::keys::Keys;
use crate::engine::redis::protocol::{
    self, ACQUIRE_MANY, ACQUIRE_MARKED, Address, BREAK, Call, INSPECT, MARK, Proposal, RELEASE,
    RENEW_QUICKLY, RENEWED, script,
};
use crate::token::FencingToken;

#[rustfmt::skip]
static GIVE_BACK: LazyLock<Script> =
    script!("../redis/scripts/head.lua", "../redis/scripts/common.lua", "scripts/give_back.lua");
#[rustfmt::skip]
static RENEW: LazyLock<Script> = script!(
    "../redis/scripts/head.lua", "../redis/scripts/common.lua", "scripts/plant.lua", "../redis/scripts/renew.lua"
);

pub(super) static SCRIPTS: [&LazyLock<Script>; 9] = [
    &ACQUIRE_MARKED,
    &ACQUIRE_MANY,
    &GIVE_BACK,
    &MARK,
    &RENEW_QUICKLY,
    &RENEW,
    &RELEASE,
    &BREAK,
    &INSPECT,
];

/// Gives back what an attempt was granted on a node: to whoever is next, keeping its own position in the queue if it has an address.
pub(super) fn give_back(
    keys: &Keys,
    claim: &Claim,
    address: Option<Address<'_>>,
    proposal: Proposal,
) -> Call {
    protocol::attempt(&GIVE_BACK, keys, claim, address, Duration::ZERO, proposal)
}

/// Also takes the vote of a node that does not have the claim, if its token is known.
pub(super) fn renew(keys: &Keys, renew: &Renew<'_>, max_ttl: Duration) -> Call {
    let (claim, token) = (renew.claim, renew.token.map_or(0, FencingToken::get));
    protocol::renewal(&RENEW, keys, renew, RENEWED)
        .arg(claim.mode.to_number())
        .arg(token)
        .arg(Meta::of(claim).to_json())
        .marked(max_ttl)
}
