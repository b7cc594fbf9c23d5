//! One attempt: propose a token to all nodes, count their votes, and give back what too few have granted.

use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use futures_util::stream::StreamExt;

use super::member::may_pass;
use super::nodes::finish_in_background;
use super::protocol;
use super::tally::{Outcome, Tally};
use super::{CONNECT, Redlock};
use crate::backoff::Backoff;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::redis::protocol::{self as on_one, Address, Answer, Blank, Proposal, Reply};
use crate::engine::{Attempt, Contention, Engine, Grant, LossReason, Renew, Renewal};
use crate::error::{Effect, Result};
use crate::token::FencingToken;

/// How often a token that is behind is proposed anew before the claim waits its turn.
const PROPOSALS: usize = 5;

impl Redlock {
    /// One attempt, with as many proposals as it takes to get past the registers.
    pub(super) async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let mut look_again_in = Duration::ZERO;
        for _ in 0..PROPOSALS {
            let proposal = self.proposals.propose(claim.id)?;
            let address = self.listener.address(claim);
            let sent = Clock::machine().now();
            let tally = self.propose(claim, proposal, address).await;
            // Somebody may rely on what this process has been granted, and renew it.
            let kept = self.grants.token_of(&claim.id, sent);
            let granted_by = tally.granted_except(kept);
            let unanswered = match kept {
                None => tally.unanswered.clone(),
                Some(_) => Vec::new(),
            };
            // What this process had from before has been given back when it proposes anew: the rest is that of another, and ends with its TTL.
            look_again_in = match tally.granted_except(Some(proposal.token)).is_empty() {
                true => Duration::ZERO,
                false => claim.ttl.get(),
            };
            match tally.outcome() {
                Outcome::Granted(token) if token == proposal.token => {
                    let valid_until = sent + self.config.validity(claim.ttl);
                    return Ok(Attempt::Granted(Grant { token, valid_until }));
                }
                // From before, and for as long as it was to last then.
                Outcome::Granted(token) => match self.renew_one(claim, token).await? {
                    Renewal::Renewed(grant) => return Ok(Attempt::Granted(grant)),
                    Renewal::Lost(_) => self.proposals.outbid(&claim.id, token.get()),
                },
                Outcome::Behind(register) => {
                    self.give_back(claim, granted_by, proposal, None).await;
                    self.give_back_later(claim, &unanswered, proposal);
                    self.proposals.outbid(&claim.id, register);
                }
                Outcome::AllBlank(blank) => {
                    let wait = self.start_deployment(claim, &blank).await;
                    if !wait.is_zero() {
                        return on_one::quarantine(claim, wait);
                    }
                }
                Outcome::Held {
                    look_again_in,
                    ahead,
                } => {
                    self.give_back(claim, granted_by, proposal, address).await;
                    if claim.queues && address.is_none() {
                        self.subscribe().await;
                        continue;
                    }
                    self.give_back_later(claim, &unanswered, proposal);
                    return Ok(self.held(claim, look_again_in, ahead));
                }
                Outcome::Failed(error) => {
                    self.give_back(claim, granted_by, proposal, None).await;
                    if error.effect() == Effect::None {
                        self.give_back_later(claim, &unanswered, proposal);
                    }
                    return Err(error);
                }
            }
        }
        Ok(self.held(claim, look_again_in, None))
    }

    async fn renew_one(&self, claim: &Claim, token: FencingToken) -> Result<Renewal> {
        let mut renew = Renew::new(claim);
        renew.token = Some(token);
        let renewed = self.renew(&[renew]).await.pop();
        renewed.unwrap_or(Ok(Renewal::Lost(LossReason::Gone)))
    }

    /// One proposal to all nodes at once. Returns as soon as a quorum has granted it; else all have answered, or had
    /// their time: a node that grants what nobody counts would block the lock for a whole TTL.
    async fn propose(
        &self,
        claim: &Claim,
        proposal: Proposal,
        address: Option<Address<'_>>,
    ) -> Tally {
        let call = on_one::acquire(&self.keys, claim, address, self.config.max_ttl, proposal);
        let mut tally = Tally::new(self.nodes.members.len(), self.nodes.quorum);
        let patience = self.config.patience(claim.ttl);
        let mut answers = self.nodes.call(self.nodes.all(), call, patience).await;
        while let Some((node, reply)) = answers.next().await {
            let answer = reply.and_then(|reply| Answer::read(&reply, claim, proposal));
            let member = &self.nodes.members[node];
            tally.add(node, answer.map_err(|error| member.with_context(error)));
            if tally.is_granted() {
                break;
            }
        }
        finish_in_background(answers);
        tally
    }

    /// Gives back what an attempt got that has come to nothing: to whoever is next, keeping its position if it waits.
    /// Waits for the nodes to do so, so that the next attempt finds them done. A node that gets this late keeps what a
    /// later attempt of the claim, or one of another process, has been told of.
    async fn give_back(
        &self,
        claim: &Claim,
        nodes: Vec<usize>,
        proposal: Proposal,
        address: Option<Address<'_>>,
    ) {
        // What a node has said before it carries this out is void.
        if let Some((_, mailbox)) = self.listener.waiters.waiter(&claim.id) {
            mailbox.keep_only(|heard| !nodes.contains(&heard.server));
        }
        let call = protocol::give_back(&self.keys, claim, address, proposal);
        let patience = self.config.patience(claim.ttl);
        let mut answers = self.nodes.call(nodes, call, patience).await;
        let mut not_told = Vec::new();
        while let Some((node, answer)) = answers.next().await {
            if answer.as_ref().is_err_and(may_pass) {
                not_told.push(node);
            }
        }
        self.give_back_later(claim, &not_told, proposal);
    }

    /// All nodes have been restarted, or are new: those that have been up for long enough can have forgotten nothing that still
    /// counts. Returns how long until a quorum can vote; zero if it can.
    async fn start_deployment(&self, claim: &Claim, blank: &[(usize, Blank)]) -> Duration {
        let max_ttl = self.config.max_ttl;
        let old_enough = blank
            .iter()
            .filter(|(_, blank)| blank.may_be_marked(max_ttl))
            .map(|(node, _)| *node);
        let old_enough: Vec<_> = old_enough.collect();
        let call = on_one::mark(&self.keys, &claim.name, max_ttl);
        let answers = self.nodes.call(old_enough, call, CONNECT).await;
        let answers: Vec<_> = answers.collect().await;
        let is_marked = |reply: &Reply| reply.is("marked");
        let marked = answers
            .iter()
            .filter(|(_, reply)| reply.as_ref().is_ok_and(is_marked))
            .count();
        if marked >= self.nodes.quorum {
            return Duration::ZERO;
        }
        let mut waits: Vec<_> = blank.iter().map(|(_, blank)| blank.wait(max_ttl)).collect();
        waits.sort();
        waits[self.nodes.quorum - 1]
    }

    /// Returns once every healthy node knows that this process listens.
    async fn subscribe(&self) {
        let members = self.nodes.members.iter();
        let subscribe = || join_all(members.map(|member| member.subscribe())).map(|_| ());
        self.listener.subscribed.get_or_init(subscribe).await;
    }

    /// These nodes have granted the claim, or may have. It goes no further unless it queues: then its next attempt finds what it has there.
    /// The claim may come again, through this process or another, and keeps what it has got by then.
    fn give_back_later(&self, claim: &Claim, nodes: &[usize], proposal: Proposal) {
        for node in nodes.iter().filter(|_| !claim.queues) {
            let member = &self.nodes.members[*node];
            member.defer(protocol::give_back(&self.keys, claim, None, proposal).into());
        }
    }

    fn held(&self, claim: &Claim, look_again_in: Duration, ahead: Option<usize>) -> Attempt {
        Attempt::Held(Contention {
            look_again_in: Some(look_again_in + self.stagger(claim)),
            ahead,
            ..Contention::default()
        })
    }

    /// Two claims that have split the votes must not meet again at once.
    pub(super) fn stagger(&self, claim: &Claim) -> Duration {
        let seed = claim.id.seed() ^ self.proposals.of(&claim.id);
        Backoff::new(seed, Duration::from_millis(8), Duration::from_millis(8)).delay()
    }
}
