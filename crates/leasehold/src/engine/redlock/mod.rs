//! `redlock://a:6379,b:6379,c:6379`: a quorum of independent Redis servers, with fencing tokens.
//!
//! The scripts are those of the single server; what is added is the proposal of a token, the counting of votes, and
//! the mark that a server without memory lacks. `docs/engines/redlock.md` tells the algorithm and why it is right.
//!
//! | file | what is there |
//! |---|---|
//! | `tally.rs` | counting votes |
//! | `member.rs` | one node, left out while it is ill |
//! | `proposals.rs` | which token each claim has proposed |
//! | `crowd.rs` | what people see: what the nodes agree on |
//! | `settings.rs` | URLs |

mod crowd;
mod member;
mod proposals;
#[cfg(feature = "bench")]
mod raw;
mod settings;
mod tally;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{FutureExt, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Script;
use tokio::sync::OnceCell;

use self::member::Member;
use self::proposals::Proposals;
use self::settings::Settings;
use self::tally::{Blank, Outcome, Tally, no_quorum};
use crate::backoff::Backoff;
use crate::claim::{Claim, ClaimId, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::handover::Heard;
use crate::engine::redis::ears::{Ears, News};
use crate::engine::redis::health;
use crate::engine::redis::keys::Keys;
use crate::engine::redis::node::{ACQUIRE, BREAK, Call, MARK, Node, RELEASE, RENEW, YIELD};
use crate::engine::redis::protocol::{self, Answer, Deployment, Listener, Renewed};
use crate::engine::tls;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;
use crate::url::EngineUrl;

/// How `redlock:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["redlock", "redlocks"],
    options: settings::OPTIONS,
    example: "redlock://a:6379,b:6379,c:6379",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match Redlock::connect(&url).await {
                Ok(redlock) => Ok(Arc::new(redlock) as Arc<dyn Engine>),
                Err(error) => Err(error.during("connect", location)),
            }
        })
    },
};

/// How often a token that is behind is proposed anew before the claim waits its turn.
const PROPOSALS: usize = 5;

/// How long a waiter that some nodes have let in waits for the others.
const SPLIT: Duration = Duration::from_millis(20);

/// How long connecting may take for a node, before it counts as ill.
const CONNECT: Duration = Duration::from_secs(2);

/// Locks on a quorum of independent servers.
#[derive(Debug)]
pub struct Redlock {
    members: Vec<Arc<Member>>,
    keys: Keys,
    ears: Arc<Ears>,
    /// Done once every node that is well knows that this process listens.
    listening: OnceCell<()>,
    proposals: Proposals,
    settings: Settings,
    warnings: Vec<String>,
}

