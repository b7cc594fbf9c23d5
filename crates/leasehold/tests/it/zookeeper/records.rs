//! A request that arrives late changes no record on ZooKeeper that was removed and made anew meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::guard::{Checked, Fenced, Store};
use leasehold::{FencingToken, Locks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};

/// A late request is late by what a test does meanwhile, so this is for a broken test only.
const WAIT: Duration = Duration::from_secs(30);

/// How long deleted records are remembered where they are to be forgotten.
const BRIEF: Duration = Duration::from_millis(50);

/// The numbers of requests in the protocol.
const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const MULTI: i32 = 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// What writes a node whose path has this in it is held up, and all after it.
    Closed(&'static str),
    /// Something is being held up.
    Holding,
}

/// A way to a server on which a chosen request can be held up.
struct Gateway {
    port: u16,
    gate: watch::Sender<Gate>,
}

impl Gateway {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (gate, _) = watch::channel(Gate::Open);
        let its_gate = gate.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, its_gate.clone()));
            }
        });
        Self { port, gate }
    }

    fn close(&self, path: &'static str) {
        self.gate.send_replace(Gate::Closed(path));
    }

    async fn holds(&self) {
        let mut gate = self.gate.subscribe();
        let holding = gate.wait_for(|gate| *gate == Gate::Holding);
        let holding = tokio::time::timeout(WAIT, holding).await;
        holding.expect("a request is held up").unwrap();
    }

    fn open(&self) {
        self.gate.send_replace(Gate::Open);
    }
}

async fn carry(client: TcpStream, server: u16, gate: watch::Sender<Gate>) {
    // The server is gone when a test is over, and a client may look for it still.
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let mut opened = gate.subscribe();
    while let Ok(length) = from_client.read_u32().await {
        let mut request = vec![0; length as usize];
        if from_client.read_exact(&mut request).await.is_err() {
            return;
        }
        gate.send_if_modified(|gate| match gate {
            Gate::Closed(path) if writes(&request, path) => {
                *gate = Gate::Holding;
                true
            }
            _ => false,
        });
        let _ = opened.wait_for(|gate| *gate != Gate::Holding).await;
        let whole = [&length.to_be_bytes()[..], &request].concat();
        if to_server.write_all(&whole).await.is_err() {
            return;
        }
    }
}

/// A request begins with its number in the session, and then says what it is.
fn writes(request: &[u8], path: &str) -> bool {
    let kind = request.get(4..8).map(|kind| kind.try_into().unwrap());
    let kind = kind.map(i32::from_be_bytes);
    let named = request
        .windows(path.len())
        .any(|part| part == path.as_bytes());
    named && [Some(DELETE), Some(SET_DATA), Some(MULTI)].contains(&kind)
}

/// One whose requests can be held up, and another.
struct Two {
    cluster: ZooKeeperCluster,
    gateway: Gateway,
    late: Store,
    other: Store,
}

impl Two {
    async fn start() -> Self {
        let cluster = ZooKeeperCluster::start(1);
        let gateway = Gateway::to(cluster.nodes[0].port).await;
        let late = format!("zookeeper://127.0.0.1:{}?timeout=30s", gateway.port);
        let late = Locks::connect(late).await.unwrap();
        let other = Locks::connect(cluster.url()).await.unwrap();
        Self {
            cluster,
            gateway,
            late: late.store().unwrap(),
            other: other.store().unwrap(),
        }
    }

    /// The other, whose deletions leave nothing behind.
    fn forgetful(&self) -> Store {
        self.other.clone().remember_deleted(Duration::ZERO)
    }

    /// A record whose deletion is remembered no more, though its node is still there.
    async fn forgotten(&self, key: &str) {
        let brief = self.other.clone().remember_deleted(BRIEF);
        let deleted = brief.delete(key, token(4)).await.unwrap();
        assert!(matches!(deleted, Fenced::Written { .. }), "{deleted:?}");
        // The record ends by the clock, and to look whether it has would take it away.
        tokio::time::sleep(2 * BRIEF).await;
    }

    async fn other_writes(&self, key: &str) {
        let written = self.other.write_fenced(key, "nine", token(9)).await;
        assert!(matches!(written, Ok(Fenced::Written { .. })), "{written:?}");
    }

    /// What token 9 has written is there, and keeps token 5 out.
    async fn nine_stands(&self, key: &str) {
        let record = self.other.read(key).await.unwrap();
        let record = record.expect("what was written is there");
        assert_eq!((record.token, record.value), (token(9), b"nine".to_vec()));
        let stale = self.other.write_fenced(key, "five", token(5)).await;
        let highest = token(9);
        assert_eq!(stale.unwrap(), Fenced::Refused { highest });
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

async fn ended<T>(task: JoinHandle<T>) -> T {
    let ended = tokio::time::timeout(WAIT, task).await;
    ended.expect("it ends").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_fenced_write_does_not_take_the_token_back() {
    let two = Two::start().await;
    let first = two.other.write_fenced("k", "four", token(4)).await.unwrap();
    assert!(matches!(first, Fenced::Written { .. }), "{first:?}");
    two.gateway.close("~records/k");
    let late = two.late.clone();
    let late = tokio::spawn(async move { late.write_fenced("k", "five", token(5)).await });
    two.gateway.holds().await;
    let deleted = two.forgetful().delete("k", token(9)).await.unwrap();
    assert!(matches!(deleted, Fenced::Written { .. }), "{deleted:?}");
    two.other_writes("k").await;
    two.gateway.open();
    let highest = token(9);
    assert_eq!(ended(late).await.unwrap(), Fenced::Refused { highest });
    two.nine_stands("k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_optimistic_write_meets_no_record_made_anew() {
    let two = Two::start().await;
    let first = two.other.write_if("k", "one", None).await.unwrap();
    let Checked::Written { version } = first else {
        panic!("{first:?}");
    };
    two.gateway.close("~records/k");
    let late = two.late.clone();
    let late = tokio::spawn(async move { late.write_if("k", "late", Some(version)).await });
    two.gateway.holds().await;
    let deleted = two.forgetful().delete_if("k", version).await.unwrap();
    assert!(matches!(deleted, Checked::Written { .. }), "{deleted:?}");
    let anew = two.other.write_if("k", "two", None).await.unwrap();
    let Checked::Written { version } = anew else {
        panic!("{anew:?}");
    };
    two.gateway.open();
    let changed = Checked::Changed {
        version: Some(version),
    };
    assert_eq!(ended(late).await.unwrap(), changed);
    let record = two.other.read("k").await.unwrap().unwrap();
    assert_eq!((record.version, record.value), (version, b"two".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reader_removes_no_record_made_anew() {
    let two = Two::start().await;
    two.forgotten("k").await;
    two.gateway.close("~records/k");
    let late = two.late.clone();
    let late = tokio::spawn(async move { late.read("k").await });
    two.gateway.holds().await;
    two.other_writes("k").await;
    two.gateway.open();
    ended(late).await.unwrap();
    two.nine_stands("k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_sweep_removes_no_record_made_anew() {
    let two = Two::start().await;
    two.forgotten("k").await;
    // Due for long: what ends now is swept in ten minutes.
    let client = Client::connect(&two.cluster.hosts()).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/leasehold/~ends/1", "/leasehold/~ends/1/k"] {
        client.create(path, b"", &options).await.unwrap();
    }
    two.gateway.close("~records/k");
    let late = two.late.clone();
    let late = tokio::spawn(async move { late.delete("another", token(7)).await });
    two.gateway.holds().await;
    two.other_writes("k").await;
    two.gateway.open();
    ended(late).await.unwrap();
    two.nine_stands("k").await;
}
