//! Each safeguard is needed: with it switched off, some state breaks a promise.

use stateright::{Checker, Model};

use super::model::Redlock;
use super::properties::Asked;
use super::rules::{Clocks, Expiry, Planting, Replies, Rules};
use super::{lawful, lawless};

/// Searches for the shortest way to what must never be, and tells its length.
///
/// One thread and one question: only then is the first that is found the shortest.
fn breaks<const NODES: usize, const CLAIMS: usize>(never: Asked, rules: Rules) -> usize {
    let rules = Rules {
        asked: vec![never],
        symmetry: false,
        ..rules
    };
    let model = Redlock::<NODES, CLAIMS> { rules };
    let checker = model.checker().threads(1).spawn_bfs().join();
    let path = checker.assert_any_discovery(never.name());
    let actions = path.into_actions();
    println!(
        "not always: {}, after {} steps",
        never.name(),
        actions.len()
    );
    for action in &actions {
        println!("  {action:?}");
    }
    actions.len()
}

#[test]
fn without_the_token_check_tokens_repeat() {
    let rules = Rules {
        token_check: false,
        ..lawless(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::TokensAreUnique, rules.clone()), 7);
    assert_eq!(breaks::<3, 2>(Asked::TokensFollowTheGrants, rules), 7);
}

#[test]
fn without_quarantine_a_node_that_forgets_lets_two_hold() {
    let rules = Rules {
        quarantine: false,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 7);
}

#[test]
fn a_mark_that_comes_back_with_an_old_memory_lets_two_hold() {
    let rules = Rules {
        nodes_save: true,
        mark_names_the_run: false,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 8);
}

#[test]
fn half_the_nodes_are_too_small_a_quorum() {
    let rules = Rules {
        quorum: 1,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 4);
    let rules = Rules {
        quorum: 2,
        restarts: 0,
        ..lawful(&[])
    };
    assert_eq!(breaks::<4, 2>(Asked::Exclusion, rules), 6);
}

#[test]
fn a_renewal_planted_over_another_claim_lets_two_hold() {
    let rules = Rules {
        planting: Planting::Anywhere,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 11);
}

#[test]
fn a_renewal_planted_past_the_register_lets_tokens_repeat() {
    let rules = Rules {
        planting: Planting::WhereFree,
        clocks: Clocks::Arbitrary(2),
        ..lawless(&[])
    };
    assert_eq!(
        breaks::<3, 2>(Asked::TokensFollowTheGrants, rules.clone()),
        10
    );
    assert_eq!(breaks::<3, 3>(Asked::TokensAreUnique, rules), 15);
}

#[test]
fn a_blank_node_that_votes_on_renewal_lets_two_hold() {
    let rules = Rules {
        blank_votes_on_renewal: true,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 12);
}

#[test]
fn validity_counted_from_the_reply_lets_two_hold() {
    let rules = Rules {
        replies: Replies::Travel,
        expiry: Expiry::AfterReply,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 11);
}

#[test]
fn a_release_of_anothers_claim_lets_two_hold() {
    let rules = Rules {
        release_checks_claim: false,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 3>(Asked::Exclusion, rules), 9);
}

/// The limit of the algorithm, not of a safeguard: here only the fencing token helps.
#[test]
fn expiry_before_validity_ends_lets_two_hold() {
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, lawless(&[])), 7);
}

/// The limit of the tokens: a register forgotten *and* a clock that is behind.
#[test]
fn tokens_repeat_if_a_node_forgets_and_clocks_are_wrong() {
    assert_eq!(breaks::<3, 2>(Asked::TokensAreUnique, lawful(&[])), 9);
    assert_eq!(breaks::<3, 2>(Asked::TokensFollowTheGrants, lawful(&[])), 9);
}

#[test]
fn a_quorum_of_all_three_does_not_tolerate_three_that_forget() {
    let rules = Rules {
        quorum: 3,
        quarantine: false,
        restarts: 3,
        ..lawful(&[])
    };
    assert_eq!(breaks::<3, 2>(Asked::Exclusion, rules), 11);
}
