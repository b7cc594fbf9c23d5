//! One attempt: the claim's key is put into the queue, unless the queue says no.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::claim::{Ahead, OwnClaim, QueueEntry};
use super::client::{Haste, Refused, Reply};
use super::failure;
use super::keys::Span;
use super::leases::{KeptAlive, Lease, Purpose};
use super::proto::*;
use super::protocol::{self, Position};
use super::taking::Taken;
use super::value;
use crate::claim::{Claim, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::{Attempt, Contention, Grant, Renew, Renewal};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::token::wall_clock_micros;

/// How often others may get in between while a reader or a permit looks and joins.
const PATIENCE: usize = 100;

/// A waiter is notified when to look; this is for what nobody thought of.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// What an attempt goes by.
struct Asked<'a> {
    claim: &'a Claim,
    key: Vec<u8>,
    queue: Span,
    sent: Moment,
}

impl Shared {
    /// Once something was written, or may have been, no failure is without effect: the claim may be in the queue.
    pub(super) async fn attempt(self: &Arc<Self>, claim: &Claim) -> Result<Attempt> {
        let asked = Asked {
            claim,
            key: self.keys.claim(claim),
            queue: self.keys.queue(&claim.name),
            sent: Clock::machine().now(),
        };
        let mut wrote = false;
        for _ in 0..PATIENCE {
            let own = self.claims.get(claim);
            wrote |= own.is_some();
            let known = own.as_ref().and_then(OwnClaim::entry);
            let mode = known.map_or(claim.mode, |entry| entry.claim.mode);
            let answer = match own {
                None => self.join(&asked).await,
                // Its key's value says how it wants the lock.
                Some(OwnClaim::Queued { entry, .. }) if mode != claim.mode => {
                    self.claims.leaves(claim, &entry);
                    Ok(None)
                }
                Some(OwnClaim::Queued { mut entry, .. }) => {
                    if claim.queues {
                        entry.claim.ttl = claim.ttl;
                        self.claims.asks(&entry);
                    }
                    let answer = self.look(&asked, entry.clone(), false).await;
                    if answer.is_err() && !claim.queues {
                        // Nobody waits for it any more.
                        self.claims.leaves(claim, &entry);
                        self.end_again(claim);
                    }
                    answer
                }
                Some(OwnClaim::Held(entry)) => self.look(&asked, entry, true).await,
                // It begins anew, once nobody can take the old entry for its own.
                Some(OwnClaim::Ending(ending)) => self.end(claim, &ending).await.map(|()| None),
            };
            match answer {
                Ok(Some(attempt)) => {
                    if let Attempt::Granted(_) = attempt {
                        claim.mode.is_still(mode)?;
                    }
                    return Ok(attempt);
                }
                Ok(None) => wrote = true,
                Err(error) if wrote => return Err(error.of_unknown_effect()),
                Err(error) => return Err(error),
            }
        }
        let error = Error::new(ErrorKind::Unreachable, "others were always quicker");
        Err(error.advise("try again in a moment").of_unknown_effect())
    }

    /// What has become of a claim that has joined the queue before; `None` if it is there no longer.
    async fn look(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        mut entry: QueueEntry,
        held: bool,
    ) -> Result<Option<Attempt>> {
        let (mode, created) = (entry.claim.mode, entry.created);
        if held && !self.has_time(&entry.lease).await? {
            self.claims.gone(&entry.claim, &entry);
            return Ok(None);
        }
        let promised = entry.lease.promised_until();
        let look = protocol::up_to(&asked.queue, mode, created);
        let seen = self.client.range(look).await?.message;
        let Some(position) = protocol::position_in(mode, &asked.key, created, &seen) else {
            self.claims.gone(&entry.claim, &entry);
            return Ok(None);
        };
        let own = seen.kvs.iter().find(|own| own.key == asked.key);
        match position {
            Position::Holds if !held => {
                // It may have queued for another TTL than it asks for here.
                entry.claim = Claim {
                    mode,
                    ..asked.claim.clone()
                };
                self.claims.asks(&entry);
                self.take_or_wait(entry).await
            }
            Position::Holds if own.is_some_and(|own| own.lease != entry.lease.id) => {
                self.renew_known(asked.claim).await
            }
            Position::Holds => {
                let ttl = asked.claim.ttl;
                let grant = grant(&entry, ttl, asked.sent, promised)?;
                // Its time may have ended meanwhile, and its key been deleted after this answer.
                let end = asked.sent + ttl.get();
                let held = self.claims.still_hold(asked.claim, entry, end);
                Ok(held.then_some(Attempt::Granted(grant)))
            }
            Position::Behind(_) if !asked.claim.queues => self.leave(asked.claim, &entry).await,
            Position::Behind(ahead) => {
                self.claims.waits_behind(&entry, ahead);
                Ok(Some(self.waits(None)))
            }
        }
    }

