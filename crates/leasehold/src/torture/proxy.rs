//! A network between a client and a server that can be made slow, or cut.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::url::Server;

/// What becomes of what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// It arrives.
    Open,
    /// Everything takes this much longer, each way.
    Slow(Duration),
    /// Nothing arrives; all of it does once the link is open again.
    Hang,
    /// The same for what the client says; the server is heard.
    HangThere,
    /// The same for what the server says; the client is heard.
    HangBack,
    /// Nothing arrives, ever; connections that were open are lost.
    Swallow,
    /// Connections are closed, and new ones at once.
    Refuse,
    /// The same for clients; the server does not hear of it until this is over.
    Forsake,
}

/// A port of this machine behind which is a server. Closed when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// The port.
    pub port: u16,
    link: watch::Sender<Link>,
    /// Changes when those that are open are lost.
    losses: watch::Sender<()>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port.
    ///
    /// # Errors
    ///
    /// If there is none.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time.
    pub async fn to(server: Server) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (link, state) = watch::channel(Link::Open);
        let losses = watch::Sender::new(());
        let lost = losses.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if ![Link::Refuse, Link::Forsake].contains(&*state.borrow()) {
                    let (server, state, lost) = (server.clone(), state.clone(), lost.subscribe());
                    tokio::spawn(async move {
                        let _ = connect_until_lost(client, &server, state, lost).await;
                    });
                }
            }
        });
        Ok(Self {
            port,
            link,
            losses,
            accepting,
        })
    }

    /// The connections that are open carry nothing any more, and neither side ever hears of it, as when a firewall forgets them. New ones
    /// pass.
    pub fn lose_connections(&self) {
        self.losses.send_replace(());
    }

    /// From now on the link is like this.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Carries one connection, for as long as it lasts.
///
/// # Cancel safety
///
/// The connection ends if the future is dropped.
pub async fn connect(client: TcpStream, server: &Server, state: watch::Receiver<Link>) {
    let (_never, lost) = watch::channel(());
    let _ = connect_until_lost(client, server, state, lost).await;
}

async fn connect_until_lost(
    client: TcpStream,
    server: &Server,
    state: watch::Receiver<Link>,
    mut lost: watch::Receiver<()>,
) -> io::Result<()> {
    let server = TcpStream::connect((&*server.host, server.port)).await?;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // As long as there is another handle, the server's connection is open.
    let server = server.into_std()?;
    let server_hears_nothing = server.try_clone()?;
    let server = TcpStream::from_std(server)?;
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let mut closed = state.clone();
    let refused = async {
        // An error means that the proxy is gone.
        let closes = |link: &Link| [Link::Refuse, Link::Forsake].contains(link);
        let _ = closed.wait_for(closes).await;
    };
    tokio::select! {
        () = carry(&mut from_client, &mut to_server, state.clone(), Link::HangThere) => {}
        () = carry(&mut from_server, &mut to_client, state.clone(), Link::HangBack) => {}
        () = refused => {}
        Ok(()) = lost.changed() => {
            // Until the proxy is gone.
            let (said, answered) = (swallow(&mut from_client), swallow(&mut from_server));
            tokio::select! {
                () = async { while lost.changed().await.is_ok() {} } => {}
                ((), ()) = async { tokio::join!(said, answered) } => {}
            }
        }
    }
    let mut over = state;
    let _ = over.wait_for(|link| *link != Link::Forsake).await;
    drop(server_hears_nothing);
    Ok(())
}

/// Takes whatever comes, and does not tell of the end.
async fn swallow(from: &mut (impl AsyncRead + Unpin)) {
    let _ = tokio::io::copy(from, &mut tokio::io::sink()).await;
}

async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut state: watch::Receiver<Link>,
    this_way: Link,
) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel();
    let mut hangs = state.clone();
    let passes = move |link: &Link| ![Link::Hang, this_way].contains(link);
    let read = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if sender
                .send((Instant::now(), buffer[..length].to_vec()))
                .is_err()
            {
                return;
            }
        }
        // Nor does the other side hear that this one has gone.
        let _ = hangs.wait_for(passes).await;
    };
    let write = async {
        while let Some((sent, bytes)) = on_the_way.recv().await {
            let Ok(link) = state.wait_for(passes).await.map(|l| *l) else {
                return;
            };
            match link {
                Link::Slow(by) => tokio::time::sleep_until(sent + by).await,
                // What follows would make no sense without what was lost.
                Link::Swallow => {
                    let _ = state.wait_for(|link| *link != Link::Swallow).await;
                    return;
                }
                _ => {}
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
