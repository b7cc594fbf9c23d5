//! Grants: attempts, waits, renewals and releases, and what they are answered with.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ClaimMessage, Problem, micros, token};
use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::{Attempt, Contention, Grant, LossReason, Released, Renew, Renewal, Wake};
use crate::error::Result;
use crate::token::FencingToken;

/// A [`Grant`]. The validity counts from the answer on; what the server has taken to answer comes before that.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct GrantMessage {
    token: u64,
    valid_us: u64,
    took_us: u64,
}

impl GrantMessage {
    /// A grant, told now by a server that received the request at `received`.
    pub fn new(grant: &Grant, received: Moment, now: Moment) -> Self {
        Self {
            token: grant.token.get(),
            valid_us: micros(grant.valid_until.since(now)),
            took_us: micros(now.since(received)),
        }
    }

    /// The grant, for a client that sent the request at `sent`: before the server received it, so that its validity ends no later
    /// than the server's. A waiter is answered after up to a minute, and two clocks drift apart by less than a thousandth in that time.
    ///
    /// # Errors
    ///
    /// `Unexpected` if there is no such token.
    pub fn into_grant(self, sent: Moment) -> Result<Grant> {
        let took_us = self.took_us - self.took_us / 1000;
        let valid = Duration::from_micros(took_us.saturating_add(self.valid_us));
        Ok(Grant::new(token(self.token)?, sent + valid))
    }
}

/// An [`Attempt`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptMessage {
    /// See [`Attempt::Granted`].
    Granted(GrantMessage),
    /// See [`Attempt::Held`].
    Held {
        /// See [`Contention::look_again_in`].
        look_again_us: Option<u64>,
        /// See [`Contention::ahead`].
        ahead: Option<usize>,
        /// See [`Contention::because`].
        because: Option<String>,
    },
}

impl AttemptMessage {
    /// An attempt's answer, told now.
    pub fn new(attempt: Attempt, received: Moment, now: Moment) -> Self {
        match attempt {
            Attempt::Granted(grant) => Self::Granted(GrantMessage::new(&grant, received, now)),
            Attempt::Held(contention) => Self::Held {
                look_again_us: contention.look_again_in.map(micros),
                ahead: contention.ahead,
                because: contention.because,
            },
        }
    }

    /// The answer, for a client that sent the request then.
    ///
    /// # Errors
    ///
    /// `Unexpected` if there is no such token.
    pub fn into_attempt(self, sent: Moment) -> Result<Attempt> {
        Ok(match self {
            Self::Granted(grant) => Attempt::Granted(grant.into_grant(sent)?),
            Self::Held {
                look_again_us,
                ahead,
                because,
            } => Attempt::Held(Contention {
                look_again_in: look_again_us.map(Duration::from_micros),
                ahead,
                because,
            }),
        })
    }
}

/// A [`Wake`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeMessage {
    /// See [`Wake::Retry`].
    Retry,
    /// See [`Wake::Granted`].
    Granted(GrantMessage),
}

impl WakeMessage {
    /// The answer, for a client that sent the request then.
    ///
    /// # Errors
    ///
    /// `Unexpected` if there is no such token.
    pub fn into_wake(self, sent: Moment) -> Result<Wake> {
        Ok(match self {
            Self::Retry => Wake::Retry,
            Self::Granted(grant) => Wake::Granted(grant.into_grant(sent)?),
        })
    }
}

/// A batch of renewals.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewMessage {
    /// The claims, [`LARGEST_BATCH`](super::LARGEST_BATCH) at most.
    pub claims: Vec<RenewOneMessage>,
}

/// A [`Renew`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewOneMessage {
    /// The claim.
    pub claim: ClaimMessage,
    /// Its token.
    pub token: Option<u64>,
    /// See [`Renew::shorten`]. Whoever knows the claim id may release the claim, and so may shorten it.
    pub shorten: bool,
}

