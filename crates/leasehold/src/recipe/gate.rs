//! What remembers, until the period is over, that the work was done.
//!
//! Where locks end with their own TTL it is a lock: taken for the rest of the period and left alone, it ends by the engine's
//! clock, and leaves nothing behind. Where locks end with the session of their holder, or each client counts their time from when it first saw
//! them, it is a guarded record, and the hosts' clocks count.

use std::time::Duration;

use super::{read_claimant, write_claimant};
use crate::claim::{Claimant, Ttl};
use crate::engine::{Expiry, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Checked, Content, Fenced, Key, Pass, Slot};
use crate::locks::Locks;
use crate::name::{LockName, RUN};
use crate::token::{FencingToken, wall_clock_micros};

/// A run that makes another one unnecessary.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ran {
    /// Who ran it, or is still at it.
    pub by: Claimant,
    /// How long ago it was taken down: at its start, or with `retry_failed` at its good end.
    pub ago: Duration,
    /// After this time it may run again.
    pub next_in: Duration,
    /// The token that the lock was held with when it was taken down.
    token: Option<FencingToken>,
}

impl Ran {
    /// Whether it is the run of whoever holds the lock with this token.
    pub fn is_of(&self, token: FencingToken) -> bool {
        self.token == Some(token)
    }

    /// For servers, which keep records for others: for how long a run still counts that is recorded with this value, by the clock of this host; `None` if
    /// it is not the record of a run.
    pub fn counts_for(value: &[u8]) -> Option<Duration> {
        let left = Shut::read(value)?.until.saturating_sub(wall_clock_micros());
        Some(Duration::from_micros(left))
    }
}

/// Before the token, in the reason of the lock that remembers a run.
const RAN: &str = "ran in this period with token ";

/// How far the clocks of hosts may be apart, where the period is counted by them.
const CLOCKS_APART: Duration = Duration::from_secs(3600);

/// A record is kept for so much longer than the period: nobody's clock that is behind by less sees it go too soon.
const SPARE: Duration = Duration::from_secs(60 * 60);

impl Locks {
    /// Forgets that the work of [`once_per`](crate::LockRequest::once_per) was done in this period, so that the next one who asks does it;
    /// returns whether it was done. For operators.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Unsupported`] if the engine has to keep this in guarded records, and has none; and the
    /// [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the run may or may not be forgotten. It can be repeated.
    pub async fn forget_run(&self, name: impl AsRef<str>) -> Result<bool> {
        Gate::of(&LockName::new(name)?, self, None)?.open().await
    }
}

#[derive(Debug)]
pub(super) struct Gate {
    name: LockName,
    by: Claimant,
    locks: Locks,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    AsLock,
    AsRecord(Slot),
}

impl Gate {
    pub(super) fn of(lock: &LockName, locks: &Locks, label: Option<&str>) -> Result<Self> {
        let kept = match locks.capabilities().expiry {
            Expiry::Ttl => Kept::AsLock,
            Expiry::Observed | Expiry::Session => {
                Kept::AsRecord(locks.store()?.at(Key::beside(lock, RUN)))
            }
        };
        let by = Claimant {
            label: label.unwrap_or(&locks.claimant().label).to_owned(),
            ..locks.claimant().clone()
        };
        Ok(Self {
            name: lock.beside(RUN)?,
            by,
            locks: locks.of_nobody(),
            kept,
        })
    }

    /// Whether it is shut, and by whom.
    pub(super) async fn shut_by(&self) -> Result<Option<Ran>> {
        match &self.kept {
            Kept::AsLock => {
                let holders = super::holders(&self.locks, &self.name).await?;
                Ok(holders.into_iter().next().map(|holder| Ran {
                    by: holder.claimant,
                    ago: holder.held_for,
                    next_in: holder.time_left,
                    token: holder.reason.and_then(|it| token_in(&it)),
                }))
            }
            Kept::AsRecord(record) => {
                let Some(record) = record.read().await? else {
                    return Ok(None);
                };
                let shut = Shut::read(&record.value).ok_or_else(|| self.unreadable())?;
                let now = wall_clock_micros();
                let ahead = Duration::from_micros(shut.since.saturating_sub(now));
                if ahead > CLOCKS_APART {
                    return Err(self.ahead_of_time(&shut, ahead));
                }
                Ok(shut.ran(now, record.token))
            }
        }
    }

    /// Shuts it for so long; false if it is shut already. For the holder of the lock that it belongs to.
    pub(super) async fn shut(&self, time: Duration, pass: impl Into<Pass>) -> Result<bool> {
        let pass = pass.into();
        match &self.kept {
            Kept::AsLock => {
                let shut = super::request(&self.locks, self.name.clone());
                let shut = shut.ttl(time.max(Ttl::MIN.get()));
                let reason = format!("{RAN}{}", pass.token.get());
                let shut = shut.label(&self.by.label).reason(reason);
                let shut = shut.try_acquire().await?;
                Ok(shut.map(|lease| lease.detach()).is_some())
            }
            Kept::AsRecord(record) => {
                if self.shut_by().await?.is_some() {
                    return Ok(false);
                }
                let since = wall_clock_micros();
                let shut = Shut {
                    since,
                    until: since.saturating_add(time.as_micros() as u64),
                    by: self.by.clone(),
                };
                let shut = shut.write();
                let content = Content::passing(shut.as_bytes(), time + SPARE);
                match record.write_fenced(content, pass).await? {
                    Fenced::Written { .. } => Ok(true),
                    Fenced::Refused { .. } => Ok(false),
                }
            }
        }
    }

