//! The suite on every engine at hand, each on a real server that starts with the first case that needs it.
//!
//! | name of a case | what it shows |
//! |---|---|
//! | `redis::expiry::…` | the suite on one engine |
//! | `redis::recipes::…` | what is built on top, on the same store |
//! | `redis::memory_use::…` | nothing is kept of locks that are past |
//! | `valkey::…` | the suite on a server that is like Redis; ignored if there is none |
//! | `saboteurs::…` | each case of the suite catches engines that are broken on purpose |
//! | `completeness` | no engine goes without the suite |

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fixtures;
mod memory_use;
mod recipes;
mod saboteurs;
#[path = "../it/support/mod.rs"]
mod support;
mod target;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use leasehold::Registry;
use leasehold::conformance::{THEMES, child, run_trials};
use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

/// Cases mostly sleep, so more at a time than there are processors; not many more, for their servers need those too.
const AT_A_TIME: usize = 6;

fn main() -> ExitCode {
    if child::serve(saboteurs::attach) || recipes::serve() || memory_use::serve() {
        return ExitCode::SUCCESS;
    }
    saboteurs::be_silent();
    let runtime = Arc::new(Runtime::new().unwrap());
    let mut trials = Vec::new();
    for suite in fixtures::all(&runtime) {
        trials.extend(suite.trials());
        // Behind a pooler or a server, and on a server of the same kind, it is the same engine.
        let is_again = ["pgbouncer", "valkey", "dynalite"].contains(&suite.name());
        if !is_again && !suite.name().starts_with("http-") {
            trials.extend(recipes::trials(&runtime, &suite));
            trials.extend(memory_use::trials(&suite));
        }
    }
    #[cfg(feature = "redis")]
    trials.push(recipes::trial_of_its_own(&runtime));
    #[cfg(feature = "redis")]
    trials.extend(fixtures::valkey::left_out());
    let names = trials.iter().map(|trial| trial.name().to_owned()).collect();
    trials.push(Trial::test("completeness", move || is_complete(&names)));
    run_trials(interleaved(trials, saboteurs::trials()), AT_A_TIME)
}

/// Every engine that is compiled in runs the suite.
fn is_complete(names: &BTreeSet<String>) -> Result<(), Failed> {
    for driver in Registry::builtin().drivers() {
        // The other schemes of a driver are other ways to the same engine.
        let scheme = driver.schemes[0];
        for theme in THEMES {
            for case in theme.cases.iter().filter(|case| case.needs.is_empty()) {
                let trial = format!("{scheme}::{}::{}", theme.name, case.name);
                if !names.contains(&trial) {
                    return Err(format!("{trial} is not run").into());
                }
            }
        }
    }
    Ok(())
}

/// The cases of one engine after another, so that few servers run at a time; and evenly among them those that need none.
fn interleaved(engines: Vec<Trial>, others: Vec<Trial>) -> Vec<Trial> {
    let every = (engines.len() / others.len().max(1)).max(1);
    let mut others = others.into_iter();
    let mut all = Vec::new();
    for (nth, trial) in engines.into_iter().enumerate() {
        all.push(trial);
        if nth % every == 0 {
            all.extend(others.next());
        }
    }
    all.extend(others);
    all
}
