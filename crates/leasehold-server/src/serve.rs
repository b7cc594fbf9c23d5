//! Listening: connections, TLS, limits, and the end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use leasehold::{Error, ErrorKind, Result};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::connection::Watched;
use crate::peer::Peer;
use crate::routes::app;
use crate::state::State;

/// How long a client may take for its TLS handshake, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// After which time a client's host that does not answer at all is taken for gone.
const SILENCE: Duration = Duration::from_secs(30);

/// How often an idle connection of HTTP/2 is tested, and how long its client may be silent.
const PING: Duration = Duration::from_secs(10);

/// How many requests of one HTTP/2 connection are under way at once: the waiters of a whole process share one.
const STREAMS: u32 = 20_000;

/// How much of the headers is read.
const HEADERS: usize = 16 << 10;

/// How long requests may go on after the waiters have been let go.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// Whom to show which certificate, and from whom to ask for one.
#[derive(Debug, Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// With the certificate chain and the key in these PEM files; if `client_ca` is given, only for clients whose certificate is
    /// vouched for by one in there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if a file cannot be read or used.
    pub fn from_files(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let chain = certificates(cert)?;
        let wrong = |path: &Path, cause: &dyn std::fmt::Display| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("the file {path:?} cannot be used: {cause}"),
            )
            .advise("give a PEM file, and check who may read it")
        };
        let read = std::fs::read(key).map_err(|cause| wrong(key, &cause))?;
        let private = PrivateKeyDer::from_pem_slice(&read).map_err(|cause| wrong(key, &cause))?;
        let config = match client_ca {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(ca)? {
                    roots.add(certificate).map_err(|cause| wrong(ca, &cause))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                let verifier = verifier.map_err(|cause| wrong(ca, &cause))?;
                ServerConfig::builder().with_client_cert_verifier(verifier)
            }
        };
        let config = config.with_single_cert(chain, private);
        let mut config = config.map_err(|cause| wrong(cert, &cause))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |cause: String| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the certificates in {path:?} cannot be used: {cause}"),
        )
        .advise("give a PEM file with certificates, and check who may read it")
    };
    let read = std::fs::read(path).map_err(|cause| wrong(cause.to_string()))?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read).collect();
    let found = found.map_err(|cause| wrong(cause.to_string()))?;
    match found.is_empty() {
        true => Err(wrong("there are none".to_owned())),
        false => Ok(found),
    }
}

/// A socket that is bound, so that its address is known before it is served.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    tls: Option<Tls>,
}

impl Listening {
    /// Binds a socket.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the address cannot be used.
    pub async fn at(address: SocketAddr, tls: Option<Tls>) -> Result<Self> {
        let listener = TcpListener::bind(address).await.map_err(|cause| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("cannot listen on {address}: {cause}"),
            )
            .advise("use another address, or see who listens there")
            .caused_by(cause)
        })?;
        Ok(Self { listener, tls })
    }

    /// Where it is.
    ///
    /// # Errors
    ///
    /// If the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match self.address() {
            Ok(address) => format!("{scheme}://{address}"),
            Err(_) => format!("{scheme}:"),
        }
    }
}

/// Serves until `end` resolves; then lets the waiters go, answers what is under way, and returns.
///
/// Locks that are held stay, with their TTL. Places in queues stay for clients that keep theirs.
///
/// # Cancel safety
///
/// Dropping the future stops the server at once; connections that are open end with the runtime.
pub async fn serve(listening: Listening, state: State, end: impl Future<Output = ()>) {
    let connections = state.settings().limits.connections;
    let drain = || state.drain();
    serve_router(listening, app(state.clone()), connections, end, drain).await;
}

