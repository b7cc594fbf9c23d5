//! What the pages promise besides their links: the tests that they cite exist, and every engine's page has the same headings.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use pulldown_cmark::{Event, HeadingLevel, Tag, TagEnd};

use crate::pages::{Pages, parse};

/// The page that cites tests.
const FOUND_BUGS: &str = "docs/dev/found-bugs.md";

/// The headings of an engine's page, in this order.
const HEADINGS: [&str; 6] = [
    "URL and options",
    "Requirements and privileges",
    "Guarantees",
    "Failure modes",
    "Sharing locks with other programs",
    "Tuning",
];

/// A line for each rule that is broken: `file:line: what`.
pub(crate) fn broken(pages: &Pages) -> io::Result<Vec<String>> {
    let mut broken = Vec::new();
    if let Some(page) = pages.pages.get(FOUND_BUGS) {
        let mut known = HashSet::new();
        names_under(&pages.root.join("crates"), &mut known)?;
        for (line, test) in cited(&page.text) {
            if !known.contains(last_part(&test)) {
                broken.push(format!("{FOUND_BUGS}:{line}: there is no test {test}"));
            }
        }
        for (line, row) in repeated_rows(&page.text) {
            broken.push(format!(
                "{FOUND_BUGS}:{line}: the row is there twice: {row}"
            ));
        }
    }
    for (path, page) in &pages.pages {
        if path.starts_with("docs/engines/") && headings(&page.text) != HEADINGS {
            let expected = HEADINGS.join(", ");
            broken.push(format!("{path}:1: the headings must be {expected}"));
        }
    }
    Ok(broken)
}

/// The paths of tests on a page, such as `redis::faults::server_restarts`, each with its line.
fn cited(text: &str) -> Vec<(usize, String)> {
    let is_part = |part: &str| {
        let mut letters = part.chars();
        !part.is_empty()
            && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_…*".contains(c))
    };
    let codes = parse(text).filter_map(|(event, at)| match event {
        Event::Code(code) => Some((
            text[..at.start].matches('\n').count() + 1,
            code.into_string(),
        )),
        _ => None,
    });
    codes
        .filter(|(_, code)| code.contains("::") && code.split("::").all(is_part))
        .collect()
}

/// What a path names: its function; the module, if it means all of them.
fn last_part(path: &str) -> &str {
    let mut parts = path.rsplit("::").filter(|part| *part != "*");
    parts.next().unwrap_or_default()
}

/// The names of all functions in this folder, and of all modules.
fn names_under(folder: &Path, names: &mut HashSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(name) = path.file_stem() {
            names.insert(name.to_string_lossy().into_owned());
        }
        if path.is_dir() {
            names_under(&path, names)?;
        } else if path.extension().is_some_and(|is| is == "rs") {
            let code = fs::read_to_string(&path)?;
            let functions = code.split("fn ").skip(1).map(|after| {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_');
                after[..end.unwrap_or(after.len())].to_owned()
            });
            names.extend(functions);
        }
    }
    Ok(())
}

/// Rows of a table whose first cell is that of a row above.
fn repeated_rows(text: &str) -> Vec<(usize, &str)> {
    let mut seen = HashSet::new();
    let rows = text.lines().enumerate().filter_map(|(nth, line)| {
        let (first, _) = line.strip_prefix("| ")?.split_once(" | ")?;
        Some((nth + 1, first))
    });
    rows.filter(|(_, first)| !seen.insert(*first)).collect()
}

/// The headings below the title.
fn headings(text: &str) -> Vec<String> {
    let (mut headings, mut inside) = (Vec::new(), false);
    for (event, _) in parse(text) {
        match event {
            Event::Start(Tag::Heading {
                level: HeadingLevel::H2,
                ..
            }) => {
                inside = true;
                headings.push(String::new());
            }
            Event::End(TagEnd::Heading(_)) => inside = false,
            Event::Text(text) | Event::Code(text) if inside => {
                if let Some(heading) = headings.last_mut() {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    headings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::tests::repository;

    #[test]
    fn cited_test_that_is_not_there_is_reported() {
        let code = "#[test]\nfn server_restarts() {}\n";
        let bugs = "| bug | shown by |\n|---|---|\n| a | `redis::faults::server_restarts` |\n| b | `redis::faults::gone` |\n\
            | c | `redis::faults`, `Error::kind`, `faults::*` |\n| a | `other::*` |\n";
        let folder = repository(&[
            ("crates/a/redis/faults.rs", code),
            ("docs/dev/found-bugs.md", bugs),
        ]);
        let found = broken(&Pages::read(folder.path()).unwrap()).unwrap();
        assert_eq!(
            found,
            [
                "docs/dev/found-bugs.md:4: there is no test redis::faults::gone",
                "docs/dev/found-bugs.md:6: there is no test other::*",
                "docs/dev/found-bugs.md:6: the row is there twice: a",
            ]
        );
    }

    #[test]
    fn engine_page_with_other_headings_is_reported() {
        let fine: String = HEADINGS.map(|heading| format!("## {heading}\n\n")).concat();
        let folder = repository(&[
            ("docs/engines/a.md", &format!("# A\n\n{fine}")),
            ("docs/engines/b.md", &fine.replace("## Tuning", "## Speed")),
        ]);
        let found = broken(&Pages::read(folder.path()).unwrap()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("docs/engines/b.md:1: the headings must be URL"));
    }
}