impl Redlock {
    /// Connects to as many nodes as are there; a quorum of them must be.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        if url.scheme == "redlocks" {
            tls::install();
        }
        let keys = Keys::under(settings.prefix.clone());
        let ears = Arc::new(Ears::new(keys.channel(&ClaimId::random()?.reveal())));
        let mut members = Vec::new();
        for (number, (address, server)) in settings.nodes.iter().enumerate() {
            let heard = ears.listener(number);
            let node = Node::new(server.clone(), CONNECT, CONNECT, heard)?;
            members.push(Member::new(address.clone(), node, Arc::clone(&ears)));
        }
        let checks = members
            .iter()
            .map(|member| member.in_time(CONNECT, prepare(&member.node)));
        let mut warnings = Vec::new();
        let mut failed = Vec::new();
        for (member, checked) in members.iter().zip(join_all(checks).await) {
            match checked {
                Ok(more) => {
                    let more = more.into_iter();
                    warnings.extend(more.map(|warning| format!("{}: {warning}", member.address)));
                }
                Err(error) if error.kind() == ErrorKind::Unreachable => failed.push(error),
                Err(error) => return Err(member.place(error)),
            }
        }
        if failed.len() > members.len() - settings.quorum {
            return Err(no_quorum(members.len(), settings.quorum, &failed, &[]));
        }
        warnings.extend(failed.iter().map(|error| error.what().to_owned()));
        Ok(Self {
            members,
            keys,
            ears,
            listening: OnceCell::new(),
            proposals: Proposals::default(),
            settings,
            warnings,
        })
    }

    /// One proposal to all nodes at once. Returns as soon as a quorum has granted it; else all have answered, or had
    /// their time: who grants what nobody counts would block the lock for a whole TTL.
    async fn propose(&self, claim: &Claim, proposed: u64, listener: Option<Listener<'_>>) -> Tally {
        let deployment = self.deployment(proposed);
        let call = protocol::acquire(&self.keys, claim, listener, deployment);
        let mut tally = Tally::new(self.members.len(), self.settings.quorum);
        let sent = Clock::machine().now();
        let patience = self.settings.patience(claim.ttl);
        let mut asking = self
            .ask(self.all(), calling(&ACQUIRE, call, patience))
            .await;
        while let Some((node, reply)) = asking.next().await {
            let answer = reply.and_then(|reply| Answer::read(&reply, claim));
            if let Ok(Answer::Granted { now, .. } | Answer::Held { now, .. }) = &answer {
                self.members[node].clock.synchronize(sent, *now);
            }
            tally.add(
                node,
                answer.map_err(|error| self.members[node].place(error)),
            );
            if tally.is_granted() {
                break;
            }
        }
        finish_in_background(asking);
        tally
    }

    /// Asks these nodes at once. Everything has been sent when this returns: what is sent to a node later arrives
    /// later.
    async fn ask<A>(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        how: impl Fn(Arc<Member>) -> A,
    ) -> Asking
    where
        A: Future<Output = Result<Vec<String>>> + Send + 'static,
    {
        let asking = Asking::new();
        for number in nodes {
            let answer = how(Arc::clone(&self.members[number]));
            let ask = answer.map(move |answer| (number, answer));
            let mut ask: Ask = Box::pin(tokio::task::unconstrained(ask));
            match futures_util::poll!(&mut ask) {
                Poll::Ready(answer) => asking.push(Box::pin(std::future::ready(answer))),
                Poll::Pending => asking.push(ask),
            }
        }
        asking
    }

    /// Gives back what a proposal got that has come to nothing: to whoever is next, keeping its own place if it waits.
    /// Waits for the nodes to do so, since what they give this claim later must not be given back with it.
    async fn step_back(
        &self,
        claim: &Claim,
        nodes: Vec<usize>,
        waits: Option<(u64, Listener<'_>)>,
    ) {
        let (script, call): (&'static Script, _) = match waits {
            Some((proposed, listener)) => {
                // What a node has said before it hears of this is void.
                if let Some((_, bell)) = self.ears.waiters.waiter(&claim.id) {
                    bell.keep_only(|news| !nodes.contains(&news.server));
                }
                let deployment = self.deployment(proposed);
                (
                    &YIELD,
                    protocol::acquire(&self.keys, claim, Some(listener), deployment),
                )
            }
            None => (&RELEASE, protocol::release(&self.keys, claim)),
        };
        let patience = self.settings.patience(claim.ttl);
        let mut asking = self.ask(nodes, calling(script, call, patience)).await;
        while asking.next().await.is_some() {}
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.members.len()
    }

    fn deployment(&self, proposed: u64) -> Deployment {
        Deployment {
            proposed,
            max_ttl: self.settings.max_ttl,
        }
    }

    /// All nodes are without memory: those that have been up for long enough can have forgotten nothing that still
    /// counts. Returns how long until a quorum can vote; zero if it can.
    async fn start_deployment(&self, claim: &Claim, blank: &[Blank]) -> Duration {
        let call = protocol::mark(&self.keys, &claim.name, self.settings.max_ttl);
        let old_enough = blank
            .iter()
            .filter(|blank| blank.uptime >= self.settings.max_ttl);
        let marks = old_enough.map(|blank| self.members[blank.node].call(&MARK, &call, CONNECT));
        let marked = join_all(marks).await.into_iter().flatten();
        let marked = marked.filter(|reply| reply == &["marked"]).count();
        if marked >= self.settings.quorum {
            return Duration::ZERO;
        }
        let mut waits: Vec<_> = blank
            .iter()
            .map(|blank| {
                // Uptimes are told in whole seconds.
                let up_in = self.settings.max_ttl.saturating_sub(blank.uptime);
                blank.votes_in.min(up_in.max(Duration::from_millis(100)))
            })
            .collect();
        waits.sort();
        waits[self.settings.quorum - 1]
    }

    /// Two who have split the votes must not meet again at once.
    fn stagger(&self, claim: &Claim) -> Duration {
        let seed = claim.id.seed() ^ self.proposals.of(&claim.id);
        Backoff::new(seed, Duration::from_millis(8), Duration::from_millis(8)).delay()
    }
}

