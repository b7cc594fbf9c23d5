//! A connection as the server sees it: whether its client is still there, and whether it says anything at first.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How every HTTP/2 connection begins.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether the client of a request has closed its connection, as far as that was noticed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    seen: Arc<Seen>,
    /// The connection is that of a proxy, which may close it although the client is still there.
    proxied: bool,
}

#[derive(Debug, Default)]
struct Seen {
    /// Nothing more can be read.
    gone: AtomicBool,
    /// The client has closed it.
    closed: AtomicBool,
    /// It is no more, whoever has ended it.
    ended: AtomicBool,
}

/// How long it may take until the end of a connection is seen, after that of a stream in it.
const ENDING: Duration = Duration::from_millis(100);

/// What proxies add to the requests that they pass on.
const PROXY_MARKS: [&str; 3] = ["via", "forwarded", "x-forwarded-for"];

impl Client {
    /// Whether nobody is there to read an answer. Other tasks get a chance to notice before.
    pub(crate) async fn is_gone(&self) -> bool {
        // The first lets the system be asked what has arrived, the second the task of the connection read it.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        self.seen.gone.load(Ordering::Acquire)
    }

    /// Of a stream that has ended: whether the client itself has ended it. If not, nothing came from there for too long, or something on the way has closed or
    /// reset it, and the client may not know.
    pub(crate) async fn has_hung_up(&self) -> bool {
        if self.proxied {
            return false;
        }
        let is_closed = || self.seen.closed.load(Ordering::Acquire);
        if is_closed() {
            return true;
        }
        tokio::time::sleep(ENDING).await;
        !self.seen.ended.load(Ordering::Acquire) || is_closed()
    }

    /// The same client behind a proxy, if there is one.
    pub(crate) fn behind_proxy(self, is_there: bool) -> Self {
        Self {
            proxied: self.proxied || is_there,
            ..self
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // Without a connection of this crate, as in the server of another service, nobody knows who ends it.
        let unknown = || Self::default().behind_proxy(true);
        let client = parts.extensions.get().cloned().unwrap_or_else(unknown);
        let mut marks = PROXY_MARKS.iter();
        Ok(client.behind_proxy(marks.any(|mark| parts.headers.contains_key(*mark))))
    }
}

/// The bytes of a connection. It fails if they do not show in time whether the client speaks HTTP/1 or HTTP/2: until then no other timer runs.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    client: Client,
    /// How much of the preface was read, and until when the rest may come; gone when it is known what the client speaks.
    start: Option<(usize, Pin<Box<Sleep>>)>,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            client: Client::default(),
            start: Some((0, Box::pin(tokio::time::sleep(patience)))),
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        self.client.seen.ended.store(true, Ordering::Release);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if read.is_pending() {
            if let Some((_, deadline)) = &mut this.start {
                ready!(deadline.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            return Poll::Pending;
        }
        let new = &buffer.filled()[before..];
        if new.is_empty() && buffer.remaining() > 0 {
            let seen = &this.client.seen;
            let is_closed = match &read {
                // Over TLS, of a client that has not said goodbye, as one that was killed.
                Poll::Ready(Err(error)) => error.kind() == io::ErrorKind::UnexpectedEof,
                _ => true,
            };
            seen.closed.store(is_closed, Ordering::Release);
            seen.gone.store(true, Ordering::Release);
        }
        if let Some((known, _)) = &mut this.start {
            let rest = &PREFACE[*known..];
            *known += new.len().min(rest.len());
            if *known == PREFACE.len() || !rest.starts_with(&new[..new.len().min(rest.len())]) {
                this.start = None;
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
