//! What must always be so, and what must be possible.

use stateright::Property;

use super::claim::{Claim, Phase, Record};
use super::model::Handover;
use super::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// No two clients rely on the lock at once. One from which it was taken by force does not count.
    Exclusion,
    /// Whoever begins to rely on the lock has a greater token than all before. A grant that was taken away by force
    /// before its client heard of it does not count.
    TokensRise,
    /// While a claim waits whose process is in time, the lock is neither free nor offered in vain for longer than the
    /// patience.
    NoWakeUpIsLost,
    /// No claim that came later is let in before one that has kept its position in the queue.
    FirstComeFirstServed,
    /// Some state: a client relies on the lock after another has.
    HandedOver,
    /// Some state: a client relies on an offer that it has not confirmed.
    ReliesOnAnOffer,
    /// Some state: an offer has ended, and the client still waits that it was made to.
    OfferEndsUnheard,
    /// Some state: the lock is held by a claim whose client is gone, while another waits.
    HeldByTheDead,
    /// Some state: a claim waits that the server has no entry of.
    WaitsWithoutEntry,
    /// Some state: a client relies on the lock beside one from which it was taken by force.
    ForcedOutUnaware,
}

impl Asked {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Asked::Exclusion => "at most one client relies on the lock",
            Asked::TokensRise => "tokens rise",
            Asked::NoWakeUpIsLost => "no wake-up is lost",
            Asked::FirstComeFirstServed => "first come, first served",
            Asked::HandedOver => "one client relies on the lock after another",
            Asked::ReliesOnAnOffer => "a client relies on an offer",
            Asked::OfferEndsUnheard => "an offer ends unheard",
            Asked::HeldByTheDead => "the lock is held by a dead client",
            Asked::WaitsWithoutEntry => "a client waits without a queue entry",
            Asked::ForcedOutUnaware => "a client does not know yet that it was forced out",
        }
    }

    pub(crate) fn property<const CLAIMS: usize>(self) -> Property<Handover<CLAIMS>> {
        let name = self.name();
        match self {
            Asked::Exclusion => Property::always(name, Handover::excludes),
            Asked::TokensRise => Property::always(name, Handover::tokens_rise),
            Asked::NoWakeUpIsLost => Property::always(name, Handover::no_wake_up_is_lost),
            Asked::FirstComeFirstServed => Property::always(name, Handover::serves_in_order),
            Asked::HandedOver => Property::sometimes(name, Handover::handed_over),
            Asked::ReliesOnAnOffer => Property::sometimes(name, Handover::relies_on_an_offer),
            Asked::OfferEndsUnheard => Property::sometimes(name, Handover::offer_ends_unheard),
            Asked::HeldByTheDead => Property::sometimes(name, Handover::held_by_the_dead),
            Asked::WaitsWithoutEntry => Property::sometimes(name, Handover::waits_without_entry),
            Asked::ForcedOutUnaware => Property::sometimes(name, Handover::forced_out_unaware),
        }
    }
}

impl<const CLAIMS: usize> Handover<CLAIMS> {
    fn excludes(&self, state: &State<CLAIMS>) -> bool {
        let counts = |claim: &&Claim| !claim.is_forced_out();
        state.relying().filter(counts).count() <= 1
    }

    fn tokens_rise(&self, state: &State<CLAIMS>) -> bool {
        !state.token_fell
    }

    fn no_wake_up_is_lost(&self, state: &State<CLAIMS>) -> bool {
        state.waited <= self.rules.patience
    }

    fn serves_in_order(&self, state: &State<CLAIMS>) -> bool {
        !state.overtaken
    }

    fn handed_over(&self, state: &State<CLAIMS>) -> bool {
        state.served > 1 && state.relying().count() == 1
    }

    fn relies_on_an_offer(&self, state: &State<CLAIMS>) -> bool {
        state.relying().any(Claim::is_offered)
    }

    fn offer_ends_unheard(&self, state: &State<CLAIMS>) -> bool {
        let has_ended = |record: Record| record.offered && record.left == 0;
        let mut waiting = state.waiting();
        waiting.any(|claim| claim.record.is_some_and(has_ended))
    }

    fn held_by_the_dead(&self, state: &State<CLAIMS>) -> bool {
        let held = |(holder, record): (usize, Record)| {
            !record.offered && state.claims[holder].phase == Phase::Gone
        };
        state.holder().is_some_and(held) && state.waiting().next().is_some()
    }

    fn waits_without_entry(&self, state: &State<CLAIMS>) -> bool {
        let mut waiting = state.waiting();
        waiting.any(|claim| claim.position == 0 && claim.record.is_none())
    }

    fn forced_out_unaware(&self, state: &State<CLAIMS>) -> bool {
        state.relying().count() > 1 && state.relying().any(Claim::is_forced_out)
    }
}