    /// A claim that has queued, and does so no longer; `None` if it does not wait any more.
    async fn leave(&self, claim: &Claim, entry: &QueueEntry) -> Result<Option<Attempt>> {
        let Some(ending) = self.claims.leaves(claim, entry) else {
            return Ok(None);
        };
        self.end(claim, &ending).await?;
        Ok(Some(Attempt::Held(Contention::default())))
    }

    /// Whether a lease has some time left, if need be after it was kept alive.
    async fn has_time(&self, lease: &Lease) -> Result<bool> {
        let left = lease.promised_until().since(Clock::machine().now());
        if left > lease.ttl / 4 {
            return Ok(true);
        }
        Ok(self.leases.keep_alive(lease).await? != KeptAlive::Gone)
    }

    /// A claim that holds the lock under another lease than was known.
    async fn renew_known(self: &Arc<Self>, claim: &Claim) -> Result<Option<Attempt>> {
        let renew = Renew {
            claim,
            token: None,
            shorten: false,
        };
        let renewal = self.renew(&[renew]).await.pop();
        Ok(match renewal.ok_or_else(failure::nonsense)?? {
            Renewal::Renewed(grant) => Some(Attempt::Granted(grant)),
            Renewal::Lost(_) => None,
        })
    }

    /// Tries to join the queue; `None` if it has to be tried again.
    async fn join(self: &Arc<Self>, asked: &Asked<'_>) -> Result<Option<Attempt>> {
        let claim = asked.claim;
        let hold = self.lease_to_hold(Purpose::of(claim.ttl)).await?;
        let wait = match claim.queues && claim.mode == Mode::Exclusive {
            true => self.leases.current(Purpose::Wait),
            false => None,
        };
        let txn = protocol::join(claim, &asked.key, &asked.queue, &hold, wait.as_deref());
        let Some((reply, promised)) = self.write(txn, &hold, wait.as_ref()).await? else {
            return Ok(None);
        };
        if reply.succeeded {
            return self.granted(asked.joined(&reply, &hold), asked.sent, promised);
        }
        match (claim.mode, wait) {
            (Mode::Exclusive, Some(wait)) => self.queued(asked, &reply, &wait).await,
            (Mode::Exclusive, None) => self.refused(asked, &reply).await,
            _ => self.join_beside(asked, &reply, &hold).await,
        }
    }

