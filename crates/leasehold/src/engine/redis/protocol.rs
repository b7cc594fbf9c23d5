//! What is said to a server, and what it answers.

use std::str::FromStr;
use std::time::Duration;

use super::failure;
use super::keys::Keys;
use super::node::Call;
use crate::claim::{Claim, Mode};
use crate::engine::Released;
use crate::engine::meta::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// Where a waiter can be told that its turn has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listener<'a> {
    pub(crate) channel: &'a str,
    pub(crate) number: u64,
}

/// What only a deployment of several servers says; a single one decides tokens itself and keeps no mark.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deployment {
    pub(crate) proposed: u64,
    pub(crate) max_ttl: Duration,
}

/// The answer to an attempt.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted {
        token: FencingToken,
        now: u64,
    },
    Held {
        /// `None`: for ever, since another program holds it without a limit.
        left: Option<Duration>,
        now: u64,
        rank: usize,
        holders: usize,
    },
    /// The proposed token is not greater than this one.
    Behind(u64),
    /// The server has lost its memory, or is new: it votes again after this time.
    Blank {
        votes_in: Duration,
        uptime: Duration,
    },
}

/// The answer to a renewal.
#[derive(Debug)]
pub(crate) enum Renewed {
    /// `None`: the note beside the lock is gone, but not the lock.
    Yes(Option<FencingToken>),
    /// The server has it again, but may not vote yet.
    Planted,
    Lost,
}

pub(crate) fn acquire(
    keys: &Keys,
    claim: &Claim,
    listener: Option<Listener<'_>>,
    deployment: Deployment,
) -> Call {
    let (channel, number) =
        listener.map_or(("", 0), |listener| (listener.channel, listener.number));
    Call {
        lock: keys.of(&claim.name),
        arguments: vec![
            claim.id.reveal(),
            mode_number(claim.mode).to_string(),
            millis(claim.ttl.get()),
            u8::from(listener.is_some()).to_string(),
            channel.to_owned(),
            number.to_string(),
            Meta::of(claim).to_json(),
            deployment.proposed.to_string(),
            millis(deployment.max_ttl),
        ],
    }
}

pub(crate) fn renew(keys: &Keys, claim: &Claim, deployment: Deployment) -> Call {
    Call {
        lock: keys.of(&claim.name),
        arguments: vec![
            claim.id.reveal(),
            mode_number(claim.mode).to_string(),
            millis(claim.ttl.get()),
            Meta::of(claim).to_json(),
            deployment.proposed.to_string(),
            millis(deployment.max_ttl),
        ],
    }
}

pub(crate) fn release(keys: &Keys, claim: &Claim) -> Call {
    Call {
        lock: keys.of(&claim.name),
        arguments: vec![claim.id.reveal()],
    }
}

/// All servers of the deployment are blank, and this one has been up for long enough.
pub(crate) fn mark(keys: &Keys, name: &LockName, max_ttl: Duration) -> Call {
    Call {
        lock: keys.of(name),
        arguments: vec![String::new(), millis(max_ttl)],
    }
}

/// A lock that is granted for longer than a server without memory is kept from voting could be granted twice.
pub(crate) fn check_max_ttl(claim: &Claim, max_ttl: Duration) -> Result<()> {
    if max_ttl.is_zero() || claim.ttl.get() <= max_ttl {
        return Ok(());
    }
    let max = humantime::format_duration(max_ttl);
    Err(Error::new(
        ErrorKind::InvalidConfig,
        format!("the TTL is longer than the max_ttl, {max}"),
    )
    .advise(
        "use a shorter TTL (keep-alive renews it), or the same greater max_ttl for all clients",
    ))
}

/// The servers must wait before they grant anything.
pub(crate) fn in_quarantine(votes_in: Duration) -> Error {
    let votes_in = humantime::format_duration(Duration::from_secs(votes_in.as_secs() + 1));
    Error::new(
        ErrorKind::Unreachable,
        format!("the server has just started without its memory and grants again in {votes_in}"),
    )
    .advise("wait: until then a lock that it has forgotten may still be held")
}

pub(crate) fn break_lock(keys: &Keys, name: &LockName) -> Call {
    Call {
        lock: keys.of(name),
        arguments: Vec::new(),
    }
}

impl Answer {
    pub(crate) fn read(reply: &[String], claim: &Claim) -> Result<Self> {
        match words(reply).as_slice() {
            ["granted", token, now] => Ok(Answer::Granted {
                token: token_from(token)?,
                now: parse(now)?,
            }),
            ["held", left, now, rank, holders] => Ok(Answer::Held {
                left: u64::try_from(parse::<i64>(left)?)
                    .ok()
                    .map(Duration::from_millis),
                now: parse(now)?,
                rank: parse(rank)?,
                holders: parse(holders)?,
            }),
            ["behind", register, _] => parse(register).map(Answer::Behind),
            ["blank", votes_in, uptime] => Ok(Answer::Blank {
                votes_in: Duration::from_millis(parse(votes_in)?),
                uptime: Duration::from_secs(parse(uptime)?),
            }),
            ["mismatch", of] => {
                claim.mode.agrees_with(Mode::Permit { of: parse(of)? })?;
                Err(failure::nonsense(reply))
            }
            ["other max_ttl", there] => Err(other_max_ttl(parse(there)?)),
            _ => Err(failure::nonsense(reply)),
        }
    }
}

impl Renewed {
    pub(crate) fn read(reply: &[String]) -> Result<Self> {
        match words(reply).as_slice() {
            ["granted", "0"] => Ok(Renewed::Yes(None)),
            ["granted", token] => token_from(token).map(|token| Renewed::Yes(Some(token))),
            ["planted", _] => Ok(Renewed::Planted),
            ["lost"] => Ok(Renewed::Lost),
            _ => Err(failure::nonsense(reply)),
        }
    }
}

pub(crate) fn read_released(reply: &[String]) -> Result<Released> {
    match words(reply).as_slice() {
        ["released"] => Ok(Released::Yes),
        ["not held"] => Ok(Released::WasNotHeld),
        _ => Err(failure::nonsense(reply)),
    }
}

fn other_max_ttl(there: u64) -> Error {
    let there = humantime::format_duration(Duration::from_millis(there));
    Error::new(
        ErrorKind::InvalidConfig,
        format!("this deployment is in use with max_ttl={there}"),
    )
    .advise(format!("let all clients say ?max_ttl={there}"))
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

fn mode_number(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit { of } => of.into(),
    }
}

fn words(reply: &[String]) -> Vec<&str> {
    reply.iter().map(String::as_str).collect()
}

fn parse<T: FromStr>(word: &str) -> Result<T> {
    word.parse()
        .map_err(|_| failure::nonsense(&[word.to_owned()]))
}

fn token_from(word: &str) -> Result<FencingToken> {
    FencingToken::new(parse(word)?).ok_or_else(|| failure::nonsense(&[word.to_owned()]))
}
