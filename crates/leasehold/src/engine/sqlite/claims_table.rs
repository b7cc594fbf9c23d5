//! The one table: every claim on every lock, held or waiting, as rows ordered by token.
//!
//! A claim gets its token when it joins the queue, and the queue is served in order, so the
//! holders of a lock are always its first rows and tokens rise with every grant. One table means
//! that a transaction of an idle file writes one page.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::failure::{self, Fault, Result};
use super::number::Number;
use super::wake_pipe::{WakePipes, Wakeup};
use crate::claim::{Claim, ClaimId, Claimant, Mode};
use crate::clock::Moment;
use crate::engine::{HolderInfo, LockInfo, Query, Renew, WaiterInfo};
use crate::error::Error;
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

/// The row with the empty name, which no lock can have, is the register: `expires` is the greatest token
/// given so far, `owner` the boot of the machine. A waiter's `pipe` is the wake pipe of its process.
pub(super) const LAYOUT: &str = "
    CREATE TABLE claims (
        name TEXT NOT NULL,
        token INTEGER NOT NULL,
        claim BLOB NOT NULL,
        held INTEGER NOT NULL,
        mode INTEGER NOT NULL,
        ttl INTEGER NOT NULL,
        since INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        pipe TEXT NOT NULL,
        owner TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        reason TEXT,
        PRIMARY KEY (name, token)
    ) WITHOUT ROWID;
    INSERT INTO claims VALUES ('', 0, x'', 0, 0, 0, 0, 0, '', '', '', 0, NULL);";

/// A claim in the queue of a lock, held or waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueEntry {
    pub(super) token: FencingToken,
    pub(super) held: bool,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) expires: Moment,
}

/// What [`QueueEntry::read`] reads, as the first columns of a row.
macro_rules! select_entry {
    ($rest:literal) => {
        concat!("SELECT token, held, mode, ttl, expires", $rest)
    };
}

/// Stored moments are rounded, so those of one instant may differ by this much.
const ROUNDING: Duration = Duration::from_millis(1);

impl QueueEntry {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            token: token(row, 0)?,
            held: row.get(1)?,
            mode: Mode::from_number(row.get(2)?),
            ttl: Duration::from_micros(row.get::<_, Number>(3)?.0),
            expires: moment(row, 4)?,
        })
    }

    /// Whether its time runs. One that was granted or renewed in what is yet to come is from before the machine was started again:
    /// its clock has begun anew. Where the system has an id for each boot, such rows are gone already.
    fn lives(&self, now: Moment) -> bool {
        let renewed = self.expires - self.ttl;
        self.expires > now && renewed <= now + ROUNDING
    }
}

/// The same in SQL, for a held row; `?1` is the present.
pub(super) const IS_OVER: &str = "(expires <= ?1 OR expires - ttl > ?1 + 1000)";

/// A waiter's row that is older than this is looked at when a file is opened: its process may have been killed.
const LONG_WAIT: Duration = Duration::from_secs(60);

/// What a walk along a lock's claims found, and what it has changed.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The claim that was looked for, if it is among those that hold or are next.
    pub(super) own: Option<QueueEntry>,
    /// Whether the claim that was to be taken out held the lock.
    pub(super) taken_out: Option<bool>,
    /// How those who hold the lock now hold it.
    pub(super) holders: Vec<Mode>,
    /// When the first of them expires.
    pub(super) first_expiry: Option<Moment>,
    /// Whether someone waits who does not fit yet.
    pub(super) blocked: bool,
}

/// What a walk takes out on its way.
#[derive(Debug, Clone, Copy)]
pub(super) enum TakeOut<'a> {
    Nobody,
    Claim(&'a ClaimId),
    AllHolders,
}

/// The table as one transaction sees it, or a reader.
pub(super) struct ClaimsTable<'a> {
    connection: &'a Connection,
    pipes: &'a WakePipes,
    now: Moment,
    /// To be sent after the commit.
    wakeups: Vec<Wakeup>,
    /// Why SQLite has rolled back the whole transaction by itself, if it has.
    broken: Option<Error>,
}

