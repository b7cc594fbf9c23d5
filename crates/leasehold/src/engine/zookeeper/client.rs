//! The session that all locks of a client depend on, and the one that follows when it has ended.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use zookeeper_client::{
    Client, Connector, Error as Said, OneshotWatcher, SessionState, StateWatcher,
};

use super::config::ZookeeperConfig;
use super::failure;
use super::session_validity::{Sent, SessionValidity};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::sync::Mutex;

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
    known: Mutex<Known>,
    /// Whether it counts as ended although the servers know nothing of that.
    given_up: AtomicBool,
    /// The runtime that its client runs on, and whether that has ended: the servers end the session some time later.
    runtime: Handle,
    runtime_ended: AtomicBool,
    commands: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Known {
    validity: SessionValidity,
    /// Until when somebody may rely on a lock in it.
    promised_until: Option<Moment>,
    /// Reports a new connection before anything that was answered on it.
    states: StateWatcher,
}

impl Session {
    fn with_validity<T>(&self, use_it: impl FnOnce(&mut SessionValidity) -> T) -> T {
        let mut known = self.known.lock();
        if known.states.changed().now_or_never().is_some() {
            known.validity.reconnected();
        }
        use_it(&mut known.validity)
    }

    /// Before a request is made: the client sends it at once, and validity counts from before that.
    fn sending(&self) -> Sent {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.with_validity(|validity| validity.sending(Clock::machine().now()))
    }

    /// Sends a read and waits for its answer, which any server may give: it shows nothing of the session.
    pub(crate) fn read<'a, T, F>(
        &'a self,
        request: impl FnOnce(&'a Client) -> F,
    ) -> impl Future<Output = Result<T>>
    where
        F: Future<Output = Result<T, Said>>,
    {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.in_time(request(&self.client))
    }

    /// Watches a node, for as long as that takes.
    pub(crate) fn watch(&self, path: &str) -> impl Future<Output = Result<OneshotWatcher, Said>> {
        self.commands.fetch_add(1, Ordering::Relaxed);
        let watch = self.client.get_and_watch_data(path);
        async { Ok(watch.await?.2) }
    }

    /// Waits until our server has caught up with the leader.
    pub(crate) fn sync(&self, node: &str) -> impl Future<Output = Result<()>> {
        let sent = self.sending();
        let request = self.in_time(self.client.sync(node));
        async move {
            request.await?;
            self.with_validity(|validity| validity.answered(sent, Clock::machine().now()));
            Ok(())
        }
    }

    /// Sends a write and waits for a quorum to carry it out: which shows that the session lives.
    pub(crate) fn write<'a, T, E, F>(
        &'a self,
        request: impl FnOnce(&'a Client) -> F,
    ) -> impl Future<Output = Result<T>>
    where
        E: Into<Said>,
        F: Future<Output = Result<T, E>>,
    {
        let sent = self.sending();
        let request = self.in_time(request(&self.client));
        async move {
            let answer = request.await?;
            self.with_validity(|validity| validity.committed(sent, Clock::machine().now()));
            Ok(answer)
        }
    }

