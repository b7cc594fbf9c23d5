//! One stream for all that this client watches: the ends of single keys, each from the present on.
//!
//! A watch that is opened at a past revision would wait for the server's catching-up, which it does ten times a second. So
//! each is opened at the present, and whoever opened it looks once more when it stands.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::mpsc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::cluster::Cluster;
use super::line::revision;
use super::proto::*;

/// What a watcher hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The watch stands: what happens after this revision is told.
    Stands { revision: i64 },
    /// The key has been deleted.
    Gone,
    /// Nobody watches any more: look again.
    Blind,
}

#[derive(Debug)]
enum Order {
    Watch {
        id: i64,
        key: Vec<u8>,
        tell: mpsc::UnboundedSender<News>,
    },
    Cancel {
        id: i64,
    },
}

#[derive(Debug)]
pub(crate) struct Watching {
    orders: mpsc::UnboundedSender<Order>,
    ids: AtomicI64,
}

/// One key that is watched for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    orders: mpsc::UnboundedSender<Order>,
    news: mpsc::UnboundedReceiver<News>,
}

impl Watch {
    pub(crate) async fn news(&mut self) -> News {
        self.news.recv().await.unwrap_or(News::Blind)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Cancel { id: self.id });
    }
}

impl Watching {
    /// And what has to be run for it.
    pub(crate) fn on(cluster: Arc<Cluster>) -> (Self, impl Future<Output = ()> + Send) {
        let (orders, received) = mpsc::unbounded_channel();
        let watching = Self {
            orders,
            ids: AtomicI64::new(1),
        };
        (watching, run(cluster, received))
    }

    pub(crate) fn watch(&self, key: Vec<u8>) -> Watch {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (tell, news) = mpsc::unbounded_channel();
        let _ = self.orders.send(Order::Watch { id, key, tell });
        let orders = self.orders.clone();
        Watch { id, orders, news }
    }
}

/// Ends with its client: nobody is left to give orders then, but watches may be, so the client ends it.
async fn run(cluster: Arc<Cluster>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut watchers = Watchers::default();
    while let Some(order) = orders.recv().await {
        let (requests, outgoing) = mpsc::unbounded_channel();
        watchers.carry_out(order, &requests);
        if watchers.0.is_empty() {
            continue;
        }
        let member = cluster.preferred();
        tokio::select! {
            _ = stream(&cluster, member, &mut orders, &mut watchers, requests, outgoing) => cluster.avoid(member),
            () = cluster.left(member) => {}
        }
        watchers.all_blind();
    }
}

#[derive(Default)]
struct Watchers(HashMap<i64, mpsc::UnboundedSender<News>>);

impl Watchers {
    fn carry_out(&mut self, order: Order, requests: &mpsc::UnboundedSender<WatchRequest>) {
        let ask = match order {
            Order::Watch { id, key, tell } => {
                self.0.insert(id, tell);
                WatchAsk::Create(WatchCreate {
                    key,
                    filters: vec![NO_PUT],
                    watch_id: id,
                })
            }
            Order::Cancel { id } if self.0.remove(&id).is_some() => {
                WatchAsk::Cancel(WatchCancel { watch_id: id })
            }
            Order::Cancel { .. } => return,
        };
        let _ = requests.send(WatchRequest { ask: Some(ask) });
    }

    fn tell(&mut self, heard: &WatchResponse) {
        let news = match heard {
            WatchResponse { canceled: true, .. } => News::Blind,
            WatchResponse { created: true, .. } => News::Stands {
                revision: revision(&heard.header),
            },
            // Only deletions are asked for.
            _ if !heard.events.is_empty() => News::Gone,
            _ => return,
        };
        if let Some(watcher) = self.0.get(&heard.watch_id) {
            let _ = watcher.send(news);
        }
    }

    fn all_blind(&mut self) {
        for (_, watcher) in self.0.drain() {
            let _ = watcher.send(News::Blind);
        }
    }
}

/// Returns when the stream can no longer be relied on.
async fn stream(
    cluster: &Cluster,
    member: usize,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    watchers: &mut Watchers,
    requests: mpsc::UnboundedSender<WatchRequest>,
    mut outgoing: mpsc::UnboundedReceiver<WatchRequest>,
) -> Result<(), Status> {
    let outgoing = futures_util::stream::poll_fn(move |context| outgoing.poll_recv(context));
    let mut opening = pin!(tokio::time::timeout(cluster.attempt_timeout() * 4, async {
        let mut client = cluster.client(member).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let request = cluster.request(outgoing, None);
        Ok::<_, Status>(client.streaming(request, path, codec).await?.into_inner())
    }));
    let mut incoming: Option<Streaming<WatchResponse>> = None;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => watchers.carry_out(order, &requests),
                None => return Ok(()),
            },
            opened = &mut opening, if incoming.is_none() => {
                let opened = opened.map_err(|_| Status::deadline_exceeded("no stream in time"))?;
                incoming = Some(opened?);
            }
            heard = next(&mut incoming) => match heard? {
                Some(heard) => watchers.tell(&heard),
                None => return Ok(()),
            },
        }
    }
}

async fn next(
    incoming: &mut Option<Streaming<WatchResponse>>,
) -> Result<Option<WatchResponse>, Status> {
    match incoming {
        Some(incoming) => incoming.message().await,
        None => std::future::pending().await,
    }
}
