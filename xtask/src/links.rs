//! The link checker.

use crate::pages::{CONTENTS, Pages, Target, links};

/// A line for each broken link: `file:line: link: why`.
pub(crate) fn broken(pages: &Pages) -> Vec<String> {
    let mut broken = Vec::new();
    let mut listed = vec![CONTENTS.to_owned(), "README.md".to_owned()];
    for (path, page) in &pages.pages {
        for (line, link) in links(&page.text) {
            let problem = match pages.resolve(path, &link) {
                Ok(Target::Elsewhere) => continue,
                Ok(Target::Inside(target, anchor)) => {
                    let problem = check(pages, path, &link, &target, anchor.as_deref());
                    if path == CONTENTS {
                        listed.push(target);
                    }
                    problem
                }
                Err(problem) => Some(problem),
            };
            if let Some(problem) = problem {
                broken.push(format!("{path}:{line}: {link}: {problem}"));
            }
        }
    }
    for path in pages.pages.keys().filter(|path| !listed.contains(path)) {
        broken.push(format!(
            "{CONTENTS}:1: {path}: the page is not in the table of contents"
        ));
    }
    broken
}

fn check(
    pages: &Pages,
    from: &str,
    link: &str,
    target: &str,
    anchor: Option<&str>,
) -> Option<&'static str> {
    if from == "README.md" && !link.starts_with("https://") && !link.starts_with('#') {
        return Some("must be absolute, since the README is also the front page of the crate");
    }
    if !pages.root.join(target).exists() {
        return Some("there is no such file");
    }
    match (anchor, pages.pages.get(target)) {
        (Some(anchor), Some(page)) if !page.anchors.iter().any(|known| known == anchor) => {
            Some("the page has no such heading")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::REPOSITORY;
    use crate::pages::tests::repository;

    fn check_pages(files: &[(&str, &str)]) -> Vec<String> {
        broken(&Pages::read(repository(files).path()).unwrap())
    }

    const CONTENTS_PAGE: (&str, &str) = (
        "docs/README.md",
        "[a](a.md) [contributing](../CONTRIBUTING.md)",
    );

    #[test]
    fn good_links_pass() {
        let a = "# A b\n[own](#a-b) [up](../README.md) [web](https://example.org/x) [code](../Cargo.toml)";
        let readme = format!("[a]({REPOSITORY}docs/a.md#a-b)");
        let files = [
            CONTENTS_PAGE,
            ("docs/a.md", a),
            ("README.md", &readme),
            ("Cargo.toml", ""),
        ];
        assert_eq!(check_pages(&files), [""; 0]);
    }

    #[test]
    fn each_broken_link_is_named_with_its_line() {
        let a =
            "# A\n\n[gone](b.md)\n[anchor](#b) ![picture](x.svg)\n[out](../../x) `[code](b.md)`";
        let readme = format!("[relative](docs/a.md)\n[anchor]({REPOSITORY}docs/a.md#b)");
        let found = check_pages(&[CONTENTS_PAGE, ("docs/a.md", a), ("README.md", &readme)]);
        let places: Vec<_> = found
            .iter()
            .map(|line| line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            places,
            [
                "README.md:1 docs/a.md".to_owned(),
                format!("README.md:2 {REPOSITORY}docs/a.md#b"),
                "docs/a.md:3 b.md".to_owned(),
                "docs/a.md:4 #b".to_owned(),
                "docs/a.md:4 x.svg".to_owned(),
                "docs/a.md:5 ../../x".to_owned(),
            ]
        );
    }

    #[test]
    fn page_outside_the_contents_is_reported() {
        let found = check_pages(&[
            ("docs/README.md", "[c](../CONTRIBUTING.md)"),
            ("docs/a.md", ""),
        ]);
        assert_eq!(
            found,
            ["docs/README.md:1: docs/a.md: the page is not in the table of contents"]
        );
    }
}
