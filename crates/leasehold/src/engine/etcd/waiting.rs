//! How a claim waits for its turn, and how its entry in the queue is kept meanwhile.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;

use super::Shared;
use super::claim::{OwnClaim, QueueEntry};
use super::client::Haste;
use super::leases::Purpose;
use super::listener::{Notice, Watch};
use super::proto::{KeyValue, RangeRequest};
use super::protocol::{self, Position};
use super::taking::Taken;
use super::value;
use crate::claim::{Claim, Mode};
use crate::clock::{Clock, Moment};
use crate::engine::Wake;
use crate::error::Result;

/// How long the first in the queue has to take the lock once it can, if its lease is not kept alive.
const GRACE: Duration = Duration::from_millis(600);

/// How long it has if its process lives: the task that waits for it may not run.
const LONG_IDLE: Duration = Duration::from_secs(5);

/// After a stream has broken, or a keep-alive has failed.
const A_MOMENT: Duration = Duration::from_millis(50);

/// When to look for the first time whether someone holds up the queue, and at last how often.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(10);

impl Shared {
    /// Watches the claim ahead of this one, or the few whose end may let it in.
    pub(super) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<Wake> {
        let mut look_again = self.look_again.subscribe();
        let mut idle_heads = pin!(self.remove_idle_heads(claim));
        let mut watches: Vec<Watch> = Vec::new();
        let mut watched: Vec<Vec<u8>> = Vec::new();
        loop {
            let Some(OwnClaim::Queued { entry, ahead }) = self.claims.get(claim) else {
                return Ok(Wake::Retry);
            };
            if ahead.watch != watched {
                watched.clone_from(&ahead.watch);
                let keys = ahead.watch.into_iter();
                watches = keys.map(|key| self.listener.watch(key)).collect();
            }
            if watches.is_empty() {
                return Ok(Wake::Retry);
            }
            let first = select_all(watches.iter_mut().map(|watch| Box::pin(watch.next())));
            let notice = tokio::select! {
                (notice, _, _) = first => notice,
                _ = look_again.changed() => return Ok(Wake::Retry),
                () = &mut idle_heads => return Ok(Wake::Retry),
            };
            let at_least = match notice {
                // Nothing has happened since we looked.
                Notice::Opened { revision } if revision <= ahead.revision => continue,
                Notice::Opened { revision } => Some(revision),
                Notice::Deleted { revision } => {
                    // This watch has nothing more to report.
                    watched.clear();
                    // An exclusive claim takes the lock and looks in one: most likely it is its turn.
                    let looks = entry.claim.mode != Mode::Exclusive;
                    looks.then(|| revision.max(ahead.revision))
                }
                Notice::Interrupted => {
                    tokio::time::sleep(A_MOMENT).await;
                    return Ok(Wake::Retry);
                }
            };
            if let Some(at_least) = at_least
                && !self.is_its_turn(&entry, at_least).await?
            {
                continue;
            }
            match self.take(entry).await? {
                Taken::Granted(grant) => return Ok(Wake::Granted(grant)),
                Taken::Behind => {}
                Taken::Gone => return Ok(Wake::Retry),
            }
        }
    }

    /// Looks whether nobody is ahead of the claim. What one member knows is enough: once nobody is ahead of a claim, nobody will be.
    async fn is_its_turn(&self, entry: &QueueEntry, at_least: i64) -> Result<bool> {
        let (mode, created) = (entry.claim.mode, entry.created);
        let queue = self.keys.queue(&entry.claim.name);
        let look = protocol::up_to(&queue, mode, created);
        let here = RangeRequest {
            serializable: true,
            ..look.clone()
        };
        let mut seen = self.client.range(here).await?.message;
        if protocol::revision(&seen.header) < at_least.max(created) {
            seen = self.client.range(look).await?.message;
        }
        let key = self.keys.claim(&entry.claim);
        let position = protocol::position_in(mode, &key, created, &seen);
        match position {
            Some(Position::Holds) => return Ok(true),
            Some(Position::Behind(ahead)) => self.claims.waits_behind(entry, ahead),
            None => self.claims.gone(&entry.claim, entry),
        }
        Ok(false)
    }

