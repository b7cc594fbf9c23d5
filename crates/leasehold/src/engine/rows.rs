//! What engines share that keep locks as rows: how a claim is written, and how contention is told.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::claim::{ClaimId, Mode};
use crate::engine::{Contention, LockInfo};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;
use crate::url::EngineUrl;

/// Those who are not next look again this much later than the one who is.
const NEXT_IN_LINE: Duration = Duration::from_millis(50);

/// What is kept of a claim id: who reads it can do nothing with it.
pub(crate) fn signature(id: &ClaimId) -> Vec<u8> {
    Sha256::digest(id.as_bytes()).to_vec()
}

pub(crate) fn mode_number(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit { of } => i32::try_from(of).unwrap_or(i32::MAX),
    }
}

pub(crate) fn mode(number: i32) -> Mode {
    match number {
        0 => Mode::Exclusive,
        -1 => Mode::Shared,
        of => Mode::Permit {
            of: of.unsigned_abs(),
        },
    }
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn token(number: i64) -> Result<FencingToken> {
    let token = u64::try_from(number).ok().and_then(FencingToken::new);
    token.ok_or_else(|| {
        Error::new(
            ErrorKind::EngineUnfit,
            format!("the fencing token {number} is out of range"),
        )
        .advise("set the server's clock right; if the table of tokens is wrong, use other tables")
        .of_unknown_effect()
    })
}

/// What a claim met that waits for holders the first of which expires after `left`.
pub(crate) fn contention(left: Duration, is_next: bool, number: Option<u64>) -> Contention {
    // Whoever is not next only looks in case the next one is dead, and not all at once.
    let later = match is_next {
        true => Duration::from_millis(1),
        false => NEXT_IN_LINE + Duration::from_millis(number.unwrap_or(0) % 900),
    };
    Contention {
        look_again_in: Some(left + later),
        ..Contention::default()
    }
}

/// Locks by name, as their rows are read.
#[derive(Default)]
pub(crate) struct Listed(BTreeMap<LockName, LockInfo>);

impl Listed {
    pub(crate) fn named(&mut self, name: &str) -> Result<&mut LockInfo> {
        let name = LockName::new(name)?;
        Ok(self.0.entry(name.clone()).or_insert(LockInfo {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        }))
    }

    pub(crate) fn in_order(self) -> Vec<LockInfo> {
        self.0.into_values().collect()
    }
}

/// One failure for each of many.
pub(crate) fn same(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.what().to_owned());
    let copy = match error.advice() {
        Some(advice) => copy.advise(advice.to_owned()),
        None => copy,
    };
    match error.effect() {
        Effect::Unknown => copy.of_unknown_effect(),
        Effect::None => copy,
    }
}

pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Unexpected, "the runtime is shutting down").of_unknown_effect()
}

/// How many connections: two at least, since what ends and what is renewed never waits behind what begins.
pub(crate) fn pool_size(url: &EngineUrl) -> Result<usize> {
    let Some(text) = url.option("pool") else {
        return Ok(8);
    };
    let size = text.parse().ok().filter(|size| (2..=1000).contains(size));
    size.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the option pool={text} cannot be used"),
        )
        .advise("give a whole number from 2 to 1000")
    })
}
