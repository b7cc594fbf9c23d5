//! Where a request comes from.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use http::request::Parts;

/// The address of the client, if it is known. A service that nests the router can insert it into the extensions of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub Option<IpAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.to_canonical().fmt(f),
            None => f.write_str("unknown"),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Peer(None)))
    }
}
