//! `sqlite:[PATH]`: the embedded default, for all processes of one machine. No server.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs` | where the file is |
//! | `database.rs` | how the file is opened, whether it is still there |
//! | `claims_table.rs` | the one table and what is done to it within a transaction |
//! | `writer.rs` | how transactions are run, one at a time |
//! | `wake_pipe.rs` | how a waiter is woken |
//! | `boot_clock.rs` | the clock that all processes share |
//! | `records.rs` | guarded records, in a file of their own |
//! | `number.rs` | how numbers are stored |
//! | `owner.rs` | to whom the files belong |
//! | `failure.rs` | errors |

#[cfg(feature = "bench")]
mod baseline;
mod boot_clock;
mod claims_table;
mod config;
mod database;
mod doctor;
mod failure;
mod number;
mod owner;
mod records;
mod wake_pipe;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::boot_clock::BootClock;
use self::claims_table::{QueueEntry, TakeOut, Walk};
pub use self::config::SqliteConfig;
use self::records::Records;
use self::writer::Writer;
use crate::claim::{Claim, ClaimId, Ttl};
use crate::engine::doctor::Finding;
use crate::engine::wakeup::local_waiters::Mailbox;
use crate::engine::wakeup::look_again::delay_behind_first;
use crate::engine::{
    About, Attempt, Capabilities, Contention, Driver, Engine, Grant, LockInfo, LossReason, Query,
    Reach, Released, Renew, Renewal, Survives, Wake,
};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::token::FencingToken;

/// How `sqlite:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["sqlite"],
    options: &[(
        "busy_timeout",
        "how long to wait for a file that another process keeps locked, 5s",
    )],
    example: "sqlite:/var/lib/app/locks.db",
    connect: |url| Box::pin(async move { SqliteConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| {
        let location = SqliteConfig::from_url(url)?.locate()?;
        Ok(Arc::new(baseline::SqliteBaseline(location)))
    }),
};

/// The first version of SQLite whose checkpoints cannot hide a commit that is made meanwhile.
const SOUND_SQLITE: i32 = 3_051_003;

fn old_sqlite(version: i32) -> Finding {
    let seen = format!(
        "SQLite {}.{}.{}",
        version / 1_000_000,
        version / 1000 % 1000,
        version % 1000
    );
    match version >= SOUND_SQLITE {
        true => Finding::good("server", seen),
        false => Finding::efficiency("server", seen)
            .means("a commit that is made during a checkpoint may be lost, very rarely, and with it a lock")
            .fix("build with SQLite 3.51.3 or later"),
    }
}

/// Locks in one file.
#[derive(Debug)]
pub struct Sqlite {
    writer: Writer,
    records: Records,
}

impl Sqlite {
    fn open(config: &SqliteConfig, clock: BootClock) -> Result<Self> {
        let (location, busy_timeout) = (config.locate()?, config.busy_timeout);
        Ok(Self {
            records: Records::beside(&location, busy_timeout),
            writer: Writer::open(location, busy_timeout, clock)?,
        })
    }

    fn contention(&self, claim: &Claim, walk: &Walk, token: Option<FencingToken>) -> Contention {
        let now = self.writer.clock().now();
        let left = walk.first_expiry.map(|expiry| expiry.since(now));
        let next = walk.own.is_some();
        let later = match next {
            true => Duration::ZERO,
            false => delay_behind_first(token.map_or(0, FencingToken::get)),
        };
        Contention {
            look_again_in: claim.queues.then(|| left.unwrap_or_default() + later),
            ahead: (next || !walk.blocked).then_some(walk.holders.len()),
            because: None,
        }
    }

    /// The token that a waiter has in the queue, and its mailbox.
    fn waiter(&self, id: &ClaimId) -> Option<(FencingToken, Arc<Mailbox<()>>)> {
        let (token, mailbox) = self.writer.pipes().own()?.waiters.waiter(id)?;
        Some((FencingToken::new(token)?, mailbox))
    }

    /// By the TTL that the claim has, which may be another than is asked for.
    fn grant(&self, entry: QueueEntry) -> Grant {
        let margin = entry.ttl.saturating_sub(Ttl::validity_of(entry.ttl));
        Grant {
            token: entry.token,
            valid_until: self.writer.clock().seen(entry.expires) - margin,
        }
    }

    fn forget(&self, id: &ClaimId) {
        if let Some(pipe) = self.writer.pipes().own() {
            pipe.waiters.forget(id);
        }
    }
}

