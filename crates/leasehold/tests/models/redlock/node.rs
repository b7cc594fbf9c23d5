//! A node's side: what it answers, what it remembers, what it forgets.

use super::claim::Claim;
use super::rules::{Planting, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub(crate) claim: u8,
    /// The last round that has extended it: it does not expire before that round's validity ends.
    pub(crate) round: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Memory<const CLAIMS: usize> {
    Whole,
    /// Blank. Says for each claim how many of its rounds must have ended before this node may vote:
    /// those sent before it forgot, or none.
    Lost([u8; CLAIMS]),
}

/// What one node has said about one claim, as bits of its rounds. Kept with the node, not with the
/// claim, so that nodes can be sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ballot {
    /// Yes, under way.
    pub(crate) said: u8,
    /// Yes, and the client knows.
    pub(crate) heard: u8,
    /// Bits of the claims with the same or a greater token that had been granted when this node
    /// voted for this one.
    pub(crate) late: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node<const CLAIMS: usize> {
    pub(crate) hold: Option<Hold>,
    /// The greatest token granted.
    pub(crate) register: u8,
    pub(crate) memory: Memory<CLAIMS>,
    pub(crate) ballots: [Ballot; CLAIMS],
    /// What it would find on its disk.
    pub(crate) saved: Option<Saved>,
}

/// Holder and register as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Saved {
    pub(crate) hold: Option<Hold>,
    pub(crate) register: u8,
}

impl<const CLAIMS: usize> Node<CLAIMS> {
    pub(crate) fn new() -> Self {
        Self {
            hold: None,
            register: 0,
            memory: Memory::Whole,
            ballots: [Ballot::default(); CLAIMS],
            saved: None,
        }
    }

    pub(crate) fn holds(&self, claim: usize) -> bool {
        self.hold
            .is_some_and(|hold| usize::from(hold.claim) == claim)
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.memory != Memory::Whole
    }

    fn beats_the_register(&self, token: u8, rules: &Rules) -> bool {
        !rules.token_check || token > self.register
    }

    fn take(&mut self, claim: usize, token: u8, round: u8) {
        self.hold = Some(Hold {
            claim: claim as u8,
            round,
        });
        self.register = token;
    }

    /// Whether it votes for the claim.
    pub(crate) fn acquire(&mut self, claim: usize, token: u8, rules: &Rules) -> bool {
        if self.is_blank() {
            return false;
        }
        if self.hold.is_none() && self.beats_the_register(token, rules) {
            self.take(claim, token, 0);
        }
        self.holds(claim)
    }

    /// Whether it votes for this round of the claim.
    pub(crate) fn renew(&mut self, claim: usize, token: u8, round: u8, rules: &Rules) -> bool {
        match &mut self.hold {
            Some(hold) if usize::from(hold.claim) == claim => hold.round = hold.round.max(round),
            hold => {
                let free = hold.is_none();
                let plants = match rules.planting {
                    Planting::LikeAGrant => free && self.beats_the_register(token, rules),
                    Planting::WhereFree => free,
                    Planting::Anywhere => true,
                };
                if plants {
                    self.take(claim, token, round);
                }
            }
        }
        self.holds(claim) && (!self.is_blank() || rules.blank_votes_on_renewal)
    }

    pub(crate) fn release(&mut self, claim: usize, rules: &Rules) {
        if self.holds(claim) || !rules.release_checks_claim {
            self.hold = None;
        }
    }

    /// What it has said is under way or heard, so that stays.
    pub(crate) fn restart(&mut self, claims: &[Claim; CLAIMS], rules: &Rules) {
        self.hold = None;
        self.register = 0;
        if rules.quarantine {
            self.wait_for(claims);
        }
    }

    /// It may have forgotten whatever any claim has been granted so far.
    fn wait_for(&mut self, claims: &[Claim; CLAIMS]) {
        self.memory =
            Memory::Lost(claims.map(|claim| if claim.is_open() { claim.sent } else { 0 }));
    }

    /// Of a node that votes; the mark is saved with the rest.
    pub(crate) fn save(&mut self) {
        let Self { hold, register, .. } = *self;
        self.saved = Some(Saved { hold, register });
    }

    pub(crate) fn restart_with(&mut self, saved: Saved, claims: &[Claim; CLAIMS], rules: &Rules) {
        (self.hold, self.register, self.saved) = (saved.hold, saved.register, None);
        self.memory = Memory::Whole;
        if rules.mark_names_the_run {
            self.wait_for(claims);
        }
    }

    pub(crate) fn may_vote_again(&self) -> bool {
        self.memory == Memory::Lost([0; CLAIMS])
    }

    pub(crate) fn vote_again(&mut self) {
        self.memory = Memory::Whole;
    }

    /// A hold that may expire at any time does so whatever its round.
    pub(crate) fn round_does_not_matter(&mut self, claim: usize) {
        if let Some(hold) = &mut self.hold
            && usize::from(hold.claim) == claim
        {
            hold.round = 0;
        }
    }

    /// A client that learns that a round has ended neither counts nor awaits it any more.
    pub(crate) fn round_ended(&mut self, index: usize, claim: &Claim) {
        let ballot = &mut self.ballots[index];
        if claim.is_over() {
            *ballot = Ballot::default();
        } else {
            let running = !0 << claim.ended;
            ballot.said &= running;
            ballot.heard &= running;
        }
        if let Memory::Lost(awaited) = &mut self.memory
            && awaited[index] <= claim.ended
        {
            awaited[index] = 0;
        }
        if claim.is_over() {
            self.round_does_not_matter(index);
        }
    }
}
