//! How a claim whose turn it is takes the lock: it moves its key from the lease of those who wait to that of its TTL, and
//! writes down that it has the lock.
//!
//! Whoever does not take the lock when it could (a process that has died, most likely) can be passed over by those behind
//! it once they have seen it idle for [`GRACE`], long before its lease ends, and without harm to exclusion if it was only
//! slow: until it has written, it relies on nothing. With one exception, which saves the write where a lock goes quickly
//! from hand to hand: an exclusive claim that knows when it was surely not its turn relies on the lock from then on for less
//! than that time, and has to write before that is over.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use super::cluster::Haste;
use super::entry;
use super::leases::{Lease, Purpose};
use super::line;
use super::places::{Place, Stands};
use super::proto::*;
use crate::claim::{ClaimId, Mode};
use crate::clock::{Clock, Moment};
use crate::engine::{Attempt, Grant};
use crate::error::Result;
use crate::token::wall_clock_micros;

/// No more are passed over at once: a transaction has its limits.
const AT_ONCE: usize = 100;

/// How long the first in line has to take the lock once it can.
pub(super) const GRACE: Duration = Duration::from_millis(600);

/// For how long the first in line relies on the lock unwritten, since it was surely not its turn: less than [`GRACE`], for
/// clocks that run apart.
const UNWRITTEN: Duration = Duration::from_millis(500);

/// What is not worth relying on.
const TOO_SHORT: Duration = Duration::from_millis(200);

/// Who has the lock for longer than this writes that down.
const BRIEF: Duration = Duration::from_millis(20);

pub(super) enum Taken {
    Granted(Grant),
    /// It is not its turn.
    Behind(Place),
    /// It has no place in the line any more.
    Gone,
}

impl Client {
    /// For an exclusive claim this is also the look whether it is its turn; others have looked before.
    pub(super) async fn take(self: &Arc<Self>, place: Place) -> Result<Taken> {
        let span = self.keys.line(&place.claim.name);
        let first = match place.claim.mode {
            Mode::Exclusive => Some(line::nobody_before(&span, place.created)),
            _ => None,
        };
        self.take_if(place, first.into_iter().collect(), Vec::new())
            .await
    }

    /// The lock for the moment, without a write; for an exclusive claim that nobody stands before.
    pub(super) fn take_unwritten(
        self: &Arc<Self>,
        place: &Place,
        sent: Moment,
    ) -> Result<Option<Grant>> {
        let until = place.not_before + UNWRITTEN;
        let mut grant = self.grant_until(place, sent)?;
        grant.valid_until = grant.valid_until.min(until);
        if place.claim.mode != Mode::Exclusive || grant.valid_until < sent + TOO_SHORT {
            return Ok(None);
        }
        let mut place = place.clone();
        place.stands = Stands::Holds;
        place.since = wall_clock_micros();
        tokio::spawn(write_later(Arc::clone(self), place.claim.id));
        self.granted(place, sent)?;
        Ok(Some(grant))
    }

