//! Requests to one of several servers, over one connection that all callers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::HttpConfig;
use crate::clock::{Clock, Moment};
use crate::engine::tls;
use crate::engine::wire::Problem;
use crate::error::{Error, ErrorKind, Result};
use crate::url::{Server, invalid};

/// No answer is longer: that to an inspection of a great many locks.
const LONGEST_ANSWER: usize = 256 << 20;

/// How often a connection is tested, and how long the other side may be silent: no request finds out by itself that a server's
/// host has vanished.
const PING: Duration = Duration::from_secs(5);

/// Whether a request may be sent again although the first may have been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It says the same twice.
    Freely,
    /// Only if it was not sent, or had no effect.
    IfWithoutEffect,
}

/// Sends requests.
#[derive(Debug)]
pub(super) struct Client {
    config: HttpConfig,
    authorization: Option<HeaderValue>,
    connection: tokio::sync::Mutex<Option<Connection>>,
    /// The server to connect to next, and how many connections there were.
    next_server: AtomicUsize,
    connections: AtomicU64,
    requests: AtomicU64,
}

#[derive(Debug, Clone)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    nth: u64,
    server: usize,
}

/// An answer, and when the request for it left.
pub(super) struct Answer<T> {
    pub(super) sent: Moment,
    pub(super) what: T,
}

/// Why one request to one server failed.
struct Failure {
    error: Error,
    /// Nothing was sent, or the server says that nothing was done.
    without_effect: bool,
    /// Another server may do better.
    is_servers_own: bool,
}

