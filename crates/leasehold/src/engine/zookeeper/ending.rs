//! How a claim ends: released, given up, its time over, or broken by an operator.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::oneshot;

use super::nodes::Nodes;
use super::places::{Place, Stands};
use super::{Locks, failure};
use crate::claim::{Claim, Mode};
use crate::clock::Clock;
use crate::engine::Released;
use crate::engine::lineup::holders;
use crate::error::{ErrorKind, Result};
use crate::name::LockName;

/// How long to wait before a node whose time is over is deleted again, if that has failed.
const A_MOMENT: Duration = Duration::from_millis(100);

/// In a process that lives, a claim that is not renewed ends with its TTL.
pub(super) async fn end_what_is_overdue(locks: Arc<Locks>, mut end: oneshot::Receiver<()>) {
    let clock = Clock::machine();
    let mut in_use = true;
    while in_use || !locks.overdue.claims().is_empty() {
        tokio::select! {
            claim = locks.overdue.next(&clock) => {
                let locks = Arc::clone(&locks);
                tokio::spawn(async move { locks.end(&claim).await });
            }
            _ = &mut end, if in_use => in_use = false,
        }
    }
}

impl Locks {
    pub(super) async fn release(&self, claim: &Claim) -> Result<Released> {
        let leaving = Leaving {
            locks: self,
            claim: Some(claim),
        };
        let nodes = self.nodes().await?;
        let released = match self.release_in(&nodes, claim).await {
            Err(error) if failure::ended_the_session(&error) => {
                let nodes = self.nodes().await?;
                self.release_in(&nodes, claim).await
            }
            answer => answer,
        };
        released.inspect(|_| leaving.has_left())
    }

    /// Takes a claim out of the line. Returns whether it was there.
    pub(super) async fn give_up(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        place: &Place,
    ) -> Result<bool> {
        let held_alone = matches!(place.standing, Stands::Holds) && claim.mode == Mode::Exclusive;
        let was_there = match held_alone && place.has_waited {
            true => nodes.hand_over(&place.path).await?,
            false => nodes.delete(&place.path).await?,
        };
        if held_alone && !place.has_waited {
            self.emptied.note(nodes.lock(&claim.name), place);
        }
        self.places.forget(&claim.id);
        self.overdue.forget(&claim.id);
        Ok(was_there)
    }

    /// Its time is over, unless it was renewed in the meantime.
    async fn end(&self, claim: &Claim) {
        let place = {
            let mut places = self.places.lock();
            if self.overdue.knows(&claim.id) {
                return;
            }
            places.remove(&claim.id)
        };
        let first = self.sessions.present();
        let number = place.as_ref().map_or(first.number, |place| place.session);
        loop {
            let session = self.sessions.present();
            if session.number != number || session.has_ended() {
                return;
            }
            let settings = &self.settings;
            let nodes = Nodes { session, settings };
            let gone = match &place {
                Some(place) => nodes.delete(&place.path).await.map(drop),
                None => self.release_in(&nodes, claim).await.map(drop),
            };
            match gone {
                Err(error) if error.kind() == ErrorKind::Unreachable => {}
                _ => return,
            }
            tokio::time::sleep(A_MOMENT).await;
        }
    }

    async fn release_in(&self, nodes: &Nodes<'_>, claim: &Claim) -> Result<Released> {
        if let Some(place) = self.places.get(&claim.id) {
            let ours = place.session == nodes.session.number;
            let held = matches!(place.standing, Stands::Holds);
            if ours && self.give_up(nodes, claim, &place).await? && held {
                return Ok(Released::Yes);
            }
            self.places.forget(&claim.id);
            self.overdue.forget(&claim.id);
            if ours {
                return Ok(Released::WasNotHeld);
            }
        }
        // A create whose reply was lost, or another process's.
        let lock = nodes.lock(&claim.name);
        let (_, line) = nodes.look_afresh(&lock).await?;
        let holding = holders(&line.modes());
        let mut released = Released::WasNotHeld;
        for (at, entry) in line.of_claim(&claim.id) {
            let was_there = nodes.delete(&format!("{lock}/{}", entry.node)).await?;
            if was_there && at < holding {
                released = Released::Yes;
            }
        }
        Ok(released)
    }

    pub(super) async fn break_lock(&self, nodes: &Nodes<'_>, name: &LockName) -> Result<Released> {
        let lock = nodes.lock(name);
        let (_, line) = nodes.look_afresh(&lock).await?;
        let holding = &line.0[..holders(&line.modes())];
        let paths: Vec<_> = holding
            .iter()
            .map(|e| format!("{lock}/{}", e.node))
            .collect();
        let deleted = try_join_all(paths.iter().map(|path| nodes.delete(path))).await?;
        match deleted.contains(&true) {
            true => Ok(Released::Yes),
            false => Ok(Released::WasNotHeld),
        }
    }
}

/// A claim on its way out. Its node lasts for as long as the session, so a release that fails, or is not waited for, is not
/// the end of it: it is tried until the node is gone.
struct Leaving<'a> {
    locks: &'a Locks,
    claim: Option<&'a Claim>,
}

impl Leaving<'_> {
    fn has_left(mut self) {
        self.claim = None;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.locks.overdue.ends_at(claim, Clock::machine().now());
        }
    }
}
