//! How a claim takes the lock when it is its turn: by a write.

use std::sync::Arc;

use super::Shared;
use super::attempt::grant;
use super::claim::{Ahead, OwnClaim, QueueEntry};
use super::leases::Purpose;
use super::protocol::{self, Position};
use crate::clock::Clock;
use crate::engine::Grant;
use crate::error::Result;
use crate::token::wall_clock_micros;

pub(super) enum Taken {
    Granted(Grant),
    /// It is not its turn.
    Behind,
    /// It is not in the queue any more, or was renewed by its id meanwhile.
    Gone,
}

impl Shared {
    /// For an exclusive claim this is also the look whether it is its turn; others have looked before.
    pub(super) async fn take(self: &Arc<Self>, mut entry: QueueEntry) -> Result<Taken> {
        let (mode, created) = (entry.claim.mode, entry.created);
        let key = self.keys.claim(&entry.claim);
        let queue = self.keys.queue(&entry.claim.name);
        let sent = Clock::machine().now();
        let since = wall_clock_micros();
        let mut purpose = Purpose::of(entry.claim.ttl);
        loop {
            let hold = self.lease_to_hold(purpose).await?;
            let txn = protocol::take(&entry, &key, &queue, &hold, since);
            let Some((reply, promised)) = self.write(txn, &hold, None).await? else {
                continue;
            };
            let own = reply.range(0).and_then(|own| own.kvs.first());
            let modified = match own {
                _ if reply.succeeded => Some(protocol::revision(&reply.header)),
                Some(own) if own.create_revision != created => None,
                // An earlier try that seemed to have failed.
                Some(own) if own.lease == hold.id && !hold.may_hold_unanswered() => {
                    Some(own.mod_revision)
                }
                Some(own) if own.mod_revision != entry.modified => {
                    let known = self.claims.get(&entry.claim);
                    match (self.leases.known_to_have(own.lease), known) {
                        (Some(lease), Some(OwnClaim::Queued { .. })) => {
                            entry.modified = own.mod_revision;
                            // No shorter than the lease that it is under: another try for longer may have taken the lock just now.
                            purpose = purpose.max(Purpose::Hold(lease.ttl.as_secs()));
                            continue;
                        }
                        // An earlier try took the lock, and a renewal by the claim's id has moved its key since, perhaps to
                        // a longer lease.
                        (Some(_), _) => return Ok(Taken::Gone),
                        // Another process has moved it, or this one by the claim's id: the lock may be held.
                        (None, _) => None,
                    }
                }
                Some(_) => {
                    let seen = reply.range(1).and_then(|seen| {
                        let mut seen = seen.clone();
                        seen.header = reply.header.clone();
                        protocol::position_in(mode, &key, created, &seen)
                    });
                    let ahead = match seen {
                        Some(Position::Behind(ahead)) => ahead,
                        _ => Ahead::default(),
                    };
                    self.claims.waits_behind(&entry, ahead);
                    return Ok(Taken::Behind);
                }
                None => None,
            };
            let Some(modified) = modified else {
                self.claims.gone(&entry.claim, &entry);
                return Ok(Taken::Gone);
            };
            let entry = QueueEntry {
                modified,
                lease: hold,
                since,
                ..entry
            };
            let claim = entry.claim.clone();
            let grant = grant(&entry, claim.ttl, sent, promised)?;
            let end = sent + claim.ttl.get();
            return Ok(match self.claims.still_hold(&claim, entry, end) {
                true => Taken::Granted(grant),
                false => Taken::Gone,
            });
        }
    }
}
