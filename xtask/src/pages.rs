//! The pages, their headings and their links.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Where the repository is on the web. README links to it by absolute addresses, since it is also the front page of the crate.
pub(crate) const REPOSITORY: &str = "https://github.com/leasehold/leasehold/blob/main/";
const OTHER_ADDRESSES: [&str; 2] = [
    "https://github.com/leasehold/leasehold/tree/main/",
    "https://raw.githubusercontent.com/leasehold/leasehold/main/",
];

/// The table of contents: it becomes the navigation of the book.
pub(crate) const CONTENTS: &str = "docs/README.md";

/// All pages, by their path in the repository.
pub(crate) struct Pages {
    pub(crate) root: PathBuf,
    pub(crate) pages: BTreeMap<String, Page>,
}

pub(crate) struct Page {
    pub(crate) text: String,
    /// The anchors of its headings, in order, as GitHub makes them.
    pub(crate) anchors: Vec<String>,
}

/// Where a link leads.
pub(crate) enum Target {
    /// A path in the repository, and an anchor.
    Inside(String, Option<String>),
    Elsewhere,
}

impl Pages {
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut paths = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
        for folder in ["docs", "docs/engines", "docs/dev"] {
            for entry in root.join(folder).read_dir().into_iter().flatten() {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if name.ends_with(".md") {
                    paths.push(format!("{folder}/{name}"));
                }
            }
        }
        let mut pages = BTreeMap::new();
        for path in paths {
            let text = std::fs::read_to_string(root.join(&path))?;
            let anchors = anchors(&text);
            pages.insert(path, Page { text, anchors });
        }
        let root = root.to_owned();
        Ok(Self { root, pages })
    }

    /// Where a link on the page `from` leads; `Err` if it leads out of the repository.
    pub(crate) fn resolve(&self, from: &str, link: &str) -> Result<Target, &'static str> {
        let absolute = [REPOSITORY]
            .iter()
            .chain(&OTHER_ADDRESSES)
            .find_map(|address| link.strip_prefix(address));
        if absolute.is_none() && (link.contains("://") || link.starts_with("mailto:")) {
            return Ok(Target::Elsewhere);
        }
        let (path, anchor) = match absolute.unwrap_or(link).split_once('#') {
            Some((path, anchor)) => (path, Some(anchor.to_owned())),
            None => (absolute.unwrap_or(link), None),
        };
        if absolute.is_none() && path.is_empty() {
            return Ok(Target::Inside(from.to_owned(), anchor));
        }
        let folder = match absolute {
            Some(_) => "",
            None => from.rsplit_once('/').map_or("", |(folder, _)| folder),
        };
        let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop().ok_or("leads out of the repository")?),
                part => parts.push(part),
            }
        }
        Ok(Target::Inside(parts.join("/"), anchor))
    }
}

pub(crate) fn parse(text: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH).into_offset_iter()
}

/// The links and images of a page, each with its line.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    parse(text)
        .filter_map(|(event, at)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some((
                text[..at.start].matches('\n').count() + 1,
                dest_url.into_string(),
            )),
            _ => None,
        })
        .collect()
}

fn anchors(text: &str) -> Vec<String> {
    let (mut anchors, mut heading, mut seen) = (Vec::new(), None, HashMap::new());
    for (event, _) in parse(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let times = seen.entry(anchor.clone()).or_insert(0);
                anchors.push(match *times {
                    0 => anchor,
                    times => format!("{anchor}-{times}"),
                });
                *times += 1;
            }
            _ => {}
        }
    }
    anchors
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A repository with these files, and the pages that every one has.
    pub(crate) fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let always = [("CONTRIBUTING.md", ""), ("README.md", "")];
        for (path, text) in always.iter().chain(files) {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# What can go wrong?\n## `--url-file` and more\n## Same\n## Same\n```\n# no heading\n```\n";
        assert_eq!(
            anchors(text),
            ["what-can-go-wrong", "--url-file-and-more", "same", "same-1"]
        );
    }
}