    /// Looks now and then, ever less often, whether the lock is free for someone who does not take it, and removes such entries
    /// one by one. Only the first of this client's claims on a lock for which someone waits looks. Returns if the claim is in the queue no more.
    async fn remove_idle_heads(&self, claim: &Claim) {
        let clock = Clock::machine();
        let mut pause = FIRST_LOOK;
        let mut seen: Option<(KeyValue, Moment)> = None;
        loop {
            self.claims.looks_at(claim, clock.now() + pause);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
            let entry = match self.claims.get(claim) {
                Some(OwnClaim::Queued { entry, .. }) => entry,
                Some(_) => continue,
                None => return,
            };
            if !self.claims.is_foremost(&entry, clock.now()) {
                continue;
            }
            let Ok(Some(head)) = self.idle_head(&entry).await else {
                seen = None;
                continue;
            };
            let since = match &seen {
                Some((idle, since)) if *idle == head => *since,
                _ => clock.now(),
            };
            seen = Some((head.clone(), since));
            let idle_for = clock.now().since(since);
            pause = match idle_for < GRACE {
                true => GRACE - idle_for,
                false => FIRST_LOOK * 2,
            };
            if idle_for >= LONG_IDLE
                || idle_for >= GRACE && matches!(self.is_kept_alive(&head).await, Ok(false))
            {
                // Only that one: the next may be alive. The next look shows whether it worked.
                let delete = protocol::delete_unchanged(&head.key, head.mod_revision);
                let _ = self.client.txn(delete, Haste::Urgent).await;
            }
        }
    }

    /// The first entry ahead of this one whose turn has come, and that has not taken the lock.
    async fn idle_head(&self, entry: &QueueEntry) -> Result<Option<KeyValue>> {
        let queue = self.keys.queue(&entry.claim.name);
        let look = match entry.claim.mode {
            // It may be the turn of several, while others hold the lock.
            mode @ Mode::Permit { .. } => protocol::up_to(&queue, mode, entry.created),
            _ => protocol::head(&queue),
        };
        let here = RangeRequest {
            serializable: true,
            ..look
        };
        let seen = self.client.range(here).await?.message.kvs;
        let may_hold = protocol::may_hold(&seen);
        let mut ahead = seen.into_iter().take(may_hold);
        Ok(ahead.find(|head| head.create_revision < entry.created && value::waits(head)))
    }

    /// Whether the process of an entry goes on keeping its lease alive, which it does at a third of the lease's time.
    async fn is_kept_alive(&self, entry: &KeyValue) -> Result<bool> {
        let left = self.client.time_left(entry.lease).await?.message;
        Ok(left.ttl * 2 >= left.granted_ttl && left.ttl > 0)
    }

    /// Keeps the lease of all who wait alive, and moves those to it who are under one that has been given up.
    async fn keep_waiting(&self) -> Result<Duration> {
        let lease = self.leases.renewed(Purpose::Wait).await?;
        let strays = self.claims.waiting().into_iter();
        let strays = strays.filter(|entry| entry.lease.id != lease.id);
        let strays: Vec<_> = strays.map(|entry| (entry, Arc::clone(&lease))).collect();
        let mut lost = false;
        for (entry, now) in self.move_all(&strays, true).await {
            match now? {
                Some(now) if now.lease == lease.id => {
                    self.claims.moved(entry, now.mod_revision, &lease);
                }
                Some(now) if self.leases.of(now.lease).is_some() => {}
                // It is gone, or waits through another process.
                _ => {
                    self.claims.gone(&entry.claim, entry);
                    lost = true;
                }
            }
        }
        if lost {
            self.look_again.send_modify(|count| *count += 1);
        }
        Ok(lease.ttl / 3)
    }
}

/// While anyone waits. Ends with the client.
pub(super) async fn keep_waiting(shared: Arc<Shared>) {
    loop {
        if !shared.claims.any_waits_outside(None) {
            shared.waits.notified().await;
            continue;
        }
        let now = Clock::machine().now();
        let pause = match shared.leases.current(Purpose::Wait) {
            Some(lease)
                if now < lease.due() && !shared.claims.any_waits_outside(Some(lease.id)) =>
            {
                lease.due().since(now)
            }
            _ => shared.keep_waiting().await.unwrap_or(A_MOMENT),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.waits.notified() => {}
        }
    }
}
