//! Every finding has a name that `accept=` knows and that docs/doctor.md explains.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use leasehold::Registry;

use crate::layers::{CRATE, files_under};

/// The names that the engines give to findings.
fn used() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files_under(&Path::new(CRATE).join("src/engine")) {
        let code = fs::read_to_string(&file).unwrap();
        let code = code.split("#[cfg(test)]\nmod tests").next().unwrap();
        for kind in ["good", "unknown", "warning", "efficiency", "unfit", "of"] {
            for call in code.split(&format!("Finding::{kind}(")).skip(1) {
                let argument = call.trim_start();
                if let Some(name) = argument.strip_prefix('"') {
                    names.insert(name.split('"').next().unwrap().to_owned());
                }
            }
        }
    }
    assert!(names.len() > 40, "{names:?}");
    names
}

#[test]
fn every_finding_is_known_and_explained() {
    let page = fs::read_to_string(format!("{CRATE}/../../docs/doctor.md")).unwrap();
    let error = Registry::builtin().parse("memory:?accept=x").unwrap_err();
    let advice = error.advice().unwrap();
    let (_, known) = advice.split_once("the known ones are ").unwrap();
    let known: BTreeSet<_> = known.split(", ").map(str::to_owned).collect();
    for name in used().union(&known) {
        assert!(known.contains(name), "accept= does not know {name}");
        assert!(
            page.contains(&format!("| `{name}` |")),
            "{name} is not explained"
        );
    }
}
