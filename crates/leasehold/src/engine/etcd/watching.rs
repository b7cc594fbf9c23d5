//! One stream for all that this client watches: the ends of single keys, each from the present on.
//!
//! A watch that is opened at a past revision would wait for the server's catching-up, which it does ten times a second. So
//! each is opened at the present, and whoever opened it looks once more when it stands.
//!
//! The present may be past before the watch stands: the server notes the revision, and opens the watch when the write that is under way is
//! done. So each is opened twice. The server answers one order after the other: if nothing was written between the two, the first was in time, and
//! the second is cancelled. Otherwise the second is kept, and opened once more.

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

type Requests = mpsc::UnboundedSender<WatchRequest>;

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
        if watchers.is_empty() {
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

/// How often a watch is opened at most: it would only be late.
const OPENED_AT_MOST: usize = 6;

#[derive(Default)]
struct Watchers {
    all: HashMap<i64, Watcher>,
    /// By the number that the server knows a watch by: for whom it is.
    opened: HashMap<i64, i64>,
    last: i64,
}

struct Watcher {
    key: Vec<u8>,
    tell: mpsc::UnboundedSender<News>,
    tries: usize,
    /// What the server knows its watches by.
    open: Vec<i64>,
    /// The watch that stands, and since which revision.
    stands: Option<(i64, i64)>,
}

impl Watchers {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn carry_out(&mut self, order: Order, requests: &Requests) {
        match order {
            Order::Watch { id, key, tell } => {
                let watcher = Watcher {
                    key,
                    tell,
                    tries: 0,
                    open: Vec::new(),
                    stands: None,
                };
                self.all.insert(id, watcher);
                self.open(id, requests);
                self.open(id, requests);
            }
            Order::Cancel { id } => {
                let watcher = self.all.remove(&id);
                for number in watcher.map(|watcher| watcher.open).unwrap_or_default() {
                    self.close(number, requests);
                }
            }
        }
    }

    fn open(&mut self, id: i64, requests: &Requests) {
        let Some(watcher) = self.all.get_mut(&id) else {
            return;
        };
        watcher.tries += 1;
        self.last += 1;
        watcher.open.push(self.last);
        self.opened.insert(self.last, id);
        let create = WatchCreate {
            key: watcher.key.clone(),
            filters: vec![NO_PUT],
            watch_id: self.last,
        };
        ask(requests, WatchAsk::Create(create));
    }

    fn close(&mut self, number: i64, requests: &Requests) {
        if let Some(id) = self.opened.remove(&number) {
            if let Some(watcher) = self.all.get_mut(&id) {
                watcher.open.retain(|open| *open != number);
            }
            let cancel = WatchCancel { watch_id: number };
            ask(requests, WatchAsk::Cancel(cancel));
        }
    }

    fn hear(&mut self, heard: &WatchResponse, requests: &Requests) {
        let number = heard.watch_id;
        let Some(id) = self.opened.get(&number).copied() else {
            return;
        };
        if heard.canceled {
            self.opened.remove(&number);
            self.tell(id, News::Blind);
        } else if heard.created {
            self.stands(id, number, revision(&heard.header), requests);
        } else if !heard.events.is_empty() {
            // Only deletions are asked for.
            self.tell(id, News::Gone);
        }
    }

    /// A watch has been opened: the first for this watcher, or one after another that was opened before.
    fn stands(&mut self, id: i64, number: i64, revision: i64, requests: &Requests) {
        let Some(watcher) = self.all.get_mut(&id) else {
            return;
        };
        let Some((before, known)) = watcher.stands else {
            watcher.stands = Some((number, revision));
            return;
        };
        if known == revision {
            self.close(number, requests);
            self.tell(id, News::Stands { revision });
            return;
        }
        watcher.stands = Some((number, revision));
        let again = watcher.tries < OPENED_AT_MOST;
        self.close(before, requests);
        match again {
            true => self.open(id, requests),
            false => self.tell(id, News::Stands { revision }),
        }
    }

    fn tell(&self, id: i64, news: News) {
        if let Some(watcher) = self.all.get(&id) {
            let _ = watcher.tell.send(news);
        }
    }

    fn all_blind(&mut self) {
        for (_, watcher) in self.all.drain() {
            let _ = watcher.tell.send(News::Blind);
        }
        self.opened.clear();
    }
}

fn ask(requests: &Requests, ask: WatchAsk) {
    let _ = requests.send(WatchRequest { ask: Some(ask) });
}

/// Returns when the stream can no longer be relied on.
async fn stream(
    cluster: &Cluster,
    member: usize,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    watchers: &mut Watchers,
    requests: Requests,
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
                Some(heard) => watchers.hear(&heard, &requests),
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Stream {
        watchers: Watchers,
        requests: Requests,
        asked: mpsc::UnboundedReceiver<WatchRequest>,
        news: mpsc::UnboundedReceiver<News>,
    }

    /// What the server was asked: to open (1) or to cancel (-1) which watch.
    fn asked(stream: &mut Stream) -> Vec<(i32, i64)> {
        let next = std::iter::from_fn(|| stream.asked.try_recv().ok()?.ask);
        next.map(|ask| match ask {
            WatchAsk::Create(create) => (1, create.watch_id),
            WatchAsk::Cancel(cancel) => (-1, cancel.watch_id),
        })
        .collect()
    }

    fn watched() -> Stream {
        let (requests, asked) = mpsc::unbounded_channel();
        let (tell, news) = mpsc::unbounded_channel();
        let mut watchers = Watchers::default();
        let key = b"k".to_vec();
        watchers.carry_out(Order::Watch { id: 7, key, tell }, &requests);
        Stream {
            watchers,
            requests,
            asked,
            news,
        }
    }

    fn opened(stream: &mut Stream, number: i64, revision: i64) {
        let heard = WatchResponse {
            header: Some(Header {
                revision,
                ..Header::default()
            }),
            watch_id: number,
            created: true,
            ..WatchResponse::default()
        };
        stream.watchers.hear(&heard, &stream.requests);
    }

    #[test]
    fn a_watch_that_was_opened_in_time_is_kept() {
        let mut stream = watched();
        assert_eq!(asked(&mut stream), [(1, 1), (1, 2)]);
        opened(&mut stream, 1, 40);
        assert!(stream.news.try_recv().is_err());
        opened(&mut stream, 2, 40);
        assert_eq!(asked(&mut stream), [(-1, 2)]);
        let stands = News::Stands { revision: 40 };
        assert_eq!(stream.news.try_recv(), Ok(stands));
    }

    #[test]
    fn one_that_may_be_late_is_opened_anew() {
        let mut stream = watched();
        asked(&mut stream);
        opened(&mut stream, 1, 40);
        opened(&mut stream, 2, 41);
        assert_eq!(asked(&mut stream), [(-1, 1), (1, 3)]);
        assert!(stream.news.try_recv().is_err());
        opened(&mut stream, 3, 41);
        assert_eq!(asked(&mut stream), [(-1, 3)]);
        let stands = News::Stands { revision: 41 };
        assert_eq!(stream.news.try_recv(), Ok(stands));
    }

    #[test]
    fn where_others_write_all_the_time_it_stands_at_last_and_leaves_nothing_behind() {
        let mut stream = watched();
        let mut open = std::collections::BTreeSet::new();
        let mut revision = 0;
        loop {
            let asked = asked(&mut stream);
            for (what, number) in &asked {
                match what {
                    1 => open.insert(*number),
                    _ => open.remove(number),
                };
            }
            let created: Vec<_> = asked.iter().filter(|(what, _)| *what == 1).collect();
            if created.is_empty() {
                break;
            }
            for (_, number) in created {
                revision += 1;
                opened(&mut stream, *number, revision);
            }
        }
        assert_eq!(stream.news.try_recv(), Ok(News::Stands { revision }));
        assert_eq!(open.len(), 1);
        stream
            .watchers
            .carry_out(Order::Cancel { id: 7 }, &stream.requests);
        let last = *open.first().unwrap();
        assert_eq!(asked(&mut stream), [(-1, last)]);
        assert!(stream.watchers.is_empty() && stream.watchers.opened.is_empty());
    }
}