/// Sees whether a node can be trusted, and makes it ready.
async fn prepare(node: &Node) -> Result<Vec<String>> {
    let warnings = health::check(node, 1).await?;
    node.load_scripts().await?;
    Ok(warnings)
}

/// The same script for all nodes.
fn calling(
    script: &'static Script,
    call: Call,
    patience: Duration,
) -> impl Fn(Arc<Member>) -> futures_util::future::BoxFuture<'static, Result<Vec<String>>> {
    let call = Arc::new(call);
    move |member| {
        let call = Arc::clone(&call);
        async move { member.call(script, &call, patience).await }.boxed()
    }
}

type Ask = std::pin::Pin<Box<dyn Future<Output = (usize, Result<Vec<String>>)> + Send>>;
type Asking = FuturesUnordered<Ask>;

/// Lets the slow ones finish, so that it is known who is ill.
fn finish_in_background(mut asking: Asking) {
    if !asking.is_empty() {
        tokio::spawn(async move { while asking.next().await.is_some() {} });
    }
}

#[async_trait]
impl Engine for Redlock {
    fn scheme(&self) -> &'static str {
        "redlock"
    }

    fn location(&self) -> String {
        self.settings.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            // N·k/quorum holders of a semaphore of k could fit on N nodes.
            permits: false,
            fairness: Fairness::Random,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Network,
            safety: Safety::Correctness,
            store: false,
            survives: &[
                Survives::ClientKilled,
                Survives::NodeLoss,
                Survives::EngineRestart,
                Survives::PowerLoss,
            ],
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if matches!(claim.mode, Mode::Permit { .. }) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "Redlock has no permits: on several nodes more holders could fit than there are permits",
            )
            .advise("use one Redis server (redis:), or another engine"));
        }
        protocol::check_max_ttl(claim, self.settings.max_ttl)?;
        for _ in 0..PROPOSALS {
            let proposed = self.proposals.propose(claim.id)?;
            let queues = claim.queues && self.listening.initialized();
            let listener = queues.then(|| Listener {
                channel: self.ears.channel(),
                number: self.ears.waiters.expect_next(claim.id),
            });
            let sent = Clock::machine().now();
            let tally = self.propose(claim, proposed.get(), listener).await;
            let (granted_by, unanswered) = (tally.granted_by.clone(), tally.unanswered.clone());
            match tally.outcome() {
                Outcome::Granted(token) => {
                    let valid_until = sent + self.settings.validity(claim.ttl);
                    self.ears.waiters.forget(&claim.id);
                    self.proposals.forget(&claim.id);
                    return Ok(Attempt::Granted(Grant { token, valid_until }));
                }
                Outcome::Behind(register) => {
                    self.step_back(claim, granted_by, None).await;
                    self.proposals.outbid(&claim.id, register);
                }
                Outcome::AllBlank(blank) => {
                    let wait = self.start_deployment(claim, &blank).await;
                    if !wait.is_zero() && !claim.queues {
                        return Err(protocol::in_quarantine(wait));
                    }
                    if !wait.is_zero() {
                        return Ok(Attempt::Held(Contention {
                            because: Some(protocol::in_quarantine(wait).what().to_owned()),
                            ..held(wait, None)
                        }));
                    }
                }
                Outcome::Held {
                    look_again_in,
                    ahead,
                } => {
                    let waits = listener.map(|listener| (proposed.get(), listener));
                    self.step_back(claim, granted_by, waits).await;
                    if claim.queues && listener.is_none() {
                        let listen = || join_all(self.members.iter().map(Member::listen));
                        self.listening.get_or_init(|| listen().map(|_| ())).await;
                        continue;
                    }
                    if !claim.queues {
                        self.proposals.forget(&claim.id);
                        for node in unanswered {
                            self.members[node]
                                .leave_word(Arc::new(protocol::release(&self.keys, claim)));
                        }
                    }
                    return Ok(Attempt::Held(held(
                        look_again_in + self.stagger(claim),
                        ahead,
                    )));
                }
                Outcome::Failed(error) => {
                    self.step_back(claim, granted_by, None).await;
                    return Err(error);
                }
            }
        }
        Ok(Attempt::Held(held(self.stagger(claim), None)))
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let Some((_, bell)) = self.ears.waiters.waiter(&claim.id) else {
            // Nobody would tell us: the core looks again by the clock.
            return std::future::pending().await;
        };
        let proposed = self.proposals.of(&claim.id);
        let mut votes: HashMap<usize, Moment> = HashMap::new();
        let mut patience: Option<Duration> = None;
        loop {
            let news = match patience {
                None => bell.heard().await,
                Some(patience) => match tokio::time::timeout(patience, bell.heard()).await {
                    Ok(news) => news,
                    Err(_) => return Ok(Wake::Retry),
                },
            };
            if news.is_empty() {
                return Ok(Wake::Retry);
            }
            for News { server, what } in news {
                match what {
                    // The others should follow at once. If they do not, the votes are split: an attempt
                    // gathers what is there, or goes back to the queue.
                    Heard::Granted(handed_over) if handed_over.token.get() == proposed => {
                        let now = Clock::machine().now();
                        let validity = |ttl| self.settings.validity(ttl);
                        let clock = &self.members[server].clock;
                        let valid_until = clock.valid_until(&handed_over, now, validity);
                        let valid_until = valid_until.filter(|until| *until > now);
                        votes.extend(valid_until.map(|valid_until| (server, valid_until)));
                        patience = Some(SPLIT + self.stagger(claim));
                    }
                    Heard::Granted(_) => return Ok(Wake::Retry),
                    Heard::LookAfter(time) if time.is_zero() => return Ok(Wake::Retry),
                    Heard::LookAfter(time) => patience = Some(time + self.stagger(claim)),
                }
            }
            if votes.len() >= self.settings.quorum {
                let mut ends: Vec<_> = votes.into_values().collect();
                ends.sort();
                let token = FencingToken::new(proposed);
                self.ears.waiters.forget(&claim.id);
                self.proposals.forget(&claim.id);
                // As many as a quorum are good for at least this long.
                let valid_until = ends[ends.len() - self.settings.quorum];
                return Ok(match token {
                    Some(token) => Wake::Granted(Grant { token, valid_until }),
                    None => Wake::Retry,
                });
            }
        }
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let calls: Vec<_> = held
            .iter()
            .map(|renew| {
                let planted = renew.token.map_or(0, FencingToken::get);
                protocol::renew(&self.keys, renew.claim, self.deployment(planted))
            })
            .collect();
        let shortest = held.iter().map(|renew| renew.claim.ttl).min();
        let patience = self.settings.patience(shortest.unwrap_or(Ttl::DEFAULT));
        let sent = Clock::machine().now();
        let asks = self.members.iter().map(|member| {
            let calls = &calls;
            async move {
                let asking = async { Ok(member.node.call_all::<Vec<String>>(&RENEW, calls).await) };
                member.in_time(patience, asking).await
            }
        });
        let mut answers: Vec<_> = join_all(asks)
            .await
            .into_iter()
            .map(|node| node.map(Vec::into_iter))
            .collect();
        let renewals = held.iter().map(|renew| {
            let votes = answers.iter_mut().map(|node| match node {
                Ok(replies) => match replies.next() {
                    Some(reply) => Renewed::read(&reply?),
                    None => Err(unanswered()),
                },
                Err(error) => Err(again(error)),
            });
            let votes: Vec<_> = votes.collect();
            self.count_renewal(renew, sent, votes)
        });
        renewals.collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.ears.waiters.forget(&claim.id);
        self.proposals.forget(&claim.id);
        let call = Arc::new(protocol::release(&self.keys, claim));
        let patience = self.settings.patience(claim.ttl);
        let releasing = self.ask(self.all(), |member| {
            let call = Arc::clone(&call);
            async move { member.release(call, patience).await }
        });
        self.count_released(releasing.await).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        crowd::inspect(&self.members, &self.keys, self.settings.quorum, query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let call = protocol::break_lock(&self.keys, name);
        let breaking = self.ask(self.all(), calling(&BREAK, call, CONNECT));
        self.count_released(breaking.await).await
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(
            self.members
                .iter()
                .map(|member| member.node.commands_sent())
                .sum(),
        )
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(&self.settings)))
    }
}