impl From<&Renew<'_>> for RenewOneMessage {
    fn from(renew: &Renew<'_>) -> Self {
        Self {
            claim: renew.claim.into(),
            token: renew.token.map(FencingToken::get),
            shorten: renew.shorten,
        }
    }
}

impl RenewOneMessage {
    /// The claim to be renewed, and the rest of the [`Renew`].
    ///
    /// # Errors
    ///
    /// Those of [`ClaimMessage::into_claim`].
    pub fn into_parts(self) -> Result<(Claim, Option<FencingToken>, bool)> {
        Ok((
            self.claim.into_claim()?,
            self.token.and_then(FencingToken::new),
            self.shorten,
        ))
    }
}

/// The answers to a batch, in the same order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RenewedMessage {
    /// One for each claim.
    pub results: Vec<RenewalMessage>,
}

/// A [`Renewal`], or why it failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RenewalMessage {
    /// See [`Renewal::Renewed`].
    Renewed(GrantMessage),
    /// See [`Renewal::Lost`]: `gone`, `session_ended`, `expired`, `max_hold` or `released`.
    Lost(String),
    /// It is unknown.
    Failed(Problem),
}

impl RenewalMessage {
    /// An answer, told now.
    pub fn new(renewal: Result<Renewal>, received: Moment, now: Moment) -> Self {
        match renewal {
            Ok(Renewal::Renewed(grant)) => Self::Renewed(GrantMessage::new(&grant, received, now)),
            Ok(Renewal::Lost(reason)) => Self::Lost(loss(&reason).to_owned()),
            Err(error) => Self::Failed(Problem::of(&error)),
        }
    }

    /// The answer, for a client that sent the request then.
    ///
    /// # Errors
    ///
    /// What the server failed with.
    pub fn into_renewal(self, sent: Moment) -> Result<Renewal> {
        Ok(match self {
            Self::Renewed(grant) => Renewal::Renewed(grant.into_grant(sent)?),
            Self::Lost(reason) => Renewal::Lost(match &*reason {
                "session_ended" => LossReason::SessionEnded,
                _ => LossReason::Gone,
            }),
            Self::Failed(problem) => return Err(problem.into_error()),
        })
    }
}

/// A word for a loss.
pub fn loss(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Expired { .. } => "expired",
        LossReason::Gone => "gone",
        LossReason::SessionEnded => "session_ended",
        LossReason::MaxHold => "max_hold",
        LossReason::Released => "released",
    }
}

/// [`Released`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ReleasedMessage {
    /// Whether it was held.
    pub released: bool,
}

impl From<Released> for ReleasedMessage {
    fn from(released: Released) -> Self {
        Self {
            released: released == Released::Yes,
        }
    }
}

impl From<ReleasedMessage> for Released {
    fn from(told: ReleasedMessage) -> Self {
        match told.released {
            true => Released::Yes,
            false => Released::WasNotHeld,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_ends_no_later_at_the_client() {
        let at = |ms| Moment::from_origin(Duration::from_millis(ms));
        let grant = Grant::new(FencingToken::new(7).unwrap(), at(10_000));
        let told = GrantMessage::new(&grant, at(2_000), at(5_000));
        // Sent half a second before it was received, and answered after three seconds.
        let known = told.into_grant(at(1_500)).unwrap();
        assert_eq!(known.valid_until, at(9_497));
    }

    /// An offer of half a second, to a waiter that was answered after a minute. Its clock runs slower than the server's by a thousandth.
    #[test]
    fn long_wait_makes_no_grant_last_longer_on_a_slow_clock() {
        let (received, ms) = (Moment::from_origin(Duration::ZERO), Duration::from_millis);
        let now = received + Duration::from_secs(60);
        let grant = Grant::new(FencingToken::new(1).unwrap(), now + ms(493));
        let told = GrantMessage::new(&grant, received, now).into_grant(received);
        // The same moment on the client's clock.
        let ends = received + ms(60_500) - ms(60_500) / 1000;
        assert!(told.unwrap().valid_until < ends);
    }
}