    async fn in_time<T, E: Into<Said>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.patience, request).await {
            Ok(answer) => answer.map_err(|cause| {
                let cause = cause.into();
                if failure::client_has_stopped(&cause) {
                    self.runtime_ended.store(true, Ordering::Release);
                }
                failure::of_request(cause)
            }),
            Err(_) => Err(failure::silent()),
        }
    }

    /// Until when somebody may rely on a lock in it: until then, or for as long as the session is sure to live. It is not closed before that is over.
    pub(crate) fn promise(&self, until: Moment) -> Moment {
        let until = until.min(self.with_validity(|validity| validity.valid_until()));
        let mut known = self.known.lock();
        known.promised_until = known.promised_until.max(Some(until));
        until
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.with_validity(|validity| validity.is_fresh(Clock::machine().now()))
    }

    /// After a silence it takes a few of these until a write counts in full.
    pub(crate) fn a_sixteenth(&self) -> Duration {
        self.timeout / 16
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.is_given_up()
            || self.runtime_ended.load(Ordering::Acquire)
            || self.client.state().is_terminated()
    }

    /// The runtime that its client runs on, if that is another than the present one.
    pub(crate) fn other_runtime(&self) -> Option<&Handle> {
        let here = Handle::try_current().is_ok_and(|here| here.id() == self.runtime.id());
        (!here).then_some(&self.runtime)
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

/// With the last client a session is closed, and everything in it goes. While the servers keep it, that must not be before the last promise is over: who was
/// granted a lock through this process, as the clients of a server are, may not know yet that the session is used no more.
impl Drop for Session {
    fn drop(&mut self) {
        let runtime = match self.runtime_ended.load(Ordering::Acquire) {
            // Its task may be about to end.
            true => Handle::try_current().ok(),
            false => self.is_given_up().then(|| self.runtime.clone()),
        };
        let promised_until = self.known.lock().promised_until;
        if let (Some(runtime), Some(promised_until)) = (runtime, promised_until) {
            let client = self.client.clone();
            runtime.spawn(async move {
                Clock::machine().sleep_until(promised_until).await;
                drop(client);
            });
        }
    }
}

/// The present session, and how to open the next.
#[derive(Debug)]
pub(crate) struct Sessions {
    config: ZookeeperConfig,
    present: Mutex<Arc<Session>>,
    opening: tokio::sync::Mutex<()>,
    endings: Arc<watch::Sender<u64>>,
    commands: Arc<AtomicU64>,
}

impl Sessions {
    pub(crate) async fn open(config: ZookeeperConfig) -> Result<Self> {
        let endings = Arc::new(watch::Sender::new(0));
        let commands = Arc::default();
        let first = open(&config, 1, &endings, &commands).await?;
        Ok(Self {
            config,
            present: Mutex::new(first),
            opening: tokio::sync::Mutex::default(),
            endings,
            commands,
        })
    }

    /// The last one that was opened; it may have ended.
    pub(crate) fn present(&self) -> Arc<Session> {
        let present = self.present.lock();
        Arc::clone(&present)
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
        let next = open(&self.config, number, &self.endings, &self.commands).await?;
        let before = std::mem::replace(&mut *self.present.lock(), Arc::clone(&next));
        drop(before);
        Ok(next)
    }

    /// Leaves a session that is given up for the next one. With its last user its client goes, once nobody relies on it any more, which ends it on the servers.
    pub(crate) async fn leave_what_is_given_up(&self) {
        let lingers = || {
            let present = self.present();
            present.is_given_up() && !present.client.state().is_terminated()
        };
        while lingers() {
            if self.living().await.is_err() {
                tokio::time::sleep(A_MOMENT).await;
            }
        }
    }

    /// Changes when a session has ended.
    pub(crate) fn events(&self) -> watch::Receiver<u64> {
        self.endings.subscribe()
    }

    /// Makes all who use locks look at them.
    pub(crate) fn notifier(&self) -> impl FnOnce() + Send + use<> {
        let endings = Arc::clone(&self.endings);
        move || endings.send_modify(|count| *count += 1)
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }
}

async fn open(
    config: &ZookeeperConfig,
    number: u64,
    endings: &Arc<watch::Sender<u64>>,
    commands: &Arc<AtomicU64>,
) -> Result<Arc<Session>> {
    let (asked, client) = connect(config).await?;
    let timeout = client.session_timeout();
    let session = Arc::new(Session {
        number,
        timeout,
        patience: config.timeout,
        known: Mutex::new(Known {
            validity: SessionValidity::new(timeout, asked),
            promised_until: None,
            states: client.state_watcher(),
        }),
        given_up: AtomicBool::new(false),
        runtime: Handle::current(),
        runtime_ended: AtomicBool::new(false),
        commands: Arc::clone(commands),
        client,
    });
    let ending = Ending {
        session: Arc::downgrade(&session),
        endings: Arc::clone(endings),
    };
    tokio::spawn(follow(
        session.client.state_watcher(),
        ending,
        config.clone(),
    ));
    tokio::spawn(keep_busy(
        Arc::downgrade(&session),
        timeout / 16,
        config.root.node().to_owned(),
    ));
    Ok(session)
}

/// Tells that a session has ended: when it is dropped, as it is if the runtime ends.
struct Ending {
    session: Weak<Session>,
    endings: Arc<watch::Sender<u64>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade()
            && !session.has_ended()
        {
            session.runtime_ended.store(true, Ordering::Release);
        }
        self.endings.send_modify(|count| *count += 1);
    }
}

/// Sees what becomes of a session, until it ends.
async fn follow(mut states: StateWatcher, ending: Ending, config: ZookeeperConfig) {
    let session = &ending.session;
    loop {
        match states.changed().await {
            state if state.is_terminated() => break,
            SessionState::SyncConnected => {}
            _ => continue,
        }
        let mut next = states.clone();
        tokio::select! {
            () = see_its_time(session, &config) => {}
            // Another one comes, or none: that one counts.
            _ = next.changed() => {}
        }
        if session.upgrade().is_none_or(|session| session.has_ended()) {
            break;
        }
    }
}

