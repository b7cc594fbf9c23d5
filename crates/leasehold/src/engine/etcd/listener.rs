//! One stream for all that this client watches: the ends of single keys, each from the present on.
//!
//! A watch that is opened at a past revision would wait for the server's catching-up, which it does ten times a second. So
//! each is opened at the present, and whoever opened it looks once more when it is open.
//!
//! The present may be past before the watch is open: the server notes the revision, and opens the watch when the write that is in flight is
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

use super::client::Client;
use super::proto::*;
use super::protocol::revision;
use crate::engine::background::Background;
use crate::sync::Mutex;

type Requests = mpsc::UnboundedSender<WatchRequest>;

/// What a watcher receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The watch is open: what happens after this revision is reported.
    Opened { revision: i64 },
    /// The key has been deleted, by this revision at the latest. A member reports it before it shows it: who reads there at once
    /// may still find the key.
    Deleted { revision: i64 },
    /// Nobody watches any more: look again.
    Interrupted,
}

#[derive(Debug)]
enum Order {
    Watch {
        id: i64,
        key: Vec<u8>,
        notify: mpsc::UnboundedSender<Notice>,
    },
    Cancel {
        id: i64,
    },
}

#[derive(Debug)]
pub(crate) struct Listener {
    client: Arc<Client>,
    orders: Mutex<mpsc::UnboundedSender<Order>>,
    ids: AtomicI64,
    /// Carries out the orders.
    background: Background,
}

/// One key that is watched for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    orders: mpsc::UnboundedSender<Order>,
    notices: mpsc::UnboundedReceiver<Notice>,
}

impl Watch {
    pub(crate) async fn next(&mut self) -> Notice {
        self.notices.recv().await.unwrap_or(Notice::Interrupted)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Cancel { id: self.id });
    }
}

impl Listener {
    pub(crate) fn on(client: Arc<Client>) -> Self {
        Self {
            client,
            orders: Mutex::new(mpsc::unbounded_channel().0),
            ids: AtomicI64::new(1),
            background: Background::default(),
        }
    }

    pub(crate) fn watch(&self, key: Vec<u8>) -> Watch {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (notify, notices) = mpsc::unbounded_channel();
        let orders = self.orders();
        let _ = orders.send(Order::Watch { id, key, notify });
        Watch {
            id,
            orders,
            notices,
        }
    }

    /// To whoever carries them out: on this runtime from now on, if nobody does.
    fn orders(&self) -> mpsc::UnboundedSender<Order> {
        let mut orders = self.orders.lock();
        let start = || {
            let (sender, received) = mpsc::unbounded_channel();
            *orders = sender;
            run(Arc::clone(&self.client), received)
        };
        self.background.ensure(start, || {});
        orders.clone()
    }

    /// Nobody listens any more.
    pub(crate) fn end(&self) {
        self.background.end();
    }
}

/// Ends with its client: nobody is left to give orders then, but watches may be, so the client ends it.
async fn run(client: Arc<Client>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut watchers = Watchers::default();
    while let Some(order) = orders.recv().await {
        let (requests, outgoing) = mpsc::unbounded_channel();
        watchers.carry_out(order, &requests);
        if watchers.is_empty() {
            continue;
        }
        let route = client.preferred();
        let member = route.member;
        tokio::select! {
            _ = stream(&client, member, &mut orders, &mut watchers, requests, outgoing) => client.avoid(member),
            () = client.left(route) => {}
        }
        watchers.interrupt_all();
    }
}

/// How often a watch is opened at most: it would only be late.
const OPENED_AT_MOST: usize = 6;

#[derive(Default)]
struct Watchers {
    all: HashMap<i64, Watcher>,
    /// By the number that the server knows a watch by: for whom it is.
    by_number: HashMap<i64, i64>,
    last: i64,
}

struct Watcher {
    key: Vec<u8>,
    notify: mpsc::UnboundedSender<Notice>,
    tries: usize,
    /// What the server knows its watches by.
    open: Vec<i64>,
    /// The watch that is open, and since which revision.
    since: Option<(i64, i64)>,
}

