//! Every public async function says when it fails, and what becomes of its work if its future is dropped.

use std::fs;
use std::path::Path;

use crate::layers::{CRATE, files_under};

/// The public async functions of a file that lack a section: those of types, and those of traits.
fn without_sections(code: &str) -> Vec<String> {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines: Vec<&str> = code.lines().collect();
    let mut in_public_trait = false;
    let mut found = Vec::new();
    for (nth, line) in lines.iter().enumerate() {
        in_public_trait = line.starts_with("pub trait ") || in_public_trait && *line != "}";
        let line = line.trim_start();
        let in_trait = in_public_trait && line.starts_with("async fn ");
        if !in_trait && !line.starts_with("pub async fn ") {
            continue;
        }
        let above = lines[..nth].iter().rev().map(|line| line.trim_start());
        let above: Vec<_> = above
            .take_while(|line| line.starts_with("///") || line.starts_with("#["))
            .collect();
        if above.contains(&"#[doc(hidden)]") {
            continue;
        }
        let ends = |line: &&str| line.ends_with(['{', ';', '}']);
        let end = lines[nth..].iter().position(ends).unwrap_or_default();
        let can_fail = lines[nth..=nth + end].iter().any(|l| l.contains("Result<"));
        if can_fail && !above.contains(&"/// # Errors") {
            found.push(format!("no `# Errors`: {line}"));
        }
        if !above.contains(&"/// # Cancel safety") {
            found.push(format!("no `# Cancel safety`: {line}"));
        }
    }
    found
}

#[test]
fn public_async_functions_tell_errors_and_cancellation() {
    let mut found = Vec::new();
    let source = Path::new(CRATE).join("src");
    for file in files_under(&source) {
        // Tools: nobody drops the futures of the suite or of the bench.
        let tools = ["conformance", "engine/baseline.rs"].map(|tool| source.join(tool));
        if !tools.iter().any(|tool| file.starts_with(tool)) {
            found.extend(without_sections(&fs::read_to_string(file).unwrap()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_missing_section_is_found() {
    let code = "/// A.\npub async fn a() {\npub trait B {\n    async fn b(\n    ) -> Result<()>;\n}\nasync fn c() {";
    assert_eq!(without_sections(code).len(), 3);
}
