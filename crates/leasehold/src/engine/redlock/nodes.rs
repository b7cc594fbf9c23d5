//! The nodes of a deployment, asked all at once, and how many of them must agree.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::CONNECT;
use super::member::Member;
use super::protocol::SCRIPTS;
use super::tally::no_quorum;
use crate::engine::doctor::Finding;
use crate::engine::redis::client::Client;
use crate::engine::redis::health;
use crate::engine::redis::keys::Keys;
use crate::engine::redis::listener::Listener;
use crate::engine::redis::protocol::{self, Call, RENEWED, Renewed, Reply};
use crate::engine::redis::renewals::Batches;
use crate::engine::{Released, Renew};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) quorum: usize,
}

type Asked = Pin<Box<dyn Future<Output = (usize, Result<Reply>)> + Send>>;

/// The answers of nodes, each with the number of its node, as they come.
pub(super) type Answers = FuturesUnordered<Asked>;

impl Nodes {
    /// Connects to as many nodes as are there; a quorum of them must be. Also returns what was found.
    pub(super) async fn connect(
        nodes: Vec<(String, redis::Client)>,
        quorum: usize,
        keys: &Keys,
        listener: &Arc<Listener>,
        timeout: Duration,
    ) -> Result<(Self, Vec<Finding>)> {
        let nodes = nodes.into_iter().enumerate();
        let members = nodes.map(|(number, (address, client))| {
            let client = Client::new(client, true, CONNECT, CONNECT, listener.on_push(number));
            Member::new(address, client, Arc::clone(listener), timeout)
        });
        let nodes = Self {
            members: members.collect(),
            quorum,
        };
        let checks = nodes.members.iter();
        let checks = checks.map(|member| member.in_time(CONNECT, prepare(&member.client, keys)));
        let mut findings = Vec::new();
        let mut failed = Vec::new();
        for (member, checked) in nodes.members.iter().zip(join_all(checks).await) {
            match checked {
                Ok(more) => {
                    let more = more.into_iter();
                    findings.extend(more.map(|found| found.at(&member.address)));
                }
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    // It lacks the scripts, however long a call may wait for it.
                    if !error.is_busy() {
                        member.leave_out();
                    }
                    failed.push(error);
                }
                Err(error) => return Err(member.with_context(error)),
            }
        }
        if nodes.leaves_no_quorum(failed.len()) {
            return Err(nodes.no_quorum(&failed));
        }
        findings.extend(failed.iter().map(unreachable));
        Ok((nodes, findings))
    }

    pub(super) fn all(&self) -> std::ops::Range<usize> {
        0..self.members.len()
    }

    /// Whether fewer than a quorum are left without so many.
    pub(super) fn leaves_no_quorum(&self, missing: usize) -> bool {
        missing > self.members.len() - self.quorum
    }

    pub(super) fn no_quorum(&self, failed: &[Error]) -> Error {
        no_quorum(self.members.len(), self.quorum, failed, &[])
    }

    /// Asks these nodes at once. Everything has been sent when this returns: what is sent to a node later arrives
    /// later.
    async fn ask<A>(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        how: impl Fn(Arc<Member>) -> A,
    ) -> Answers
    where
        A: Future<Output = Result<Reply>> + Send + 'static,
    {
        let answers = Answers::new();
        for number in nodes {
            let answer = how(Arc::clone(&self.members[number]));
            let asked = answer.map(move |answer| (number, answer));
            let mut asked: Asked = Box::pin(tokio::task::unconstrained(asked));
            match futures_util::poll!(&mut asked) {
                Poll::Ready(answer) => answers.push(Box::pin(std::future::ready(answer))),
                Poll::Pending => answers.push(asked),
            }
        }
        answers
    }

    /// Calls a script on these nodes at once.
    pub(super) async fn call(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        call: Call,
        patience: Duration,
    ) -> Answers {
        let call = Arc::new(call);
        let how = |member: Arc<Member>| member.call(Arc::clone(&call), patience);
        self.ask(nodes, how).await
    }

    /// Renews claims: the token of each that a quorum has renewed, or `None` if it is lost.
    pub(super) async fn renew(
        &self,
        keys: &Keys,
        held: &[Renew<'_>],
        max_ttl: Duration,
        patience: Duration,
    ) -> Vec<Result<Option<FencingToken>>> {
        let batches = Batches::of(keys, held, max_ttl, RENEWED);
        let slowly = |nth: usize| super::protocol::renew(keys, &held[nth], max_ttl);
        let asked = self.members.iter().map(async |member| {
            let renewing = member
                .client
                .in_turn(async |connection| Ok(batches.renew(&connection, held, slowly).await));
            match member.in_time(patience, renewing).await {
                Ok(renewed) => renewed,
                Err(error) => held.iter().map(|_| Err(error.clone())).collect(),
            }
        });
        let answers = join_all(asked).await;
        let mut answers: Vec<_> = answers.into_iter().map(Vec::into_iter).collect();
        let renewed = held.iter().map(|_| {
            let votes = answers.iter_mut().filter_map(Iterator::next);
            self.count_renewed(votes)
        });
        renewed.collect()
    }

    fn count_renewed(
        &self,
        votes: impl Iterator<Item = Result<Renewed>>,
    ) -> Result<Option<FencingToken>> {
        let mut yes: HashMap<FencingToken, usize> = HashMap::new();
        let mut lost = 0;
        let mut failed = Vec::new();
        for vote in votes {
            match vote {
                Ok(Renewed::Yes(token)) => *yes.entry(token).or_default() += 1,
                Ok(Renewed::Blank) => {}
                Ok(Renewed::Lost) => lost += 1,
                Err(error) => failed.push(error),
            }
        }
        match yes.into_iter().find(|(_, votes)| *votes >= self.quorum) {
            Some((token, _)) => Ok(Some(token)),
            None if self.leaves_no_quorum(lost) => Ok(None),
            None => Err(self.no_quorum(&failed)),
        }
    }

    /// Gives up a claim. A node that does not answer is told later.
    pub(super) async fn release(&self, call: Call, patience: Duration) -> Result<Released> {
        let call = Arc::new(call);
        let how = |member: Arc<Member>| member.release(Arc::clone(&call), patience);
        let answers = self.ask(self.all(), how).await;
        self.released(&self.count_released(answers).await)
    }

    /// Takes a lock away from whoever holds it. The holder may go on all the same if a quorum is left of nodes that did not answer, which may have
    /// its claim, and of nodes that lack it, where its next renewal plants it.
    pub(super) async fn break_lock(&self, call: Call, patience: Duration) -> Result<Released> {
        let answers = self.call(self.all(), call, patience).await;
        let count = self.count_released(answers).await;
        match self.released(&count)? {
            Released::Yes if !self.leaves_no_quorum(count.held) => Err(half_broken(&count.failed)),
            released => Ok(released),
        }
    }

    /// Done when so many have answered that the rest changes nothing; the others finish in the background.
    async fn count_released(&self, mut answers: Answers) -> ReleasedBy {
        let mut count = ReleasedBy::default();
        while let Some((_, reply)) = answers.next().await {
            match reply.and_then(|reply| protocol::read_released(&reply)) {
                Ok(Released::Yes) => count.held += 1,
                Ok(Released::WasNotHeld) => count.not_held += 1,
                Err(error) => count.failed.push(error),
            }
            let was_not_held = self.leaves_no_quorum(count.not_held);
            if count.held >= self.quorum || was_not_held && self.answered(&count) {
                break;
            }
        }
        finish_in_background(answers);
        count
    }

    fn answered(&self, count: &ReleasedBy) -> bool {
        count.held + count.not_held >= self.quorum
    }

    /// One node that had not forgotten an expired claim does not make it held: a quorum does.
    fn released(&self, count: &ReleasedBy) -> Result<Released> {
        if !self.answered(count) {
            return Err(self.no_quorum(&count.failed));
        }
        Ok(match self.leaves_no_quorum(count.not_held) {
            true => Released::WasNotHeld,
            false => Released::Yes,
        })
    }
}

