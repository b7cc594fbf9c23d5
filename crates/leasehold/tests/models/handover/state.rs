//! The state of the world, and one name for states that differ only in names.

use super::claim::{Claim, Phase, Record};
use super::rules::Rules;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State<const CLAIMS: usize> {
    /// The first is the observed one: how long it waits in vain is counted, and that nobody overtakes it.
    pub(crate) claims: [Claim; CLAIMS],
    pub(crate) last_token: u8,
    /// The greatest token that a client has relied on.
    pub(crate) greatest_token: u8,
    /// How many clients have relied on the lock so far; two stand for more.
    pub(crate) served: u8,
    pub(crate) force_releases: u8,
    pub(crate) waited: u8,
    /// A client has begun to rely on a token that is not greater than all before.
    pub(crate) token_fell: bool,
    /// A claim was let in before the observed one, which had waited for longer.
    pub(crate) overtaken: bool,
}

impl<const CLAIMS: usize> State<CLAIMS> {
    pub(crate) fn new(rules: &Rules) -> Self {
        Self {
            claims: [Claim::new(); CLAIMS],
            last_token: 0,
            greatest_token: 0,
            served: 0,
            force_releases: rules.force_releases,
            waited: 0,
            token_fell: false,
            overtaken: false,
        }
    }

    /// The server's record of the holder, and whose it is.
    pub(crate) fn holder(&self) -> Option<(usize, Record)> {
        let recorded = |(claim, of): (usize, &Claim)| of.record.map(|record| (claim, record));
        self.claims.iter().enumerate().find_map(recorded)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.waits())
    }

    pub(crate) fn relying(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.relies())
    }

    /// All that a claim refers to is kept with it, so an order of the claims is a name for all orders.
    pub(crate) fn rename_claims(&mut self) {
        self.claims[1..].sort_unstable();
    }

    /// Only the order of tokens counts.
    pub(crate) fn renumber_tokens(&mut self) {
        let mut used = 0u64;
        self.each_token(|token| used |= 1 << *token);
        // 0 is no token.
        used &= !1;
        self.each_token(|token| {
            let below = used & ((1 << *token) - 1);
            if *token > 0 {
                *token = 1 + below.count_ones() as u8;
            }
        });
    }

    fn each_token(&mut self, mut visit: impl FnMut(&mut u8)) {
        visit(&mut self.last_token);
        visit(&mut self.greatest_token);
        for claim in &mut self.claims {
            visit(&mut claim.forced_out);
            if let Some(record) = &mut claim.record {
                visit(&mut record.token);
            }
            match &mut claim.phase {
                Phase::Asking {
                    granted: Some(token),
                    ..
                }
                | Phase::Holding { token, .. } => visit(token),
                Phase::Waiting {
                    told: Some(told), ..
                } => visit(&mut told.token),
                _ => {}
            }
        }
    }
}
