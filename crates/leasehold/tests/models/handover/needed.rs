//! Each safeguard is needed: with it switched off, some state breaks a promise.

use stateright::{Checker, Model};

use super::model::Handover;
use super::properties::Asked;
use super::rules::{Answers, Content, CountsFrom, Loss, Rules, Successors};
use super::{redis, sql};

/// Searches for the shortest way to what must never be, and tells its length.
///
/// One thread and one question: only then is the first that is found the shortest.
fn breaks<const CLAIMS: usize>(never: Asked, rules: Rules) -> usize {
    let rules = Rules {
        asked: vec![never],
        symmetry: false,
        ..rules
    };
    let model = Handover::<CLAIMS> { rules };
    let checker = model.checker().threads(1).spawn_bfs().join();
    let path = checker.assert_any_discovery(never.name());
    let actions = path.into_actions();
    println!(
        "not always: {}, after {} steps",
        never.name(),
        actions.len()
    );
    for same in actions.chunk_by(PartialEq::eq) {
        println!("  {:?} × {}", same[0], same.len());
    }
    actions.len()
}

/// Longer than any timer: what lasts as long as that lasts for ever.
const FOR_EVER: u8 = 20;

#[test]
fn notice_that_grants_lets_two_rely() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            content: Content::Grant,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::Exclusion, rules), 5);
    }
}

#[test]
fn validity_from_the_answer_lets_two_rely() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            answers: Answers::Travel,
            grant_counts_from: CountsFrom::Answer,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::Exclusion, rules), 10);
    }
}

#[test]
fn offer_counted_from_hearing_lets_two_rely() {
    let rules = Rules {
        answers: Answers::Travel,
        offer_counts_from: CountsFrom::Answer,
        ..sql()
    };
    assert_eq!(breaks::<3>(Asked::Exclusion, rules), 14);
}

#[test]
fn validity_without_margin_lets_two_rely() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            clocks_drift: true,
            margin: 0,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::Exclusion, rules), 8);
    }
}

#[test]
fn release_of_another_claim_lets_two_rely() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            release_checks_claim: false,
            ..rules
        };
        assert_eq!(breaks::<3>(Asked::Exclusion, rules), 8);
    }
}

#[test]
fn renewal_of_another_claim_lets_two_rely() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            force_releases: 1,
            renewal_checks_claim: false,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::Exclusion, rules), 8);
    }
}

#[test]
fn offer_with_the_last_token_repeats_it() {
    for (rules, steps) in [(redis(), 8), (sql(), 7)] {
        let rules = Rules {
            offers_raise_the_token: false,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::TokensRise, rules), steps);
    }
}

#[test]
fn newcomer_beside_the_queue_overtakes() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            newcomers_queue: false,
            ..rules
        };
        assert_eq!(breaks::<3>(Asked::FirstComeFirstServed, rules), 10);
    }
}

#[test]
fn offer_without_end_blocks_the_queue_for_ever() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            offers_end: false,
            patience: FOR_EVER,
            ..rules
        };
        assert_eq!(breaks::<3>(Asked::NoWakeUpIsLost, rules), 29);
    }
}

#[test]
fn without_look_again_a_lost_notice_is_lost_for_ever() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            loss: Loss::Silent,
            look_again: false,
            patience: FOR_EVER,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::NoWakeUpIsLost, rules), 27);
    }
}

#[test]
fn without_look_again_a_dead_holder_blocks_for_ever() {
    for rules in [redis(), sql()] {
        let rules = Rules {
            look_again: false,
            patience: FOR_EVER,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::NoWakeUpIsLost, rules), 29);
    }
}

#[test]
fn woken_waiter_that_does_not_ask_waits_for_ever() {
    for (rules, steps) in [(redis(), 32), (sql(), 33)] {
        let rules = Rules {
            woken_ask_again: false,
            patience: FOR_EVER,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::NoWakeUpIsLost, rules), steps);
    }
}

#[test]
fn passed_over_waiter_that_is_not_told_waits_too_long() {
    for (rules, steps) in [(redis(), 10), (sql(), 9)] {
        let rules = Rules {
            living_are_passed_over: true,
            passed_over_are_told: false,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::NoWakeUpIsLost, rules), steps);
    }
}

#[test]
fn without_passing_on_an_ended_offer_lasts_too_long() {
    let rules = Rules {
        listeners_pass_on: false,
        ..sql()
    };
    assert_eq!(breaks::<3>(Asked::NoWakeUpIsLost, rules), 11);
}

/// A limit, not a safeguard: until a waiter looks again by itself.
#[test]
fn silent_loss_of_a_notice_lasts_longer_than_an_offer() {
    for (rules, steps) in [(redis(), 10), (sql(), 9)] {
        let rules = Rules {
            loss: Loss::Silent,
            ..rules
        };
        assert_eq!(breaks::<2>(Asked::NoWakeUpIsLost, rules), steps);
    }
}

/// The one waiter that is told is as dead as the one that the lock was offered to.
#[test]
fn one_told_successor_does_not_outlast_two_dead_waiters() {
    let rules = Rules {
        successors: Successors::Last,
        ..redis()
    };
    assert_eq!(breaks::<4>(Asked::NoWakeUpIsLost, rules), 14);
}
