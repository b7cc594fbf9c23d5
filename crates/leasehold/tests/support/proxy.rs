//! A network between a client and a server that can be made slow, or cut.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
    /// Nothing arrives, ever; connections that were open are lost.
    Swallow,
    /// Connections are closed, and new ones at once.
    Refuse,
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
                if *state.borrow() != Link::Refuse {
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

/// One connection, for as long as it lasts.
pub(super) async fn connect(client: TcpStream, server: u16, state: watch::Receiver<Link>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut closed = state.clone();
    let refused = async {
        // An error means that the proxy is gone.
        let _ = closed.wait_for(|link| *link == Link::Refuse).await;
    };
    tokio::select! {
        () = carry(from_client, to_server, state.clone()) => {}
        () = carry(from_server, to_client, state.clone()) => {}
        () = refused => {}
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut state: watch::Receiver<Link>,
) {
    let (sender, mut on_the_way) = mpsc::unbounded_channel();
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
    };
    let write = async {
        while let Some((sent, bytes)) = on_the_way.recv().await {
            let Ok(link) = state.wait_for(|link| *link != Link::Hang).await.map(|l| *l) else {
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
