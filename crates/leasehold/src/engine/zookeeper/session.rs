//! The session that all locks of a client depend on, and the one that follows when it has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use zookeeper_client::{Client, Connector, Error as Said};

use super::failure;
use super::proof::{Proof, Sent};
use super::settings::Settings;
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// How long to wait before the servers are tried again.
const A_MOMENT: Duration = Duration::from_millis(100);

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// Sessions of a client are counted; what an earlier one held is lost.
    pub(crate) number: u64,
    timeout: Duration,
    patience: Duration,
    /// Held for nanoseconds and never across an await, so a std Mutex.
    proof: Mutex<Proof>,
    commands: Arc<AtomicU64>,
}

impl Session {
    fn proof(&self) -> MutexGuard<'_, Proof> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a request is made: the client sends it at once, and validity counts from before that.
    pub(crate) fn sending(&self) -> Sent {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.proof().sending(Clock::machine().now())
    }

    /// Waits for the answer to a read, which any server may give: it proves nothing.
    pub(crate) async fn read<T>(
        &self,
        _sent: Sent,
        request: impl Future<Output = Result<T, Said>>,
    ) -> Result<T> {
        self.in_time(request).await
    }

    /// Waits until our server has caught up with the leader.
    pub(crate) async fn sync(
        &self,
        sent: Sent,
        request: impl Future<Output = Result<(), Said>>,
    ) -> Result<()> {
        self.in_time(request).await?;
        self.proof().answered(sent, Clock::machine().now());
        Ok(())
    }

    /// Waits for a write to be carried out by a quorum: the proof that the session lives.
    pub(crate) async fn write<T, E: Into<Said>>(
        &self,
        sent: Sent,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        let answer = self.in_time(request).await?;
        self.proof().committed(sent, Clock::machine().now());
        Ok(answer)
    }

    async fn in_time<T, E: Into<Said>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.patience, request).await {
            Ok(answer) => answer.map_err(|cause| failure::of_request(cause.into())),
            Err(_) => Err(failure::silent()),
        }
    }

    /// Until when the session is sure to live.
    pub(crate) fn valid_until(&self) -> Moment {
        self.proof().valid_until()
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proof().is_fresh(Clock::machine().now())
    }

    /// After a silence it takes a few of these until a write counts in full.
    pub(crate) fn a_quarter(&self) -> Duration {
        self.timeout / 4
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.client.state().is_terminated()
    }
}

/// The present session, and how to open the next.
#[derive(Debug)]
pub(crate) struct Sessions {
    settings: Settings,
    present: Mutex<Arc<Session>>,
    opening: tokio::sync::Mutex<()>,
    endings: Arc<watch::Sender<u64>>,
    commands: Arc<AtomicU64>,
}

impl Sessions {
    pub(crate) async fn open(settings: Settings) -> Result<Self> {
        let endings = Arc::new(watch::Sender::new(0));
        let commands = Arc::default();
        let first = open(&settings, 1, &endings, &commands).await?;
        Ok(Self {
            settings,
            present: Mutex::new(first),
            opening: tokio::sync::Mutex::default(),
            endings,
            commands,
        })
    }

    /// The last one that was opened; it may have ended.
    pub(crate) fn present(&self) -> Arc<Session> {
        let present = self.present.lock();
        Arc::clone(&present.unwrap_or_else(PoisonError::into_inner))
    }

    /// One that has not ended, as far as is known.
    pub(crate) async fn living(&self) -> Result<Arc<Session>> {
        let present = self.present();
        if !present.has_ended() {
            return Ok(present);
        }
        let _one_at_a_time = self.opening.lock().await;
        let present = self.present();
        if !present.has_ended() {
            return Ok(present);
        }
        let number = present.number + 1;
        let next = open(&self.settings, number, &self.endings, &self.commands).await?;
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
        Ok(next)
    }

    /// Returns when sessions have ended since `seen`, with a new number.
    pub(crate) async fn ended(&self, seen: u64) -> u64 {
        let mut endings = self.endings.subscribe();
        let next = endings.wait_for(|count| *count != seen).await;
        next.map_or(seen, |count| *count)
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }
}

async fn open(
    settings: &Settings,
    number: u64,
    endings: &Arc<watch::Sender<u64>>,
    commands: &Arc<AtomicU64>,
) -> Result<Arc<Session>> {
    let (asked, client) = connect(settings).await?;
    let timeout = client.session_timeout();
    let session = Arc::new(Session {
        number,
        timeout,
        patience: settings.timeout,
        proof: Mutex::new(Proof::new(timeout, asked)),
        commands: Arc::clone(commands),
        client,
    });
    let mut states = session.client.state_watcher();
    let endings = Arc::clone(endings);
    tokio::spawn(async move {
        while !states.state().is_terminated() {
            states.changed().await;
        }
        endings.send_modify(|count| *count += 1);
    });
    tokio::spawn(keep_busy(
        Arc::downgrade(&session),
        timeout / 16,
        settings.root.node().to_owned(),
    ));
    Ok(session)
}

/// One try.
pub(crate) async fn reach(settings: &Settings, connector: Connector) -> Result<Client, Said> {
    #[cfg(feature = "zookeeper-tls")]
    if let Some(tls) = &settings.tls {
        let connector = connector.with_tls(tls.clone());
        return connector.secure_connect(&settings.servers).await;
    }
    connector.connect(&settings.servers).await
}

/// Goes on until there is a quorum or time is up.
pub(crate) async fn connect(settings: &Settings) -> Result<(Moment, Client)> {
    let mut last = failure::silent();
    let connecting = async {
        loop {
            let mut connector = Client::connector()
                .with_session_timeout(settings.session_timeout)
                .with_fail_eagerly();
            if let Some(login) = &settings.login {
                connector = connector.with_auth("digest", login.as_bytes());
            }
            let asked = Clock::machine().now();
            match reach(settings, connector).await {
                Ok(client) => return Ok((asked, client)),
                Err(cause @ (Said::NoHosts | Said::Timeout | Said::ConnectionLoss)) => {
                    last = failure::of_request(cause);
                }
                Err(cause) => return Err(failure::of_request(cause)),
            }
            tokio::time::sleep(A_MOMENT).await;
        }
    };
    match tokio::time::timeout(settings.timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(last),
    }
}

/// A write proves more, the less time has passed since the leader has answered something: see `proof.rs`.
async fn keep_busy(session: Weak<Session>, pause: Duration, node: String) {
    loop {
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade() else {
            return;
        };
        if session.has_ended() {
            return;
        }
        let sent = session.sending();
        let _ = session.sync(sent, session.client.sync(&node)).await;
    }
}
