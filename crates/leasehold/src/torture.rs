//! What `leasehold torture` and the [conformance suite](crate::conformance) share: a recorded history and its checks, a network
//! that can be cut, and a wall clock that can be stepped.

pub mod history;
pub mod proxy;

pub use crate::token::step_wall_clock;