impl<'a> ClaimsTable<'a> {
    pub(super) fn new(connection: &'a Connection, pipes: &'a WakePipes, now: Moment) -> Self {
        Self {
            connection,
            pipes,
            now,
            wakeups: Vec::new(),
            broken: None,
        }
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    /// Does one part of a transaction. If it fails, it alone is undone, unless SQLite cannot go on at all, as with a full disk.
    pub(super) fn savepoint<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(failure) = &self.broken {
            return Err(failure.clone().into());
        }
        self.run("SAVEPOINT task")?;
        let wakeups = self.wakeups.len();
        let done = work(self);
        if done.is_err() {
            self.wakeups.truncate(wakeups);
        }
        let ended = match &done {
            Ok(_) => self.run("RELEASE task"),
            Err(_) => self
                .run("ROLLBACK TO task")
                .and_then(|()| self.run("RELEASE task")),
        };
        if let Err(cause) = ended {
            self.broken = Some(Fault::from(cause).into());
        }
        done
    }

    /// Commits, and returns whom to wake.
    pub(super) fn commit(mut self) -> std::result::Result<Vec<Wakeup>, Error> {
        let failure = match self.broken.take() {
            Some(failure) => failure,
            None => match self.run("COMMIT") {
                Ok(()) => return Ok(self.wakeups),
                Err(cause) => failure::at_commit(cause).into(),
            },
        };
        self.roll_back();
        Err(failure)
    }

    pub(super) fn roll_back(self) {
        let _ = self.run("ROLLBACK");
    }

    /// Walks along the claims of a lock from the first: takes out the expired and the one named, lets in
    /// whoever is next and fits, and stops at the first who does not. The claim that is looked for waits in the mode and with the TTL that it has now. That one is woken if it may have less to wait for than it thinks: because the lock went
    /// to a claim with a shorter TTL, or because a waiter before it, who knew, has gone.
    pub(super) fn walk(
        &mut self,
        name: &LockName,
        take_out: TakeOut<'_>,
        look_for: Option<&Claim>,
    ) -> Result<Walk> {
        let mut walk = Walk::default();
        let mut gone = Vec::new();
        let mut granted = Vec::new();
        let (mut expected, mut waiter_gone) = (None, false);
        let mut select = self.connection.prepare_cached(select_entry!(
            ", claim, pipe FROM claims WHERE name = ?1 ORDER BY token"
        ))?;
        let mut rows = select.query([name.as_str()])?;
        while let Some(row) = rows.next()? {
            let mut entry = QueueEntry::read(row)?;
            let alive = entry.lives(self.now);
            let claim = row.get_ref(5)?.as_blob().unwrap_or_default();
            let own = look_for.filter(|own| claim == own.id.as_bytes());
            if let Some(own) = own.filter(|_| !entry.held) {
                (entry.mode, entry.ttl) = (own.mode, own.ttl.get());
            }
            let leaves = match take_out {
                TakeOut::Nobody => false,
                TakeOut::Claim(id) => claim == id.as_bytes(),
                TakeOut::AllHolders => entry.held,
            };
            if entry.held {
                let first = expected.unwrap_or(entry.expires);
                expected = Some(first.min(entry.expires));
            }
            if leaves {
                waiter_gone |= !entry.held;
                let held = entry.held && alive;
                walk.taken_out = Some(held || walk.taken_out.unwrap_or(false));
                gone.push(entry.token);
                continue;
            }
            if entry.held && !alive {
                gone.push(entry.token);
                continue;
            }
            let fits = entry.held || entry.mode.fits(walk.holders.iter().copied());
            if fits && !entry.held {
                let pipe = row.get_ref(6)?.as_str().unwrap_or_default();
                let Some(wakeup) = self.pipes.wakeup(pipe, entry.token) else {
                    waiter_gone = true;
                    gone.push(entry.token);
                    continue;
                };
                entry = QueueEntry {
                    held: true,
                    expires: self.now + entry.ttl,
                    ..entry
                };
                granted.push(entry);
                self.wakeups.push(wakeup);
            }
            if !fits && own.is_none() && (waiter_gone || walk.first_expiry < expected) {
                let pipe = row.get_ref(6)?.as_str().unwrap_or_default();
                let Some(wakeup) = self.pipes.wakeup(pipe, entry.token) else {
                    waiter_gone = true;
                    gone.push(entry.token);
                    continue;
                };
                self.wakeups.push(wakeup);
            }
            if own.is_some() {
                walk.own = Some(entry);
            }
            if !fits {
                walk.blocked = true;
                break;
            }
            walk.holders.push(entry.mode);
            let first = walk.first_expiry.unwrap_or(entry.expires);
            walk.first_expiry = Some(first.min(entry.expires));
        }
        drop(rows);
        for token in gone {
            self.delete(name, token)?;
        }
        for entry in granted {
            self.connection
                .prepare_cached(
                    "UPDATE claims SET held = 1, mode = ?3, ttl = ?4, since = ?5, expires = ?6, pipe = '' WHERE name = ?1 AND token = ?2",
                )?
                .execute(params![
                    name.as_str(),
                    Number(entry.token.get()),
                    entry.mode.to_number(),
                    Number(entry.ttl.as_micros() as u64),
                    micros(self.now),
                    micros(entry.expires),
                ])?;
        }
        Ok(walk)
    }

