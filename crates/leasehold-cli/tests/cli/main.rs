//! The command line as a person or a script uses it: the real binary, on a file of its own.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod aws;
mod deadlocks;
mod disk;
mod doctor;
mod elect;
mod engine_url;
mod engines;
mod exit_codes;
mod help;
mod hooks;
mod ids;
mod json;
mod loss;
mod many;
mod nested;
mod once_per;
mod output;
mod redis;
mod revoke;
mod sandbox;
mod schema;
mod scripts;
mod secrets;
mod serve;
mod signals;
mod stderr;
mod sticky;
mod store;
mod support;
mod terminal;
mod torture;
mod waiting;
