#![doc = include_str!("../README.md")]
//!
//! # A map of the crate
//!
//! | module | what is there |
//! |---|---|
//! | [`app`] | the routes (`routes.rs`, `routes/`) |
//! | [`State`], [`Settings`], [`Limits`] | what they share, and how a server is set up |
//! | [`serve`], [`Listening`] | listening, TLS, limits, and the end (`serve.rs`) |
//! | [`Tokens`], [`NewToken`], [`Scope`] | who may do what (`tokens.rs`, `access.rs`) |
//! | [`serve_leadership`] | a sidecar of an election (`leadership.rs`) |
//! | `connection.rs` | whether a client is still there |
//! | `places.rs` | the places in queues that claims have through this server |
//! | `dashboard/` | the page at `/`, and the table without JavaScript |
//! | `activity.rs` | events, history, contention: for people |
//! | `doctor.rs` | what the engine's settings mean for locks |
//! | `openapi.rs` | the description of the API |
//! | `problem.rs` | errors as `application/problem+json` |

#![forbid(unsafe_code)]

mod access;
mod activity;
mod audit;
mod connection;
mod dashboard;
mod doctor;
mod leadership;
mod limits;
mod metrics;
mod openapi;
mod peer;
mod places;
mod problem;
mod request;
mod routes;
mod serve;
mod shapes;
mod state;
mod time;
mod tokens;

pub use access::Scope;
pub use leadership::serve_leadership;
pub use limits::Limits;
pub use peer::Peer;
pub use routes::app;
pub use serve::{Listening, Tls, serve};
pub use state::{Settings, State};
pub use tokens::{NewToken, Tokens};
