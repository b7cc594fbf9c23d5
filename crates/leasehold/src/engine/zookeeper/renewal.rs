//! How claims are kept: a write that changes nothing proves that their session lives and that their nodes are there.

use futures_util::future::join_all;

use super::nodes::Nodes;
use super::places::{Place, Stands};
use super::{Locks, failure};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::lineup::holders;
use crate::engine::{Grant, LossReason, Renew, Renewal};
use crate::error::{Error, ErrorKind, Result};

impl Locks {
    pub(super) async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let session = self.sessions.present();
        let ended = session.has_ended();
        let mut answers: Vec<Option<Result<Renewal>>> = Vec::new();
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        for (nth, renew) in held.iter().enumerate() {
            answers.push(None);
            match self.places.get(&renew.claim.id) {
                Some(place) if ended || place.session != session.number => {
                    self.places.forget(&renew.claim.id);
                    self.overdue.forget(&renew.claim.id);
                    answers[nth] = Some(Ok(Renewal::Lost(LossReason::SessionEnded)));
                }
                Some(place) if matches!(place.standing, Stands::Holds) => {
                    here.push((nth, (renew.claim, place)));
                }
                _ => elsewhere.push((nth, self.find(renew))),
            }
        }
        let (here_at, here): (Vec<_>, Vec<_>) = here.into_iter().unzip();
        let (elsewhere_at, elsewhere): (Vec<_>, Vec<_>) = elsewhere.into_iter().unzip();
        let (here, elsewhere) = tokio::join!(self.renew_here(&here), join_all(elsewhere));
        let found = here_at.into_iter().zip(here);
        for (nth, answer) in found.chain(elsewhere_at.into_iter().zip(elsewhere)) {
            answers[nth] = Some(answer);
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(failure::silent())))
            .collect()
    }

    /// A claim that this process has not taken, or has forgotten.
    async fn find(&self, Renew { claim, .. }: &Renew<'_>) -> Result<Renewal> {
        let nodes = self.nodes().await?;
        let lock = nodes.lock(&claim.name);
        let (sent, line) = nodes.look_afresh(&lock).await?;
        let modes = line.modes();
        let found = line.of_claim(&claim.id).next();
        let Some((_, entry)) = found.filter(|(at, _)| *at < holders(&modes)) else {
            return Ok(Renewal::Lost(LossReason::Gone));
        };
        let path = format!("{lock}/{}", entry.node);
        match nodes.made_here(&path).await? {
            None => Ok(Renewal::Lost(LossReason::Gone)),
            Some((false, _)) => Err(Error::new(
                ErrorKind::Unsupported,
                "the lock belongs to another process's session, which alone keeps it",
            )
            .advise("let the process that has acquired it hold it, as `leasehold run` does")),
            Some((true, token)) => {
                self.prove(&nodes, &path).await?;
                let place = Place {
                    session: nodes.session.number,
                    path,
                    sequence: entry.sequence.into(),
                    token,
                    standing: Stands::Holds,
                    has_waited: false,
                };
                Ok(Renewal::Renewed(
                    self.granted(&nodes, claim, place, sent.at),
                ))
            }
        }
    }

    async fn renew_here(&self, held: &[(&Claim, Place)]) -> Vec<Result<Renewal>> {
        let session = self.sessions.present();
        let settings = &self.settings;
        let nodes = Nodes { session, settings };
        let paths: Vec<_> = held.iter().map(|(_, place)| &*place.path).collect();
        let sent = Clock::machine().now();
        let there = nodes.check(&paths).await;
        let answers = there.into_iter().zip(held).map(|(there, (claim, place))| {
            let there = match there {
                Err(error) if failure::ended_the_session(&error) => {
                    self.places.forget(&claim.id);
                    self.overdue.forget(&claim.id);
                    return Ok(Renewal::Lost(LossReason::SessionEnded));
                }
                there => there?,
            };
            let mut places = self.places.lock();
            let still = places
                .get(&claim.id)
                .is_some_and(|now| now.path == place.path);
            if !there || !still {
                places.remove(&claim.id);
                self.overdue.forget(&claim.id);
                return Ok(Renewal::Lost(LossReason::Gone));
            }
            self.overdue.ends_at(claim, sent + claim.ttl.get());
            Ok(Renewal::Renewed(Grant {
                token: place.token,
                valid_until: nodes.session.valid_until().min(sent + claim.ttl.validity()),
            }))
        });
        answers.collect()
    }
}
