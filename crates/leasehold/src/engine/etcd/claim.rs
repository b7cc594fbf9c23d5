//! What this client knows of its claims. Their states are in `own_claims.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::leases::Lease;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::own_claims::{self, Entry, OwnClaims};

pub(crate) type OwnClaim = own_claims::OwnClaim<QueueEntry>;
pub(crate) type Claims = OwnClaims<QueueEntry>;

/// A task that looks so much later than it said may not run at all.
const LATE_LOOK: Duration = Duration::from_secs(1);

/// A claim's key in the queue, as last seen: under a lease of this client's.
#[derive(Debug, Clone)]
pub(crate) struct QueueEntry {
    pub(crate) claim: Claim,
    /// The revision that created it: its position in the queue, and its token.
    pub(crate) created: i64,
    /// The revision that last changed it. Writes are conditional on it, so that they change nothing that another process has
    /// changed since.
    pub(crate) modified: i64,
    pub(crate) lease: Arc<Lease>,
    /// When it began to wait, or was granted: by the wall clock, for people. 0 if another process has written its value.
    pub(crate) since: u64,
    /// How much longer its lease lasts than this client relies on it: nothing, unless the claim was taken over by its id.
    pub(crate) spare: Duration,
    /// While it waits: when whoever waits for it looks next whether someone holds up the queue; `None` if nobody has waited for it yet.
    pub(crate) looks_at: Option<Moment>,
}

/// Those ahead of a claim that have to go first; none if that is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// When one of these keys has gone, the claim has to look again.
    pub(crate) watch: Vec<Vec<u8>>,
    /// The revision at which that was so.
    pub(crate) revision: i64,
}

impl Entry for QueueEntry {
    type Ahead = Ahead;

    fn is_same(&self, other: &Self) -> bool {
        self.created == other.created
    }

    fn is_newer_than(&self, other: &Self) -> bool {
        self.modified > other.modified
    }
}

impl Claims {
    /// It has joined the queue behind these.
    pub(crate) fn joined(&self, entry: QueueEntry, ahead: Ahead) {
        let claim = entry.claim.clone();
        self.queued(&claim, entry, ahead);
    }

    /// It still waits, behind these.
    pub(crate) fn waits_behind(&self, entry: &QueueEntry, now: Ahead) {
        self.change(&entry.claim, entry, |own| {
            if let OwnClaim::Queued { ahead, .. } = own {
                *ahead = now;
            }
        });
    }

    /// It asks for the lock with these terms from now on.
    pub(crate) fn asks(&self, entry: &QueueEntry) {
        self.change(&entry.claim, entry, |own| {
            if let OwnClaim::Queued { entry: own, .. } = own {
                own.claim = entry.claim.clone();
            }
        });
    }

    /// Whoever waits for it looks again at this time.
    pub(crate) fn looks_at(&self, claim: &Claim, at: Moment) {
        if let Some(OwnClaim::Queued { entry, .. }) = self.get(claim) {
            self.change(claim, &entry, |own| {
                if let OwnClaim::Queued { entry, .. } = own {
                    entry.looks_at = Some(at);
                }
            });
        }
    }

    /// Its key is under this lease since that revision; unless it has been changed after that.
    pub(crate) fn moved(&self, entry: &QueueEntry, modified: i64, lease: &Arc<Lease>) {
        self.change(&entry.claim, entry, |own| {
            if let Some(entry) = own.entry_mut()
                && entry.modified < modified
            {
                entry.modified = modified;
                entry.lease = Arc::clone(lease);
            }
        });
    }

    /// Whether any claim waits under another lease than this.
    pub(crate) fn any_waits_outside(&self, lease: Option<i64>) -> bool {
        self.any(
            |own| matches!(own, OwnClaim::Queued { entry, .. } if Some(entry.lease.id) != lease),
        )
    }

    /// Whether no other claim of this client waits ahead of this one for the same lock, with someone who looks when it is time.
    pub(crate) fn is_foremost(&self, entry: &QueueEntry, now: Moment) -> bool {
        let looks = |own: &QueueEntry| own.looks_at.is_some_and(|at| now < at + LATE_LOOK);
        !self.any(|own| match own {
            OwnClaim::Queued { entry: own, .. } => {
                own.created < entry.created && own.claim.name == entry.claim.name && looks(own)
            }
            _ => false,
        })
    }

    /// Whether a lock is held under this lease.
    pub(crate) fn any_held_under(&self, lease: i64) -> bool {
        self.any(|own| matches!(own, OwnClaim::Held(entry) if entry.lease.id == lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to a move may arrive after that to the write that followed it.
    #[test]
    fn older_move_changes_nothing() {
        let lease = |id| Arc::new(Lease::ended(id));
        let entry = QueueEntry {
            claim: Claim::example(7),
            created: 1,
            modified: 11,
            lease: lease(1),
            since: 1,
            spare: Duration::ZERO,
            looks_at: None,
        };
        let claims = Claims::default();
        claims.hold(
            &entry.claim,
            entry.clone(),
            Moment::from_origin(Duration::ZERO),
        );
        let known = || {
            let own = claims.get(&entry.claim).unwrap();
            let entry = own.entry().unwrap();
            (entry.modified, entry.lease.id)
        };
        claims.moved(&entry, 10, &lease(2));
        assert_eq!(known(), (11, 1));
        claims.moved(&entry, 12, &lease(2));
        assert_eq!(known(), (12, 2));
    }
}
