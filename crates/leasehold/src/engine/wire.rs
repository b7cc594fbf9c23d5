//! What the `http:` engine and a leasehold server say to each other: one message for each call of the engine contract, in JSON.
//!
//! It is versioned by [`PROTOCOL`], and changes with it. Programs in other languages use the routes of docs/http.md instead.

mod capabilities;
mod claims;
mod findings;
mod grants;
mod locks;
mod problem;
mod records;

use std::time::Duration;

pub use self::capabilities::{CapabilitiesMessage, EngineMessage};
pub use self::claims::ClaimMessage;
pub use self::findings::{FindingMessage, FindingsMessage, FindingsRequest};
pub use self::grants::{
    AttemptMessage, GrantMessage, ReleasedMessage, RenewMessage, RenewOneMessage, RenewalMessage,
    RenewedMessage, WakeMessage, loss,
};
pub use self::locks::{LockMessage, NameMessage, QueryMessage};
pub use self::problem::{Problem, effect, kind};
pub use self::records::{
    ContentMessage, RecordAnswer, RecordCall, RecordMessage, decode_base64, encode_base64, pass,
};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// The version of the messages. A client refuses a server with another one.
pub const PROTOCOL: u32 = 1;

/// How many claims are renewed with one request.
pub const LARGEST_BATCH: usize = 1_000;

fn token(number: u64) -> Result<FencingToken> {
    FencingToken::new(number).ok_or_else(|| nonsense("a fencing token"))
}

fn nonsense(what: &str) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!("the server's answer has {what} that cannot be understood"),
    )
    .advise("use the same version of leasehold for client and server")
    .of_unknown_effect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
