//! With all safeguards on, nothing breaks.

use stateright::{Checker, Model};

use super::model::Cas;
use super::rules::Rules;

fn holds(clients: usize, rules: Rules) {
    let model = Cas { clients, rules };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = model.checker().threads(threads).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!(
        "{clients} clients, {} writes: {states} states",
        rules.writes
    );
    checker.assert_properties();
}

#[test]
fn two_clients_that_die_with_clocks_that_drift() {
    holds(2, Rules::new(2, true));
}

#[test]
fn two_clients_that_renew_and_release() {
    let rules = Rules {
        clock: 1,
        ..Rules::new(3, false)
    };
    holds(2, rules);
}

#[test]
fn three_clients_and_an_offer() {
    let rules = Rules {
        begins_offered: true,
        ..Rules::new(2, false)
    };
    holds(3, rules);
}

/// In debug builds this would take too long.
#[cfg(not(debug_assertions))]
#[test]
fn wide() {
    holds(2, Rules::new(4, true));
    holds(3, Rules::new(3, true));
}
