//! A network between a client and a server that can be made slow, or cut.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
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

pub struct Proxy {
    pub port: u16,
    link: watch::Sender<Link>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// To a port of this machine.
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (link, state) = watch::channel(Link::Open);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if ![Link::Refuse, Link::Forsake].contains(&*state.borrow()) {
                    tokio::spawn(connect(client, server, state.clone()));
                }
            }
        });
        Self {
            port,
            link,
            accepting,
        }
    }

    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connect(client: TcpStream, server: u16, state: watch::Receiver<Link>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // As long as there is another handle, the server's connection is open.
    let server = server.into_std().unwrap();
    let server_hears_nothing = server.try_clone().unwrap();
    let server = TcpStream::from_std(server).unwrap();
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let mut closed = state.clone();
    let refused = async {
        // An error means that the proxy is gone.
        let closes = |link: &Link| [Link::Refuse, Link::Forsake].contains(link);
        let _ = closed.wait_for(closes).await;
    };
    tokio::select! {
        () = carry(from_client, to_server, state.clone(), Link::HangThere) => {}
        () = carry(from_server, to_client, state.clone(), Link::HangBack) => {}
        () = refused => {}
    }
    let mut over = state;
    let _ = over.wait_for(|link| *link != Link::Forsake).await;
    drop(server_hears_nothing);
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
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