impl Redlock {
    fn count_renewal(
        &self,
        renew: &Renew<'_>,
        sent: Moment,
        votes: Vec<Result<Renewed>>,
    ) -> Result<Renewal> {
        let (nodes, quorum) = (self.members.len(), self.settings.quorum);
        let mut yes: HashMap<FencingToken, usize> = HashMap::new();
        let mut lost = 0;
        let mut failed = Vec::new();
        for vote in votes {
            match vote {
                Ok(Renewed::Yes(token)) => {
                    if let Some(token) = token.or(renew.token) {
                        *yes.entry(token).or_default() += 1;
                    }
                }
                Ok(Renewed::Planted) => {}
                Ok(Renewed::Lost) => lost += 1,
                Err(error) => failed.push(error),
            }
        }
        if let Some((token, _)) = yes.into_iter().find(|(_, votes)| *votes >= quorum) {
            return Ok(Renewal::Renewed(Grant {
                token,
                valid_until: sent + self.settings.validity(renew.claim.ttl),
            }));
        }
        match lost > nodes - quorum {
            true => Ok(Renewal::Lost(LossReason::Gone)),
            false => Err(no_quorum(nodes, quorum, &failed, &[])),
        }
    }

    /// Done when so many have answered that the rest changes nothing; the others finish in the background. One node that
    /// had not forgotten an expired claim does not make it held: a quorum does.
    async fn count_released(&self, mut asking: Asking) -> Result<Released> {
        let (nodes, quorum) = (self.members.len(), self.settings.quorum);
        let (mut held, mut not_held) = (0, 0);
        let mut failed = Vec::new();
        while let Some((_, reply)) = asking.next().await {
            match reply.and_then(|reply| protocol::read_released(&reply)) {
                Ok(Released::Yes) => held += 1,
                Ok(Released::WasNotHeld) => not_held += 1,
                Err(error) => failed.push(error),
            }
            if held >= quorum || (not_held > nodes - quorum && held + not_held >= quorum) {
                break;
            }
        }
        finish_in_background(asking);
        if held + not_held < quorum {
            return Err(no_quorum(nodes, quorum, &failed, &[]));
        }
        Ok(match not_held > nodes - quorum {
            true => Released::WasNotHeld,
            false => Released::Yes,
        })
    }
}

fn held(look_again_in: Duration, ahead: Option<usize>) -> Contention {
    Contention {
        look_again_in: Some(look_again_in),
        ahead,
        ..Contention::default()
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unexpected, "a node gave too few answers").of_unknown_effect()
}

/// One failure of a node, told for each lease of a batch.
fn again(error: &Error) -> Error {
    Error::new(error.kind(), error.what()).of_unknown_effect()
}
