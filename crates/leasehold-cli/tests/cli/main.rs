//! The command line as a person or a script uses it: the real binary, on a file of its own.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod deadlocks;
mod disk;
mod elect;
mod engines;
mod exit_codes;
mod help;
mod ids;
mod json;
mod loss;
mod many;
mod nested;
mod once_per;
mod output;
mod place;
mod redis;
mod revoke;
mod schema;
mod scripts;
mod signals;
mod store;
mod support;
mod terminal;
mod waiting;
