//! A network between a client and a server of this machine.

use std::ops::Deref;

use leasehold::torture::proxy;
use leasehold::url::Server;
use tokio::net::TcpStream;
use tokio::sync::watch;

pub use leasehold::torture::proxy::Link;

pub struct Proxy(proxy::Proxy);

impl Proxy {
    /// To a port of this machine.
    pub async fn to(port: u16) -> Self {
        Self(proxy::Proxy::to(local(port)).await.unwrap())
    }
}

impl Deref for Proxy {
    type Target = proxy::Proxy;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// One connection, for as long as it lasts.
pub(super) async fn connect(client: TcpStream, port: u16, state: watch::Receiver<Link>) {
    proxy::connect(client, &local(port), state).await;
}

fn local(port: u16) -> Server {
    Server {
        host: "127.0.0.1".to_owned(),
        port,
    }
}
