//! The layers that CONTRIBUTING.md lists are those of the code: no module imports one that stands after it, and no engine another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn layers() -> Vec<String> {
    let text = fs::read_to_string(format!("{CRATE}/../../CONTRIBUTING.md")).unwrap();
    let (_, list) = text.split_once("```layers\n").expect("a list of layers");
    let (list, _) = list.split_once("```").expect("its end");
    list.split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|is| is == "rs"));
    rust.chain(folders.iter().flat_map(|folder| files_under(folder)))
        .collect()
}

/// The module of the crate that a file belongs to.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix(format!("{CRATE}/src")).unwrap();
    let first = inside.iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// What is named right behind `path` in some code: `a` and `b` for `path::a::c` as well as for `path::{a::c, b}`. Comments do not count, nor do
/// tests, which may use whatever they like.
fn named_behind(path: &str, code: &str) -> BTreeSet<String> {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for behind in code.split(path).skip(1) {
        match behind.strip_prefix('{') {
            Some(group) => names.extend(members(group).iter().map(|member| first_name(member))),
            None => drop(names.insert(first_name(behind))),
        }
    }
    names
}

fn first_name(path: &str) -> String {
    let path = path.trim_start();
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
    path[..end.unwrap_or(path.len())].to_owned()
}

/// What stands between the commas of a group that has just been opened, up to its end.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut members) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                members.push(&group[begin..at]);
                begin = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    members.retain(|member| !member.trim().is_empty());
    members
}

/// What the crate exports at its top, and from which module: `pub use module::Name` and `pub use module::{Name, Other}`.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for export in lib.split("\npub use ").skip(1) {
        let (module, names) = export.split_once("::").unwrap();
        let names = names.split(';').next().unwrap();
        let names = match names.strip_prefix('{') {
            Some(group) => members(group),
            None => vec![names],
        };
        for name in names {
            exports.insert(first_name(name), module.to_owned());
        }
    }
    exports
}

/// The modules of the crate that some code names, also by what they export at the top of the crate.
fn modules_named(code: &str, exports: &BTreeMap<String, String>) -> BTreeSet<String> {
    let names = named_behind("crate::", code).into_iter();
    names
        .map(|name| exports.get(&name).cloned().unwrap_or(name))
        .collect()
}

fn source(file: impl AsRef<Path>) -> String {
    fs::read_to_string(Path::new(CRATE).join("src").join(file)).unwrap()
}

#[test]
fn no_module_imports_one_above_it() {
    let (layers, exports) = (layers(), exports(&source("lib.rs")));
    let height = |module: &str| layers.iter().position(|layer| layer == module);
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in files_under(&Path::new(CRATE).join("src")) {
        let module = module_of(&file);
        if module == "lib" {
            continue;
        }
        let Some(own) = height(&module) else {
            panic!("{module} is not in the list of layers in CONTRIBUTING.md");
        };
        for named in modules_named(&source(&file), &exports) {
            match height(&named) {
                Some(other) if other <= own => {}
                Some(_) => wrong.push(format!("{} imports {named}", file.display())),
                None => wrong.push(format!("{}: what is {named}?", file.display())),
            }
        }
        seen.insert(module);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for layer in &layers {
        assert!(seen.contains(layer), "there is no module {layer}");
    }
}

/// Redlock is made of Redis servers; no other engine knows another.
const MAY_IMPORT: &[(&str, &str)] = &[("redlock", "redis")];

#[test]
fn no_engine_imports_another() {
    let folder = Path::new(CRATE).join("src/engine");
    let engine_of = |file: &Path| {
        let inside = file.strip_prefix(&folder).unwrap();
        let first = inside.iter().next().unwrap().to_str().unwrap();
        first.trim_end_matches(".rs").to_owned()
    };
    let files = files_under(&folder);
    let has_driver = |file: &&PathBuf| source(file).contains("pub const DRIVER: Driver");
    let engines: BTreeSet<_> = files
        .iter()
        .filter(has_driver)
        .map(|file| engine_of(file))
        .collect();
    assert!(engines.len() >= 8, "{engines:?}");
    let mut wrong = Vec::new();
    for file in &files {
        let own = engine_of(file);
        let code = source(file);
        let named = ["crate::engine::", "super::super::", "super::super::super::"]
            .iter()
            .flat_map(|path| named_behind(path, &code));
        for other in named.filter(|name| engines.contains(name) && *name != own) {
            if !MAY_IMPORT.contains(&(&own, &other)) {
                wrong.push(format!("{} imports {other}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_form_of_an_import_is_found() {
    let lib = "mod locks;\npub use lease::Lease;\npub use locks::{LockRequest,\n    Locks};\n";
    let exports = exports(lib);
    let found = |code: &str| -> Vec<_> { modules_named(code, &exports).into_iter().collect() };
    for (code, modules) in [
        ("use crate::engine::{Engine};", &["engine"][..]),
        ("fn a() { crate::url::b() }", &["url"]),
        (
            "use crate::{\n    claim::{Claim, Mode},\n    url,\n};",
            &["claim", "url"],
        ),
        ("use {crate::hold::Hold, std::fmt};", &["hold"]),
        ("pub(crate) use crate::token as number;", &["token"]),
        ("use crate::{Lease, Locks as Handle};", &["lease", "locks"]),
        ("fn a() -> crate::LockRequest {}", &["locks"]),
        ("fn a(b: &[crate::Unknown]) {}", &["Unknown"]),
        ("    // crate::locks\n/// [`x`](crate::locks)", &[]),
        ("#[cfg(test)]\nmod tests { use crate::locks::Locks; }", &[]),
    ] {
        assert_eq!(found(code), modules, "{code}");
    }
    let named = named_behind("crate::engine::", "use crate::engine::{redis::x, Wake};");
    assert!(named.contains("redis"), "{named:?}");
}
