//! The one table: every claim on every lock, held or waiting, as rows ordered by token.
//!
//! A claim gets its token when it takes its place, and places are served in their order, so the
//! holders of a lock are always its first rows and tokens rise with every grant. One table means
//! that a transaction of an idle file writes one page.

use std::time::Duration;

use rusqlite::{Connection, Row, params};

use super::door::{Bell, Doors};
use super::failure::Result;
use crate::claim::{Claim, ClaimId, Claimant, Mode};
use crate::clock::Moment;
use crate::engine::{HolderInfo, LockInfo, Query, Renew, WaiterInfo};
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

/// The row with the empty name, which no lock can have, is the register: `expires` is the greatest token
/// given so far, `owner` the boot of the machine, `host` the time namespace.
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
        door TEXT NOT NULL,
        owner TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        reason TEXT,
        PRIMARY KEY (name, token)
    ) WITHOUT ROWID;
    INSERT INTO claims VALUES ('', 0, x'', 0, 0, 0, 0, 0, '', '', '', 0, NULL);";

/// A place in a lock's row of claims.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) token: FencingToken,
    pub(super) held: bool,
    pub(super) expires: Moment,
}

/// What a walk along a lock's claims found, and what it has changed.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The claim that was looked for, if it is among those that hold or are next.
    pub(super) own: Option<Place>,
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

/// One transaction's view of the table.
pub(super) struct Table<'a> {
    pub(super) connection: &'a Connection,
    pub(super) doors: &'a Doors,
    pub(super) now: Moment,
    /// Rung after the commit.
    pub(super) bells: Vec<Bell>,
}