/// On a new connection, sees that the session has the time that it had before. The client library does not report what a server grants it
/// anew, so every server is asked what it grants to others. If one grants less, the session may end sooner than its leases rely on: it is
/// given up, and the next one begins with what it is granted.
async fn see_its_time(session: &Weak<Session>, config: &ZookeeperConfig) {
    while let Some(session) = session.upgrade() {
        let connection = session.with_validity(|validity| validity.connection());
        match least_granted(config, session.timeout).await {
            Some(granted) if granted >= session.timeout => {
                return session.with_validity(|validity| validity.has_its_time_on(connection));
            }
            Some(_) => return session.given_up.store(true, Ordering::Release),
            None => {}
        }
        drop(session);
        tokio::time::sleep(A_MOMENT).await;
    }
}

/// The shortest time that a server grants to a session which asks for so much; `None` if none answers. Those that do not answer soon are not the one
/// that our session has just come to.
async fn least_granted(config: &ZookeeperConfig, asked: Duration) -> Option<Duration> {
    let granted = config.servers.split(',').map(|server| async move {
        let alone = ZookeeperConfig {
            servers: server.to_owned(),
            ..config.clone()
        };
        let connector = Client::connector()
            .with_session_timeout(asked)
            .with_fail_eagerly();
        let client = tokio::time::timeout(asked / 8, reach(&alone, connector)).await;
        Some(client.ok()?.ok()?.session_timeout())
    });
    join_all(granted).await.into_iter().flatten().min()
}

/// One try.
pub(crate) async fn reach(config: &ZookeeperConfig, connector: Connector) -> Result<Client, Said> {
    #[cfg(feature = "zookeeper-tls")]
    if let Some(tls) = &config.tls {
        let connector = connector.with_tls(tls.clone());
        return connector.secure_connect(&config.servers).await;
    }
    connector.connect(&config.servers).await
}

/// Goes on until there is a quorum or time is up.
pub(crate) async fn connect(config: &ZookeeperConfig) -> Result<(Moment, Client)> {
    let mut last = failure::silent();
    let connecting = async {
        loop {
            let mut connector = Client::connector()
                .with_session_timeout(config.session_timeout)
                .with_fail_eagerly();
            if let Some(login) = &config.login {
                let digest = format!("{}:{}", login.user, login.password);
                connector = connector.with_auth("digest", digest.as_bytes());
            }
            let asked = Clock::machine().now();
            match reach(config, connector).await {
                Ok(client) => return Ok((asked, client)),
                Err(cause @ (Said::NoHosts | Said::Timeout | Said::ConnectionLoss)) => {
                    last = failure::of_request(cause);
                }
                Err(cause) => return Err(failure::of_request(cause)),
            }
            tokio::time::sleep(A_MOMENT).await;
        }
    };
    match tokio::time::timeout(config.timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) if failure::found_nobody(&last) && is_full(config).await => Err(failure::full()),
        Err(_) => Err(last),
    }
}

const CLOSED: [io::ErrorKind; 2] = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];

/// How long a server may take to say how it is.
const A_WORD: Duration = Duration::from_secs(1);

/// Whether a server has refused us for want of room. It closes a connection without a word then, and answers this question so too, or as one that serves if
/// there is room by now; one that has no quorum says so. Over TLS none says anything.
async fn is_full(config: &ZookeeperConfig) -> bool {
    #[cfg(feature = "zookeeper-tls")]
    if config.tls.is_some() {
        return false;
    }
    let refuses = config.servers.split(',').map(|server| async move {
        let address = match server.rsplit_once(':') {
            Some((_, port)) if !port.contains(']') => server.to_owned(),
            _ => format!("{server}:2181"),
        };
        let asked = async {
            let mut connection = match TcpStream::connect(address).await {
                Ok(connection) => connection,
                // So soon that it is noticed here already.
                Err(cause) => return CLOSED.contains(&cause.kind()),
            };
            let mut answer = Vec::new();
            // It may have closed the connection already.
            let _ = connection.write_all(b"srvr").await;
            let _ = connection.take(1024).read_to_end(&mut answer).await;
            answer.is_empty() || answer.starts_with(b"Zookeeper version")
        };
        let refused = tokio::time::timeout(A_WORD, asked).await;
        refused.unwrap_or(false)
    });
    join_all(refuses).await.contains(&true)
}

/// A write shows more, the less time has passed since the leader has answered something: see `session_validity.rs`.
async fn keep_busy(session: Weak<Session>, pause: Duration, node: String) {
    loop {
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade() else {
            return;
        };
        if session.has_ended() {
            return;
        }
        let _ = session.sync(&node).await;
    }
}
