//! How claims are kept: their leases are kept alive, one request for each, and their keys are looked at, a hundred at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Client;
use super::cluster::Haste;
use super::entry;
use super::failure;
use super::leases::{Lease, Purpose};
use super::line;
use super::places::{Place, Stands};
use super::proto::*;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::{LossReason, Renew, Renewal};
use crate::error::{Effect, Error, ErrorKind, Result};

/// etcd takes 128 requests in a transaction, unless it is told otherwise.
const LARGEST_TRANSACTION: usize = 100;

impl Client {
    pub(super) async fn renew(self: &Arc<Self>, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let sent = Clock::machine().now();
        let places = join_all(held.iter().map(|renew| self.place_of(renew.claim, sent)));
        let leases = self.kept_alive(held);
        let (places, leases) = futures_util::join!(places, leases);
        let mut answers: Vec<Option<Result<Renewal>>> = Vec::new();
        let mut to_settle = Vec::new();
        for (place, renew) in places.into_iter().zip(held) {
            let lease = &leases[&Purpose::of(renew.claim.ttl)];
            answers.push(match (place, lease) {
                (Err(failure), _) => Some(Err(failure)),
                (Ok(None), _) => Some(Ok(Renewal::Lost(LossReason::Gone))),
                (Ok(Some(_)), Err(failure)) => Some(Err(again(failure))),
                (Ok(Some(place)), Ok(lease)) => {
                    to_settle.push((place, Arc::clone(lease)));
                    None
                }
            });
        }
        let mut settled = self.settle_on(&to_settle).await.into_iter().zip(&to_settle);
        let answers = answers.into_iter().zip(held).map(|(answer, renew)| {
            answer.unwrap_or_else(|| {
                let Some(((place, entry), (_, lease))) = settled.next() else {
                    return Err(failure::nonsense());
                };
                self.answer_to(renew, place, entry?, lease, sent)
            })
        });
        answers.collect()
    }

    /// Where a claim is that is to be renewed; `None` if it is held no longer.
    async fn place_of(&self, claim: &Claim, sent: Moment) -> Result<Option<Place>> {
        match self.places.of(&claim.id) {
            Some(place) if place.stands == Stands::Holds => {
                // From now on it ends later; unless its end has come, and it is being ended.
                let in_time = self.overdue.postpone(claim, sent + claim.ttl.get());
                Ok(in_time.then_some(place))
            }
            _ => self.find(claim).await,
        }
    }

    /// A claim of which this process knows nothing but its id.
    async fn find(&self, claim: &Claim) -> Result<Option<Place>> {
        let whole = line::whole(&self.keys.line(&claim.name));
        let line = self.cluster.range(whole).await?.message;
        let key = self.keys.claim(claim);
        let Some(nth) = line.kvs.iter().position(|entry| entry.key == key) else {
            return Ok(None);
        };
        let mine = &line.kvs[nth];
        let mode = entry::mode(mine);
        if line::would_stand(mode, &line.kvs[..nth], 0) != Stands::Holds {
            return Ok(None);
        }
        if entry::waits(mine) {
            // Its own process may be about to write down that it has the lock; until then others may pass it over.
            let what = "the claim has only just come to its turn";
            let error = Error::new(ErrorKind::Unreachable, what).of_unknown_effect();
            return Err(error.advise("try again in a moment"));
        }
        Ok(Some(Place {
            claim: Claim {
                mode,
                ..claim.clone()
            },
            created: mine.create_revision,
            modified: mine.mod_revision,
            lease: Arc::new(Lease::unknown(mine.lease)),
            stands: Stands::Holds,
            written: true,
            not_before: Moment::from_origin(Duration::ZERO),
            since: 0,
        }))
    }

