//! How claims are kept: a write that changes nothing shows that their session lives and that their nodes are there.

use std::sync::Arc;

use futures_util::future::join_all;

use super::claim::{OwnClaim, QueueEntry};
use super::client::Session;
use super::nodes::Nodes;
use super::{Locks, failure};
use crate::clock::Clock;
use crate::engine::queue_rules::holders;
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
            match self.claims.get(renew.claim) {
                Some(OwnClaim::Ending(_)) => {
                    answers[nth] = Some(Ok(Renewal::Lost(LossReason::Gone)));
                }
                Some(own)
                    if ended || own.entry().is_some_and(|own| own.session != session.number) =>
                {
                    own.entry()
                        .inspect(|entry| self.claims.gone(renew.claim, entry));
                    answers[nth] = Some(Ok(Renewal::Lost(LossReason::SessionEnded)));
                }
                Some(OwnClaim::Held(entry)) => here.push((nth, (*renew, entry))),
                _ => elsewhere.push((nth, self.find(renew))),
            }
        }
        let (here_at, here): (Vec<_>, Vec<_>) = here.into_iter().unzip();
        let (elsewhere_at, elsewhere): (Vec<_>, Vec<_>) = elsewhere.into_iter().unzip();
        let (here, elsewhere) = tokio::join!(self.renew_here(session, &here), join_all(elsewhere));
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
        let was_in_doubt = self.claims.is_in_doubt(claim);
        let (sent, queue) = nodes.look_afresh(&lock).await?;
        // What is found may be deleted as that of a claim in doubt: not as long as the claim relies on it, and if it was deleted since, this knows nothing.
        if was_in_doubt && !self.claims.doubt_longer(claim, sent + claim.ttl.get()) {
            return Err(failure::silent());
        }
        let modes = queue.modes();
        let found = queue.of_claim(&claim.id).next();
        let Some((_, node)) = found.filter(|(at, _)| *at < holders(&modes)) else {
            return Ok(Renewal::Lost(LossReason::Gone));
        };
        let path = format!("{lock}/{}", node.name);
        match nodes.made_here(&path).await? {
            None => Ok(Renewal::Lost(LossReason::Gone)),
            Some((false, _)) => Err(Error::new(
                ErrorKind::Unsupported,
                "the lock belongs to another process's session, which alone keeps it",
            )
            .advise("let the process that has acquired it hold it, as `leasehold run` does")),
            Some((true, token)) => {
                self.confirm_session(&nodes, &path).await?;
                let entry = QueueEntry {
                    session: nodes.session.number,
                    path,
                    token,
                };
                Ok(match self.granted(&nodes, claim, entry, sent) {
                    Some(grant) => Renewal::Renewed(grant),
                    None => Renewal::Lost(LossReason::Gone),
                })
            }
        }
    }

    async fn renew_here(
        &self,
        session: Arc<Session>,
        held: &[(Renew<'_>, QueueEntry)],
    ) -> Vec<Result<Renewal>> {
        let config = &self.config;
        let nodes = Nodes { session, config };
        let paths: Vec<_> = held.iter().map(|(_, entry)| &*entry.path).collect();
        let sent = Clock::machine().now();
        let there = nodes.check(&paths).await;
        let answers = there.into_iter().zip(held).map(|(there, (renew, entry))| {
            let claim = renew.claim;
            let there = match there {
                Err(error) if failure::ended_the_session(&error) => {
                    self.claims.gone(claim, entry);
                    return Ok(Renewal::Lost(LossReason::SessionEnded));
                }
                there => there?,
            };
            let end = sent + claim.ttl.get();
            if !there {
                self.claims.gone(claim, entry);
            }
            if renew.shorten {
                self.claims.shorten(claim, end);
            }
            if !self.claims.still_hold(claim, entry.clone(), end) {
                return Ok(Renewal::Lost(LossReason::Gone));
            }
            Ok(Renewal::Renewed(Grant {
                token: entry.token,
                valid_until: nodes.session.promise(sent + claim.ttl.validity()),
            }))
        });
        answers.collect()
    }
}
