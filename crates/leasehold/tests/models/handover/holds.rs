//! With all safeguards on, no state breaks a promise.

use std::collections::HashSet;
use std::time::Instant;

use stateright::{Checker, Model};

use super::model::Handover;
use super::properties::Asked;
use super::rules::{Answers, Loss, Rules};
use super::{inbox, redis, sql};

/// Searches all states: what is promised is so in every one of them, what must be possible in some.
fn explore<const CLAIMS: usize>(what: &str, possible: &[Asked], mut rules: Rules) -> usize {
    rules
        .asked
        .extend([Asked::HandedOver, Asked::HeldByTheDead]);
    rules.asked.extend(possible);
    if rules.relies_on_offers() {
        rules.asked.push(Asked::ReliesOnAnOffer);
    }
    let started = Instant::now();
    let model = Handover::<CLAIMS> { rules };
    let checker = model.checker().threads(1).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{what}: {states} unique states, {:.1?}", started.elapsed());
    checker.assert_properties();
    states
}

const UNHEARD: &[Asked] = &[Asked::OfferEndsUnheard, Asked::WaitsWithoutEntry];

#[test]
fn slow_processes_break_no_promise() {
    let rules = |rules| Rules {
        living_are_passed_over: true,
        ..rules
    };
    explore::<3>("redis, slow processes", UNHEARD, rules(redis()));
    explore::<3>("inbox, slow processes", UNHEARD, rules(inbox()));
    explore::<3>("sql, slow processes", UNHEARD, rules(sql()));
}

#[test]
fn forced_release_breaks_no_promise_to_others() {
    let rules = |rules| Rules {
        force_releases: 1,
        ..rules
    };
    let possible = &[Asked::OfferEndsUnheard, Asked::ForcedOutUnaware];
    explore::<3>("redis, forced release", possible, rules(redis()));
    explore::<3>("inbox, forced release", possible, rules(inbox()));
    explore::<3>("sql, forced release", possible, rules(sql()));
}

#[test]
fn late_answers_break_no_promise() {
    let rules = |rules| Rules {
        answers: Answers::Travel,
        ..rules
    };
    explore::<3>("redis, late answers", UNHEARD, rules(redis()));
    explore::<3>("inbox, late answers", UNHEARD, rules(inbox()));
    explore::<3>("sql, late answers", UNHEARD, rules(sql()));
}

#[test]
fn forced_release_with_late_answers_breaks_no_promise() {
    let rules = |rules| Rules {
        answers: Answers::Travel,
        force_releases: 1,
        ..rules
    };
    let possible = &[Asked::OfferEndsUnheard, Asked::ForcedOutUnaware];
    explore::<3>("redis, forced, late answers", possible, rules(redis()));
    explore::<3>("sql, forced, late answers", possible, rules(sql()));
}

#[test]
fn late_requests_break_no_promise() {
    let rules = |rules| Rules {
        requests_are_late: true,
        living_are_passed_over: true,
        answers: Answers::Travel,
        force_releases: 1,
        ..rules
    };
    let possible = &[
        Asked::OfferEndsUnheard,
        Asked::WaitsWithoutEntry,
        Asked::ForcedOutUnaware,
    ];
    explore::<2>("redis, late requests", possible, rules(redis()));
    explore::<2>("inbox, late requests", possible, rules(inbox()));
    explore::<2>("sql, late requests", possible, rules(sql()));
}

#[test]
fn drifting_clocks_break_no_promise() {
    let rules = |rules: Rules| Rules {
        clocks_drift: true,
        requests_are_late: true,
        // The waiter's own clock is late as well.
        patience: rules.patience + 1,
        ..rules
    };
    explore::<2>("redis, drift", UNHEARD, rules(redis()));
    explore::<2>("inbox, drift", UNHEARD, rules(inbox()));
    explore::<2>("sql, drift", UNHEARD, rules(sql()));
}

#[test]
fn silent_loss_of_notices_lasts_until_waiters_look_again() {
    let rules = |rules: Rules| Rules {
        loss: Loss::Silent,
        living_are_passed_over: true,
        patience: rules.ttl + 1,
        ..rules
    };
    explore::<3>("redis, silent loss", UNHEARD, rules(redis()));
    explore::<3>("inbox, silent loss", UNHEARD, rules(inbox()));
    explore::<3>("sql, silent loss", UNHEARD, rules(sql()));
}

/// The clock is coarser, to keep the search short.
#[test]
fn told_successors_outlast_two_dead_waiters() {
    let rules = |rules| Rules {
        ttl: 3,
        offer: 1,
        patience: 2,
        ..rules
    };
    explore::<4>("redis, four claims", UNHEARD, rules(redis()));
}

/// Takes minutes in a debug build.
#[cfg(not(debug_assertions))]
#[test]
fn wide_bounds_hold_too() {
    for (name, rules) in [("redis", redis()), ("sql", sql())] {
        let late = Rules {
            requests_are_late: true,
            living_are_passed_over: true,
            ..rules.clone()
        };
        explore::<3>(
            &format!("{name}, three claims, late requests"),
            UNHEARD,
            late,
        );
        let drift = Rules {
            clocks_drift: true,
            answers: Answers::Travel,
            patience: rules.patience + 1,
            ..rules.clone()
        };
        explore::<3>(
            &format!("{name}, three claims, late answers, drift"),
            UNHEARD,
            drift,
        );
        let long = Rules {
            ttl: 6,
            offer: 3,
            patience: rules.patience + 1,
            living_are_passed_over: true,
            ..rules.clone()
        };
        explore::<3>(&format!("{name}, three claims, finer clock"), UNHEARD, long);
        let four = Rules {
            patience: 2 * rules.offer,
            living_are_passed_over: true,
            ..rules
        };
        explore::<4>(&format!("{name}, four claims"), UNHEARD, four);
    }
}

/// All states, found by a plain search that tells claims apart, and then renamed.
fn states_up_to_names<const CLAIMS: usize>(rules: Rules) -> usize {
    let model = Handover::<CLAIMS> {
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
        state.rename_claims();
        state
    });
    renamed.collect::<HashSet<_>>().len()
}

#[test]
fn renaming_claims_hides_no_state() {
    for rules in [redis(), inbox(), sql()] {
        let found = explore::<3>("renamed", UNHEARD, rules.clone());
        assert_eq!(found, states_up_to_names::<3>(rules));
    }
}
