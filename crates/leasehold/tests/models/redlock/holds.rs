//! With all safeguards on, no state breaks a promise.

use std::collections::HashSet;
use std::time::Instant;

use stateright::{Checker, Model};

use super::model::Redlock;
use super::properties::Asked;
use super::rules::{Clocks, Replies, Rules};
use super::{lawful, lawless};

const TOKENS: &[Asked] = &[
    Asked::TokensAreUnique,
    Asked::TokensFollowTheGrants,
    Asked::HandedOn,
];
const TOKENS_AND_PLANTS: &[Asked] = &[
    Asked::TokensAreUnique,
    Asked::TokensFollowTheGrants,
    Asked::HandedOn,
    Asked::PlantCounts,
];
const EXCLUSION: &[Asked] = &[
    Asked::Exclusion,
    Asked::HandedOn,
    Asked::PlantCounts,
    Asked::OutlivesARestart,
];
const ALL: &[Asked] = &[
    Asked::TokensAreUnique,
    Asked::TokensFollowTheGrants,
    Asked::HolderHasTheGreatestToken,
    Asked::Exclusion,
    Asked::HandedOn,
    Asked::PlantCounts,
    Asked::OutlivesARestart,
];

/// Searches all states: what must always be is in every one of them, what must be possible in some.
fn explore<const NODES: usize, const CLAIMS: usize>(what: &str, rules: Rules) -> usize {
    let started = Instant::now();
    let model = Redlock::<NODES, CLAIMS> { rules };
    let checker = model.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{what}: {states} unique states, {:.1?}", started.elapsed());
    checker.assert_properties();
    states
}

#[test]
fn tokens_are_unique_and_in_order_whatever_clocks_and_expiries_do() {
    explore::<3, 3>("lawless, renewals", lawless(TOKENS_AND_PLANTS));
}

#[test]
fn tokens_stay_in_order_when_clients_retry() {
    let rules = Rules {
        claims_per_client: 2,
        renewals: 0,
        ..lawless(TOKENS)
    };
    explore::<3, 4>("lawless, retries", rules);
}

#[test]
fn the_holders_token_is_greater_than_all_before_if_no_node_forgets() {
    let rules = Rules {
        claims_per_client: 2,
        clocks: Clocks::Arbitrary(3),
        restarts: 0,
        ..lawful(&[
            Asked::HolderHasTheGreatestToken,
            Asked::HandedOn,
            Asked::PlantCounts,
        ])
    };
    explore::<3, 4>("lawful, nodes remember", rules);
}

#[test]
fn at_most_one_of_three_clients_holds() {
    let rules = Rules {
        clocks: Clocks::Arbitrary(3),
        ..lawful(EXCLUSION)
    };
    explore::<3, 3>("lawful, three clients", rules);
}

#[test]
fn at_most_one_client_holds_when_clients_retry() {
    let rules = Rules {
        claims_per_client: 2,
        ..lawful(EXCLUSION)
    };
    explore::<3, 4>("lawful, retries", rules);
}

#[test]
fn at_most_one_client_holds_when_nodes_forget_again_and_again() {
    let rules = Rules {
        restarts: 2,
        renewals: 2,
        ..lawful(EXCLUSION)
    };
    explore::<3, 2>("lawful, nodes forget again", rules);
}

#[test]
fn at_most_one_client_holds_when_nodes_come_back_with_an_old_memory() {
    let rules = Rules {
        nodes_save: true,
        ..lawful(EXCLUSION)
    };
    explore::<3, 2>("lawful, old memories", rules);
}

#[test]
fn at_most_one_client_holds_when_replies_are_late_or_lost() {
    let rules = Rules {
        replies: Replies::Travel,
        renewals: 2,
        ..lawful(EXCLUSION)
    };
    explore::<3, 2>("lawful, replies travel", rules);
}

#[test]
fn at_most_one_client_holds_on_five_nodes_of_which_two_forget() {
    let rules = Rules {
        quorum: 3,
        restarts: 2,
        ..lawful(EXCLUSION)
    };
    explore::<5, 2>("lawful, five nodes", rules);
}

#[test]
fn tokens_outlast_forgotten_registers_if_clocks_are_right() {
    let rules = Rules {
        restarts: 2,
        clocks: Clocks::Right,
        ..lawful(ALL)
    };
    explore::<3, 3>("lawful, right clocks", rules);
}