    /// The claim's entry in the queue: with this token, or with any if that is not known.
    pub(super) fn find(
        &self,
        name: &LockName,
        id: &ClaimId,
        token: Option<FencingToken>,
    ) -> Result<Option<QueueEntry>> {
        let sql = match token {
            Some(_) => select_entry!(" FROM claims WHERE name = ?1 AND claim = ?2 AND token = ?3"),
            None => {
                select_entry!(" FROM claims WHERE name = ?1 AND claim = ?2 AND ?3 IS NULL LIMIT 1")
            }
        };
        let token = token.map(|token| Number(token.get()));
        let mut select = self.connection.prepare_cached(sql)?;
        let key = params![name.as_str(), &id.as_bytes()[..], token];
        Ok(select.query_row(key, QueueEntry::read).optional()?)
    }

    /// Refuses a claim that counts the lock's permits otherwise than one that is there.
    pub(super) fn check_permits(&self, claim: &Claim) -> Result<()> {
        let Mode::Permit { of } = claim.mode else {
            return Ok(());
        };
        let mut select = self.connection.prepare_cached(&format!(
            "SELECT mode, token, held, pipe FROM claims WHERE name = ?2 AND mode > 0 AND mode <> ?3 AND claim <> ?4
             AND (held = 0 OR NOT {IS_OVER})",
        ))?;
        let id = &claim.id.as_bytes()[..];
        let mut rows = select.query(params![micros(self.now), claim.name.as_str(), of, id])?;
        let mut gone = Vec::new();
        while let Some(row) = rows.next()? {
            let (token, held) = (token(row, 1)?, row.get(2)?);
            let pipe = row.get_ref(3)?.as_str().unwrap_or_default();
            if held || self.pipes.wakeup(pipe, token).is_some() {
                claim.mode.agrees_with(Mode::from_number(row.get(0)?))?;
            }
            gone.push(token);
        }
        drop(rows);
        for token in gone {
            self.delete(&claim.name, token)?;
        }
        Ok(())
    }

