//! How claims are kept: their leases are kept alive, one request for each, and their keys are looked at, a hundred at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Shared;
use super::attempt::grant;
use super::claim::QueueEntry;
use super::client::{Haste, Refused, Reply};
use super::failure;
use super::leases::{KeptAlive, Lease, Purpose};
use super::proto::*;
use super::protocol;
use super::value;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::merged_renewals::MergedRenewals;
use crate::engine::own_claims::Renewing;
use crate::engine::{Grant, LossReason, Renew, Renewal};
use crate::error::{Effect, Error, ErrorKind, Result};

/// etcd takes 128 requests in a transaction, unless it is configured otherwise.
const LARGEST_TRANSACTION: usize = 100;

/// How many seconds a move may take that takes a claim over; the server may allow no less than a bit more.
const SOON_GONE: i64 = 2;

/// How much later than promised a lease may end: the server looks for those that have ended twice a second, and three seconds later again for
/// one that it could not revoke then.
const LATE: Duration = Duration::from_secs(4);

/// A claim that holds the lock, and what it needs to have its TTL from now on without losing what it has.
struct Held {
    entry: QueueEntry,
    /// Which lease it must be under, kept alive; `None` if its own lasts long enough.
    needs: Option<Purpose>,
    /// When it ends unless it is renewed again.
    end: Moment,
}

impl Shared {
    pub(super) async fn renew(self: &Arc<Self>, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        // A transaction must not write a key twice.
        let merged = MergedRenewals::of(held);
        merged.answers(&self.renew_each(&merged.each).await)
    }

    async fn renew_each(self: &Arc<Self>, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let mut answers = self.renew_once(held).await;
        // Others may renew the same claims, by their ids: what they have changed is known now.
        let changed = (0..held.len()).filter(|nth| matches!(answers[*nth], Ok(None)));
        let changed: Vec<_> = changed.collect();
        if !changed.is_empty() {
            let again: Vec<_> = changed.iter().map(|nth| held[*nth]).collect();
            for (nth, answer) in changed.iter().zip(self.renew_once(&again).await) {
                answers[*nth] = answer;
            }
        }
        let answers = answers.into_iter();
        let answers = answers.map(|answer| answer?.ok_or_else(changed_meanwhile));
        answers.collect()
    }