    /// Takes the lock if these are true, and does these as well.
    async fn take_if(
        self: &Arc<Self>,
        mut place: Place,
        compare: Vec<Compare>,
        also: Vec<RequestOp>,
    ) -> Result<Taken> {
        let (mode, created) = (place.claim.mode, place.created);
        let key = self.keys.claim(&place.claim);
        let span = self.keys.line(&place.claim.name);
        let sent = Clock::machine().now();
        let since = wall_clock_micros();
        loop {
            let hold = self.lease_to_hold(Purpose::of(place.claim.ttl)).await?;
            let put = PutRequest {
                key: key.clone(),
                value: entry::value(&place.claim, false, since),
                lease: hold.id,
                ignore_value: false,
            };
            let mut all_true = vec![line::unchanged(&key, place.modified)];
            all_true.extend(compare.iter().cloned());
            let mut success = vec![RequestOp::from(Request::Put(put))];
            success.extend(also.iter().cloned());
            let look = line::up_to(&span, mode, created);
            let own = line::one(&key);
            let txn = TxnRequest {
                compare: all_true,
                success,
                failure: vec![Request::Range(own).into(), Request::Range(look).into()],
            };
            let Some(reply) = self.write(txn, &hold, None).await? else {
                continue;
            };
            if reply.succeeded {
                place.modified = line::revision(&reply.header);
                return self.taken(place, &hold, since, sent);
            }
            let own = reply.range(0).and_then(|own| own.kvs.first());
            let Some(own) = own.filter(|own| own.create_revision == created) else {
                self.places.forget(&place.claim.id);
                return Ok(Taken::Gone);
            };
            if own.lease == hold.id {
                // An earlier try that seemed to have failed.
                place.modified = own.mod_revision;
                return self.taken(place, &hold, since, sent);
            }
            if own.mod_revision != place.modified {
                place.modified = own.mod_revision;
                continue;
            }
            let seen = reply.range(1).and_then(|seen| {
                let mut seen = seen.clone();
                seen.header = reply.header.clone();
                line::stands(mode, &key, created, &seen)
            });
            place.not_before = sent;
            place.stands = match seen {
                Some(behind @ Stands::Behind { .. }) => behind,
                _ => Stands::UNKNOWN,
            };
            return Ok(Taken::Behind(place));
        }
    }

    fn taken(
        &self,
        mut place: Place,
        hold: &Arc<Lease>,
        since: u64,
        sent: Moment,
    ) -> Result<Taken> {
        place.lease = Arc::clone(hold);
        place.stands = Stands::Holds;
        place.written = true;
        place.since = since;
        match self.granted(place, sent)? {
            Attempt::Granted(grant) => Ok(Taken::Granted(grant)),
            Attempt::Held(_) => Ok(Taken::Gone),
        }
    }

    /// Who stands at the head of the line without having taken the lock.
    pub(super) async fn idle_head(&self, place: &Place) -> Result<Option<KeyValue>> {
        let span = self.keys.line(&place.claim.name);
        let head = self.cluster.range(line::head(&span)).await?.message.kvs;
        let head = head.into_iter().next();
        Ok(head.filter(|head| head.create_revision < place.created && entry::waits(head)))
    }

    /// Passes over all who stand before this claim, if the head still does not take the lock; `None` if it does.
    pub(super) async fn pass_over(
        self: &Arc<Self>,
        place: Place,
        idle: &KeyValue,
    ) -> Result<Option<Taken>> {
        let span = self.keys.line(&place.claim.name);
        let ahead = RangeRequest {
            max_create_revision: place.created - 1,
            limit: AT_ONCE as i64,
            ..line::whole(&span)
        };
        let ahead = self.cluster.range(ahead).await?.message.kvs;
        let still_idle = ahead
            .first()
            .is_some_and(|head| head.key == idle.key && head.mod_revision == idle.mod_revision);
        if !still_idle || !ahead.iter().all(entry::waits) {
            return Ok(None);
        }
        let unchanged = |entry: &KeyValue| line::unchanged(&entry.key, entry.mod_revision);
        let compare: Vec<_> = ahead.iter().map(unchanged).collect();
        let delete = |entry: &KeyValue| Request::DeleteRange(line::delete(&entry.key)).into();
        let delete: Vec<_> = ahead.iter().map(delete).collect();
        if ahead.len() < AT_ONCE {
            return self.take_if(place, compare, delete).await.map(Some);
        }
        let txn = TxnRequest {
            compare,
            success: delete,
            failure: Vec::new(),
        };
        self.cluster.txn(txn, Haste::Urgent).await?;
        Ok(None)
    }
}

/// If that fails, the next renewal does it, or tells that it is too late.
async fn write_later(client: Arc<Client>, id: ClaimId) {
    tokio::time::sleep(BRIEF).await;
    if client.places.of(&id).is_none() {
        return;
    }
    let _turn = client.places.turn(id).await;
    if let Some(place) = client.places.of(&id)
        && !place.written
    {
        let _ = client.take(place).await;
    }
}
