//! One attempt: the claim's key is put into the line, unless the line says no.

use std::sync::Arc;
use std::time::Duration;

use super::Client;
use super::cluster::{Haste, Refused, Reply};
use super::entry;
use super::failure;
use super::keys::Span;
use super::leases::{KeptAlive, Lease, Purpose};
use super::line;
use super::places::{Place, Stands};
use super::proto::*;
use super::taking::Taken;
use crate::claim::{Claim, Mode};
use crate::clock::{Clock, Moment};
use crate::engine::{Attempt, Contention, Grant};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::token::wall_clock_micros;

/// How often others may get in between while a reader or a permit looks and joins.
const PATIENCE: usize = 100;

/// A waiter is told when to look; this is for what nobody thought of.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// What a claim brings along.
struct Asked<'a> {
    claim: &'a Claim,
    key: Vec<u8>,
    line: Span,
    sent: Moment,
}

impl Client {
    pub(super) async fn attempt(self: &Arc<Self>, claim: &Claim) -> Result<Attempt> {
        let _turn = self.places.turn(claim.id).await;
        let asked = Asked {
            claim,
            key: self.keys.claim(claim),
            line: self.keys.line(&claim.name),
            sent: Clock::machine().now(),
        };
        if let Some(place) = self.places.of(&claim.id)
            && let Some(attempt) = self.look(&asked, place).await?
        {
            return Ok(attempt);
        }
        for _ in 0..PATIENCE {
            if let Some(attempt) = self.join(&asked).await? {
                return Ok(attempt);
            }
        }
        let error = Error::new(ErrorKind::Unreachable, "others were always quicker");
        Err(error.advise("try again in a moment"))
    }

    /// How a claim stands that has joined the line before; `None` if it is there no longer.
    async fn look(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        mut place: Place,
    ) -> Result<Option<Attempt>> {
        let (mode, created) = (place.claim.mode, place.created);
        let look = self
            .cluster
            .range(line::up_to(&asked.line, mode, created))
            .await?;
        match line::stands(mode, &asked.key, created, &look.message) {
            None => {
                self.places.forget(&asked.claim.id);
                self.overdue.forget(&asked.claim.id);
                Ok(None)
            }
            Some(Stands::Holds) if place.written => {
                if !self.has_time(&place.lease).await? {
                    return Ok(None);
                }
                self.granted(place, asked.sent).map(Some)
            }
            Some(Stands::Holds) => self.take_or_wait(place).await,
            Some(behind) => {
                place.stands = behind;
                place.not_before = asked.sent;
                Ok(Some(self.waits(place, None)))
            }
        }
    }

    /// Whether a lease has some time left, if need be after it was kept alive.
    async fn has_time(&self, lease: &Lease) -> Result<bool> {
        let left = lease.promised_until().since(Clock::machine().now());
        if left > lease.ttl / 4 {
            return Ok(true);
        }
        Ok(self.leases.keep_alive(lease).await? != KeptAlive::Gone)
    }

    /// Tries to join the line; `None` if it has to be tried again.
    async fn join(self: &Arc<Self>, asked: &Asked<'_>) -> Result<Option<Attempt>> {
        let claim = asked.claim;
        let hold = self.lease_to_hold(Purpose::of(claim.ttl)).await?;
        let wait = match claim.queues && claim.mode == Mode::Exclusive {
            true => self.leases.current(Purpose::Wait),
            false => None,
        };
        let if_taken = match (claim.mode, &wait) {
            (Mode::Exclusive, Some(wait)) => asked.queue_behind(wait),
            (Mode::Exclusive, None) => vec![Request::Range(line::one(&asked.key)).into()],
            _ => vec![Request::Range(line::whole(&asked.line)).into()],
        };
        let txn = TxnRequest {
            compare: vec![line::is_empty(&asked.line)],
            success: vec![asked.put_under(&hold, false)],
            failure: if_taken,
        };
        let Some(reply) = self.write(txn, &hold, wait.as_ref()).await? else {
            return Ok(None);
        };
        if reply.succeeded {
            let place = asked.place(&reply, &hold, Stands::Holds);
            return self.granted(place, asked.sent).map(Some);
        }
        let answered = match (claim.mode, wait) {
            (Mode::Exclusive, Some(wait)) => self.queued(asked, &reply, &hold, &wait).await?,
            (Mode::Exclusive, None) => self.refused(asked, &reply, &hold).await?,
            _ => self.beside(asked, &reply, &hold).await?,
        };
        Ok(answered)
    }

