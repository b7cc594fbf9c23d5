//! The locks that enclosing `run`s hold, told from parent to child through the environment, so that a
//! nested `run` of the same lock goes straight through instead of waiting for itself.

use std::time::Duration;

use leasehold::{ClaimId, Claimant, Error, ErrorKind, LeaseView, Locks, Mode, Result};
use serde::{Deserialize, Serialize};

use crate::request::Request;

/// Where the list is: a JSON array.
pub(crate) const VARIABLE: &str = "LEASEHOLD_HELD";

/// All locks held by enclosing `run`s, the outermost first.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Held(Vec<Holding>);

/// One of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// The engine, without passwords.
    url: String,
    name: String,
    claim: String,
    token: u64,
    mode: HeldMode,
    ttl_ms: u64,
    /// Who holds it.
    by: Party,
}

/// A claimant.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Party {
    owner: String,
    host: String,
    pid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeldMode {
    Exclusive,
    Shared,
    Permit,
}

impl From<Mode> for HeldMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => HeldMode::Exclusive,
            Mode::Shared => HeldMode::Shared,
            Mode::Permit { .. } => HeldMode::Permit,
        }
    }
}

impl Held {
    /// What the parent process has told.
    pub(crate) fn inherited() -> Result<Self> {
        let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
            return Ok(Self::default());
        };
        serde_json::from_slice(text.as_encoded_bytes()).map_err(|cause| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("${VARIABLE} cannot be read: {cause}"),
            )
            .advise("leave it as leasehold has set it, or unset it")
        })
    }

    /// The list for the next child.
    pub(crate) fn and(mut self, lease: &LeaseView, request: &Request, url: &str) -> Self {
        self.0.push(Holding {
            url: url.to_owned(),
            name: request.name.as_str().to_owned(),
            claim: lease.claim_id().reveal(),
            token: lease.token().get(),
            mode: request.mode.into(),
            ttl_ms: request.ttl.get().as_millis() as u64,
            by: {
                let Claimant { owner, host, pid } = lease.claimant().clone();
                Party { owner, host, pid }
            },
        });
        self
    }

    /// The outermost run, in whose name this process asks: what waits within it keeps it waiting too.
    pub(crate) fn outermost(&self) -> Option<Claimant> {
        let Party { owner, host, pid } = self.0.first()?.by.clone();
        Some(Claimant { owner, host, pid })
    }

    /// As it goes into the environment.
    pub(crate) fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|cause| {
            Error::new(ErrorKind::Unexpected, "cannot write down the locks held").caused_by(cause)
        })
    }

    /// The enclosing hold that makes another one unnecessary, if there is one; an error if an
    /// enclosing hold makes the request hopeless.
    pub(crate) fn covering(&self, request: &Request, url: &str) -> Result<Option<&Holding>> {
        let same = |held: &&Holding| held.url == url && held.name == request.name.as_str();
        let mut hopeless = None;
        for holding in self.0.iter().filter(same) {
            match (holding.mode, HeldMode::from(request.mode)) {
                (HeldMode::Exclusive, _) | (HeldMode::Shared, HeldMode::Shared) => {
                    return Ok(Some(holding));
                }
                (HeldMode::Permit, HeldMode::Permit) => {}
                (held, asked) => hopeless = Some((held, asked)),
            }
        }
        let Some((held, asked)) = hopeless else {
            return Ok(None);
        };
        let (held, asked) = (held.word(), asked.word());
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("an enclosing `leasehold run` holds it in {held} mode, so that {asked} mode would wait for itself"),
        )
        .advise("take it in exclusive mode in the outer run, or use another name")
        .during("acquire", url)
        .on(&request.name))
    }
}

impl HeldMode {
    fn word(self) -> &'static str {
        match self {
            HeldMode::Exclusive => "exclusive",
            HeldMode::Shared => "shared",
            HeldMode::Permit => "permit",
        }
    }
}

impl Holding {
    /// The secret that signs it.
    pub(crate) fn claim(&self) -> &str {
        &self.claim
    }

    /// Its fencing token.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Asks the engine whether it is really still held: an error if not.
    pub(crate) async fn verify(&self, locks: &Locks, request: &Request) -> Result<()> {
        let claim: ClaimId = self.claim.parse()?;
        // There is no way to ask without renewing; the enclosing run would renew it alike.
        let ttl = Duration::from_millis(self.ttl_ms);
        let renewed = locks.resume(&request.name, claim)?.renew(ttl).await?;
        match renewed {
            Some(grant) if grant.token.get() == self.token => Ok(()),
            _ => Err(Error::new(
                ErrorKind::LeaseLost,
                "the enclosing `leasehold run` no longer holds it",
            )
            .advise("start again from the outer run")
            .during("go on with", locks.location())
            .on(&request.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn held(name: &str, mode: HeldMode) -> Held {
        Held(vec![Holding {
            url: "sqlite:/a".into(),
            name: name.into(),
            claim: "00".repeat(16),
            token: 7,
            mode,
            ttl_ms: 1000,
            by: Party {
                owner: "o".into(),
                host: "h".into(),
                pid: 1,
            },
        }])
    }

    fn request(options: &[&str]) -> Request {
        let words = ["leasehold", "acquire", "a"].iter().chain(options);
        match Cli::parse_from(words).command {
            crate::args::Command::Acquire(args) => Request::new(args.0.lock).unwrap(),
            _ => unreachable!(),
        }
    }

    #[test]
    fn which_holds_cover_which_requests() {
        let (exclusive, shared, permit): (&[_], &[_], &[_]) =
            (&[], &["--shared"], &["--permits", "2"]);
        let table = [
            (HeldMode::Exclusive, exclusive, Some(true)),
            (HeldMode::Exclusive, shared, Some(true)),
            (HeldMode::Exclusive, permit, Some(true)),
            (HeldMode::Shared, shared, Some(true)),
            (HeldMode::Shared, exclusive, None),
            (HeldMode::Shared, permit, None),
            (HeldMode::Permit, permit, Some(false)),
            (HeldMode::Permit, exclusive, None),
        ];
        for (outer, inner, expected) in table {
            let held = held("a", outer);
            let covered = held.covering(&request(inner), "sqlite:/a");
            let covered = covered.ok().map(|holding| holding.is_some());
            assert_eq!(covered, expected, "{outer:?} {inner:?}");
        }
    }

    #[test]
    fn other_names_and_other_engines_cover_nothing() {
        let other_name = held("b", HeldMode::Exclusive);
        assert!(
            other_name
                .covering(&request(&[]), "sqlite:/a")
                .unwrap()
                .is_none()
        );
        let held = held("a", HeldMode::Exclusive);
        assert!(held.covering(&request(&[]), "sqlite:/b").unwrap().is_none());
    }
}