impl Client {
    pub(super) fn new(config: HttpConfig) -> Result<Self> {
        let bearer = |token: &String| -> Result<HeaderValue> {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                invalid("the access token cannot be used")
                    .advise("give it as `leasehold token new` printed it")
            })?;
            value.set_sensitive(true);
            Ok(value)
        };
        Ok(Self {
            authorization: config.token.as_ref().map(bearer).transpose()?,
            config,
            connection: tokio::sync::Mutex::default(),
            next_server: AtomicUsize::new(0),
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        })
    }

    pub(super) fn config(&self) -> &HttpConfig {
        &self.config
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Reads.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>> {
        let body = Bytes::new();
        let within = self.config.timeout;
        self.send(Method::GET, path, body, Repeat::Freely, within)
            .await
    }

    /// Calls, and waits for the answer for as long as answers may take.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        message: &impl Serialize,
        repeat: Repeat,
    ) -> Result<Answer<T>> {
        self.call_within(path, message, repeat, self.config.timeout)
            .await
    }

    /// Calls, and waits for the answer for so long.
    pub(super) async fn call_within<T: DeserializeOwned>(
        &self,
        path: &str,
        message: &impl Serialize,
        repeat: Repeat,
        within: Duration,
    ) -> Result<Answer<T>> {
        let body = serde_json::to_vec(message).map_err(|cause| {
            Error::new(ErrorKind::Unexpected, "the request cannot be written").caused_by(cause)
        })?;
        self.send(Method::POST, path, body.into(), repeat, within)
            .await
    }

    /// Each server gets one try; a connection that has ended meanwhile, one more.
    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        repeat: Repeat,
        within: Duration,
    ) -> Result<Answer<T>> {
        let mut tries = self.config.servers.len() + 1;
        // A try may have been carried out, whatever the later ones come to.
        let mut is_in_doubt = false;
        let with_doubt = |error: Error, is_in_doubt| match is_in_doubt {
            true => error.of_unknown_effect(),
            false => error,
        };
        loop {
            tries -= 1;
            let connection = self.connection().await;
            let mut connection = connection.map_err(|error| with_doubt(error, is_in_doubt))?;
            let sent = Clock::machine().now();
            let asked = self.ask(&mut connection, &method, path, body.clone());
            let failure = match tokio::time::timeout(within, asked).await {
                Ok(Ok(what)) => return Ok(Answer { sent, what }),
                Ok(Err(failure)) => failure,
                Err(_) => Failure {
                    error: Error::new(ErrorKind::Unreachable, "the server did not answer in time")
                        .advise("see whether it is overloaded, or give more time: ?timeout=")
                        .of_unknown_effect(),
                    without_effect: false,
                    is_servers_own: true,
                },
            };
            if failure.is_servers_own {
                self.give_up(&connection).await;
            }
            is_in_doubt |= !failure.without_effect;
            let may_repeat = failure.without_effect || repeat == Repeat::Freely;
            if tries == 0 || !failure.is_servers_own || !may_repeat {
                return Err(with_doubt(failure.error, is_in_doubt));
            }
        }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let server = &self.config.servers[connection.server];
        let scheme = if self.config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let uri = format!("{scheme}://{server}{}{path}", self.config.path);
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body)).map_err(|cause| Failure {
            error: invalid("the URL cannot be used").caused_by(cause),
            without_effect: true,
            is_servers_own: false,
        })?;
        connection.sender.ready().await.map_err(not_sent)?;
        let response = connection.sender.send_request(request).await;
        let response = response.map_err(|cause| match cause.is_canceled() {
            true => not_sent(cause),
            false => broken(cause),
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST_ANSWER);
        let body = body.collect().await.map_err(broken)?.to_bytes();
        if status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|_| not_leasehold(status));
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => {
                let draining = problem.kind == "draining";
                let error = problem.into_error();
                Err(Failure {
                    without_effect: error.effect() == crate::error::Effect::None,
                    is_servers_own: draining,
                    error,
                })
            }
            Err(_) => Err(not_leasehold(status)),
        }
    }

    /// The connection that all share, or a new one to the first server that answers.
    async fn connection(&self) -> Result<Connection> {
        let mut shared = self.connection.lock().await;
        if let Some(connection) = shared.as_ref().filter(|it| !it.sender.is_closed()) {
            return Ok(connection.clone());
        }
        *shared = None;
        let mut failure = None;
        let servers = &self.config.servers;
        for _ in servers {
            let server = self.next_server.load(Ordering::Relaxed) % servers.len();
            let connecting = self.connect(&servers[server]);
            let connected = tokio::time::timeout(self.config.connect_timeout, connecting).await;
            match connected.unwrap_or_else(|_| Err(unreachable("it did not answer in time"))) {
                Ok(sender) => {
                    let connection = Connection {
                        sender,
                        nth: self.connections.fetch_add(1, Ordering::Relaxed),
                        server,
                    };
                    *shared = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => {
                    self.next_server.store(server + 1, Ordering::Relaxed);
                    failure = Some(error.with_context(&servers[server]));
                }
            }
        }
        Err(failure.unwrap_or_else(|| unreachable("there is no server")))
    }

    /// New requests go over another connection, to the next server if there is one. Those under way go on.
    async fn give_up(&self, connection: &Connection) {
        let mut shared = self.connection.lock().await;
        if shared.as_ref().is_some_and(|it| it.nth == connection.nth) {
            *shared = None;
            let next = connection.server + 1;
            self.next_server.store(next, Ordering::Relaxed);
        }
    }

    async fn connect(&self, server: &Server) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await;
        let stream = stream
            .map_err(|cause| unreachable(&format!("no connection: {cause}")).caused_by(cause))?;
        let _ = stream.set_nodelay(true);
        let mut http = Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true)
            .initial_connection_window_size(4 << 20)
            .initial_stream_window_size(1 << 20);
        let Some(config) = &self.config.tls else {
            let handshake = http.handshake(TokioIo::new(stream)).await;
            let (sender, connection) = handshake.map_err(|cause| speaks_no_http2(&cause))?;
            tokio::spawn(connection);
            return Ok(sender);
        };
        let name = ServerName::try_from(server.host.clone()).map_err(|cause| {
            invalid(format!("{:?} is no name for a certificate", server.host)).caused_by(cause)
        })?;
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name, stream).await.map_err(|cause| {
            tls::mistrust(&cause).unwrap_or_else(|| {
                unreachable(&format!("no encrypted connection: {cause}")).caused_by(cause)
            })
        })?;
        let handshake = http.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|cause| speaks_no_http2(&cause))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn unreachable(what: &str) -> Error {
    Error::new(ErrorKind::Unreachable, what)
        .advise("check that `leasehold serve` runs there and can be reached")
}

fn speaks_no_http2(cause: &hyper::Error) -> Error {
    unreachable(&format!("no HTTP/2: {cause}"))
}

fn not_sent(cause: hyper::Error) -> Failure {
    Failure {
        error: unreachable(&format!("the connection has ended: {cause}")),
        without_effect: true,
        is_servers_own: true,
    }
}

fn broken(cause: impl std::fmt::Display) -> Failure {
    let what = format!("the connection broke before the answer came: {cause}");
    Failure {
        error: unreachable(&what).of_unknown_effect(),
        without_effect: false,
        is_servers_own: true,
    }
}

/// What a proxy, or another program, answers.
fn not_leasehold(status: StatusCode) -> Failure {
    let kind = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Denied,
        _ if status.is_server_error() => ErrorKind::Unreachable,
        _ => ErrorKind::EngineUnfit,
    };
    let what = format!("what answers there with {status} is no leasehold server");
    Failure {
        error: Error::new(kind, what)
            .advise("check the host, the port and the path of the URL, and what stands between")
            .of_unknown_effect(),
        without_effect: false,
        is_servers_own: kind == ErrorKind::Unreachable,
    }
}