impl Table<'_> {
    /// Walks along the claims of a lock from the first: takes out the expired and the one named, lets in
    /// whoever is next and fits, and stops at the first who does not.
    pub(super) fn walk(
        &mut self,
        name: &LockName,
        take_out: TakeOut<'_>,
        look_for: Option<&ClaimId>,
    ) -> Result<Walk> {
        let mut walk = Walk::default();
        let mut gone = Vec::new();
        let mut granted = Vec::new();
        let mut select = self.connection.prepare_cached(
            "SELECT token, claim, held, mode, ttl, expires, door FROM claims WHERE name = ?1 ORDER BY token",
        )?;
        let mut rows = select.query([name.as_str()])?;
        while let Some(row) = rows.next()? {
            let mut place = Place {
                token: token(row, 0)?,
                held: row.get(2)?,
                expires: moment(row, 5)?,
            };
            let alive = place.expires > self.now;
            let claim = row.get_ref(1)?.as_blob().unwrap_or_default();
            let mode = mode_from(row.get(3)?);
            let leaves = match take_out {
                TakeOut::Nobody => false,
                TakeOut::Claim(id) => claim == id.as_bytes(),
                TakeOut::AllHolders => place.held,
            };
            if leaves {
                let held = place.held && alive;
                walk.taken_out = Some(held || walk.taken_out.unwrap_or(false));
                gone.push(place.token);
                continue;
            }
            if place.held && !alive {
                gone.push(place.token);
                continue;
            }
            let fits = place.held || mode.fits(walk.holders.iter().copied());
            if fits && !place.held {
                let door = row.get_ref(6)?.as_str().unwrap_or_default();
                let Some(bell) = self.doors.bell(door, place.token) else {
                    gone.push(place.token);
                    continue;
                };
                let ttl = Duration::from_micros(row.get(4)?);
                place = Place {
                    held: true,
                    expires: self.now + ttl,
                    ..place
                };
                granted.push(place);
                self.bells.push(bell);
            }
            if look_for.is_some_and(|id| claim == id.as_bytes()) {
                walk.own = Some(place);
            }
            if !fits {
                walk.blocked = true;
                break;
            }
            walk.holders.push(mode);
            let first = walk.first_expiry.unwrap_or(place.expires);
            walk.first_expiry = Some(first.min(place.expires));
        }
        drop(rows);
        for token in gone {
            self.delete(name, token)?;
        }
        for place in granted {
            self.connection
                .prepare_cached("UPDATE claims SET held = 1, since = ?3, expires = ?4, door = '' WHERE name = ?1 AND token = ?2")?
                .execute(params![name.as_str(), place.token.get(), micros(self.now), micros(place.expires)])?;
        }
        Ok(walk)
    }

    /// The claim's place, wherever it stands.
    pub(super) fn find(&self, name: &LockName, id: &ClaimId) -> Result<Option<Place>> {
        let mut select = self.connection.prepare_cached(
            "SELECT token, held, expires FROM claims WHERE name = ?1 AND claim = ?2 LIMIT 1",
        )?;
        let mut rows = select.query(params![name.as_str(), &id.as_bytes()[..]])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        Ok(Some(Place {
            token: token(row, 0)?,
            held: row.get(1)?,
            expires: moment(row, 2)?,
        }))
    }

    /// The claim's place if it stands where it is said to.
    pub(super) fn at(
        &self,
        name: &LockName,
        token: FencingToken,
        id: &ClaimId,
    ) -> Result<Option<Place>> {
        let mut select = self.connection.prepare_cached(
            "SELECT held, expires FROM claims WHERE name = ?1 AND token = ?2 AND claim = ?3",
        )?;
        let key = params![name.as_str(), token.get(), &id.as_bytes()[..]];
        let mut rows = select.query(key)?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        Ok(Some(Place {
            token,
            held: row.get(0)?,
            expires: moment(row, 1)?,
        }))
    }

    /// Refuses a claim that counts the lock's permits otherwise than one that is there.
    pub(super) fn check_permits(&self, claim: &Claim) -> Result<()> {
        let Mode::Permit { of } = claim.mode else {
            return Ok(());
        };
        let mut select = self.connection.prepare_cached(
            "SELECT mode FROM claims WHERE name = ?1 AND mode > 0 AND mode <> ?2
             AND (held = 0 OR expires > ?3) LIMIT 1",
        )?;
        let mut rows = select.query(params![claim.name.as_str(), of, micros(self.now)])?;
        match rows.next()? {
            Some(row) => Ok(claim.mode.agrees_with(mode_from(row.get(0)?))?),
            None => Ok(()),
        }
    }

    /// Gives the claim a place behind all others: held if `door` is `None`, else waiting behind it.
    pub(super) fn insert(&self, claim: &Claim, door: Option<&str>) -> Result<Place> {
        let token = self.next_token()?;
        let expires = self.now + claim.ttl.get();
        self.connection
            .prepare_cached(
                "INSERT INTO claims VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(params![
                claim.name.as_str(),
                token.get(),
                &claim.id.as_bytes()[..],
                door.is_none(),
                mode_to(claim.mode),
                claim.ttl.get().as_micros() as u64,
                micros(self.now),
                micros(expires),
                door.unwrap_or(""),
                claim.claimant.owner,
                claim.claimant.host,
                claim.claimant.pid,
                claim.reason.as_deref(),
            ])?;
        Ok(Place {
            token,
            held: door.is_none(),
            expires,
        })
    }

    fn next_token(&self) -> Result<FencingToken> {
        // Two statements: RETURNING would cost more than both.
        let last: u64 = self
            .connection
            .prepare_cached("SELECT expires FROM claims WHERE name = '' AND token = 0")?
            .query_row([], |row| row.get(0))?;
        let token = FencingToken::after(last, wall_clock_micros())?;
        self.connection
            .prepare_cached("UPDATE claims SET expires = ?1 WHERE name = '' AND token = 0")?
            .execute([token.get()])?;
        Ok(token)
    }

    pub(super) fn delete(&self, name: &LockName, token: FencingToken) -> Result<()> {
        self.connection
            .prepare_cached("DELETE FROM claims WHERE name = ?1 AND token = ?2")?
            .execute(params![name.as_str(), token.get()])?;
        Ok(())
    }

    /// A waiter is to be woken elsewhere: the runtime it listened on has gone.
    pub(super) fn move_to(&self, name: &LockName, token: FencingToken, door: &str) -> Result<()> {
        self.connection
            .prepare_cached("UPDATE claims SET door = ?3 WHERE name = ?1 AND token = ?2")?
            .execute(params![name.as_str(), token.get(), door])?;
        Ok(())
    }

    /// Grants a held claim its TTL anew; `None` if it is not held.
    pub(super) fn renew(&mut self, renew: &Renew<'_>) -> Result<Option<Place>> {
        let Renew { claim, token } = renew;
        let place = match token {
            Some(token) => self.at(&claim.name, *token, &claim.id)?,
            None => self.find(&claim.name, &claim.id)?,
        };
        let Some(place) = place.filter(|place| place.held && place.expires > self.now) else {
            return Ok(None);
        };
        let expires = self.now + claim.ttl.get();
        self.connection
            .prepare_cached(
                "UPDATE claims SET ttl = ?3, expires = ?4 WHERE name = ?1 AND token = ?2",
            )?
            .execute(params![
                claim.name.as_str(),
                place.token.get(),
                claim.ttl.get().as_micros() as u64,
                micros(expires)
            ])?;
        if expires < place.expires {
            self.nudge_first_waiter(&claim.name)?;
        }
        Ok(Some(Place { expires, ..place }))
    }

    /// Whoever is first may now have less to wait for than it thinks.
    fn nudge_first_waiter(&mut self, name: &LockName) -> Result<()> {
        let mut select = self.connection.prepare_cached(
            "SELECT token, door FROM claims WHERE name = ?1 AND held = 0 ORDER BY token LIMIT 1",
        )?;
        let mut rows = select.query([name.as_str()])?;
        if let Some(row) = rows.next()? {
            let door: String = row.get(1)?;
            self.bells.extend(self.doors.bell(&door, token(row, 0)?));
        }
        Ok(())
    }

    /// Holders and waiters for people to see.
    pub(super) fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let from = match query {
            Query::Name(name) => name.as_str(),
            Query::Prefix(prefix) => prefix.as_str(),
        };
        let mut select = self.connection.prepare_cached(
            "SELECT name, token, held, mode, since, expires, door, owner, host, pid, reason
             FROM claims WHERE name >= ?1 AND name > '' ORDER BY name, token",
        )?;
        let mut rows = select.query([from])?;
        let mut locks: Vec<LockInfo> = Vec::new();
        while let Some(row) = rows.next()? {
            let name = LockName::new(row.get::<_, String>(0)?)?;
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
            owner: row.get(7)?,
            host: row.get(8)?,
            pid: row.get(9)?,
        };
        let (mode, reason) = (mode_from(row.get(3)?), row.get(10)?);
        let age = self.now.since(moment(row, 4)?);
        let expires = moment(row, 5)?;
        if row.get(2)? {
            if expires > self.now {
                lock.holders.push(HolderInfo {
                    claimant,
                    reason,
                    mode,
                    held_for: age,
                    time_left: expires.since(self.now),
                    token: token(row, 1)?,
                });
            }
        } else if self
            .doors
            .is_open(row.get_ref(6)?.as_str().unwrap_or_default())
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

    /// Deletes what nobody will ever ask for again: expired holders, and waiters whose process is gone.
    pub(super) fn sweep(&self) -> Result<()> {
        self.connection.execute(
            "DELETE FROM claims WHERE name > '' AND held = 1 AND expires <= ?1",
            [micros(self.now)],
        )?;
        let mut select = self
            .connection
            .prepare("SELECT DISTINCT door FROM claims WHERE name > '' AND held = 0")?;
        let doors = select.query_map([], |row| row.get::<_, String>(0))?;
        for door in doors.collect::<rusqlite::Result<Vec<_>>>()? {
            if !self.doors.is_open(&door) {
                self.connection.execute(
                    "DELETE FROM claims WHERE held = 0 AND door = ?1 AND name > ''",
                    [door],
                )?;
            }
        }
        Ok(())
    }
}

/// Moments are stored in microseconds, rounded down: a grant is never longer than it was said to be.
fn micros(moment: Moment) -> u64 {
    moment.since_origin().as_micros() as u64
}

fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<Moment> {
    Ok(Moment::from_origin(Duration::from_micros(row.get(column)?)))
}

fn token(row: &Row<'_>, column: usize) -> rusqlite::Result<FencingToken> {
    let number: u64 = row.get(column)?;
    FencingToken::new(number).ok_or(rusqlite::Error::IntegralValueOutOfRange(
        column,
        number as i64,
    ))
}

const EXCLUSIVE: i64 = 0;
const SHARED: i64 = -1;

fn mode_to(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => EXCLUSIVE,
        Mode::Shared => SHARED,
        Mode::Permit { of } => of.into(),
    }
}

fn mode_from(stored: i64) -> Mode {
    match stored {
        EXCLUSIVE => Mode::Exclusive,
        SHARED => Mode::Shared,
        of => Mode::Permit {
            of: of.unsigned_abs() as u32,
        },
    }
}
