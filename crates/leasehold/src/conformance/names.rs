//! Names are data: whatever they contain, each is a lock of its own.

use std::collections::BTreeSet;

use super::Ground;
use super::case::theme;
use super::ground::{LONG, claim, grant, is_refused};
use crate::name::LockName;

theme! { names:
    hostile_ones_are_locks_of_their_own [] caught by [NamesLowerCase, NamesFlattened, NamesTrimmed, NamesCutAtSlash, NamesComposed];
    long_ones_are_kept_whole [] caught by [NamesTruncated];
    each_is_shown_as_it_is [] caught by [InspectEscapesNames, NamesLowerCase];
    breaking_one_leaves_the_others [] caught by [BreakMatchesPatterns, BreakDoesNothing];
}

const HOSTILE: &[&str] = &[
    "a",
    "A",
    "b",
    "ab",
    "a/b",
    "a/b/",
    "a//b",
    "a/",
    "/a",
    "//",
    "../x",
    "..",
    ".",
    "./a",
    "x/../a",
    "%",
    "%%",
    "%2e",
    "%2E",
    "%2F",
    "%00",
    "a%",
    "_",
    "__",
    "a_",
    "{}",
    "{a}b",
    "{a",
    "}a{",
    "$a",
    "${a}",
    "'",
    "\"",
    "`",
    "''",
    "'; DROP TABLE locks; --",
    "\\",
    "\\\\",
    "\\0",
    "\\n",
    "*",
    "a*",
    "?",
    "a?",
    "[a]",
    "[",
    "^a",
    "a:",
    ":",
    ":a",
    "a,b",
    ",",
    "a;b",
    "#",
    "&",
    "=",
    "+",
    "~",
    "!",
    "@",
    "(",
    ")",
    "<b>",
    "|",
    "-",
    "--",
    "-a",
    "a\u{a0}",
    " a",
    "a ",
    "a  b",
    "a b",
    "NULL",
    "null",
    "nil",
    "true",
    "0",
    "00",
    "1e3",
    "1000",
    "\u{1f512}",
    "\u{1f512}\u{1f511}",
    "\u{fe0f}",
    "\u{200b}",
    "a\u{200b}",
    "\u{202e}a",
    "\u{feff}a",
    "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
    "\u{645}\u{631}\u{62d}\u{628}\u{627}",
    "e\u{301}",
    "\u{e9}",
    "\u{c9}",
    "\u{df}",
    "ss",
    "\u{130}",
    "i",
    "I",
    "\u{131}",
    "\u{212b}",
    "\u{c5}",
    "\u{fb01}",
    "fi",
    "\u{4e2d}\u{6587}",
    "\u{ffff}",
    "\u{10ffff}",
];

fn names(ground: &Ground) -> BTreeSet<String> {
    HOSTILE.iter().map(|rest| ground.name(rest)).collect()
}

async fn hostile_ones_are_locks_of_their_own(ground: Ground) {
    let (engine, other) = (ground.engine().await, ground.engine().await);
    let names = names(&ground);
    for name in &names {
        grant(&*engine, &claim(name, LONG)).await;
    }
    for name in &names {
        assert!(is_refused(&*other, &claim(name, LONG)).await, "{name:?}");
    }
}

async fn long_ones_are_kept_whole(ground: Ground) {
    let engine = ground.engine().await;
    let room = LockName::MAX_BYTES - ground.name("").len();
    let filled = |with: &str| {
        let mut rest = with.repeat(room / with.len());
        rest.push_str(&"y".repeat(room - rest.len()));
        rest
    };
    let mut rests = BTreeSet::new();
    for with in ["x", "/", "%", "'", "\u{1f512}", "../", "."] {
        let mut rest = filled(with);
        rests.insert(rest[..rest.len() - 1].to_owned());
        rest.pop();
        rests.insert(format!("{rest}a"));
        rests.insert(format!("{rest}b"));
    }
    let mut held = Vec::new();
    for rest in &rests {
        let claim = claim(&ground.name(rest), LONG);
        grant(&*engine, &claim).await;
        held.push(claim);
    }
    for claim in held {
        let query = crate::engine::Query::Name(claim.name.clone());
        let shown = engine.inspect(&query).await.unwrap();
        assert_eq!(shown[0].name, claim.name);
        engine.release(&claim).await.unwrap();
    }
}

async fn each_is_shown_as_it_is(ground: Ground) {
    let locks = ground.locks().await;
    let names = names(&ground);
    let mut held = Vec::new();
    for name in &names {
        let claim = claim(name, LONG);
        held.push(grant(&**locks.engine(), &claim).await.token);
    }
    for (name, token) in names.iter().zip(held) {
        let shown = locks.inspect(name).await.unwrap();
        assert_eq!(shown.name.as_str(), name);
        assert_eq!(shown.holders.len(), 1, "{name:?}");
        assert_eq!(shown.holders[0].token, token, "{name:?}");
    }
    let listed = locks.list(ground.name("")).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(listed, names.iter().collect::<Vec<_>>());
}

async fn breaking_one_leaves_the_others(ground: Ground) {
    let engine = ground.engine().await;
    let rests = ["%", "*", "a", "a%", "a*", "a/b", "[a]", "_"];
    for rest in rests {
        grant(&*engine, &claim(&ground.name(rest), LONG)).await;
    }
    for (nth, rest) in rests.iter().enumerate() {
        let name = LockName::new(ground.name(rest)).unwrap();
        engine.force_release(&name).await.unwrap();
        for other in &rests[nth + 1..] {
            let other = claim(&ground.name(other), LONG);
            assert!(
                is_refused(&*engine, &other).await,
                "{rest:?} broke {other:?}"
            );
        }
        grant(&*engine, &claim(&ground.name(rest), LONG)).await;
    }
}
