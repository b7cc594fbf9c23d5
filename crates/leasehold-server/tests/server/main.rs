//! The server as its clients see it: its routes without a socket, and real servers on the loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod dashboard;
mod described;
mod engine;
mod input;
mod locks;
mod records;
mod shared;
mod shown;
mod streams;
mod support;
