//! The locks that enclosing `run`s hold, passed from parent to child through the environment, so that a
//! nested `run` of the same lock uses the hold of the outer one instead of waiting for it.

use std::time::Duration;

use leasehold::{ClaimId, Claimant, Error, ErrorKind, Lease, Locks, Mode, Result};
use serde::{Deserialize, Serialize};

use crate::request::Request;

/// The environment variable with the list, a JSON array.
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
    by: Holder,
}

/// The claimant of a holding.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Holder {
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
            Mode::Shared => HeldMode::Shared,
            Mode::Permit { .. } => HeldMode::Permit,
            _ => HeldMode::Exclusive,
        }
    }
}

impl Held {
    /// Reads the list from the environment.
    pub(crate) fn inherited() -> Result<Self> {
        let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
            return Ok(Self::default());
        };
        serde_json::from_slice(text.as_encoded_bytes()).map_err(|cause| {
            // Not the cause itself, which may quote a claim.
            let (line, column) = (cause.line(), cause.column());
            Error::new(
                ErrorKind::InvalidConfig,
                format!("cannot parse ${VARIABLE}: invalid at line {line}, column {column}"),
            )
            .advise("pass it on unchanged, or unset it")
        })
    }

    /// Adds a lease to the list.
    pub(crate) fn with(mut self, lease: &Lease, request: &Request, url: &str) -> Self {
        self.0.push(Holding {
            url: url.to_owned(),
            name: request.name.as_str().to_owned(),
            claim: lease.claim_id().reveal(),
            token: lease.token().get(),
            mode: request.mode.into(),
            ttl_ms: request.ttl.get().as_millis() as u64,
            by: {
                let by = lease.claimant().clone();
                Holder {
                    owner: by.label,
                    host: by.host,
                    pid: by.pid,
                }
            },
        });
        self
    }

    /// The claimant of the outermost run, which nested runs act for: while they wait, it waits too.
    pub(crate) fn outermost(&self) -> Option<Claimant> {
        let Holder { owner, host, pid } = self.0.first()?.by.clone();
        Some(Claimant::new(owner, host, pid))
    }

    /// The value of the environment variable.
    pub(crate) fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|cause| {
            Error::new(
                ErrorKind::Unexpected,
                "cannot write the list of held locks as JSON",
            )
            .caused_by(cause)
        })
    }

    /// The enclosing hold that already covers the request, if there is one.
    ///
    /// # Errors
    ///
    /// If an enclosing hold conflicts with the request, which would wait for itself.
    pub(crate) fn covering(&self, request: &Request, url: &str) -> Result<Option<&Holding>> {
        let same = |held: &&Holding| held.url == url && held.name == request.name.as_str();
        let mut conflict = None;
        for holding in self.0.iter().filter(same) {
            match (holding.mode, HeldMode::from(request.mode)) {
                (HeldMode::Exclusive, _) | (HeldMode::Shared, HeldMode::Shared) => {
                    return Ok(Some(holding));
                }
                (HeldMode::Permit, HeldMode::Permit) => {}
                (held, asked) => conflict = Some((held, asked)),
            }
        }
        let Some((held, asked)) = conflict else {
            return Ok(None);
        };
        let (held, asked) = (held.name(), asked.name());
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("an enclosing `leasehold run` holds it in {held} mode, so {asked} mode would wait for itself"),
        )
        .advise("acquire it in exclusive mode in the outer run, or use another name")
        .during("acquire", url)
        .on(&request.name))
    }
}

impl HeldMode {
    fn name(self) -> &'static str {
        match self {
            HeldMode::Exclusive => "exclusive",
            HeldMode::Shared => "shared",
            HeldMode::Permit => "permit",
        }
    }
}

impl Holding {
    /// The claim id, a secret.
    pub(crate) fn claim(&self) -> &str {
        &self.claim
    }

    /// Its fencing token.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Checks with the engine that the lock is still held.
    ///
    /// # Errors
    ///
    /// `LeaseLost` if it is not.
    pub(crate) async fn verify(&self, locks: &Locks, request: &Request) -> Result<()> {
        let claim: ClaimId = self.claim.parse()?;
        // The only way to check is to renew; the enclosing run renews it in the same way.
        let ttl = Duration::from_millis(self.ttl_ms);
        let renewed = locks.resume(&request.name, claim)?.renew(ttl).await?;
        match renewed {
            Some(grant) if grant.token.get() == self.token => Ok(()),
            _ => Err(Error::new(
                ErrorKind::LeaseLost,
                "the enclosing `leasehold run` no longer holds it",
            )
            .advise("start the outer run again")
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
            by: Holder {
                owner: "o".into(),
                host: "h".into(),
                pid: 1,
            },
        }])
    }

    fn request(options: &[&str]) -> Request {
        let argv = ["leasehold", "acquire", "a"].iter().chain(options);
        match Cli::parse_from(argv).command {
            crate::args::Command::Acquire(args) => Request::new(args.0.lock).unwrap(),
            _ => unreachable!(),
        }
    }

    #[test]
    fn holds_cover_requests_by_mode() {
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
    fn other_name_or_engine_covers_nothing() {
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