    /// The leases for these, with their whole time before them.
    async fn kept_alive(
        self: &Arc<Self>,
        held: &[Renew<'_>],
    ) -> HashMap<Purpose, Result<Arc<Lease>>> {
        let mut purposes: Vec<_> = held
            .iter()
            .map(|renew| Purpose::of(renew.claim.ttl))
            .collect();
        purposes.sort_unstable();
        purposes.dedup();
        let leases = purposes.into_iter().map(|purpose| async move {
            let lease = self.leases.renewed(purpose).await;
            if let Ok(lease) = &lease {
                self.guard(lease);
            }
            (purpose, lease)
        });
        join_all(leases).await.into_iter().collect()
    }

    fn answer_to(
        &self,
        renew: &Renew<'_>,
        place: &Place,
        entry: Option<KeyValue>,
        lease: &Arc<Lease>,
        sent: Moment,
    ) -> Result<Renewal> {
        let claim = renew.claim;
        let ours = entry.filter(|entry| entry.create_revision == place.created);
        let Some(entry) = ours else {
            self.places.forget(&claim.id);
            self.overdue.forget(&claim.id);
            return Ok(Renewal::Lost(LossReason::Gone));
        };
        let place = Place {
            claim: Claim {
                mode: place.claim.mode,
                ..claim.clone()
            },
            modified: entry.mod_revision,
            lease: match entry.lease == lease.id {
                true => Arc::clone(lease),
                false => Arc::new(Lease::unknown(entry.lease)),
            },
            ..place.clone()
        };
        let there = place.lease.id == lease.id;
        let place = Place {
            written: there || place.written,
            ..place
        };
        let grant = self.grant_until(&place, sent)?;
        self.overdue.ends_at(claim, sent + claim.ttl.get());
        self.places.note(place);
        match there {
            true => Ok(Renewal::Renewed(grant)),
            false => Err(Error::new(
                ErrorKind::Unreachable,
                "another process has changed the claim meanwhile",
            )
            .of_unknown_effect()),
        }
    }

    /// Sees that each place is under the lease beside it, and moves it there if need be. Returns the entries as they are then,
    /// `None` for those that are gone.
    pub(super) async fn settle_on<'a>(
        &self,
        places: &'a [(Place, Arc<Lease>)],
    ) -> Vec<(&'a Place, Result<Option<KeyValue>>)> {
        let parts = places.chunks(LARGEST_TRANSACTION).map(|part| async move {
            let txn = TxnRequest {
                compare: Vec::new(),
                success: part
                    .iter()
                    .map(|(place, lease)| self.settle(place, lease))
                    .collect(),
                failure: Vec::new(),
            };
            (part, self.cluster.txn(txn, Haste::Urgent).await)
        });
        let mut entries = Vec::with_capacity(places.len());
        for (part, reply) in join_all(parts).await {
            let reply = reply.map_err(Error::from);
            for (nth, (place, _)) in part.iter().enumerate() {
                let entry = match &reply {
                    Ok(reply) => entry_in(&reply.message, nth),
                    Err(failure) => Err(again(failure)),
                };
                entries.push((place, entry));
            }
        }
        entries
    }

    fn settle(&self, place: &Place, lease: &Arc<Lease>) -> RequestOp {
        let key = self.keys.claim(&place.claim);
        let look = RequestOp::from(Request::Range(line::one(&key)));
        if place.lease.id == lease.id {
            return look;
        }
        // What another process has written stays as it is.
        let value = match place.since {
            0 => Vec::new(),
            since => entry::value(&place.claim, place.stands != Stands::Holds, since),
        };
        let put = PutRequest {
            key: key.clone(),
            ignore_value: value.is_empty(),
            value,
            lease: lease.id,
        };
        Request::Txn(TxnRequest {
            compare: vec![line::unchanged(&key, place.modified)],
            success: vec![Request::Put(put).into(), look.clone()],
            failure: vec![look],
        })
        .into()
    }
}

/// The entry that the nth request of [`Client::settle_on`] has found.
fn entry_in(reply: &TxnResponse, nth: usize) -> Result<Option<KeyValue>> {
    let range = match reply.txn(nth) {
        Some(moved) => moved.range(usize::from(moved.succeeded)),
        None => reply.range(nth),
    };
    let range = range.ok_or_else(failure::nonsense)?;
    Ok(range.kvs.first().cloned())
}

/// The same failure for another of the claims that it befell.
fn again(failure: &Error) -> Error {
    let error = Error::new(failure.kind(), failure.what());
    let error = match failure.advice() {
        Some(advice) => error.advise(advice),
        None => error,
    };
    match failure.effect() {
        Effect::Unknown => error.of_unknown_effect(),
        Effect::None => error,
    }
}