    /// Opens it; false if it was open.
    async fn open(&self) -> Result<bool> {
        let record = match &self.kept {
            Kept::AsRecord(record) => record,
            Kept::AsLock => {
                let engine = self.locks.engine();
                let broken = engine.force_release(&self.name).await;
                return broken
                    .map(|broken| broken == Released::Yes)
                    .map_err(|error| {
                        error
                            .during("force-release", engine.about().location)
                            .on(&self.name)
                    });
            }
        };
        let mut was_shut = false;
        while let Some(there) = record.read().await? {
            // Whatever is wrong with the record, it is to go.
            was_shut |= self.shut_by().await.map_or(true, |ran| ran.is_some());
            let nothing = Content::deleted(Duration::ZERO);
            let deleted = record.write_if(nothing, Some(there.version)).await?;
            if matches!(deleted, Checked::Written { .. }) {
                break;
            }
        }
        Ok(was_shut)
    }

    /// It would be shut for longer than any period; who is wrong, that host or this one, cannot be known.
    fn ahead_of_time(&self, shut: &Shut, ahead: Duration) -> Error {
        let ahead = humantime::format_duration(Duration::from_secs(ahead.as_secs()));
        Error::new(
            ErrorKind::EngineUnfit,
            format!(
                "the last run is said to begin in {ahead}: the clock of {:?} or of this host is wrong",
                shut.by.host
            ),
        )
        .advise("set the clocks, then forget that run: `leasehold break NAME --once-per`")
        .on(&self.name)
    }

    fn unreadable(&self) -> Error {
        Error::new(
            ErrorKind::EngineUnfit,
            format!("the record {} is not one of a run", self.name),
        )
        .advise("see who else writes leasehold's own records, or use another name")
    }
}

/// The record, by the clock of the host that wrote it.
#[derive(Debug, PartialEq, Eq)]
struct Shut {
    since: u64,
    until: u64,
    by: Claimant,
}

impl Shut {
    fn write(&self) -> String {
        let by = write_claimant(&self.by);
        format!("{}\n{}\n{by}", self.since, self.until)
    }

    fn read(value: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(value).ok()?.lines();
        Some(Self {
            since: lines.next()?.parse().ok()?,
            until: lines.next()?.parse().ok()?,
            by: read_claimant(&mut lines)?,
        })
    }

    fn ran(self, now: u64, token: FencingToken) -> Option<Ran> {
        (now < self.until).then(|| Ran {
            by: self.by,
            ago: Duration::from_micros(now.saturating_sub(self.since)),
            next_in: Duration::from_micros(self.until - now),
            token: Some(token),
        })
    }
}

fn token_in(reason: &str) -> Option<FencingToken> {
    FencingToken::new(reason.strip_prefix(RAN)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by() -> Claimant {
        Claimant {
            label: "make it so".into(),
            host: "web1".into(),
            pid: 42,
        }
    }

    #[tokio::test]
    async fn a_record_shuts_for_its_time_and_only_for_holders() {
        let locks = Locks::connect("memory:").await.unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        let gate = Gate {
            name: lease.name().beside("once").unwrap(),
            by: by(),
            kept: Kept::AsRecord(locks.store().unwrap().at(Key::beside(lease.name(), "once"))),
            locks: locks.clone(),
        };
        assert_eq!(gate.shut_by().await.unwrap(), None);
        let time = Duration::from_millis(300);
        assert!(gate.shut(time, &lease).await.unwrap());
        assert!(!gate.shut(time, &lease).await.unwrap());
        let ran = gate.shut_by().await.unwrap().unwrap();
        assert_eq!(ran.by, by());
        assert!(ran.next_in <= time);
        tokio::time::sleep(time).await;
        assert_eq!(gate.shut_by().await.unwrap(), None);

        let stale = lease.view();
        lease.release().await.unwrap();
        let next = locks.lock("a").acquire().await.unwrap();
        assert!(gate.shut(Duration::from_millis(1), &next).await.unwrap());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(
            !gate.shut(time, &stale).await.unwrap(),
            "a stale holder shut it"
        );
        assert_eq!(gate.shut_by().await.unwrap(), None);

        assert!(!gate.open().await.unwrap(), "its time was over");
        assert!(gate.shut(time, &next).await.unwrap());
        assert!(gate.open().await.unwrap());
        assert_eq!(gate.shut_by().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_run_from_the_future_is_an_error() {
        let locks = Locks::connect("memory:").await.unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        let record = locks.store().unwrap().at(Key::beside(lease.name(), "once"));
        let next_year = wall_clock_micros() + 365 * 86_400_000_000;
        let shut = Shut {
            since: next_year,
            until: next_year + 1_000_000,
            by: by(),
        };
        let content = shut.write();
        let content = Content::passing(content.as_bytes(), SPARE);
        record.write_fenced(content, (&lease).into()).await.unwrap();
        let gate = Gate {
            name: lease.name().beside("once").unwrap(),
            by: by(),
            kept: Kept::AsRecord(record),
            locks: locks.clone(),
        };
        let error = gate.shut_by().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EngineUnfit);
        assert!(error.to_string().contains("web1"), "{error}");
        assert!(gate.open().await.unwrap());
        assert_eq!(gate.shut_by().await.unwrap(), None);
    }

    #[test]
    fn a_record_is_read_back() {
        let shut = Shut {
            since: 5,
            until: 9,
            by: by(),
        };
        assert_eq!(Shut::read(shut.write().as_bytes()), Some(shut));
        for bad in ["", "1\n2", "1\n2\n-3\nh\no", "1\n2\n99999999999\nh\no"] {
            assert_eq!(Shut::read(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
