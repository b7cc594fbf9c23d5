//! The members of a cluster: one connection each, one of them preferred. A request that a member does not answer in
//! time goes to the next at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::sync::{Semaphore, watch};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::config::EtcdConfig;
use super::failure::{self, Remedy};
use super::member::{Member, Reach};
use super::proto::{AuthenticateRequest, AuthenticateResponse};
use crate::clock::{Clock, Moment};
use crate::engine::config::Login;
use crate::error::Result;
use crate::sync::Mutex;

/// Between two rounds through all endpoints, so that refused connections do not make us spin.
const BREATH: Duration = Duration::from_millis(30);

/// So many attempts and looks are in flight at a time.
const AT_A_TIME: usize = 64;

/// From then on tries get no slower: eight times as slow as the first.
const SLOWEST_ROUND: u32 = 3;

/// No try waits longer for one endpoint, however slow the cluster is.
const LONGEST_TRY: Duration = Duration::from_secs(2);

pub(crate) struct Client {
    members: Vec<Member>,
    preferred: watch::Sender<Route>,
    login: Option<Login>,
    /// Held for nanoseconds and never across an await, so a std Mutex.
    token: Mutex<Token>,
    /// One log-in at a time.
    logging_in: tokio::sync::Mutex<()>,
    timeout: Duration,
    attempt_timeout: Duration,
    sent: AtomicU64,
    /// Room for attempts and looks: if very many come at once they wait here, and not at the server until they are late.
    room: Semaphore,
}

/// Where requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Route {
    pub(crate) member: usize,
    /// Counts the connections that were left because nothing came over them.
    left: u64,
}

/// What shows who we are, if the cluster asks.
#[derive(Default)]
struct Token {
    value: Option<MetadataValue<Ascii>>,
    /// Which log-in it is from.
    number: u64,
}

/// Whether a request waits until there is room, and how long for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Those who try and look do.
    Patient,
    /// What cannot be repeated does too, and then waits longer for each answer: a second try could not find out what has become of
    /// the first.
    Once,
    /// Renewals and releases do not.
    Urgent,
    /// Nor does a log-in, which is not helped by another.
    LogIn,
}

/// An answer, and how it came about.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    pub(crate) message: T,
    /// Before the try that was answered left.
    pub(crate) sent: Moment,
    /// An earlier try may have been carried out too, or may yet be.
    pub(crate) maybe_applied: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Refused {
    /// What the server says, or the last that was received.
    pub(crate) said: Status,
    /// Nobody says anything: the request may do better later.
    silent: bool,
    /// An earlier try may have been carried out.
    pub(crate) maybe_applied: bool,
}

impl From<Refused> for crate::Error {
    fn from(refused: Refused) -> Self {
        let Refused {
            said,
            silent,
            maybe_applied,
        } = refused;
        match (silent, maybe_applied) {
            (true, _) => failure::unreachable(&said, maybe_applied),
            (false, true) => failure::of_answer(said).of_unknown_effect(),
            (false, false) => failure::of_answer(said),
        }
    }
}

type Trying<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({} endpoints)", self.members.len())
    }
}

impl Client {
    pub(crate) fn new(config: &EtcdConfig, members: Vec<Reach>) -> Self {
        Self {
            members: members.into_iter().map(Member::new).collect(),
            preferred: watch::Sender::default(),
            login: config.login.clone(),
            token: Mutex::default(),
            logging_in: tokio::sync::Mutex::default(),
            timeout: config.timeout,
            attempt_timeout: config.attempt_timeout,
            sent: AtomicU64::new(0),
            room: Semaphore::new(AT_A_TIME),
        }
    }

