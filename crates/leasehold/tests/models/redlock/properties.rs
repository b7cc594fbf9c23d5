//! What is asked of every state, and what some state must show lest the search be empty.

use stateright::Property;

use super::model::Redlock;
use super::node::Node;
use super::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// No two granted claims have the same token.
    TokensAreUnique,
    /// If a quorum of nodes has voted for a claim, be it by grant or by renewal, after another had
    /// been granted by a quorum, its token is greater.
    TokensFollowTheGrants,
    /// Who holds the lock has a greater token than all who have held it before.
    HolderHasTheGreatestToken,
    /// At most one client holds the lock at any moment, by its own reckoning of validity.
    Exclusion,
    /// Some state: one client holds the lock, and another has held it before.
    HandedOn,
    /// Some state: a renewal counts only because it was planted on a node that had not granted.
    PlantCounts,
    /// Some state: a client holds the lock although a node that voted for it has forgotten it.
    OutlivesARestart,
}

impl Asked {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Asked::TokensAreUnique => "tokens are unique",
            Asked::TokensFollowTheGrants => "tokens follow the grants",
            Asked::HolderHasTheGreatestToken => "the holder has the greatest token",
            Asked::Exclusion => "at most one client holds",
            Asked::HandedOn => "one client holds after another",
            Asked::PlantCounts => "a planted claim counts",
            Asked::OutlivesARestart => "a holder outlives the restart of a node that voted for it",
        }
    }

    pub(crate) fn property<const NODES: usize, const CLAIMS: usize>(
        self,
    ) -> Property<Redlock<NODES, CLAIMS>> {
        let name = self.name();
        match self {
            Asked::TokensAreUnique => Property::always(name, Redlock::tokens_are_unique),
            Asked::TokensFollowTheGrants => {
                Property::always(name, Redlock::tokens_follow_the_grants)
            }
            Asked::HolderHasTheGreatestToken => {
                Property::always(name, Redlock::holder_has_the_greatest_token)
            }
            Asked::Exclusion => Property::always(name, Redlock::at_most_one_holds),
            Asked::HandedOn => Property::sometimes(name, Redlock::handed_on),
            Asked::PlantCounts => Property::sometimes(name, Redlock::plant_counts),
            Asked::OutlivesARestart => Property::sometimes(name, Redlock::outlives_a_restart),
        }
    }
}

impl<const NODES: usize, const CLAIMS: usize> Redlock<NODES, CLAIMS> {
    fn holders(&self, state: &State<NODES, CLAIMS>) -> impl Iterator<Item = usize> {
        (0..CLAIMS).filter(|claim| state.holds(*claim, self.rules.quorum))
    }

    fn at_most_one_holds(&self, state: &State<NODES, CLAIMS>) -> bool {
        self.holders(state).count() <= 1
    }

    fn tokens_are_unique(&self, state: &State<NODES, CLAIMS>) -> bool {
        let granted = || state.claims.iter().filter(|claim| claim.granted);
        granted().all(|one| granted().filter(|other| other.token == one.token).count() == 1)
    }

    fn tokens_follow_the_grants(&self, state: &State<NODES, CLAIMS>) -> bool {
        let late = |claim: usize, other: usize| {
            let late = |node: &&Node<CLAIMS>| node.ballots[claim].late & (1 << other) != 0;
            state.nodes.iter().filter(late).count()
        };
        let claims = 0..CLAIMS;
        claims.clone().all(|claim| {
            claims
                .clone()
                .all(|other| late(claim, other) < self.rules.quorum)
        })
    }

    fn holder_has_the_greatest_token(&self, state: &State<NODES, CLAIMS>) -> bool {
        self.holders(state).all(|holder| {
            let token = state.claims[holder].token;
            let others = (0..CLAIMS).filter(|other| *other != holder);
            let mut granted = others.filter(|other| state.claims[*other].granted);
            granted.all(|other| state.claims[other].token < token)
        })
    }

    fn handed_on(&self, state: &State<NODES, CLAIMS>) -> bool {
        let client = |claim: usize| claim / self.rules.claims_per_client;
        let held = |claim: &usize| state.claims[*claim].granted && state.claims[*claim].is_over();
        self.holders(state).any(|now| {
            (0..CLAIMS)
                .filter(held)
                .any(|before| client(before) != client(now))
        })
    }

    fn plant_counts(&self, state: &State<NODES, CLAIMS>) -> bool {
        let quorum = self.rules.quorum;
        let first_runs = |claim: &usize| state.claims[*claim].ended == 0;
        (0..CLAIMS).filter(first_runs).any(|claim| {
            let extended = |node: &&Node<CLAIMS>| node.ballots[claim].heard & 0b11 == 0b11;
            state.heard(claim, 1) >= quorum && state.nodes.iter().filter(extended).count() < quorum
        })
    }

    fn outlives_a_restart(&self, state: &State<NODES, CLAIMS>) -> bool {
        self.holders(state).any(|claim| {
            let forgot = |node: &Node<CLAIMS>| {
                node.is_blank() && !node.holds(claim) && node.ballots[claim].heard != 0
            };
            state.claims[claim].ended > 0 && state.nodes.iter().any(forgot)
        })
    }
}