    /// Carries out a transaction that puts keys under these leases; `None` if one of them has ended. The first is kept alive
    /// at the same time if that is due, so that a claim that joins it has its whole TTL.
    pub(super) async fn write(
        &self,
        txn: TxnRequest,
        hold: &Arc<Lease>,
        wait: Option<&Arc<Lease>>,
    ) -> Result<Option<TxnResponse>> {
        let fresh = async {
            match hold.is_stale(Clock::machine().now()) {
                true => self.leases.keep_alive(hold).await.ok(),
                false => None,
            }
        };
        let (reply, kept) = futures_util::join!(self.cluster.txn(txn, Haste::Patient), fresh);
        let reply = self.answer(reply, hold, wait)?;
        Ok(reply.filter(|reply| !reply.succeeded || kept != Some(KeptAlive::Gone)))
    }

    /// An answer, or `None` if a lease has ended. What may yet be carried out later must not live on under a lease that
    /// is kept alive for others: such a lease is used no more, and whoever is under it moves to another.
    fn answer(
        &self,
        reply: Result<Reply<TxnResponse>, Refused>,
        hold: &Arc<Lease>,
        wait: Option<&Arc<Lease>>,
    ) -> Result<Option<TxnResponse>> {
        let retire = || {
            self.leases.retire(hold.id);
            if let Some(wait) = wait {
                self.leases.retire(wait.id);
                self.waits.notify_one();
            }
        };
        match reply {
            Ok(reply) => {
                if reply.in_doubt {
                    retire();
                }
                Ok(Some(reply.message))
            }
            Err(Refused::Answer(said)) if failure::is_lease_gone(&said) => {
                retire();
                Ok(None)
            }
            Err(refused) => {
                let error = Error::from(refused);
                if error.effect() == Effect::Unknown {
                    retire();
                }
                Err(error)
            }
        }
    }

    /// The line was not empty, and the claim has a place in it now.
    async fn queued(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        reply: &TxnResponse,
        hold: &Arc<Lease>,
        wait: &Arc<Lease>,
    ) -> Result<Option<Attempt>> {
        let (Some(joined), Some(last)) = (reply.txn(0), reply.range(1)) else {
            return Err(failure::nonsense());
        };
        if !joined.succeeded {
            let there = joined.range(0).ok_or_else(failure::nonsense)?;
            return self.there_already(asked, there, &[hold, wait]).await;
        }
        let mut place = asked.place(reply, wait, Stands::UNKNOWN);
        // A part of a transaction does not say which revision it was.
        let stands = line::stands(Mode::Exclusive, &asked.key, place.created, last);
        place.stands = match stands {
            Some(Stands::Behind { watch, .. }) => Stands::Behind {
                watch,
                revision: place.created,
            },
            _ => return Err(failure::nonsense()),
        };
        Ok(Some(
            self.waits(place, usize::try_from(last.count - 1).ok()),
        ))
    }

    /// The line was not empty, and the claim has no place in it.
    async fn refused(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        reply: &TxnResponse,
        hold: &Arc<Lease>,
    ) -> Result<Option<Attempt>> {
        let there = reply.range(0).ok_or_else(failure::nonsense)?;
        if !there.kvs.is_empty() {
            return self.there_already(asked, there, &[hold]).await;
        }
        if asked.claim.queues {
            self.leases.get(Purpose::Wait).await?;
            return Ok(None);
        }
        Ok(Some(Attempt::Held(Contention::default())))
    }

    /// A reader or a permit, by what the line was: it joins those who hold the lock, unless others have joined since; or
    /// it queues.
    async fn beside(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        seen: &TxnResponse,
        hold: &Arc<Lease>,
    ) -> Result<Option<Attempt>> {
        let there = seen.range(0).ok_or_else(failure::nonsense)?;
        let revision = line::revision(&seen.header);
        let mode = asked.claim.mode;
        if let Some(mine) = there.kvs.iter().find(|entry| entry.key == asked.key) {
            let mine = RangeResponse {
                kvs: vec![mine.clone()],
                ..RangeResponse::default()
            };
            let wait = self.leases.get(Purpose::Wait).await?;
            return self.there_already(asked, &mine, &[hold, &wait]).await;
        }
        line::agrees(mode, &there.kvs)?;
        let enters = line::would_stand(mode, &there.kvs, revision) == Stands::Holds;
        if !enters && !asked.claim.queues {
            return Ok(Some(Attempt::Held(Contention {
                ahead: Some(there.kvs.len()),
                ..Contention::default()
            })));
        }
        let (lease, mut compare) = match enters {
            true => (
                Arc::clone(hold),
                vec![line::nobody_since(&asked.line, revision)],
            ),
            false => (self.leases.get(Purpose::Wait).await?, Vec::new()),
        };
        compare.push(line::absent(&asked.key));
        let txn = TxnRequest {
            compare,
            success: vec![
                asked.put_under(&lease, !enters),
                Request::Range(line::whole(&asked.line)).into(),
            ],
            failure: Vec::new(),
        };
        let Some(reply) = self.write(txn, hold, Some(&lease)).await? else {
            return Ok(None);
        };
        if !reply.succeeded {
            return Ok(None);
        }
        let mut place = asked.place(&reply, &lease, Stands::Holds);
        if enters {
            return self.granted(place, asked.sent).map(Some);
        }
        (place.stands, place.written) = (Stands::UNKNOWN, false);
        let now = reply.range(1).ok_or_else(failure::nonsense)?;
        let ahead = now.kvs.len().saturating_sub(1);
        match line::would_stand(mode, &now.kvs[..ahead], place.created) {
            Stands::Holds => self.take_or_wait(place).await,
            behind => {
                place.stands = behind;
                Ok(Some(self.waits(place, Some(ahead))))
            }
        }
    }

