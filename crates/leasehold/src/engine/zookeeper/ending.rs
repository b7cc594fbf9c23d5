//! How a claim ends: it is released or given up, its time is over, or an operator breaks the lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::watch;

use super::claim::{OwnClaim, QueueEntry};
use super::nodes::Nodes;
use super::{Locks, failure};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::Released;
use crate::engine::own_claims::Ending;
use crate::engine::queue_rules::holders;
use crate::error::{ErrorKind, Result};
use crate::name::LockName;

/// How long to wait before a node is deleted again, if that has failed.
const A_MOMENT: Duration = Duration::from_millis(100);

/// In a process that lives, a claim that is not renewed ends with its TTL.
pub(super) async fn end_expired(locks: Arc<Locks>, mut end: watch::Receiver<()>) {
    let mut in_use = true;
    let mut session_events = locks.sessions.events();
    while in_use || locks.claims.any_expires() {
        tokio::select! {
            claim = locks.claims.next_expired() => {
                let locks = Arc::clone(&locks);
                tokio::spawn(async move { locks.end(&claim).await });
            }
            Ok(()) = session_events.changed() => {
                let locks = Arc::clone(&locks);
                tokio::spawn(async move { locks.sessions.leave_what_is_given_up().await });
            }
            Err(_) = end.changed(), if in_use => in_use = false,
        }
    }
}

/// A deletion that is under way. If it does not come to its end, since it has failed or its runtime has ended, it is tried again.
struct EndsAgain<'a> {
    locks: &'a Locks,
    claim: &'a Claim,
}

impl Drop for EndsAgain<'_> {
    fn drop(&mut self) {
        let claims = &self.locks.claims;
        claims.end_again_at(self.claim, Clock::machine().now());
    }
}

impl Locks {
    /// A node lasts for as long as the session, so a release that fails is not the end of it: it is tried until the node is gone.
    pub(super) async fn release(&self, claim: &Claim) -> Result<Released> {
        let (known, ending) = self.claims.released(claim);
        let _again = EndsAgain { locks: self, claim };
        let released = match self.release_once(claim, known.as_ref()).await {
            Err(error) if failure::ended_the_session(&error) => {
                self.release_once(claim, known.as_ref()).await
            }
            answer => answer,
        };
        if released.is_ok() {
            self.claims.ended(claim, &ending);
        }
        released
    }

    async fn release_once(&self, claim: &Claim, known: Option<&OwnClaim>) -> Result<Released> {
        let nodes = self.nodes().await?;
        let entry = known.and_then(OwnClaim::entry);
        let entry = entry.filter(|_| !self.claims.is_in_doubt(claim));
        if let Some(entry) = entry.filter(|entry| entry.session == nodes.session.number) {
            let was_there = nodes.delete(&entry.path).await?;
            let was_held = was_there && matches!(known, Some(OwnClaim::Held(_)));
            return Ok(Released::from_held(was_held));
        }
        // A create whose reply was lost, or another process's.
        self.delete_all(&nodes, claim, false, || true).await
    }

    /// Deletes all nodes of a claim, or all that this session has made, if this is still so once they are seen.
    async fn delete_all(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        made_here: bool,
        is_still: impl Fn() -> bool,
    ) -> Result<Released> {
        let lock = nodes.lock(&claim.name);
        let (_, queue) = nodes.look_afresh(&lock).await?;
        let holding = holders(&queue.modes());
        let mut released = Released::WasNotHeld;
        for (at, node) in queue.of_claim(&claim.id) {
            let path = format!("{lock}/{}", node.name);
            if made_here && !matches!(nodes.made_here(&path).await?, Some((true, _))) {
                continue;
            }
            if is_still() && nodes.delete(&path).await? && at < holding {
                released = Released::Yes;
            }
        }
        Ok(released)
    }

    /// Takes a claim out of the queue.
    pub(super) async fn abandon(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        entry: &QueueEntry,
    ) -> Result<()> {
        nodes.delete(&entry.path).await?;
        self.claims.gone(claim, entry);
        Ok(())
    }

    /// Its time is over, unless it was renewed in the meantime: deletes its nodes for as long as its session lasts, and no longer than that
    /// takes.
    async fn end(&self, claim: &Claim) {
        let Some(ending) = self.claims.expired(claim) else {
            return;
        };
        let _again = EndsAgain { locks: self, claim };
        let first = self.sessions.present();
        let number = ending
            .entry
            .as_ref()
            .map_or(first.number, |entry| entry.session);
        while self.claims.is_ending(claim, &ending) {
            let session = self.sessions.present();
            if session.number != number || session.has_ended() {
                break;
            }
            let config = &self.config;
            let nodes = Nodes { session, config };
            match self.delete_ending(&nodes, claim, &ending).await {
                Err(error) if error.kind() == ErrorKind::Unreachable => {}
                _ => break,
            }
            tokio::time::sleep(A_MOMENT).await;
        }
        self.claims.ended(claim, &ending);
    }

    /// The claim may join the queue again once nobody can take an old node for its own.
    pub(super) async fn delete_ending(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        ending: &Ending<QueueEntry>,
    ) -> Result<()> {
        let is_still = || self.claims.is_ending(claim, ending);
        match &ending.entry {
            Some(entry) => drop(nodes.delete(&entry.path).await?),
            None => drop(
                self.delete_all(nodes, claim, ending.leaves_queue, is_still)
                    .await?,
            ),
        }
        self.claims.ended(claim, ending);
        Ok(())
    }

    pub(super) async fn force_release(
        &self,
        nodes: &Nodes<'_>,
        name: &LockName,
    ) -> Result<Released> {
        let lock = nodes.lock(name);
        let (_, queue) = nodes.look_afresh(&lock).await?;
        let holding = &queue.0[..holders(&queue.modes())];
        let paths: Vec<_> = holding
            .iter()
            .map(|node| format!("{lock}/{}", node.name))
            .collect();
        let deleted = try_join_all(paths.iter().map(|path| nodes.delete(path))).await?;
        Ok(Released::from_held(deleted.contains(&true)))
    }
}
