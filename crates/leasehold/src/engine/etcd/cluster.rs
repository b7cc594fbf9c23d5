//! The members of a cluster: one connection each, one of them preferred. A request that a member does not answer in
//! time goes to the next at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use tokio::sync::{Semaphore, watch};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::failure::{self, Remedy};
use super::proto::{AuthenticateRequest, AuthenticateResponse};
use super::settings::{Login, Settings};
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// Between two rounds through all endpoints, so that refused connections do not make us spin.
const BREATH: Duration = Duration::from_millis(30);

/// So many attempts and looks are under way at a time.
const AT_A_TIME: usize = 64;

/// From then on tries get no slower: eight times as slow as the first.
const SLOWEST_ROUND: u32 = 3;

/// No try waits longer for one endpoint, however slow the cluster is.
const LONGEST_TRY: Duration = Duration::from_secs(2);

pub(crate) struct Cluster {
    members: Vec<Channel>,
    preferred: watch::Sender<usize>,
    login: Option<Login>,
    /// Held for nanoseconds and never across an await, so a std Mutex.
    token: Mutex<Option<MetadataValue<Ascii>>>,
    timeout: Duration,
    attempt_timeout: Duration,
    sent: AtomicU64,
    /// Room for attempts and looks: if very many come at once they wait here, and not at the server until they are late.
    room: Semaphore,
}

/// Whether a request waits until there is room, and how long for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Those who try and look do.
    Patient,
    /// What cannot be repeated does too, and then waits longer for each answer: a second try could not tell what has become of
    /// the first.
    Once,
    /// Renewals and releases do not.
    Urgent,
}

/// An answer, and how it came about.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    pub(crate) message: T,
    /// Before the try that was answered left.
    pub(crate) sent: Moment,
    /// An earlier try may have been carried out too, or may yet be.
    pub(crate) in_doubt: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The server says no.
    Answer(Status),
    /// Nobody says anything.
    Silence {
        last: Status,
        may_have_happened: bool,
    },
}

impl From<Refused> for crate::Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Answer(status) => failure::of_answer(status),
            Refused::Silence {
                last,
                may_have_happened,
            } => failure::unreachable(&last, may_have_happened),
        }
    }
}

type Trying<'a, T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send + 'a>>;

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({} endpoints)", self.members.len())
    }
}

impl Cluster {
    pub(crate) fn new(settings: &Settings) -> Self {
        let members = settings.endpoints.iter();
        Self {
            members: members.map(|endpoint| endpoint.connect_lazy()).collect(),
            preferred: watch::Sender::new(0),
            login: settings.login.clone(),
            token: Mutex::new(None),
            timeout: settings.timeout,
            attempt_timeout: settings.attempt_timeout,
            sent: AtomicU64::new(0),
            room: Semaphore::new(AT_A_TIME),
        }
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
                let mut client = self.client(member).await?;
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
                let mut client = self.client(member).await?;
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
        let mut in_doubt = false;
        let mut logged_in = false;
        for tries in 1.. {
            let room = match haste {
                Haste::Patient | Haste::Once => self.room.acquire().await.ok(),
                Haste::Urgent => None,
            };
            let member = self.preferred();
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
                    return Ok(Reply {
                        message,
                        sent,
                        in_doubt,
                    });
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            drop(room);
            match failure::remedy(&status) {
                Remedy::None => return Err(Refused::Answer(status)),
                Remedy::LogIn if logged_in || self.login.is_none() => {
                    return Err(Refused::Answer(status));
                }
                Remedy::LogIn => {
                    logged_in = true;
                    Box::pin(self.log_in()).await?;
                    continue;
                }
                Remedy::Elsewhere { may_have_happened } => {
                    in_doubt |= may_have_happened;
                    self.avoid(member);
                }
            }
            if clock.now() >= deadline {
                return Err(Refused::Silence {
                    last: status,
                    may_have_happened: in_doubt,
                });
            }
            if (tries as usize).is_multiple_of(self.members.len()) {
                tokio::time::sleep(BREATH).await;
            }
        }
        unreachable!("the loop ends at the deadline")
    }

    /// Gets a new token for our user.
    pub(crate) async fn log_in(&self) -> Result<(), Refused> {
        let Some(Login { user, password }) = &self.login else {
            return Ok(());
        };
        *self.token() = None;
        let question = AuthenticateRequest {
            name: user.clone(),
            password: password.clone(),
        };
        let reply: Reply<AuthenticateResponse> = self
            .ask("/etcdserverpb.Auth/Authenticate", question, Haste::Urgent)
            .await?;
        *self.token() = reply.message.token.parse().ok();
        Ok(())
    }

    fn token(&self) -> std::sync::MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member that requests go to for now.
    pub(crate) fn preferred(&self) -> usize {
        *self.preferred.borrow()
    }

    /// Requests go to the next one, unless they have left this one already.
    pub(crate) fn avoid(&self, member: usize) {
        let count = self.members.len();
        self.preferred.send_if_modified(|preferred| {
            let ours = *preferred == member && count > 1;
            if ours {
                *preferred = (member + 1) % count;
            }
            ours
        });
    }

    /// Returns when requests no longer go to this member.
    pub(crate) async fn left(&self, member: usize) {
        let mut preferred = self.preferred.subscribe();
        let _ = preferred.wait_for(|now| *now != member).await;
    }

    /// A client of one member, ready to send.
    pub(crate) async fn client(&self, member: usize) -> Result<Grpc<Channel>, Status> {
        let mut client =
            Grpc::new(self.members[member].clone()).max_decoding_message_size(usize::MAX);
        let ready = client.ready().await;
        ready.map_err(|cause| Status::from_error(Box::new(cause)))?;
        Ok(client)
    }

    /// With our login; and refused at once by a member that has no leader, which would let us wait.
    pub(crate) fn request<T>(&self, message: T, limit: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        let metadata: &mut MetadataMap = request.metadata_mut();
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token().clone() {
            metadata.insert("token", token);
        }
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        request
    }
}