#[test]
fn a_higher_quorum_tolerates_nodes_that_forget_without_quarantine() {
    let rules = |quorum, asked| Rules {
        quorum,
        quarantine: false,
        restarts: 2,
        ..lawful(asked)
    };
    explore::<3, 2>(
        "all of 3, no quarantine",
        rules(3, &[Asked::Exclusion, Asked::HandedOn]),
    );
    explore::<5, 2>(
        "4 of 5, no quarantine",
        rules(4, &[Asked::Exclusion, Asked::HandedOn, Asked::PlantCounts]),
    );
}

/// Takes minutes in a debug build.
#[cfg(not(debug_assertions))]
#[test]
fn wide_bounds_hold_too() {
    let rules = Rules {
        claims_per_client: 2,
        clocks: Clocks::Arbitrary(4),
        renewals: 0,
        ..lawless(TOKENS)
    };
    explore::<3, 4>("lawless, retries, four tokens", rules);
    let rules = Rules {
        claims_per_client: 2,
        ..lawless(TOKENS_AND_PLANTS)
    };
    explore::<3, 4>("lawless, retries, one renewal", rules);
    let rules = Rules {
        claims_per_client: 2,
        ..lawful(EXCLUSION)
    };
    explore::<3, 6>("lawful, three clients, retries", rules);
    let rules = Rules {
        renewals: 2,
        restarts: 2,
        ..lawful(EXCLUSION)
    };
    explore::<3, 3>("lawful, three clients, two renewals, two restarts", rules);
    let rules = Rules {
        replies: Replies::Travel,
        ..lawful(EXCLUSION)
    };
    explore::<3, 3>("lawful, three clients, replies travel", rules);
    let rules = Rules {
        claims_per_client: 2,
        restarts: 2,
        clocks: Clocks::Right,
        ..lawful(ALL)
    };
    explore::<3, 4>("lawful, retries, right clocks", rules);
    let rules = Rules {
        restarts: 3,
        renewals: 2,
        replies: Replies::Travel,
        ..lawful(EXCLUSION)
    };
    explore::<3, 2>("lawful, replies travel, three restarts", rules);
    let rules = Rules {
        nodes_save: true,
        restarts: 2,
        ..lawful(EXCLUSION)
    };
    explore::<3, 2>("lawful, old memories, two restarts", rules);
}

/// All states, found by a plain search that tells nodes and clients apart, and then renamed.
fn states_up_to_names<const NODES: usize, const CLAIMS: usize>(rules: Rules) -> usize {
    let claims_per_client = rules.claims_per_client;
    let model = Redlock::<NODES, CLAIMS> {
        rules: Rules {
            symmetry: false,
            ..rules
        },
    };
    let mut seen: HashSet<_> = model.init_states().into_iter().collect();
    let mut pending: Vec<_> = seen.iter().copied().collect();
    while let Some(state) = pending.pop() {
        let next = model.next_states(&state).into_iter();
        pending.extend(next.filter(|next| seen.insert(*next)));
    }
    println!("told apart: {} unique states", seen.len());
    let renamed = seen.into_iter().map(|mut state| {
        state.rename(claims_per_client);
        state
    });
    renamed.collect::<HashSet<_>>().len()
}

#[test]
fn renaming_nodes_and_clients_hides_no_state() {
    let rules = Rules {
        replies: Replies::Travel,
        clocks: Clocks::Right,
        ..lawful(ALL)
    };
    let found = explore::<3, 2>("renamed", rules.clone());
    assert_eq!(found, states_up_to_names::<3, 2>(rules));

    let rules = Rules {
        renewals: 0,
        nodes_save: true,
        clocks: Clocks::Right,
        ..lawful(&[Asked::Exclusion, Asked::HandedOn])
    };
    let found = explore::<3, 2>("renamed, old memories", rules.clone());
    assert_eq!(found, states_up_to_names::<3, 2>(rules));

    let rules = Rules {
        claims_per_client: 2,
        renewals: 0,
        restarts: 0,
        clocks: Clocks::Right,
        ..lawful(TOKENS)
    };
    let found = explore::<3, 4>("renamed, retries", rules.clone());
    assert_eq!(found, states_up_to_names::<3, 4>(rules));
}