    /// It is the claim's turn: it takes the lock, or waits on if it is not after all.
    async fn take_or_wait(self: &Arc<Self>, place: Place) -> Result<Option<Attempt>> {
        match self.take(place).await? {
            Taken::Granted(grant) => Ok(Some(Attempt::Granted(grant))),
            Taken::Behind(place) => Ok(Some(self.waits(place, None))),
            Taken::Gone => Ok(None),
        }
    }

    /// An earlier try that seemed to have failed had put the key there: under the first of these leases if it got the lock.
    async fn there_already(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        there: &RangeResponse,
        leases: &[&Arc<Lease>],
    ) -> Result<Option<Attempt>> {
        let Some(entry) = there.kvs.first() else {
            return Ok(None);
        };
        let Some(lease) = leases.iter().find(|lease| lease.id == entry.lease) else {
            let what = "the claim is there under another lease";
            return Err(Error::new(ErrorKind::Unexpected, what).of_unknown_effect());
        };
        let place = Place {
            claim: asked.claim.clone(),
            created: entry.create_revision,
            modified: entry.mod_revision,
            lease: Arc::clone(lease),
            stands: match entry.lease == leases[0].id {
                true => Stands::Holds,
                false => Stands::UNKNOWN,
            },
            written: entry.lease == leases[0].id,
            not_before: asked.sent,
            since: wall_clock_micros(),
        };
        self.look(asked, place).await
    }

    /// The claim holds the lock: for its TTL, if its lease lives so long.
    pub(super) fn granted(&self, place: Place, sent: Moment) -> Result<Attempt> {
        let grant = self.grant_until(&place, sent)?;
        self.overdue
            .ends_at(&place.claim, sent + place.claim.ttl.get());
        self.places.note(place);
        Ok(Attempt::Granted(grant))
    }

    pub(super) fn grant_until(&self, place: &Place, sent: Moment) -> Result<Grant> {
        let valid_until = sent + place.claim.ttl.validity();
        Ok(Grant {
            token: entry::token(place.created).ok_or_else(failure::too_many_revisions)?,
            valid_until: valid_until.min(place.lease.promised_until()),
        })
    }

    fn waits(&self, place: Place, ahead: Option<usize>) -> Attempt {
        self.places.note(place);
        self.waits.notify_one();
        Attempt::Held(Contention {
            look_again_in: Some(LOOK_AGAIN),
            ahead,
            ..Contention::default()
        })
    }
}

impl Asked<'_> {
    fn put_under(&self, lease: &Lease, waits: bool) -> RequestOp {
        let put = PutRequest {
            key: self.key.clone(),
            value: entry::value(self.claim, waits, wall_clock_micros()),
            lease: lease.id,
            ignore_value: false,
        };
        Request::Put(put).into()
    }

    /// Joins the line unless it has, and asks who is last and last but one.
    fn queue_behind(&self, wait: &Lease) -> Vec<RequestOp> {
        let join = TxnRequest {
            compare: vec![line::absent(&self.key)],
            success: vec![self.put_under(wait, true)],
            failure: vec![Request::Range(line::one(&self.key)).into()],
        };
        let last = line::up_to(&self.line, Mode::Exclusive, 0);
        vec![Request::Txn(join).into(), Request::Range(last).into()]
    }

    /// The place that a transaction has made.
    fn place(&self, made: &TxnResponse, lease: &Arc<Lease>, stands: Stands) -> Place {
        let revision = line::revision(&made.header);
        Place {
            claim: self.claim.clone(),
            created: revision,
            modified: revision,
            lease: Arc::clone(lease),
            written: stands == Stands::Holds,
            stands,
            not_before: self.sent,
            since: wall_clock_micros(),
        }
    }
}