    /// `None` for a claim that was changed meanwhile, by another process or another request.
    async fn renew_once(self: &Arc<Self>, held: &[Renew<'_>]) -> Vec<Result<Option<Renewal>>> {
        let sent = Clock::machine().now();
        let found = join_all(held.iter().map(|renew| self.find_held(renew, sent))).await;
        let needed = found.iter().flatten().flatten();
        let leases = self
            .kept_alive(needed.filter_map(|held| held.needs).collect())
            .await;
        let mut to_move = Vec::new();
        let ends = found.into_iter().map(|found| {
            let Some(Held { entry, needs, end }) = found? else {
                return Ok(None);
            };
            let lease = match needs {
                Some(purpose) => leases[&purpose].clone()?,
                None => Arc::clone(&entry.lease),
            };
            to_move.push((entry, lease));
            Ok(Some(end))
        });
        let ends: Vec<Result<Option<Moment>>> = ends.collect();
        let promised = to_move.iter().map(|(_, lease)| lease.promised_until());
        let promised: Vec<_> = promised.collect();
        let moved = self.move_all(&to_move, false).await.into_iter();
        let mut moved = moved.zip(to_move.iter().zip(promised));
        let answers = ends.into_iter().zip(held).map(|(end, renew)| {
            let Some(end) = end? else {
                return Ok(Some(Renewal::Lost(LossReason::Gone)));
            };
            let moved = moved.next().ok_or_else(failure::nonsense)?;
            let ((entry, now), ((_, lease), promised)) = moved;
            if renew.shorten {
                self.claims.shorten(renew.claim, end);
            }
            let grant = grant(entry, renew.claim.ttl, sent, promised)?;
            self.renewed(renew.claim, entry, now?, lease, grant, end)
        });
        answers.collect()
    }

    /// The claim and what it needs; it has been moved to a lease of ours then, if this client did not know it. `None` if it is held no longer.
    async fn find_held(self: &Arc<Self>, renew: &Renew<'_>, sent: Moment) -> Result<Option<Held>> {
        let ttl = renew.claim.ttl;
        let end = sent + ttl.get();
        let entry = match self.claims.renewing(renew.claim, end) {
            Renewing::Held(entry) => entry,
            Renewing::Unknown => {
                // It runs to completion: a claim that is moved half-way would be ended by nobody.
                let (shared, claim) = (Arc::clone(self), renew.claim.clone());
                let moving = tokio::spawn(async move { shared.take_over(&claim).await });
                return moving.await.unwrap_or_else(|_| Err(failure::nonsense()));
            }
            Renewing::Ending => return Ok(None),
        };
        let lasts = entry.lease.promised_until() >= sent + ttl.validity() + entry.spare;
        let least = Purpose::with_spare(ttl, entry.spare);
        let needs = match lasts {
            _ if renew.shorten => Some(least),
            true => None,
            // No shorter than the lease that it is under: another renewal may be keeping that alive just now.
            false => Some(least.max(Purpose::Hold(entry.lease.ttl.as_secs()))),
        };
        Ok(Some(Held { entry, needs, end }))
    }

    /// Moves a claim of which this client knows the id alone to a lease of ours.
    ///
    /// Its holder may keep its own lease alive, and rely on all of it, until the move is carried out; which may be late, when this process has
    /// ended. So the move asks for a key that ends soon, put before our lease was kept alive; and that lasts for as long as the holder's lease,
    /// this key and [`LATE`] together. Such a lease has room for the next move as well.
    async fn take_over(self: &Arc<Self>, claim: &Claim) -> Result<Option<Held>> {
        let whole = protocol::whole(&self.keys.queue(&claim.name));
        let queue = self.client.range(whole).await?.message.kvs;
        let found = protocol::find(&queue, &self.keys.claim(claim));
        let Some((found, true)) = found else {
            return Ok(None);
        };
        let theirs = self.leases.granted(found.lease).await?;
        // If it has really ended, so has the claim; but the leader may not know of it yet.
        let theirs = theirs.ok_or_else(changed_meanwhile)?;
        let (soon_gone, lasts) = self.put_soon_gone().await?;
        let spare = lasts + LATE;
        let with_room = match value::is_taken_over(found) {
            true => theirs,
            false => theirs + spare,
        };
        let lasts = Purpose::Hold(with_room.as_secs()).max(Purpose::with_spare(claim.ttl, spare));
        let lease = self.renewed_to_hold(lasts).await?;
        lease.awaits_answer();
        let txn = protocol::take_over(found, &lease, &soon_gone);
        let in_flight = self.leases.in_flight([&lease]);
        let reply = self.client.txn(txn, Haste::Urgent).await;
        in_flight.answered();
        let reply = self.answered_move(&[&lease], reply)?;
        let now = reply.range(usize::from(reply.succeeded));
        let now = now.ok_or_else(failure::nonsense)?.kvs.first();
        let Some(now) = now.filter(|now| now.create_revision == found.create_revision) else {
            return Ok(None);
        };
        if now.lease != lease.id {
            return Err(changed_meanwhile());
        }
        let entry = QueueEntry {
            claim: Claim {
                mode: value::mode(found),
                ..claim.clone()
            },
            created: found.create_revision,
            modified: now.mod_revision,
            lease,
            since: 0,
            spare,
            looks_at: None,
        };
        // Whatever fails from here on: the claim is ours to end, unless another process renews it.
        let end = Clock::machine().now() + theirs.max(claim.ttl.get());
        if !self.claims.hold(claim, entry.clone(), end) {
            // It is being ended here, and may be held through another process: its key counts as moved by nobody, and stays until its lease ends.
            entry.lease.awaits_answer();
            self.leases.retire(entry.lease.id);
            return Ok(None);
        }
        let needs = None;
        match self.leases.keep_alive(&entry.lease).await? {
            KeptAlive::Yes => Ok(Some(Held { entry, needs, end })),
            KeptAlive::Gone | KeptAlive::Unknown => Err(changed_meanwhile()),
        }
    }

    /// Puts a key that ends soon, with a lease that nobody keeps alive. Returns it, and for how long it lasts.
    async fn put_soon_gone(&self) -> Result<(Vec<u8>, Duration)> {
        let lease = self.client.grant(SOON_GONE).await?.message;
        let lasts = u64::try_from(lease.ttl).map_err(|_| failure::nonsense())?;
        self.open_session(lease.id).await?;
        Ok((self.keys.session(lease.id), Duration::from_secs(lasts)))
    }

    /// The leases for these, with their whole time before them.
    async fn kept_alive(
        self: &Arc<Self>,
        mut purposes: Vec<Purpose>,
    ) -> HashMap<Purpose, Result<Arc<Lease>>> {
        purposes.sort_unstable();
        purposes.dedup();
        let leases = purposes
            .into_iter()
            .map(|purpose| async move { (purpose, self.renewed_to_hold(purpose).await) });
        join_all(leases).await.into_iter().collect()
    }

    fn renewed(
        &self,
        claim: &Claim,
        entry: &QueueEntry,
        now: Option<KeyValue>,
        lease: &Arc<Lease>,
        grant: Grant,
        end: Moment,
    ) -> Result<Option<Renewal>> {
        let lost = Ok(Some(Renewal::Lost(LossReason::Gone)));
        let Some(now) = now.filter(|now| now.create_revision == entry.created) else {
            self.claims.gone(claim, entry);
            return lost;
        };
        if now.lease != lease.id {
            match self.leases.of(now.lease) {
                Some(ours) => self.claims.moved(entry, now.mod_revision, &ours),
                // Another process has moved it, and ends it. If it is to be renewed here, it is taken over again.
                None => self.claims.gone(claim, entry),
            }
            return Ok(None);
        }
        let entry = QueueEntry {
            claim: Claim {
                mode: entry.claim.mode,
                ..claim.clone()
            },
            modified: now.mod_revision,
            lease: Arc::clone(lease),
            ..entry.clone()
        };
        match self.claims.still_hold(claim, entry, end) {
            true => Ok(Some(Renewal::Renewed(grant))),
            false => lost,
        }
    }

    /// Sees that each entry is under the lease beside it, and moves it there if need be. Returns the entries as they are then,
    /// `None` for those that are gone. They have to be noted before anything else is awaited.
    pub(super) async fn move_all<'a>(
        &self,
        entries: &'a [(QueueEntry, Arc<Lease>)],
        waits: bool,
    ) -> Vec<(&'a QueueEntry, Result<Option<KeyValue>>)> {
        let parts = entries.chunks(LARGEST_TRANSACTION).map(|part| async move {
            let moves = part.iter().map(|(entry, lease)| {
                protocol::move_to(entry, &self.keys.claim(&entry.claim), lease, waits)
            });
            let txn = TxnRequest {
                success: moves.collect(),
                ..TxnRequest::default()
            };
            leases_moved_to(part).for_each(|lease| lease.awaits_answer());
            let in_flight = self.leases.in_flight(leases_moved_to(part));
            let reply = self.client.txn(txn, Haste::Urgent).await;
            in_flight.answered();
            let leases: Vec<_> = leases_moved_to(part).collect();
            (part, self.answered_move(&leases, reply))
        });
        let mut moved = Vec::with_capacity(entries.len());
        for (part, reply) in join_all(parts).await {
            for (nth, (entry, _)) in part.iter().enumerate() {
                let now = match &reply {
                    Ok(reply) => match protocol::moved(reply, nth) {
                        Some(now) => Ok(now.cloned()),
                        None => Err(failure::nonsense()),
                    },
                    Err(failure) => Err(failure.clone()),
                };
                moved.push((entry, now));
            }
        }
        moved
    }

    /// An answer to moves to these leases, each of which [awaited](Lease::awaits_answer) it.
    fn answered_move(
        &self,
        leases: &[&Arc<Lease>],
        reply: Result<Reply<TxnResponse>, Refused>,
    ) -> Result<TxnResponse> {
        let reply = reply.map_err(Error::from);
        let unknown = matches!(&reply, Err(failure) if failure.effect() == Effect::Unknown);
        for lease in leases {
            match unknown {
                // What may be under it must not live on because it is kept alive for others.
                true => self.leases.retire(lease.id),
                false => lease.is_answered(),
            }
        }
        Ok(reply?.message)
    }
}

/// Those that keys are moved to, one for each key.
fn leases_moved_to(part: &[(QueueEntry, Arc<Lease>)]) -> impl Iterator<Item = &Arc<Lease>> {
    let moves = part
        .iter()
        .filter(|(entry, lease)| entry.lease.id != lease.id);
    moves.map(|(_, lease)| lease)
}

fn changed_meanwhile() -> Error {
    let what = "another process has changed the claim meanwhile";
    Error::new(ErrorKind::Unreachable, what).of_unknown_effect()
}
