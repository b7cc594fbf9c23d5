//! What the engines on AWS share: signed requests over HTTP.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs` | regions and endpoints, as every AWS tool finds them |
//! | `client.rs` | one request and its answer |
//! | `credentials.rs` | who we are |
//! | `failure.rs` | errors that are the same everywhere |

pub(crate) mod client;
pub(crate) mod config;
mod credentials;
pub(crate) mod failure;
