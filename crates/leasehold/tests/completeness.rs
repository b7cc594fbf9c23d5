//! No engine goes without the suite: the test binary of each compiled-in scheme is asked which
//! trials it would run.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::process::Command;

use leasehold::conformance::THEMES;
use leasehold::engine::DRIVERS;

/// What `tests/<scheme>.rs` would run. Cargo has built it already if it runs this test as well.
fn trials_of(scheme: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--offline", "--quiet", "--all-features"]);
    // As ./test.sh builds it: another choice of packages would build everything anew.
    cargo.args(["--workspace", "--test", scheme]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.args(["--", "--list"]).output().unwrap();
    assert!(
        output.status.success(),
        "there is no tests/{scheme}.rs that lists its trials: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listed = String::from_utf8(output.stdout).unwrap();
    let trials = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    trials.map(str::to_owned).collect()
}

#[test]
fn every_compiled_scheme_runs_the_suite() {
    for driver in DRIVERS {
        // The other schemes of a driver are other ways to the same engine.
        let scheme = driver.schemes[0];
        let trials = trials_of(scheme);
        for theme in THEMES {
            for case in theme.cases.iter().filter(|case| case.needs.is_empty()) {
                let trial = format!("{scheme}::{}::{}", theme.name, case.name);
                assert!(trials.contains(&trial), "{trial} is not run");
            }
        }
    }
}
