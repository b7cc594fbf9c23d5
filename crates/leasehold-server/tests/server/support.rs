//! A server without a socket, one with a socket, and a small client.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use leasehold::{ClaimId, Locks};
use leasehold_server::{Listening, Settings, State, Tls, app, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tower::ServiceExt;

/// Longer than anything takes on a host that is not stalled.
const SOON: Duration = Duration::from_secs(60);

/// Fails if it takes too long.
pub(crate) async fn soon<T>(what: &str, awaited: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, awaited).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {SOON:?}"),
    }
}

/// Looks again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.observe = Some(Duration::from_millis(50));
    settings
}

pub(crate) async fn memory() -> Locks {
    Locks::connect("memory:").await.unwrap()
}

/// The routes of a server over locks in memory.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) locks: Locks,
    pub(crate) state: State,
    app: Router,
    bearer: Option<String>,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The kind of the problem, after a check that it is a whole one.
    pub(crate) fn kind(&self) -> String {
        let problem = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        for member in ["type", "title", "kind", "detail", "effect"] {
            assert!(problem[member].is_string(), "{member}: {problem}");
        }
        problem["kind"].as_str().unwrap().to_owned()
    }

    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }
}

/// A claim id of its own for each number.
pub(crate) fn claim(nth: u8) -> String {
    ClaimId::from_bytes([nth; 16]).reveal()
}

impl Api {
    pub(crate) async fn new() -> Self {
        Self::with(settings()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        Self::over(memory().await, settings)
    }

    pub(crate) fn over(locks: Locks, settings: Settings) -> Self {
        let state = State::new(locks.clone(), settings).unwrap();
        Self {
            locks,
            app: app(state.clone()),
            state,
            bearer: None,
        }
    }

    pub(crate) fn bearer(&self, token: &str) -> Self {
        Self {
            bearer: Some(token.to_owned()),
            ..self.clone()
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = &self.bearer {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request
    }

    pub(crate) async fn raw(&self, request: Request<Body>) -> Response<Body> {
        let answer = self.app.clone().oneshot(request);
        soon("an answer", answer).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.raw(request).await;
        let (parts, body) = response.into_parts();
        let body = soon("a body", body.collect()).await.unwrap().to_bytes();
        Reply {
            status: parts.status,
            headers: parts.headers,
            text: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        let request = self.request(Method::GET, path);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn call(&self, method: Method, path: &str, body: Value) -> Reply {
        let request = self.request(method, path);
        let request = request.header("content-type", "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap())
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.call(Method::POST, path, body).await
    }

    /// `acquire`, `renew` or `release` by the nth claim.
    pub(crate) async fn of_claim(&self, nth: u8, path: &str, body: Value) -> Reply {
        let request = self.request(Method::POST, path);
        let request = request.header("content-type", "application/json");
        let request = request.header("leasehold-claim", claim(nth));
        self.send(request.body(Body::from(body.to_string())).unwrap())
            .await
    }

    pub(crate) async fn acquire(&self, nth: u8, name: &str, body: Value) -> Reply {
        self.of_claim(nth, &format!("/v1/locks/{name}/acquire"), body)
            .await
    }

    pub(crate) async fn release(&self, nth: u8, name: &str) -> Value {
        let path = format!("/v1/locks/{name}/release");
        self.of_claim(nth, &path, json!({})).await.ok()
    }

    pub(crate) async fn waiters(&self, name: &str) -> usize {
        self.locks.inspect(name).await.unwrap().waiters.len()
    }

    pub(crate) async fn until_waiting(&self, name: &str, count: usize) {
        until("the waiters", async || self.waiters(name).await == count).await;
    }
}

/// A real server on the loopback; it ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) url: String,
    end: Option<oneshot::Sender<()>>,
    pub(crate) ended: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    pub(crate) async fn start(locks: Locks, settings: Settings) -> Self {
        Self::start_with(locks, settings, None).await
    }

    pub(crate) async fn start_with(locks: Locks, settings: Settings, tls: Option<Tls>) -> Self {
        let state = State::new(locks, settings).unwrap();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let listening = Listening::at(loopback, tls).await.unwrap();
        let (address, url) = (listening.address().unwrap(), listening.url());
        let (end, ending) = oneshot::channel::<()>();
        let ended = tokio::spawn(serve(listening, state, async {
            let _ = ending.await;
        }));
        Self {
            address,
            url,
            end: Some(end),
            ended: Some(ended),
        }
    }

    /// As TERM does.
    pub(crate) fn end(&mut self) {
        self.end.take();
    }

    /// Sends bytes, and returns all that comes until the server closes the connection.
    pub(crate) async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The server may close before it has read all.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = soon("the end of the connection", stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request over HTTP/1.1, for which the connection stays open.
    pub(crate) async fn begin(&self, head: &str, body: &str) -> Open {
        let mut open = self.open().await;
        let length = body.len();
        let request = format!(
            "{head}\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        open.write(&request).await;
        open
    }

    pub(crate) async fn open(&self) -> Open {
        let stream = soon("a connection", TcpStream::connect(self.address)).await;
        Open {
            stream: stream.unwrap(),
            unread: String::new(),
        }
    }
}

/// A connection that is read bit by bit.
pub(crate) struct Open {
    stream: TcpStream,
    /// What was read, but not yet looked at.
    unread: String,
}

impl Open {
    /// Reads until it has said this; returns all up to there.
    pub(crate) async fn says(&mut self, what: &str) -> String {
        soon(&format!("{what:?}"), async {
            loop {
                if let Some(at) = self.unread.find(what) {
                    let rest = self.unread.split_off(at + what.len());
                    return std::mem::replace(&mut self.unread, rest);
                }
                let mut more = [0; 4096];
                let count = self.stream.read(&mut more).await.unwrap();
                assert!(count > 0, "closed without {what:?}: {}", self.unread);
                self.unread
                    .push_str(&String::from_utf8_lossy(&more[..count]));
            }
        })
        .await
    }

    /// Whether nothing more comes for a while.
    pub(crate) async fn is_silent(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.stream.readable())
            .await
            .is_err()
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }
}
