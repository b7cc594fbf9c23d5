//! A network between a gRPC client and its server that can be stopped at a single request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Which request of the client's, counted from when that was said.
#[derive(Debug, Clone)]
pub enum Which {
    Nth(usize),
    /// The next that has this text in it.
    Naming(String),
}

/// What passes.
#[derive(Debug, Clone)]
pub enum Gate {
    Open,
    /// Everything before this request: then the gate is `Held`.
    Until(Which),
    /// Everything, but from this request on no answers: then the gate is `Mute`.
    UnansweredFrom(Which),
    /// A request has arrived here, and waits. Answers pass.
    Held,
    /// Only requests.
    Mute,
    /// One request more, and no answer to it: then the gate is `Shut`.
    Last,
    /// Nothing.
    Shut,
}

pub struct Requests {
    pub port: u16,
    gate: Arc<watch::Sender<Gate>>,
    accepting: JoinHandle<()>,
}

impl Requests {
    /// To a port of this machine.
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::new(watch::Sender::new(Gate::Open));
        let theirs = Arc::clone(&gate);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, Arc::clone(&theirs)));
            }
        });
        Self {
            port,
            gate,
            accepting,
        }
    }

    pub fn set(&self, gate: Gate) {
        self.gate.send_replace(gate);
    }

    /// Returns whether the request arrives that the gate was set for, within this time.
    pub async fn is_met(&self, within: Duration) -> bool {
        let mut gate = self.gate.subscribe();
        let met = gate.wait_for(|gate| matches!(gate, Gate::Held | Gate::Mute | Gate::Shut));
        tokio::time::timeout(within, met).await.is_ok()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(client: TcpStream, server: u16, gate: Arc<watch::Sender<Gate>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = carry_requests(from_client, to_server, &gate) => {}
        _ = carry_answers(from_server, to_client, &gate) => {}
    }
}

async fn carry_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    gate: &watch::Sender<Gate>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    let mut passes = gate.subscribe();
    loop {
        let length = from.read(&mut buffer).await?;
        let _ = passes
            .wait_for(|gate| !matches!(gate, Gate::Mute | Gate::Shut))
            .await;
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length]).await?;
    }
}

/// What HTTP/2 begins with.
const PREFACE: usize = 24;

/// The types of HTTP/2's frames that matter here.
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// Frame by frame. What a request begins with travels with its first data.
async fn carry_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    gate: &watch::Sender<Gate>,
) -> std::io::Result<()> {
    let mut preface = vec![0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let mut begun: HashMap<[u8; 4], Vec<u8>> = HashMap::new();
    loop {
        let mut frame = vec![0; 9];
        from.read_exact(&mut frame).await?;
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        let (kind, stream) = (frame[3], [frame[5], frame[6], frame[7], frame[8]]);
        frame.resize(9 + length, 0);
        from.read_exact(&mut frame[9..]).await?;
        match kind {
            HEADERS => {
                begun.insert(stream, frame);
                continue;
            }
            DATA if length > 0 => pass_request(gate, &frame[9..]).await,
            _ => pass_other(gate).await,
        }
        let begun = begun.remove(&stream).unwrap_or_default();
        to.write_all(&[begun, frame].concat()).await?;
    }
}

async fn pass_request(gate: &watch::Sender<Gate>, data: &[u8]) {
    let mut changes = gate.subscribe();
    loop {
        let mut passes = true;
        gate.send_if_modified(|gate| {
            let now = std::mem::replace(gate, Gate::Open);
            let (next, changed) = match now {
                Gate::Until(which) => match which.after(data) {
                    None => (Gate::Held, true),
                    Some(which) => (Gate::Until(which), false),
                },
                Gate::UnansweredFrom(which) => match which.after(data) {
                    None => (Gate::Mute, true),
                    Some(which) => (Gate::UnansweredFrom(which), false),
                },
                Gate::Last => (Gate::Shut, true),
                other => {
                    passes = !matches!(other, Gate::Held | Gate::Shut);
                    (other, false)
                }
            };
            passes &= !matches!(next, Gate::Held);
            *gate = next;
            changed
        });
        if passes {
            return;
        }
        let _ = changes
            .wait_for(|gate| !matches!(gate, Gate::Held | Gate::Shut))
            .await;
    }
}

async fn pass_other(gate: &watch::Sender<Gate>) {
    let mut changes = gate.subscribe();
    let _ = changes
        .wait_for(|gate| !matches!(gate, Gate::Held | Gate::Shut | Gate::Last))
        .await;
}

impl Which {
    /// Which is left after this request; `None` if it is the one.
    fn after(self, request: &[u8]) -> Option<Self> {
        match self {
            Which::Nth(nth) => (nth > 1).then(|| Which::Nth(nth - 1)),
            Which::Naming(text) => {
                let named = request
                    .windows(text.len())
                    .any(|part| part == text.as_bytes());
                (!named).then_some(Which::Naming(text))
            }
        }
    }
}