/// Serves any routes.
pub(crate) async fn serve_router(
    listening: Listening,
    app: Router,
    connections: usize,
    end: impl Future<Output = ()>,
    drain: impl FnOnce(),
) {
    let Listening { listener, tls } = listening;
    let connections = Arc::new(Semaphore::new(connections));
    let graceful = GracefulShutdown::new();
    let server = Arc::new(Server {
        app,
        http: http(),
        tls: tls.map(|Tls(config)| TlsAcceptor::from(config)),
    });
    let mut end = std::pin::pin!(end);
    loop {
        // Not before there is room: those who wait are in the queue of the system.
        let accepted = async {
            let room = Arc::clone(&connections).acquire_owned().await;
            (listener.accept().await, room)
        };
        let (accepted, room) = tokio::select! {
            biased;
            () = &mut end => break,
            accepted = accepted => accepted,
        };
        let (Ok((stream, address)), Ok(room)) = (accepted, room) else {
            // Out of file descriptors, most likely: others will end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        expect_signs_of_life(&stream);
        let (server, watcher) = (Arc::clone(&server), graceful.watcher());
        tokio::spawn(async move {
            let peer = Peer(Some(address.ip()));
            match &server.tls {
                None => server.connection(stream, peer, watcher, room).await,
                Some(tls) => {
                    let handshake = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await;
                    if let Ok(Ok(stream)) = handshake {
                        server.connection(stream, peer, watcher, room).await;
                    }
                }
            }
        });
    }
    drop(listener);
    drain();
    // A client that does not read its answer must not keep the server.
    let _ = tokio::time::timeout(LAST_REQUESTS, graceful.shutdown()).await;
}

/// A host that has vanished does not close its connections. Without this, the server would wait for it for hours, and hold locks for it that it
/// holds as streams.
fn expect_signs_of_life(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new()
        .with_time(SILENCE / 2)
        .with_interval(SILENCE / 6)
        .with_retries(3);
    // Where the system cannot, its own patience counts.
    let _ = socket.set_tcp_keepalive(&probes);
    // For what was sent and not acknowledged.
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

struct Server {
    app: Router,
    http: Builder<TokioExecutor>,
    tls: Option<TlsAcceptor>,
}

impl Server {
    async fn connection<S>(
        &self,
        stream: S,
        peer: Peer,
        watcher: hyper_util::server::graceful::Watcher,
        _room: OwnedSemaphorePermit,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let app = self.app.clone();
        let stream = Watched::new(stream, HANDSHAKE);
        let client = stream.client();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(client.clone());
            app.clone().oneshot(request.map(Body::new))
        });
        let connection = self
            .http
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        // Whatever ends it, nobody is there to be told.
        let _ = watcher.watch(connection).await;
    }
}

fn http() -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE)
        .max_buf_size(HEADERS)
        .max_headers(64);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(STREAMS)
        // A process that gives up all of its waits at once is no attacker.
        .max_pending_accept_reset_streams(Some(2_000))
        .max_header_list_size(HEADERS as u32)
        .initial_connection_window_size(4 << 20)
        .initial_stream_window_size(256 << 10);
    http
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use leasehold::Locks;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio::sync::oneshot;

    /// The bytes of a connection that fails when it is told to, as if nothing had been heard of the client for too long.
    struct Silent {
        stream: DuplexStream,
        is_silent: oneshot::Receiver<()>,
    }

    impl AsyncRead for Silent {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if Pin::new(&mut self.is_silent).poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Silent {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }

    /// The client relies on the lock for as long as the last event said, if it does not learn that the connection has ended.
    #[tokio::test]
    async fn lock_of_a_silent_client_stays_for_as_long_as_it_was_told() {
        let locks = Locks::connect("memory:").await.unwrap();
        let state = State::new(locks.clone(), crate::Settings::default()).unwrap();
        let server = Server {
            app: app(state),
            http: http(),
            tls: None,
        };
        let (mut client, stream) = tokio::io::duplex(1 << 16);
        let (falls_silent, is_silent) = oneshot::channel();
        let stream = Silent { stream, is_silent };
        let room = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let graceful = GracefulShutdown::new();
        let watcher = graceful.watcher();
        let served = tokio::spawn(async move {
            server.connection(stream, Peer(None), watcher, room).await;
        });
        let hold = "POST /v1/locks/x/hold HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n\
                    Content-Length: 12\r\n\r\n{\"ttl\":\"3s\"}";
        client.write_all(hold.as_bytes()).await.unwrap();
        let mut said = String::new();
        while !said.contains("valid_ms") {
            let mut more = [0; 4096];
            let count = client.read(&mut more).await.unwrap();
            assert!(count > 0, "{said}");
            said.push_str(&String::from_utf8_lossy(&more[..count]));
        }
        falls_silent.send(()).unwrap();
        served.await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = locks.lock("x").try_acquire().await.unwrap();
        assert!(other.is_none(), "two rely on the lock");
        // And no longer than that.
        let next = locks.lock("x").wait(Duration::from_secs(20)).acquire();
        next.await.unwrap().release().await.unwrap();
    }

    #[tokio::test]
    async fn silent_hosts_are_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap());
        let stream = stream.await.unwrap();
        expect_signs_of_life(&stream);
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(SILENCE));
    }
}
