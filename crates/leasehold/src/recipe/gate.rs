//! What remembers, until the period is over, that the work was done.
//!
//! Where locks end with their own TTL it is a lock: taken for the rest of the period and left alone, it ends by the engine's
//! clock, is seen in every list, and leaves nothing behind. Where locks end with the session of their holder it is a guarded
//! record, and the hosts' clocks count.

use std::time::Duration;

use super::{read_claimant, write_claimant};
use crate::claim::{Claimant, Ttl};
use crate::engine::Expiry;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Fenced, Store};
use crate::lease::LeaseView;
use crate::locks::Locks;
use crate::name::LockName;
use crate::token::wall_clock_micros;

/// A run that makes another one unnecessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Who ran it, or is still at it.
    pub by: Claimant,
    /// How long ago it was taken down: at its start, or with `retry_failed` at its good end.
    pub ago: Duration,
    /// After this time it may run again.
    pub next_in: Duration,
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
    AsRecord(Store),
}

impl Gate {
    pub(super) fn of(lock: &LockName, locks: &Locks, owner: Option<&str>) -> Result<Self> {
        let kept = match locks.capabilities().expiry {
            Expiry::Ttl => Kept::AsLock,
            Expiry::Session => Kept::AsRecord(locks.store()?),
        };
        let by = Claimant {
            owner: owner.unwrap_or(&locks.claimant().owner).to_owned(),
            ..locks.claimant().clone()
        };
        Ok(Self {
            name: super::beside(lock, "once")?,
            by,
            locks: locks.of_nobody(),
            kept,
        })
    }

    /// Whether it is shut, and by whom.
    pub(super) async fn shut_by(&self) -> Result<Option<Ran>> {
        match &self.kept {
            Kept::AsLock => {
                let holders = self.locks.show(&self.name).await?.holders;
                Ok(holders.into_iter().next().map(|holder| Ran {
                    by: holder.claimant,
                    ago: holder.held_for,
                    next_in: holder.time_left,
                }))
            }
            Kept::AsRecord(store) => {
                let record = store.read(&self.name).await?;
                // An operator opens it by emptying the record.
                let Some(record) = record.filter(|record| !record.value.is_empty()) else {
                    return Ok(None);
                };
                Shut::read(&record.value)
                    .map(|shut| shut.ran(wall_clock_micros()))
                    .ok_or_else(|| self.unreadable())
            }
        }
    }

    /// Shuts it for so long; false if it is shut already. For the holder of the lock that it belongs to.
    pub(super) async fn shut(&self, time: Duration, lease: &LeaseView) -> Result<bool> {
        match &self.kept {
            Kept::AsLock => {
                let shut = self.locks.lock(&self.name).ttl(time.max(Ttl::MIN.get()));
                let shut = shut.owner(&self.by.owner).reason("ran in this period");
                let shut = shut.try_acquire().await?;
                Ok(shut.map(|lease| lease.detach()).is_some())
            }
            Kept::AsRecord(store) => {
                if self.shut_by().await?.is_some() {
                    return Ok(false);
                }
                let since = wall_clock_micros();
                let shut = Shut {
                    since,
                    until: since.saturating_add(time.as_micros() as u64),
                    by: self.by.clone(),
                };
                match store.write_fenced(&self.name, shut.write(), lease).await? {
                    Fenced::Written { .. } => Ok(true),
                    Fenced::Refused { .. } => Ok(false),
                }
            }
        }
    }

    fn unreadable(&self) -> Error {
        Error::new(
            ErrorKind::EngineUnfit,
            format!("the record {} is not one of a run", self.name),
        )
        .advise("see who else writes it, or use another name")
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

    fn ran(self, now: u64) -> Option<Ran> {
        (now < self.until).then(|| Ran {
            by: self.by,
            ago: Duration::from_micros(now.saturating_sub(self.since)),
            next_in: Duration::from_micros(self.until - now),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by() -> Claimant {
        Claimant {
            owner: "make it so".into(),
            host: "web1".into(),
            pid: 42,
        }
    }

    #[tokio::test]
    async fn a_record_shuts_for_its_time_and_only_for_holders() {
        let locks = Locks::connect("memory:").await.unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        let gate = Gate {
            name: super::super::beside(lease.name(), "once").unwrap(),
            by: by(),
            kept: Kept::AsRecord(locks.store().unwrap()),
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
