//! An event.

use std::sync::Arc;
use std::time::SystemTime;

use leasehold::{Claim, Claimant, LockName, Mode};
use serde::Serialize;

use super::Hold;
use crate::shapes::{ModeShape, Who};
use crate::time::rfc3339;

/// Something that happened with a lock.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    #[serde(skip)]
    pub(crate) number: u64,
    pub(crate) id: String,
    at: String,
    #[serde(flatten)]
    pub(crate) what: Happening,
    pub(crate) lock: String,
    #[serde(flatten)]
    who: Option<Who>,
    #[serde(flatten)]
    mode: Option<ModeShape>,
    reason: Option<String>,
    here: bool,
}

/// What happened.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Happening {
    Waiting {
        ahead: Option<usize>,
    },
    Left {
        waited_ms: u64,
    },
    Acquired {
        token: u64,
        waited_ms: Option<u64>,
    },
    Ended {
        token: u64,
        held_ms: u64,
        end: &'static str,
    },
    Asked {
        by: Option<Arc<str>>,
        #[serde(rename = "ask_reason")]
        reason: String,
    },
    Broken {
        by: Option<Arc<str>>,
        #[serde(rename = "break_reason")]
        reason: Option<String>,
    },
}

impl Happening {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Happening::Waiting { .. } => "waiting",
            Happening::Left { .. } => "left",
            Happening::Acquired { .. } => "acquired",
            Happening::Ended { .. } => "ended",
            Happening::Asked { .. } => "asked",
            Happening::Broken { .. } => "broken",
        }
    }
}

impl Event {
    /// One of a lock, through this server. The id is given when it is published.
    pub(super) fn of_lock(name: &LockName, what: Happening) -> Self {
        Self {
            number: 0,
            id: String::new(),
            at: rfc3339(SystemTime::now()),
            what,
            lock: name.as_str().to_owned(),
            who: None,
            mode: None,
            reason: None,
            here: true,
        }
    }

    pub(super) fn of_claim(claim: &Claim, what: Happening) -> Self {
        Self {
            reason: claim.reason.as_deref().map(str::to_owned),
            ..Self::of_claimant(&claim.name, &claim.claimant, claim.mode, true, what)
        }
    }

    pub(super) fn of_hold(name: &LockName, hold: &Hold, what: Happening) -> Self {
        Self {
            reason: hold.reason.clone(),
            ..Self::of_claimant(name, &hold.claimant, hold.mode, hold.here, what)
        }
    }

    pub(super) fn of_claimant(
        name: &LockName,
        who: &Claimant,
        mode: Mode,
        here: bool,
        what: Happening,
    ) -> Self {
        Self {
            who: Some(who.into()),
            mode: Some(mode.into()),
            here,
            ..Self::of_lock(name, what)
        }
    }

    /// It is about someone who is not a client of this server.
    pub(super) fn elsewhere(&mut self, who: &Claimant) {
        self.who = Some(who.into());
        self.here = false;
    }
}
