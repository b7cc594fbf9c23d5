//! One attempt: a claim takes its place in line, and sees what that comes to.

use zookeeper_client::Error as Said;

use super::layout::Line;
use super::nodes::Nodes;
use super::places::{Place, Stands};
use super::{Locks, failure};
use crate::claim::{Claim, Mode};
use crate::clock::Moment;
use crate::engine::lineup::{Standing, standing};
use crate::engine::{Attempt, Contention, Grant};
use crate::error::{Error, ErrorKind, Result};

/// How often an attempt begins anew because a node has gone under it.
const TRIES: usize = 8;

/// A claim in line, and what is known of those before it.
struct Standpoint<'a> {
    lock: &'a str,
    place: Place,
    /// When that was asked.
    sent: Moment,
    line: &'a Line,
    /// How many are ahead.
    ahead: usize,
}

impl Locks {
    pub(super) async fn attempt(&self, nodes: &Nodes<'_>, claim: &Claim) -> Result<Attempt> {
        let lock = nodes.lock(&claim.name);
        let mut known = self.places.get(&claim.id);
        known = known.filter(|place| place.session == nodes.session.number);
        if known.is_none()
            && !claim.queues
            && let Some(refused) = refused(nodes, claim, &lock).await?
        {
            return Ok(refused);
        }
        for _ in 0..TRIES {
            let (place, sent, line) = match known.take() {
                Some(place) => {
                    let (sent, line) = match place.standing {
                        Stands::Woken => nodes.look(&lock).await?,
                        _ => nodes.look_afresh(&lock).await?,
                    };
                    (place, sent, line)
                }
                None => {
                    let note = |place| drop(self.places.lock().insert(claim.id, place));
                    let looks = !self.emptied.expects_one(&lock);
                    let Some((place, sent, line)) = nodes.join(&lock, claim, looks, note).await?
                    else {
                        nodes.make_lock(&lock).await?;
                        continue;
                    };
                    match line {
                        Some(line) => (place, sent, line),
                        None if self.emptied.is_first(&lock, &place) => {
                            match self.holds(nodes, claim, place, sent.at).await {
                                Err(error) if failure::is_missing(&error) => {
                                    self.places.forget(&claim.id);
                                    continue;
                                }
                                answer => return answer,
                            }
                        }
                        None => (place, sent, nodes.look(&lock).await?.1),
                    }
                }
            };
            let own = place.path.rsplit('/').next();
            let mine = line.0.iter().position(|entry| Some(&*entry.node) == own);
            let Some(mine) = mine else {
                // Deleted by hand, or by a release that has overtaken this.
                self.places.forget(&claim.id);
                continue;
            };
            let mut stands = Standpoint {
                lock: &lock,
                place,
                sent: sent.at,
                line: &line,
                ahead: mine,
            };
            let earlier = line.of_claim(&claim.id).next();
            if let Some((at, entry)) = earlier.filter(|(at, _)| *at < mine) {
                let path = format!("{lock}/{}", entry.node);
                if let Some((true, token)) = nodes.made_here(&path).await? {
                    // A create whose reply was lost.
                    nodes.delete(&stands.place.path).await?;
                    stands.ahead = at;
                    stands.place.path = path;
                    stands.place.sequence = entry.sequence.into();
                    stands.place.token = token;
                    return self.stand(nodes, claim, stands).await;
                }
            }
            match self.stand(nodes, claim, stands).await {
                Err(error) if failure::is_missing(&error) => self.places.forget(&claim.id),
                answer => return answer,
            }
        }
        Err(Error::new(
            ErrorKind::Unexpected,
            "the lock's nodes go as soon as they are made",
        )
        .advise("see who deletes them")
        .of_unknown_effect())
    }

    /// What a place in line comes to.
    async fn stand(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        stands: Standpoint<'_>,
    ) -> Result<Attempt> {
        let Standpoint {
            lock,
            mut place,
            sent,
            line,
            ahead,
        } = stands;
        let modes = &line.modes()[..ahead];
        if let Err(disagreement) = agree(claim, modes) {
            self.give_up(nodes, claim, &place).await?;
            return Err(disagreement);
        }
        let watched = match standing(modes, claim.mode) {
            Standing::Behind(watched) => watched,
            Standing::Holds => return self.holds(nodes, claim, place, sent).await,
        };
        if !claim.queues {
            self.give_up(nodes, claim, &place).await?;
            return Ok(held(ahead));
        }
        let path = |at: &usize| format!("{lock}/{}", line.0[*at].node);
        place.has_waited = true;
        place.standing = Stands::Waits {
            watched: watched.iter().map(path).collect(),
            is_next: watched.len() == ahead,
            hears: match (&watched[..], claim.mode) {
                // Those who hold a permit may be in between.
                (_, Mode::Permit { .. }) => false,
                ([at], _) => modes[*at] == Mode::Exclusive,
                _ => false,
            },
        };
        self.places.lock().insert(claim.id, place);
        Ok(held(ahead))
    }

    async fn holds(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        mut place: Place,
        sent: Moment,
    ) -> Result<Attempt> {
        self.prove(nodes, &place.path).await?;
        place.standing = Stands::Holds;
        Ok(Attempt::Granted(self.granted(nodes, claim, place, sent)))
    }

    pub(super) fn granted(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        place: Place,
        sent: Moment,
    ) -> Grant {
        let token = place.token;
        let mut places = self.places.lock();
        places.insert(claim.id, place);
        self.overdue.ends_at(claim, sent + claim.ttl.get());
        Grant {
            token,
            valid_until: nodes.session.valid_until().min(sent + claim.ttl.validity()),
        }
    }

    /// Sees that the session is sure to live for a while; it mostly is, by the writes of late.
    pub(super) async fn prove(&self, nodes: &Nodes<'_>, path: &str) -> Result<()> {
        for _ in 0..TRIES {
            if nodes.session.is_proven() {
                return Ok(());
            }
            for there in nodes.check(&[path]).await {
                if !there? {
                    return Err(failure::of_request(Said::NoNode));
                }
            }
            if !nodes.session.is_proven() {
                tokio::time::sleep(nodes.session.a_quarter()).await;
            }
        }
        Err(failure::silent())
    }
}

/// Whoever will not wait looks first, and writes nothing for a refusal. `None` if it may well get the lock, or has a place.
async fn refused(nodes: &Nodes<'_>, claim: &Claim, lock: &str) -> Result<Option<Attempt>> {
    let (_, line) = nodes.look_afresh(lock).await?;
    let modes = line.modes();
    agree(claim, &modes)?;
    let is_new = line.of_claim(&claim.id).next().is_none();
    let refused = is_new && standing(&modes, claim.mode) != Standing::Holds;
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