/// What an attempt came to within its transaction.
enum Tried {
    Granted(QueueEntry),
    Held(Walk, Option<FencingToken>),
    /// It must queue, but this process has no wake pipe yet.
    NeedsPipe,
}

#[async_trait]
impl Engine for Sqlite {
    fn about(&self) -> About {
        let capabilities = Capabilities {
            reach: Reach::Machine,
            survives: &[
                Survives::ClientKilled,
                Survives::EngineRestart,
                Survives::PowerLoss,
                Survives::ClockStep,
            ],
            ..Capabilities::FULL
        };
        About::new(
            "sqlite",
            format!("sqlite:{}", self.writer.location().given().display()),
            capabilities,
        )
        .findings([old_sqlite(rusqlite::version_number())])
        .requests(self.writer.transactions())
    }

    async fn findings(&self, _ttl: Ttl) -> Vec<Finding> {
        doctor::findings(self.writer.location().file())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let was_waiting = self.waiter(&claim.id).is_some();
        loop {
            let pipe = self.writer.pipes().own();
            let asked = claim.clone();
            let tried = self.writer.write(move |table| {
                table.check_permits(&asked)?;
                let walk = table.walk(&asked.name, TakeOut::Nobody, Some(&asked))?;
                let own = match walk.own {
                    Some(own) if own.held => {
                        asked.mode.is_still(own.mode)?;
                        return Ok(Tried::Granted(own));
                    }
                    None if walk.blocked => table.find(&asked.name, &asked.id, None)?,
                    own => own,
                };
                if let Some(own) = own {
                    if !asked.queues {
                        table.take_out(&asked.name, &asked.id, Some(own.token))?;
                        return Ok(Tried::Held(walk, None));
                    }
                    let Some(pipe) = pipe else {
                        return Ok(Tried::NeedsPipe);
                    };
                    table.wait_on(&asked, own.token, pipe.name())?;
                    pipe.waiters.expect(asked.id, own.token.get());
                    return Ok(Tried::Held(walk, Some(own.token)));
                }
                if !walk.blocked && asked.mode.fits(walk.holders.iter().copied()) {
                    return table.insert(&asked, None).map(Tried::Granted);
                }
                if !asked.queues {
                    return Ok(Tried::Held(walk, None));
                }
                let Some(pipe) = pipe else {
                    return Ok(Tried::NeedsPipe);
                };
                let entry = table.insert(&asked, Some(pipe.name()))?;
                pipe.waiters.expect(asked.id, entry.token.get());
                let first = !walk.blocked;
                let walk = Walk {
                    own: first.then_some(entry),
                    blocked: true,
                    ..walk
                };
                Ok(Tried::Held(walk, Some(entry.token)))
            });
            let tried = match tried.await {
                Err(failure) if !was_waiting => {
                    // Nobody gives it up if nothing has come of it.
                    self.forget(&claim.id);
                    return Err(failure);
                }
                tried => tried?,
            };
            match tried {
                Tried::Granted(entry) => {
                    self.forget(&claim.id);
                    return Ok(Attempt::Granted(self.grant(entry)));
                }
                Tried::Held(walk, token) => {
                    if token.is_none() {
                        self.forget(&claim.id);
                    }
                    return Ok(Attempt::Held(self.contention(claim, &walk, token)));
                }
                Tried::NeedsPipe => self.writer.pipes().open().map(|_| ())?,
            }
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let Some((token, mailbox)) = self.waiter(&claim.id) else {
            return Ok(Wake::Retry);
        };
        mailbox.read().await;
        let entry = self
            .writer
            .read(|table| table.find(&claim.name, &claim.id, Some(token)));
        Ok(match entry? {
            Some(entry) if entry.held => {
                self.forget(&claim.id);
                Wake::Granted(self.grant(entry))
            }
            _ => Wake::Retry,
        })
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let asked: Vec<_> = held
            .iter()
            .map(|renew| (renew.claim.clone(), renew.token, renew.shorten))
            .collect();
        let renewed = self.writer.write(move |table| {
            let renew = |(claim, token, shorten): &(Claim, _, _)| {
                table.renew(&Renew {
                    claim,
                    token: *token,
                    shorten: *shorten,
                })
            };
            asked.iter().map(renew).collect::<failure::Result<Vec<_>>>()
        });
        match renewed.await {
            Ok(entries) => {
                let renewal = |entry: Option<QueueEntry>| match entry {
                    Some(entry) => Renewal::Renewed(self.grant(entry)),
                    None => Renewal::Lost(LossReason::Gone),
                };
                entries.into_iter().map(renewal).map(Ok).collect()
            }
            Err(error) => {
                let again = || error.clone().of_unknown_effect();
                held.iter().map(|_| Err(again())).collect()
            }
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let token = self.waiter(&claim.id).map(|(token, _)| token);
        let (name, id) = (claim.name.clone(), claim.id);
        let held = self
            .writer
            .write(move |table| table.take_out(&name, &id, token))
            .await;
        self.forget(&claim.id);
        Ok(Released::from_held(held?))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let query = query.clone();
        self.writer.write(move |table| table.inspect(&query)).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let name = name.clone();
        let walk = self
            .writer
            .write(move |table| table.walk(&name, TakeOut::AllHolders, None));
        Ok(Released::from_held(walk.await?.taken_out == Some(true)))
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::new(self.records.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_of_sqlite_are_warned_of() {
        let old = old_sqlite(3_046_001);
        assert!(
            old.is_bad() && old.to_string().contains("SQLite 3.46.1"),
            "{old}"
        );
        assert!(!old_sqlite(3_051_003).is_bad());
        let here = old_sqlite(rusqlite::version_number());
        assert!(!here.is_bad(), "as it is built here: {here}");
    }
    use crate::claim::{Claimant, Mode};
    use crate::clock::Clock;

    fn claim() -> Claim {
        Claim {
            name: LockName::new("x").unwrap(),
            id: ClaimId::random().unwrap(),
            mode: Mode::Exclusive,
            ttl: Ttl::new(Duration::from_secs(30)).unwrap(),
            queues: true,
            claimant: Arc::new(Claimant::this_process()),
            reason: None,
        }
    }

    /// A container with a time namespace and a boot id of its own, beside the host.
    #[tokio::test]
    async fn claims_hold_in_every_time_namespace_of_a_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(folder.path().join("locks.db"));
        let hour = Duration::from_secs(3600);
        let clock = |ahead: Duration| {
            let seen = Clock::tokio();
            seen.sleep_through(ahead);
            let behind = Duration::ZERO;
            BootClock {
                seen,
                ahead,
                behind,
            }
        };
        for (first, second) in [(Duration::ZERO, hour), (hour, Duration::ZERO)] {
            let [first, second] = [first, second].map(clock);
            let holder = Sqlite::open(&config, first.clone()).unwrap();
            let held = claim();
            let Attempt::Granted(grant) = holder.try_acquire(&held).await.unwrap() else {
                panic!("nobody else holds it");
            };
            let left = grant.valid_until.since(first.seen.now());
            assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30));
            rusqlite::Connection::open(holder.writer.location().file())
                .and_then(|sql| {
                    sql.execute("UPDATE claims SET owner = 'another' WHERE name = ''", [])
                })
                .unwrap();
            let other = Sqlite::open(&config, second).unwrap();
            let attempt = other.try_acquire(&claim()).await.unwrap();
            assert!(matches!(attempt, Attempt::Held(_)), "two hold it");
            holder.release(&held).await.unwrap();
            std::fs::remove_file(holder.writer.location().file()).unwrap();
        }
    }

    #[tokio::test]
    async fn attempts_that_fail_leave_nothing_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::new(folder.path().join("locks.db"));
        let clock = BootClock::of_this_process().unwrap();
        let sqlite = Sqlite::open(&config, clock).unwrap();
        let held = claim();
        sqlite.try_acquire(&held).await.unwrap();
        let intruder = rusqlite::Connection::open(sqlite.writer.location().file()).unwrap();
        intruder
            .execute_batch(
                "CREATE TABLE parents (id INTEGER PRIMARY KEY);
                 CREATE TABLE children (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
                 CREATE TRIGGER no_commit AFTER INSERT ON claims BEGIN INSERT INTO children VALUES (1); END;",
            )
            .unwrap();
        for _ in 0..3 {
            sqlite.try_acquire(&claim()).await.unwrap_err();
        }
        let pipe = sqlite.writer.pipes().own().unwrap();
        assert!(pipe.waiters.is_empty());
        intruder.execute_batch("DROP TRIGGER no_commit").unwrap();
        // A release that fails forgets as well: nobody waits for it any more.
        let waiter = claim();
        sqlite.try_acquire(&waiter).await.unwrap();
        assert!(!pipe.waiters.is_empty());
        let no_release = "CREATE TRIGGER no_release AFTER DELETE ON claims BEGIN INSERT INTO children VALUES (1); END;";
        intruder.execute_batch(no_release).unwrap();
        sqlite.release(&waiter).await.unwrap_err();
        assert!(pipe.waiters.is_empty());
    }
}