    /// Carries out a transaction that puts keys under these leases; `None` if one of them has ended. The first is kept alive
    /// before if that is due, so that a claim that joins it has its whole TTL. Returns until when that is promised as well.
    pub(super) async fn write(
        &self,
        txn: TxnRequest,
        hold: &Arc<Lease>,
        wait: Option<&Arc<Lease>>,
    ) -> Result<Option<(TxnResponse, Moment)>> {
        if hold.is_stale(Clock::machine().now())
            && let Ok(KeptAlive::Gone) = self.leases.keep_alive(hold).await
        {
            return Ok(None);
        }
        let promised = hold.promised_until();
        let in_flight = self.leases.in_flight([hold].into_iter().chain(wait));
        let reply = self.client.txn(txn, Haste::Patient).await;
        in_flight.answered();
        let reply = self.answer(reply, hold, wait)?;
        Ok(reply.map(|reply| (reply, promised)))
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
                if reply.maybe_applied {
                    retire();
                }
                Ok(Some(reply.message))
            }
            Err(refused) if failure::is_lease_gone(&refused.said) => {
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

    /// The queue was not empty, and the claim is in it now.
    async fn queued(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        reply: &TxnResponse,
        wait: &Arc<Lease>,
    ) -> Result<Option<Attempt>> {
        let (Some(joined), Some(last)) = (reply.txn(0), reply.range(1)) else {
            return Err(failure::nonsense());
        };
        if !joined.succeeded {
            let there = joined.range(0).and_then(|there| there.kvs.first());
            return self.is_there(asked, there).await;
        }
        let entry = asked.joined(reply, wait);
        let position = protocol::position_in(Mode::Exclusive, &asked.key, entry.created, last);
        let Some(Position::Behind(mut ahead)) = position else {
            return Err(failure::nonsense());
        };
        // A part of a transaction does not say which revision it was.
        ahead.revision = entry.created;
        self.claims.joined(entry, ahead);
        Ok(Some(self.waits(usize::try_from(last.count - 1).ok())))
    }

    /// The queue was not empty, and the claim is not in it, unless it was before.
    async fn refused(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        reply: &TxnResponse,
    ) -> Result<Option<Attempt>> {
        let there = reply.range(0).ok_or_else(failure::nonsense)?;
        if let Some(there) = there.kvs.first() {
            return self.is_there(asked, Some(there)).await;
        }
        if asked.claim.queues {
            self.leases.get(Purpose::Wait).await?;
            return Ok(None);
        }
        Ok(Some(Attempt::Held(Contention::default())))
    }

    /// A reader or a permit, by what the queue was: it joins those who hold the lock, unless others have joined since; or
    /// it queues.
    async fn join_beside(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        seen: &TxnResponse,
        hold: &Arc<Lease>,
    ) -> Result<Option<Attempt>> {
        let there = &seen.range(0).ok_or_else(failure::nonsense)?.kvs;
        let revision = protocol::revision(&seen.header);
        let (claim, mode) = (asked.claim, asked.claim.mode);
        if let Some(mine) = there.iter().find(|entry| entry.key == asked.key) {
            return self.is_there(asked, Some(mine)).await;
        }
        protocol::agrees(mode, there)?;
        let enters = protocol::position_behind(mode, there, revision) == Position::Holds;
        if !enters && !claim.queues {
            return Ok(Some(Attempt::Held(Contention {
                ahead: Some(there.len()),
                ..Contention::default()
            })));
        }
        let lease = match enters {
            true => Arc::clone(hold),
            false => self.leases.get(Purpose::Wait).await?,
        };
        let since = enters.then_some(revision);
        let txn = protocol::join_beside(claim, &asked.key, &asked.queue, &lease, since);
        let reply = self.write(txn, hold, Some(&lease)).await?;
        let Some((reply, promised)) = reply.filter(|(reply, _)| reply.succeeded) else {
            return Ok(None);
        };
        let entry = asked.joined(&reply, &lease);
        if enters {
            return self.granted(entry, asked.sent, promised);
        }
        let now = &reply.range(1).ok_or_else(failure::nonsense)?.kvs;
        let ahead = now.len().saturating_sub(1);
        let position = protocol::position_behind(mode, &now[..ahead], entry.created);
        match position {
            Position::Holds => {
                self.claims.joined(entry.clone(), Ahead::default());
                self.take_or_wait(entry).await
            }
            Position::Behind(behind) => {
                self.claims.joined(entry, behind);
                Ok(Some(self.waits(Some(ahead))))
            }
        }
    }

    /// It is the claim's turn: it takes the lock, or waits on if it is not after all.
    async fn take_or_wait(self: &Arc<Self>, entry: QueueEntry) -> Result<Option<Attempt>> {
        let taken = self.take(entry).await;
        Ok(match taken.map_err(Error::of_unknown_effect)? {
            Taken::Granted(grant) => Some(Attempt::Granted(grant)),
            Taken::Behind => Some(self.waits(None)),
            Taken::Gone => None,
        })
    }

    /// The claim is in the queue already: by an earlier try that seemed to have failed, most likely.
    async fn is_there(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        there: Option<&KeyValue>,
    ) -> Result<Option<Attempt>> {
        let Some(there) = there else {
            return Ok(None);
        };
        let value = RangeRequest {
            keys_only: false,
            ..protocol::one(&there.key)
        };
        // The claim is in the queue, whatever becomes of this read.
        let seen = self.client.range(value).await;
        let seen = seen.map_err(|refused| Error::from(refused).of_unknown_effect())?;
        let seen = seen.message.kvs;
        let Some(there) = seen.first() else {
            return Ok(None);
        };
        let mode = value::mode(there);
        if !value::waits(there) {
            asked.claim.mode.is_still(mode)?;
        }
        let Some(lease) = self.leases.known_to_have(there.lease) else {
            let found = self.is_elsewhere(asked, there).await;
            return found.map_err(Error::of_unknown_effect);
        };
        let entry = QueueEntry {
            claim: Claim {
                mode,
                ..asked.claim.clone()
            },
            created: there.create_revision,
            modified: there.mod_revision,
            lease,
            since: wall_clock_micros(),
            spare: Duration::ZERO,
            looks_at: None,
        };
        self.claims.joined(entry, Ahead::default());
        // Now it is known, and looked at.
        Ok(None)
    }

    /// The claim is in the queue through another process, such as a server that its client has left. If it is to wait, it waits here from now on, with the
    /// position that it has.
    async fn is_elsewhere(
        self: &Arc<Self>,
        asked: &Asked<'_>,
        found: &KeyValue,
    ) -> Result<Option<Attempt>> {
        if !value::waits(found) {
            return self.renew_known(asked.claim).await;
        }
        if !asked.claim.queues {
            return Ok(Some(Attempt::Held(Contention::default())));
        }
        let wait = self.leases.get(Purpose::Wait).await?;
        let txn = protocol::move_waiting(found, &wait);
        let reply = self.write(txn, &wait, Some(&wait)).await?;
        if let Some((reply, _)) = reply.filter(|(reply, _)| reply.succeeded) {
            let entry = QueueEntry {
                claim: Claim {
                    mode: value::mode(found),
                    ..asked.claim.clone()
                },
                created: found.create_revision,
                since: 0,
                ..asked.joined(&reply, &wait)
            };
            self.claims.joined(entry, Ahead::default());
        }
        Ok(None)
    }

    /// The claim holds the lock: for its TTL, if its lease lives so long; `None` if it is being ended.
    fn granted(
        &self,
        entry: QueueEntry,
        sent: Moment,
        promised: Moment,
    ) -> Result<Option<Attempt>> {
        let grant = grant(&entry, entry.claim.ttl, sent, promised)?;
        let (claim, end) = (entry.claim.clone(), sent + entry.claim.ttl.get());
        let held = self.claims.hold(&claim, entry, end);
        Ok(held.then_some(Attempt::Granted(grant)))
    }

    fn waits(&self, ahead: Option<usize>) -> Attempt {
        self.waits.notify_one();
        Attempt::Held(Contention {
            look_again_in: Some(LOOK_AGAIN),
            ahead,
            ..Contention::default()
        })
    }
}

/// What a claim gets for this TTL by what was asked then, under a lease that was promised until then before its key was seen or written: see
/// [`Leases::keep_alive`](super::leases::Leases::keep_alive).
pub(super) fn grant(entry: &QueueEntry, ttl: Ttl, sent: Moment, promised: Moment) -> Result<Grant> {
    let valid_until = sent + ttl.validity();
    Ok(Grant {
        token: value::token(entry.created).ok_or_else(failure::too_many_revisions)?,
        valid_until: valid_until.min(promised),
    })
}

impl Asked<'_> {
    /// The entry that a transaction has made.
    fn joined(&self, made: &TxnResponse, lease: &Arc<Lease>) -> QueueEntry {
        let revision = protocol::revision(&made.header);
        QueueEntry {
            claim: self.claim.clone(),
            created: revision,
            modified: revision,
            lease: Arc::clone(lease),
            since: wall_clock_micros(),
            spare: Duration::ZERO,
            looks_at: None,
        }
    }
}
