//! Tasks of the repository: `cargo run -p xtask -- book` builds the documentation as HTML pages in `target/book`,
//! `cargo run -p xtask -- links` checks its links, its headings and the tests that it cites. `book` checks them too.
//! `cargo run -p xtask -- test` runs all tests.

mod book;
mod links;
mod pages;
mod rules;
mod test_run;

use std::path::Path;
use std::process::ExitCode;

use pages::Pages;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = folder.parent().unwrap_or(folder);
    let task = std::env::args().nth(1).unwrap_or_default();
    match run(&task, root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &str, root: &Path) -> Result<(), String> {
    if task == "test" {
        return test_run::run();
    }
    if !["book", "links"].contains(&task) {
        return Err("usage: cargo run -p xtask -- book|links|test".to_owned());
    }
    let pages = Pages::read(root).map_err(|error| format!("cannot read the pages: {error}"))?;
    let mut broken = links::broken(&pages);
    let rules = rules::broken(&pages).map_err(|error| format!("cannot read the tests: {error}"))?;
    broken.extend(rules);
    if !broken.is_empty() {
        let count = broken.len();
        return Err(format!(
            "{}\n{count} broken links or rules",
            broken.join("\n")
        ));
    }
    if task == "book" {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), Into::into);
        let folder = target.join("book");
        book::write(&pages, &folder).map_err(|error| format!("cannot write the book: {error}"))?;
        println!("{}", folder.join("index.html").display());
    }
    Ok(())
}