    /// Queues the claim behind all others: held, or waiting to be woken through a pipe.
    pub(super) fn insert(&self, claim: &Claim, pipe: Option<&str>) -> Result<QueueEntry> {
        let token = self.next_token()?;
        let expires = self.now + claim.ttl.get();
        self.connection
            .prepare_cached(
                "INSERT INTO claims VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(params![
                claim.name.as_str(),
                Number(token.get()),
                &claim.id.as_bytes()[..],
                pipe.is_none(),
                claim.mode.to_number(),
                Number(claim.ttl.get().as_micros() as u64),
                micros(self.now),
                micros(expires),
                pipe.unwrap_or(""),
                claim.claimant.label,
                claim.claimant.host,
                claim.claimant.pid,
                claim.reason.as_deref(),
            ])?;
        Ok(QueueEntry {
            token,
            held: pipe.is_none(),
            mode: claim.mode,
            ttl: claim.ttl.get(),
            expires,
        })
    }

    fn next_token(&self) -> Result<FencingToken> {
        // Two statements: RETURNING would cost more than both.
        let Number(last) = self
            .connection
            .prepare_cached("SELECT expires FROM claims WHERE name = '' AND token = 0")?
            .query_row([], |row| row.get(0))?;
        let token = FencingToken::after(last, wall_clock_micros())?;
        self.connection
            .prepare_cached("UPDATE claims SET expires = ?1 WHERE name = '' AND token = 0")?
            .execute([Number(token.get())])?;
        Ok(token)
    }

    pub(super) fn delete(&self, name: &LockName, token: FencingToken) -> Result<()> {
        self.connection
            .prepare_cached("DELETE FROM claims WHERE name = ?1 AND token = ?2")?
            .execute(params![name.as_str(), Number(token.get())])?;
        Ok(())
    }

    /// A waiter may ask again in another mode, with another TTL, or through another pipe: that of another process, or of another runtime. The last ones count.
    pub(super) fn wait_on(&self, claim: &Claim, token: FencingToken, pipe: &str) -> Result<()> {
        self.connection
            .prepare_cached(
                "UPDATE claims SET mode = ?3, ttl = ?4, pipe = ?5 WHERE name = ?1 AND token = ?2 AND (mode <> ?3 OR ttl <> ?4 OR pipe <> ?5)",
            )?
            .execute(params![
                claim.name.as_str(),
                Number(token.get()),
                claim.mode.to_number(),
                Number(claim.ttl.get().as_micros() as u64),
                pipe,
            ])?;
        Ok(())
    }

    /// Takes a claim out, wherever it is; its token, if that is known, spares a search. Returns whether it held the lock.
    pub(super) fn take_out(
        &mut self,
        name: &LockName,
        id: &ClaimId,
        token: Option<FencingToken>,
    ) -> Result<bool> {
        let walk = self.walk(name, TakeOut::Claim(id), None)?;
        if let Some(held) = walk.taken_out {
            return Ok(held);
        }
        if walk.blocked
            && let Some(entry) = self.find(name, id, token)?
        {
            self.delete(name, entry.token)?;
        }
        Ok(false)
    }

    /// Grants a held claim its TTL anew, unless more time than that is left; `None` if it is not held.
    pub(super) fn renew(&mut self, renew: &Renew<'_>) -> Result<Option<QueueEntry>> {
        let Renew {
            claim,
            token,
            shorten,
        } = renew;
        let entry = self.find(&claim.name, &claim.id, *token)?;
        let Some(entry) = entry.filter(|entry| entry.held && entry.lives(self.now)) else {
            return Ok(None);
        };
        let expires = self.now + claim.ttl.get();
        if expires < entry.expires && !shorten {
            return Ok(Some(entry));
        }
        self.connection
            .prepare_cached(
                "UPDATE claims SET ttl = ?3, expires = ?4 WHERE name = ?1 AND token = ?2",
            )?
            .execute(params![
                claim.name.as_str(),
                Number(entry.token.get()),
                Number(claim.ttl.get().as_micros() as u64),
                micros(expires)
            ])?;
        if expires < entry.expires {
            self.nudge_first_waiter(&claim.name)?;
        }
        let ttl = claim.ttl.get();
        Ok(Some(QueueEntry {
            ttl,
            expires,
            ..entry
        }))
    }

    /// Whoever is first may now have less to wait for than it thinks.
    fn nudge_first_waiter(&mut self, name: &LockName) -> Result<()> {
        let mut select = self.connection.prepare_cached(
            "SELECT token, pipe FROM claims WHERE name = ?1 AND held = 0 ORDER BY token LIMIT 1",
        )?;
        let mut rows = select.query([name.as_str()])?;
        if let Some(row) = rows.next()? {
            let pipe: String = row.get(1)?;
            self.wakeups
                .extend(self.pipes.wakeup(&pipe, token(row, 0)?));
        }
        Ok(())
    }

    /// Holders and waiters for people to see.
    pub(super) fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let from = match query {
            Query::Name(name) => name.as_str(),
            Query::Prefix(prefix) => prefix.as_str(),
        };
        let mut select = self.connection.prepare_cached(select_entry!(
            ", name, since, pipe, owner, host, pid, reason
             FROM claims WHERE name >= ?1 AND name > '' ORDER BY name, token"
        ))?;
        let mut rows = select.query([from])?;
        let mut locks: Vec<LockInfo> = Vec::new();
        while let Some(row) = rows.next()? {
            let name = LockName::stored(row.get::<_, String>(5)?)?;
            if !query.asks_for(&name) {
                break;
            }
            if locks.last().is_none_or(|lock| lock.name != name) {
                locks.push(LockInfo {
                    name,
                    holders: Vec::new(),
                    waiters: Vec::new(),
                });
            }
            if let Some(lock) = locks.last_mut() {
                self.describe(row, lock)?;
            }
        }
        locks.retain(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty());
        Ok(locks)
    }

    fn describe(&self, row: &Row<'_>, lock: &mut LockInfo) -> Result<()> {
        let claimant = Claimant {
            label: row.get(8)?,
            host: row.get(9)?,
            pid: row.get(10)?,
        };
        let reason = row.get(11)?;
        let age = self.now.since(moment(row, 6)?);
        let entry = QueueEntry::read(row)?;
        let mode = entry.mode;
        if entry.held {
            if entry.lives(self.now) {
                lock.holders.push(HolderInfo {
                    claimant,
                    reason,
                    mode,
                    held_for: age,
                    time_left: entry.expires.since(self.now),
                    token: entry.token,
                });
            }
        } else if self
            .pipes
            .has_listener(row.get_ref(7)?.as_str().unwrap_or_default())
        {
            lock.waiters.push(WaiterInfo {
                claimant,
                reason,
                mode,
                waited_for: age,
            });
        }
        Ok(())
    }

    /// Whether there is something to sweep, as far as can be seen without asking anybody.
    pub(super) fn needs_sweeping(&self) -> Result<bool> {
        let mut select = self.connection.prepare(&format!(
            "SELECT EXISTS (SELECT 1 FROM claims WHERE name > ''
             AND (held = 1 AND {IS_OVER} OR held = 0 AND since <= ?2))",
        ))?;
        let long_ago = micros(self.now - LONG_WAIT);
        Ok(select.query_row([micros(self.now), long_ago], |row| row.get(0))?)
    }

    /// Deletes what nobody will ever ask for again: expired holders, so many at most, and waiters whose process is gone.
    pub(super) fn sweep(&self, at_most: u32) -> Result<()> {
        let over = format!(
            "DELETE FROM claims WHERE (name, token) IN
             (SELECT name, token FROM claims WHERE name > '' AND held = 1 AND {IS_OVER} LIMIT ?2)",
        );
        let bounds = params![micros(self.now), at_most];
        self.connection.execute(&over, bounds)?;
        let mut select = self
            .connection
            .prepare("SELECT DISTINCT pipe FROM claims WHERE name > '' AND held = 0")?;
        let pipes = select.query_map([], |row| row.get::<_, String>(0))?;
        for pipe in pipes.collect::<rusqlite::Result<Vec<_>>>()? {
            if !self.pipes.has_listener(&pipe) {
                self.connection.execute(
                    "DELETE FROM claims WHERE held = 0 AND pipe = ?1 AND name > ''",
                    [pipe],
                )?;
            }
        }
        Ok(())
    }
}

/// Moments are stored in microseconds, rounded down: a grant is never longer than it was said to be.
pub(super) fn micros(moment: Moment) -> Number {
    Number(moment.since_origin().as_micros() as u64)
}

fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<Moment> {
    let Number(micros) = row.get(column)?;
    Ok(Moment::from_origin(Duration::from_micros(micros)))
}

fn token(row: &Row<'_>, column: usize) -> rusqlite::Result<FencingToken> {
    let Number(number) = row.get(column)?;
    FencingToken::new(number).ok_or(rusqlite::Error::IntegralValueOutOfRange(
        column,
        number as i64,
    ))
}