    pub(crate) fn has_many_members(&self) -> bool {
        self.members.len() > 1
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn attempt_timeout(&self) -> Duration {
        self.attempt_timeout
    }

    /// Asks one question and returns its one answer.
    pub(crate) async fn ask<Q, A>(
        &self,
        path: &'static str,
        question: Q,
        haste: Haste,
    ) -> Result<Reply<A>, Refused>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let unary = |member: usize, limit: Duration| -> Trying<'_, A> {
            let question = question.clone();
            Box::pin(async move {
                let mut client = self.connect_to(member).await?;
                let request = self.request(question, Some(limit));
                let path = PathAndQuery::from_static(path);
                let answer = client.unary(request, path, ProstCodec::<Q, A>::default());
                Ok(answer.await?.into_inner())
            })
        };
        self.try_all(&unary, haste).await
    }

    /// The same where the protocol has a stream of questions and answers.
    pub(crate) async fn ask_in_stream<Q, A>(
        &self,
        path: &'static str,
        question: Q,
    ) -> Result<Reply<A>, Refused>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let once = |member: usize, limit: Duration| -> Trying<'_, A> {
            let question = futures_util::stream::iter([question.clone()]);
            Box::pin(async move {
                let mut client = self.connect_to(member).await?;
                let request = self.request(question, Some(limit));
                let path = PathAndQuery::from_static(path);
                let codec = ProstCodec::<Q, A>::default();
                let answers = client.streaming(request, path, codec).await?;
                let answer = answers.into_inner().message().await?;
                answer.ok_or_else(|| Status::unavailable("the stream ended"))
            })
        };
        self.try_all(&once, Haste::Urgent).await
    }

    async fn try_all<'a, T>(
        &'a self,
        ask: &(dyn Fn(usize, Duration) -> Trying<'a, T> + Sync),
        haste: Haste,
    ) -> Result<Reply<T>, Refused> {
        let clock = Clock::machine();
        let deadline = clock.now() + self.timeout;
        let mut maybe_applied = false;
        let mut babble = None;
        let mut logins = 0;
        for tries in 1.. {
            let room = match haste {
                Haste::Patient | Haste::Once => self.room.acquire().await.ok(),
                Haste::Urgent | Haste::LogIn => None,
            };
            let token = self.token.lock().number;
            let member = self.preferred().member;
            let sent = clock.now();
            self.sent.fetch_add(1, Ordering::Relaxed);
            // Slower after each round: a cluster that is slow for all must get an answer through at last.
            let round = match haste {
                Haste::Once => SLOWEST_ROUND,
                _ => (tries - 1) / self.members.len() as u32,
            };
            let limit = (self.attempt_timeout * (1 << round.min(SLOWEST_ROUND)))
                .min(LONGEST_TRY.max(self.attempt_timeout))
                .min(self.timeout);
            let status = match tokio::time::timeout(limit, ask(member, limit)).await {
                Ok(Ok(message)) => {
                    self.members[member].answered();
                    return Ok(Reply {
                        message,
                        sent,
                        maybe_applied,
                    });
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            drop(room);
            match status.code() {
                Code::DeadlineExceeded | Code::Cancelled => self.was_silent(member, sent),
                _ => self.members[member].answered(),
            }
            match failure::remedy(&status) {
                Remedy::LogIn
                    if self.login.is_some() && haste != Haste::LogIn && clock.now() < deadline =>
                {
                    // Not for ever, and not all the time, if it is of no use.
                    if logins > 0 {
                        tokio::time::sleep(BREATH * (1 << logins.min(5))).await;
                    }
                    logins += 1;
                    let logged_in = Box::pin(self.log_in_after(token)).await;
                    logged_in.map_err(|refused| Refused {
                        maybe_applied,
                        ..refused
                    })?;
                    continue;
                }
                Remedy::None | Remedy::LogIn => {
                    return Err(Refused {
                        said: status,
                        silent: false,
                        maybe_applied,
                    });
                }
                Remedy::Elsewhere { maybe_applied: now } => {
                    maybe_applied |= now;
                    if failure::is_babble(&status) {
                        babble = Some(status.clone());
                    }
                    self.avoid(member);
                }
            }
            if clock.now() >= deadline {
                // Of all that was heard, that says most: whoever babbles may also just hang up.
                return Err(Refused {
                    said: babble.unwrap_or(status),
                    silent: true,
                    maybe_applied,
                });
            }
            if (tries as usize).is_multiple_of(self.members.len()) {
                tokio::time::sleep(BREATH).await;
            }
        }
        unreachable!("the loop ends at the deadline")
    }

    /// Gets a new token for our user, unless that has been done since the one that this number names.
    async fn log_in_after(&self, number: u64) -> Result<(), Refused> {
        let _one_at_a_time = self.logging_in.lock().await;
        if self.token.lock().number == number {
            self.log_in().await?;
        }
        Ok(())
    }

    /// Gets a new token for our user. Returns whether the cluster asks for one: authentication may be switched off, and on
    /// again later.
    pub(crate) async fn log_in(&self) -> Result<bool, Refused> {
        let Some(Login { user, password }) = &self.login else {
            return Ok(true);
        };
        let question = AuthenticateRequest {
            name: user.clone(),
            password: password.clone(),
        };
        let reply: Result<Reply<AuthenticateResponse>, _> = self
            .ask("/etcdserverpb.Auth/Authenticate", question, Haste::LogIn)
            .await;
        let value = match reply {
            Ok(reply) => reply.message.token.parse().ok(),
            Err(refused) if failure::is_without_passwords(&refused.said) => None,
            Err(refused) => return Err(refused),
        };
        let asked_for = value.is_some();
        let mut token = self.token.lock();
        token.value = value;
        token.number += 1;
        Ok(asked_for)
    }

    /// The member that requests go to for now.
    pub(crate) fn preferred(&self) -> Route {
        *self.preferred.borrow()
    }

    /// Requests go to the next one, unless they have left this one already.
    pub(crate) fn avoid(&self, member: usize) {
        let count = self.members.len();
        self.preferred.send_if_modified(|preferred| {
            let ours = preferred.member == member && count > 1;
            if ours {
                preferred.member = (member + 1) % count;
            }
            ours
        });
    }

    /// A member has not answered a request in time.
    fn was_silent(&self, member: usize, sent: Moment) {
        if self.members[member].was_silent(sent, self.attempt_timeout * 2) {
            self.preferred.send_if_modified(|preferred| {
                let ours = preferred.member == member;
                preferred.left += u64::from(ours);
                ours
            });
        }
    }

    /// Returns when requests no longer go to this member, or over another connection.
    pub(crate) async fn left(&self, route: Route) {
        let mut preferred = self.preferred.subscribe();
        let _ = preferred.wait_for(|now| *now != route).await;
    }

    /// A client of one member, ready to send.
    pub(crate) async fn connect_to(&self, member: usize) -> Result<Grpc<Channel>, Status> {
        let (channel, made) = self.members[member].channel();
        let mut client = Grpc::new(channel);
        let mut ready = client.ready().await;
        if ready.is_err() && self.members[member].was_closed(made) {
            client = Grpc::new(self.members[member].channel().0);
            ready = client.ready().await;
        }
        ready.map_err(|cause| Status::from_error(Box::new(cause)))?;
        Ok(client.max_decoding_message_size(usize::MAX))
    }

    /// With our login; and refused at once by a member that has no leader, which would let us wait.
    pub(crate) fn request<T>(&self, message: T, limit: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        let metadata: &mut MetadataMap = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token.lock().value.clone() {
            metadata.insert("token", token);
        }
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        request
    }
}