impl Watchers {
    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn carry_out(&mut self, order: Order, requests: &Requests) {
        match order {
            Order::Watch { id, key, notify } => {
                let watcher = Watcher {
                    key,
                    notify,
                    tries: 0,
                    open: Vec::new(),
                    since: None,
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
        self.by_number.insert(self.last, id);
        let create = WatchCreate {
            key: watcher.key.clone(),
            filters: vec![NO_PUT],
            watch_id: self.last,
        };
        ask(requests, WatchAsk::Create(create));
    }

    fn close(&mut self, number: i64, requests: &Requests) {
        if let Some(id) = self.by_number.remove(&number) {
            if let Some(watcher) = self.all.get_mut(&id) {
                watcher.open.retain(|open| *open != number);
            }
            let cancel = WatchCancel { watch_id: number };
            ask(requests, WatchAsk::Cancel(cancel));
        }
    }

    /// Fails if the server refuses a watch. It would refuse all others on this stream as well, if that was opened with a login that
    /// counts no longer.
    fn receive(&mut self, response: &WatchResponse, requests: &Requests) -> Result<(), Status> {
        let number = response.watch_id;
        let id = self.by_number.get(&number).copied();
        // Newer servers do not say which one they refuse. One that is cancelled by us is known no more.
        if response.canceled && (id.is_some() || number < 0) {
            return Err(Status::aborted(response.cancel_reason.clone()));
        }
        let Some(id) = id else {
            return Ok(());
        };
        if response.created {
            self.opened(id, number, revision(&response.header), requests);
        } else if !response.events.is_empty() {
            // Only deletions are asked for.
            let revision = revision(&response.header);
            self.notify(id, Notice::Deleted { revision });
        }
        Ok(())
    }

    /// A watch has been opened: the first for this watcher, or one after another that was opened before.
    fn opened(&mut self, id: i64, number: i64, revision: i64, requests: &Requests) {
        let Some(watcher) = self.all.get_mut(&id) else {
            return;
        };
        let Some((before, known)) = watcher.since else {
            watcher.since = Some((number, revision));
            return;
        };
        if known == revision {
            self.close(number, requests);
            self.notify(id, Notice::Opened { revision });
            return;
        }
        watcher.since = Some((number, revision));
        let again = watcher.tries < OPENED_AT_MOST;
        self.close(before, requests);
        match again {
            true => self.open(id, requests),
            false => self.notify(id, Notice::Opened { revision }),
        }
    }

    fn notify(&self, id: i64, notice: Notice) {
        if let Some(watcher) = self.all.get(&id) {
            let _ = watcher.notify.send(notice);
        }
    }

    fn interrupt_all(&mut self) {
        for (_, watcher) in self.all.drain() {
            let _ = watcher.notify.send(Notice::Interrupted);
        }
        self.by_number.clear();
    }
}

fn ask(requests: &Requests, ask: WatchAsk) {
    let _ = requests.send(WatchRequest { ask: Some(ask) });
}

/// Returns when the stream can no longer be relied on.
async fn stream(
    client: &Client,
    member: usize,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    watchers: &mut Watchers,
    requests: Requests,
    mut outgoing: mpsc::UnboundedReceiver<WatchRequest>,
) -> Result<(), Status> {
    let outgoing = futures_util::stream::poll_fn(move |context| outgoing.poll_recv(context));
    let mut opening = pin!(tokio::time::timeout(client.attempt_timeout() * 4, async {
        let mut member = client.connect_to(member).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let request = client.request(outgoing, None);
        Ok::<_, Status>(member.streaming(request, path, codec).await?.into_inner())
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
            response = next(&mut incoming) => match response? {
                Some(response) => watchers.receive(&response, &requests)?,
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
        notices: mpsc::UnboundedReceiver<Notice>,
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
        let (notify, notices) = mpsc::unbounded_channel();
        let mut watchers = Watchers::default();
        let key = b"k".to_vec();
        watchers.carry_out(Order::Watch { id: 7, key, notify }, &requests);
        Stream {
            watchers,
            requests,
            asked,
            notices,
        }
    }

    fn opened(stream: &mut Stream, number: i64, revision: i64) {
        let response = WatchResponse {
            header: Some(Header {
                revision,
                ..Header::default()
            }),
            watch_id: number,
            created: true,
            ..WatchResponse::default()
        };
        stream
            .watchers
            .receive(&response, &stream.requests)
            .unwrap();
    }

    #[test]
    fn watch_opened_in_time_is_kept() {
        let mut stream = watched();
        assert_eq!(asked(&mut stream), [(1, 1), (1, 2)]);
        opened(&mut stream, 1, 40);
        assert!(stream.notices.try_recv().is_err());
        opened(&mut stream, 2, 40);
        assert_eq!(asked(&mut stream), [(-1, 2)]);
        let opened = Notice::Opened { revision: 40 };
        assert_eq!(stream.notices.try_recv(), Ok(opened));
    }

    /// Without it a waiter would believe a read that is older, and wait for what has happened already.
    #[test]
    fn deletion_is_notified_with_its_revision() {
        let mut stream = watched();
        opened(&mut stream, 1, 40);
        let response = WatchResponse {
            header: Some(Header {
                revision: 41,
                ..Header::default()
            }),
            watch_id: 1,
            events: vec![Event { kind: 1 }],
            ..WatchResponse::default()
        };
        stream
            .watchers
            .receive(&response, &stream.requests)
            .unwrap();
        let deleted = Notice::Deleted { revision: 41 };
        assert_eq!(stream.notices.try_recv(), Ok(deleted));
    }

    #[test]
    fn stream_that_refuses_a_watch_is_left() {
        let refused = |watch_id| WatchResponse {
            watch_id,
            created: true,
            canceled: true,
            ..WatchResponse::default()
        };
        for number in [1, -1] {
            let mut stream = watched();
            let response = stream.watchers.receive(&refused(number), &stream.requests);
            assert!(response.is_err(), "{number}");
        }
        // Long cancelled by ourselves.
        let mut stream = watched();
        let response = stream.watchers.receive(&refused(99), &stream.requests);
        assert!(response.is_ok());
    }

    #[test]
    fn watch_that_may_be_late_is_opened_again() {
        let mut stream = watched();
        asked(&mut stream);
        opened(&mut stream, 1, 40);
        opened(&mut stream, 2, 41);
        assert_eq!(asked(&mut stream), [(-1, 1), (1, 3)]);
        assert!(stream.notices.try_recv().is_err());
        opened(&mut stream, 3, 41);
        assert_eq!(asked(&mut stream), [(-1, 3)]);
        let opened = Notice::Opened { revision: 41 };
        assert_eq!(stream.notices.try_recv(), Ok(opened));
    }

    #[test]
    fn watch_opens_although_others_write_all_the_time() {
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
        assert_eq!(stream.notices.try_recv(), Ok(Notice::Opened { revision }));
        assert_eq!(open.len(), 1);
        stream
            .watchers
            .carry_out(Order::Cancel { id: 7 }, &stream.requests);
        let last = *open.first().unwrap();
        assert_eq!(asked(&mut stream), [(-1, last)]);
        assert!(stream.watchers.is_empty() && stream.watchers.by_number.is_empty());
    }
}
