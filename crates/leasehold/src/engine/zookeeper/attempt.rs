//! One attempt: a claim joins the queue, and sees what that comes to.

use zookeeper_client::Error as Said;

use super::claim::{OwnClaim, QueueEntry};
use super::layout::Queue;
use super::nodes::Nodes;
use super::{Locks, failure};
use crate::claim::{Claim, Mode};
use crate::clock::Moment;
use crate::engine::queue_rules::{Position, position};
use crate::engine::{Attempt, Contention, Grant};
use crate::error::{Error, ErrorKind, Result};

/// How often an attempt begins anew because a node has gone under it.
const TRIES: usize = 8;

/// A claim in the queue, and what is known of those ahead of it.
struct Seen<'a> {
    lock: &'a str,
    entry: QueueEntry,
    /// When that was asked.
    sent: Moment,
    queue: &'a Queue,
    /// How many are ahead.
    ahead: usize,
}

impl Locks {
    pub(super) async fn attempt(&self, nodes: &Nodes<'_>, claim: &Claim) -> Result<Attempt> {
        let lock = nodes.lock(&claim.name);
        let known = || {
            let own = self.claims.get(claim);
            own.filter(|own| match own.entry() {
                Some(entry) => entry.session == nodes.session.number,
                None => true,
            })
        };
        if let Some(OwnClaim::Queued { entry, .. }) = self.claims.get(claim)
            && entry.session != nodes.session.number
        {
            // Its session is used no more, but may last for a while, and the claim would wait for its own node.
            nodes.delete(&entry.path).await?;
            self.claims.gone(claim, &entry);
        }
        if known().is_none()
            && !claim.queues
            && let Some(refused) = refused(nodes, claim, &lock).await?
        {
            return Ok(refused);
        }
        for _ in 0..TRIES {
            let (entry, sent, queue) = match known() {
                Some(OwnClaim::Ending(ending)) => {
                    self.delete_ending(nodes, claim, &ending).await?;
                    continue;
                }
                Some(OwnClaim::Queued { entry, ahead: None }) => {
                    let (sent, queue) = nodes.look(&lock).await?;
                    (entry, sent, queue)
                }
                Some(OwnClaim::Queued { entry, .. } | OwnClaim::Held(entry)) => {
                    let (sent, queue) = nodes.look_afresh(&lock).await?;
                    (entry, sent, queue)
                }
                None => {
                    let note = |entry| self.claims.queued(claim, entry, None);
                    let Some(joined) = nodes.join(&lock, claim, note).await? else {
                        nodes.make_lock(&lock).await?;
                        continue;
                    };
                    joined
                }
            };
            let own = entry.path.rsplit('/').next();
            let mine = queue.0.iter().position(|node| Some(&*node.name) == own);
            let Some(mine) = mine else {
                // Deleted by hand.
                self.claims.gone(claim, &entry);
                continue;
            };
            let wanted = queue.0[mine].mode;
            if wanted != claim.mode {
                if let Some(OwnClaim::Held(_)) = known() {
                    claim.mode.is_still(wanted)?;
                }
                // A node's name says how its claim wants the lock.
                self.claims.leaves(claim, &entry);
                continue;
            }
            if self
                .finds_earlier(nodes, claim, &entry, sent, &queue)
                .await?
            {
                continue;
            }
            self.claims.settled(claim);
            let known = entry.clone();
            let seen = Seen {
                lock: &lock,
                entry,
                sent,
                queue: &queue,
                ahead: mine,
            };
            match self.answer(nodes, claim, seen).await {
                Ok(Some(attempt)) => return Ok(attempt),
                Ok(None) => {}
                Err(error) if failure::is_missing(&error) => self.claims.gone(claim, &known),
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(
            ErrorKind::Unexpected,
            "the lock's nodes go as soon as they are made",
        )
        .advise("see who deletes them")
        .of_unknown_effect())
    }

    /// Nodes that this session has made for the claim before the one it waits with, by creates whose replies were lost. One is its node from now on: the
    /// first that has the right mode, or holds the lock; the others go. Returns whether there was any: then the queue is to be looked at again.
    async fn finds_earlier(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        entry: &QueueEntry,
        sent: Moment,
        queue: &Queue,
    ) -> Result<bool> {
        let Some((lock, own)) = entry.path.rsplit_once('/') else {
            return Ok(false);
        };
        let modes = queue.modes();
        let of_claim = queue.of_claim(&claim.id);
        let (mut found, mut kept) = (false, None);
        for (at, node) in of_claim.take_while(|(_, node)| node.name != own) {
            let path = format!("{lock}/{}", node.name);
            let Some((true, token)) = nodes.made_here(&path).await? else {
                continue;
            };
            found = true;
            let holds = position(&modes[..at], node.mode) == Position::Holds;
            if kept.is_none() && (holds || node.mode == claim.mode) {
                let session = entry.session;
                let is_other = node.mode != claim.mode;
                kept = Some((
                    QueueEntry {
                        session,
                        path,
                        token,
                    },
                    is_other,
                ));
            } else {
                nodes.delete(&path).await?;
            }
        }
        if let Some((earlier, is_other)) = kept {
            nodes.delete(&entry.path).await?;
            match is_other {
                // Whoever has it must ask in that mode, or release it. Otherwise it ends with its TTL.
                true => drop(self.claims.hold(claim, earlier, sent + claim.ttl.get())),
                false => self.claims.queued(claim, earlier, None),
            }
        }
        Ok(found)
    }

    /// What a position in the queue comes to; `None` if the claim is being ended.
    async fn answer(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        seen: Seen<'_>,
    ) -> Result<Option<Attempt>> {
        let Seen {
            lock,
            entry,
            sent,
            queue,
            ahead,
        } = seen;
        let modes = &queue.modes()[..ahead];
        if let Err(disagreement) = agree(claim, modes) {
            self.abandon(nodes, claim, &entry).await?;
            return Err(disagreement);
        }
        let watched = match position(modes, claim.mode) {
            Position::Behind(watched) => watched,
            Position::Holds => {
                self.confirm_session(nodes, &entry.path).await?;
                let grant = self.granted(nodes, claim, entry, sent);
                return Ok(grant.map(Attempt::Granted));
            }
        };
        if !claim.queues {
            self.abandon(nodes, claim, &entry).await?;
            return Ok(Some(held(ahead)));
        }
        let path = |at: &usize| format!("{lock}/{}", queue.0[*at].name);
        let watched = watched.iter().map(path).collect();
        self.claims.queued(claim, entry, Some(watched));
        Ok(Some(held(ahead)))
    }

    /// The claim holds the lock; `None` if it is being ended.
    pub(super) fn granted(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        entry: QueueEntry,
        sent: Moment,
    ) -> Option<Grant> {
        let token = entry.token;
        let held = self.claims.hold(claim, entry, sent + claim.ttl.get());
        held.then(|| Grant {
            token,
            valid_until: nodes.session.promise(sent + claim.ttl.validity()),
        })
    }

    /// Sees that the session is certain to live for a while; it mostly is, by the writes of late.
    pub(super) async fn confirm_session(&self, nodes: &Nodes<'_>, path: &str) -> Result<()> {
        // Twice the session's time.
        for _ in 0..32 {
            if nodes.session.has_ended() {
                return Err(failure::of_request(Said::SessionExpired));
            }
            if nodes.session.is_confirmed() {
                return Ok(());
            }
            for there in nodes.check(&[path]).await {
                if !there? {
                    return Err(failure::of_request(Said::NoNode));
                }
            }
            if !nodes.session.is_confirmed() {
                tokio::time::sleep(nodes.session.a_sixteenth()).await;
            }
        }
        Err(failure::silent())
    }
}

/// A claim that does not queue looks first, and writes nothing for a refusal. `None` if it may well get the lock, or is in the queue.
async fn refused(nodes: &Nodes<'_>, claim: &Claim, lock: &str) -> Result<Option<Attempt>> {
    let (_, queue) = nodes.look_afresh(lock).await?;
    let modes = queue.modes();
    agree(claim, &modes)?;
    let is_new = queue.of_claim(&claim.id).next().is_none();
    let refused = is_new && position(&modes, claim.mode) != Position::Holds;
    Ok(refused.then(|| held(modes.len())))
}

/// Only those ahead count: who comes later finds out itself.
fn agree(claim: &Claim, ahead: &[Mode]) -> Result<()> {
    ahead
        .iter()
        .try_for_each(|there| claim.mode.agrees_with(*there))
}

fn held(ahead: usize) -> Attempt {
    Attempt::Held(Contention {
        ahead: Some(ahead),
        ..Contention::default()
    })
}