/// What the nodes said to a release.
#[derive(Default)]
struct ReleasedBy {
    held: usize,
    not_held: usize,
    failed: Vec<Error>,
}

fn half_broken(failed: &[Error]) -> Error {
    let failed: Vec<_> = failed.iter().map(Error::what).collect();
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the lock was taken away on some nodes, and its holder may keep it by others ({})",
            failed.join("; ")
        ),
    )
    .advise("see who holds it, and break it again when the nodes are back")
    .of_unknown_effect()
}

/// Checks whether a node can be trusted, and loads the scripts.
async fn prepare(client: &Client, keys: &Keys) -> Result<Vec<Finding>> {
    let mut findings = health::check(client, None).await?;
    health::check_layout(client, keys).await?;
    findings.push(health::check_persistence(client).await?);
    client.load_scripts(&SCRIPTS).await?;
    Ok(findings)
}

pub(super) fn unreachable(error: &Error) -> Finding {
    Finding::warning("unreachable", error.what())
        .means("a node does not vote")
        .fix("bring it back, before others fail")
}

/// Lets the slow nodes answer, so that it is known which of them are unhealthy.
pub(super) fn finish_in_background(mut answers: Answers) {
    if !answers.is_empty() {
        tokio::spawn(async move { while answers.next().await.is_some() {} });
    }
}
