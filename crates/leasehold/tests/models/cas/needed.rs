//! Each safeguard is needed: with it switched off, some state breaks a promise.

use stateright::{Checker, HasDiscoveries, Model};

use super::model::{Cas, EXCLUSION, NO_GHOST, TOKENS};
use super::rules::Rules;

/// Searches for the shortest way to what must never be, and prints it. One thread: only then is the first that is found the shortest.
fn breaks(never: &'static str, clients: usize, rules: Rules) {
    let model = Cas { clients, rules };
    let found = HasDiscoveries::AnyOf([never].into());
    let checker = model.checker().threads(1).finish_when(found);
    let checker = checker.spawn_bfs().join();
    let actions = checker.assert_any_discovery(never).into_actions();
    println!("not always: {never}, after {} steps", actions.len());
    for action in &actions {
        println!("  {action:?}");
    }
}

fn all(writes: u8) -> Rules {
    Rules::new(writes, false)
}

#[test]
fn without_a_margin_clocks_that_drift_let_two_hold() {
    let rules = Rules {
        margin: false,
        drift: true,
        ..all(2)
    };
    breaks(EXCLUSION, 2, rules);
}

#[test]
fn validity_counted_from_the_answer_lets_two_hold() {
    let rules = Rules {
        from_before_the_write: false,
        ..all(2)
    };
    breaks(EXCLUSION, 2, rules);
}

#[test]
fn signs_timed_from_before_the_read_let_two_hold() {
    let rules = Rules {
        from_after_the_read: false,
        ..all(2)
    };
    breaks(EXCLUSION, 2, rules);
}

#[test]
fn timing_the_holder_and_not_its_signs_lets_two_hold() {
    let rules = Rules {
        times_signs: false,
        ..all(3)
    };
    breaks(EXCLUSION, 2, rules);
}

#[test]
fn writes_without_a_condition_let_two_hold() {
    let rules = Rules {
        conditions: false,
        ..all(2)
    };
    breaks(EXCLUSION, 2, rules);
}

#[test]
fn content_that_comes_back_brings_back_a_released_claim() {
    let rules = Rules {
        own_version: false,
        ..all(2)
    };
    breaks(NO_GHOST, 1, rules);
}

#[test]
fn doubt_that_is_not_settled_brings_back_a_released_claim() {
    let rules = Rules {
        settles_doubt: false,
        ..all(2)
    };
    breaks(NO_GHOST, 1, rules);
}

#[test]
fn offers_relied_on_without_a_write_let_two_hold() {
    let rules = Rules {
        takes_offers: false,
        begins_offered: true,
        ..all(2)
    };
    breaks(EXCLUSION, 2, rules);
}

#[test]
fn tokens_that_only_follow_the_clock_fall() {
    let rules = Rules {
        stores_token: false,
        clock: 1,
        ..all(3)
    };
    breaks(TOKENS, 2, rules);
}
