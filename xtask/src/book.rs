//! The pages as HTML.

use std::fs;
use std::io;
use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, Tag, TagEnd, html};

use crate::pages::{CONTENTS, Page, Pages, REPOSITORY, Target, parse};

const STYLE: &str = include_str!("book.css");

/// Writes all pages, and the pictures beside them, to `folder`.
pub(crate) fn write(pages: &Pages, folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    fs::write(folder.join("book.css"), STYLE)?;
    for entry in pages.root.join("docs").read_dir()? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|end| end == "svg" || end == "png")
        {
            fs::copy(&path, folder.join(path.file_name().unwrap_or_default()))?;
        }
    }
    for (path, page) in &pages.pages {
        let file = folder.join(address(path));
        fs::create_dir_all(file.parent().unwrap_or(folder))?;
        fs::write(file, document(pages, path, page))?;
    }
    Ok(())
}

/// Where a page lies in the book.
fn address(path: &str) -> String {
    match path {
        "README.md" => "index.html".to_owned(),
        CONTENTS => "contents.html".to_owned(),
        path => path
            .trim_start_matches("docs/")
            .replace(".md", ".html")
            .to_lowercase(),
    }
}

fn document(pages: &Pages, path: &str, page: &Page) -> String {
    let up = "../".repeat(address(path).matches('/').count());
    let title = page
        .text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches('#');
    let title = title
        .trim()
        .replace('`', "")
        .replace('&', "&amp;")
        .replace('<', "&lt;");
    let navigation = match pages.pages.get(CONTENTS) {
        Some(contents) => body(pages, CONTENTS, contents, path),
        None => String::new(),
    };
    let body = body(pages, path, page, path);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"stylesheet\" href=\"{up}book.css\"></head>\n\
         <body><nav id=\"navigation\"><p><a href=\"{up}index.html\">leasehold</a></p>\n{navigation}</nav>\n\
         <main><p class=\"narrow\"><a href=\"{up}index.html\">leasehold</a> · <a href=\"#navigation\">contents</a></p>\n{body}</main></body></html>\n"
    )
}

/// The page `path` as HTML, with links as they must be on the page `seen_from`. The contents are the navigation of every other page.
fn body(pages: &Pages, path: &str, page: &Page, seen_from: &str) -> String {
    let up = "../".repeat(address(seen_from).matches('/').count());
    let as_navigation = path != seen_from;
    let mut anchors = page.anchors.iter();
    let mut rust = false;
    let events = parse(&page.text).map(|(mut event, _)| {
        match &mut event {
            Event::Start(Tag::Heading { id, .. }) if !as_navigation => {
                *id = anchors.next().map(|anchor| anchor.clone().into());
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                *dest_url = relative(pages, path, dest_url, &up).into();
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                rust = language.starts_with("rust");
            }
            Event::End(TagEnd::CodeBlock) => rust = false,
            Event::Text(text) if rust => *text = without_hidden_lines(text).into(),
            _ => {}
        }
        event
    });
    let mut written = String::new();
    html::push_html(&mut written, events);
    // Wide tables scroll by themselves instead of the page.
    written
        .replace("<table>", "<div class=\"table\"><table>")
        .replace("</table>", "</table></div>")
}

fn relative(pages: &Pages, from: &str, link: &str, up: &str) -> String {
    let Ok(Target::Inside(target, anchor)) = pages.resolve(from, link) else {
        return link.to_owned();
    };
    let anchor = anchor
        .map(|anchor| format!("#{anchor}"))
        .unwrap_or_default();
    if pages.pages.contains_key(&target) {
        format!("{up}{}{anchor}", address(&target))
    } else if target.ends_with(".svg") || target.ends_with(".png") {
        format!("{up}{}", target.trim_start_matches("docs/"))
    } else {
        format!("{REPOSITORY}{target}{anchor}")
    }
}

/// An example without the lines that rustdoc hides.
fn without_hidden_lines(code: &str) -> String {
    let hidden = |line: &&str| line.trim() == "#" || line.trim_start().starts_with("# ");
    code.split_inclusive('\n')
        .filter(|line| !hidden(line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::tests::repository;

    #[test]
    fn pages_link_to_each_other_and_hide_what_rustdoc_hides() {
        let example = "# A & B\n\n```rust\n# hidden();\nshown(\"<\");\n```\n| a |\n|---|\n| b |\n";
        let below = "# Below\n\n[up](../a.md#a--b) [contents](../README.md) [code](../../src/main.rs) [web](https://example.org)\n";
        let readme = format!("# leasehold\n\n![picture]({REPOSITORY}docs/lease.svg)\n");
        let folder = repository(&[
            ("README.md", &readme),
            (
                "docs/README.md",
                "# Contents\n\n- [A](a.md)\n- [B](engines/b.md)\n",
            ),
            ("docs/a.md", example),
            ("docs/engines/b.md", below),
            ("docs/lease.svg", "<svg/>"),
            ("src/main.rs", ""),
        ]);
        let book = folder.path().join("book");
        fs::create_dir(&book).unwrap();
        fs::write(book.join("of-before.html"), "").unwrap();
        write(&Pages::read(folder.path()).unwrap(), &book).unwrap();
        let read = |name: &str| fs::read_to_string(book.join(name)).unwrap();
        assert!(!book.join("of-before.html").exists());
        assert_eq!(read("lease.svg"), "<svg/>");
        assert!(read("index.html").contains("<img src=\"lease.svg\""));
        let a = read("a.html");
        assert!(a.contains("<title>A &amp; B</title>") && a.contains("<h1 id=\"a--b\">"));
        assert!(a.contains("shown(") && !a.contains("hidden()"), "{a}");
        assert!(a.contains("<div class=\"table\"><table>"));
        assert!(
            a.contains("<a href=\"engines/b.html\">B</a>"),
            "the navigation"
        );
        let b = read("engines/b.html");
        for link in [
            "../book.css",
            "../index.html",
            "../a.html#a--b",
            "../contents.html",
            "https://example.org",
            &format!("{REPOSITORY}src/main.rs"),
        ] {
            assert!(b.contains(&format!("href=\"{link}\"")), "{link}: {b}");
        }
    }
}
