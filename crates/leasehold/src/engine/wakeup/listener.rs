//! One thread that listens to a server for all waiters of this process, so that it receives messages however busy the user's tasks
//! are. It has a connection of its own while anyone waits, and ends with the last engine that uses it.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::fallback::Fallback;
use super::local_waiters::LocalWaiters;
use super::offer::{Notice, ServerClock};
use crate::backoff::Backoff;
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::{Grant, Wake};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, MutexGuard};
use crate::token::FencingToken;

/// For how long delivered offers are remembered: longer than any offer lasts.
const REMEMBERED: Duration = Duration::from_secs(2);

/// How an engine listens.
pub(crate) trait Listen: Send + 'static {
    /// Connects, reports to the server that this process is alive, and delivers offers and notices to the sink's listener. Returns when nobody waits any more, or
    /// fails. If anyone waits then, it is called again; after a failure, with a delay.
    async fn session(&mut self, sink: &mut Sink) -> Result<()>;
}

/// What the waiters see of the listener.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The id by which the server knows this process.
    id: String,
    pub(crate) waiters: LocalWaiters<Notice>,
    pub(crate) clock: ServerClock,
    pub(crate) fallback: Fallback,
    /// The offers that were delivered lately: the waiter's number and the token. (The token is not enough, since those of two locks may be equal.)
    delivered: Mutex<VecDeque<(Moment, u64, FencingToken)>>,
    needed: Arc<Notify>,
    report: watch::Sender<Report>,
    not_connected: Error,
}

/// What the thread last reported.
#[derive(Debug)]
enum Report {
    AliveUntil(Moment),
    Failed(Error),
}

impl Report {
    fn is_alive(&self) -> bool {
        matches!(self, Report::AliveUntil(until) if *until > Clock::machine().now())
    }
}

/// What the listener's thread sees of the waiters.
pub(crate) struct Sink {
    listener: Weak<Listener>,
    needed: Arc<Notify>,
    delay: Backoff,
}

impl Listener {
    /// Starts the thread. It connects when somebody waits; `not_connected` is the error for waiters if that takes too long.
    pub(crate) fn start(
        id: String,
        fallback: Fallback,
        not_connected: Error,
        listen: impl Listen,
    ) -> Result<Arc<Self>> {
        let listener = Arc::new(Self::new(id, fallback, not_connected));
        let sink = Sink {
            listener: Arc::downgrade(&listener),
            needed: Arc::clone(&listener.needed),
            delay: delays(),
        };
        let (report, reported) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("leasehold-listener".to_owned())
            .spawn(move || run(sink, listen, &report));
        // The thread reports at once.
        let started = thread.and_then(|_| match reported.recv() {
            Ok(started) => started,
            Err(ended) => Err(std::io::Error::other(ended)),
        });
        match started {
            Ok(()) => Ok(listener),
            Err(cause) => {
                let what = "the thread that listens cannot be started";
                Err(Error::new(ErrorKind::Unexpected, what).caused_by(cause))
            }
        }
    }

    pub(crate) fn new(id: String, fallback: Fallback, not_connected: Error) -> Self {
        Self {
            id,
            waiters: LocalWaiters::default(),
            clock: ServerClock::default(),
            fallback,
            delivered: Mutex::default(),
            needed: Arc::default(),
            report: watch::Sender::new(Report::Failed(not_connected.clone())),
            not_connected,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether this process counts as alive on the server.
    pub(crate) fn is_alive(&self) -> bool {
        self.report.borrow().is_alive()
    }

    /// Whether the server knows of this process, and nobody waits any more.
    pub(crate) fn is_done(&self) -> bool {
        self.waiters.is_empty() && matches!(*self.report.borrow(), Report::AliveUntil(_))
    }

    /// This process counts as alive on the server until then.
    pub(crate) fn set_alive_until(&self, until: Moment) {
        self.report.send_replace(Report::AliveUntil(until));
    }

    /// Returns once this process counts as alive on the server, so that a claim that it queues is not removed.
    pub(crate) async fn connected(&self, timeout: Duration) -> Result<()> {
        // Even if it does already: the thread may just have found that nobody waits, and stop reporting.
        self.needed.notify_one();
        let mut report = self.report.subscribe();
        if report.borrow_and_update().is_alive() {
            return Ok(());
        }
        let reported = async {
            while report.changed().await.is_ok() {
                match &*report.borrow_and_update() {
                    Report::Failed(error) => return Err(error.clone()),
                    report if report.is_alive() => return Ok(()),
                    Report::AliveUntil(_) => {}
                }
            }
            Err(self.not_connected.clone())
        };
        match tokio::time::timeout(timeout, reported).await {
            Ok(reported) => reported,
            Err(_) => Err(self.not_connected.clone()),
        }
    }

    /// Takes the answer to a request that left at `sent`: the server's time, and notices to waiters of this process.
    pub(crate) fn answered(
        &self,
        sent: Moment,
        now: u64,
        notices: impl IntoIterator<Item = (u64, Notice)>,
    ) {
        self.clock.synchronize(sent, now);
        for (number, notice) in notices {
            self.deliver(number, notice);
        }
    }

    pub(crate) fn deliver(&self, number: u64, notice: Notice) {
        if let Notice::Offered(offer) = &notice {
            let now = Clock::machine().now();
            self.forget_old(now).push_back((now, number, offer.token));
        }
        if let Some(mailbox) = self.waiters.mailbox(number) {
            mailbox.post(notice);
        }
    }

    /// The offers that were delivered lately.
    pub(crate) fn delivered(&self) -> Vec<(u64, FencingToken)> {
        let delivered = self.forget_old(Clock::machine().now());
        let offers = delivered.iter().map(|(_, number, token)| (*number, *token));
        offers.collect()
    }

    fn forget_old(&self, now: Moment) -> MutexGuard<'_, VecDeque<(Moment, u64, FencingToken)>> {
        let mut delivered = self.delivered.lock();
        while delivered
            .front()
            .is_some_and(|(then, ..)| now.since(*then) > REMEMBERED)
        {
            delivered.pop_front();
        }
        delivered
    }

    /// Waits until the waiter has an offer, or is to make another attempt. If offers are not `relied` on, an offer means another attempt, too.
    pub(crate) async fn wait(&self, id: &ClaimId, relied: impl Fn() -> bool) -> Wake {
        let Some((_, mailbox)) = self.waiters.waiter(id) else {
            return Wake::Retry;
        };
        let delay = |notices: &[Notice]| Notice::delay(notices.iter());
        let notices = mailbox.read_past_delays(delay).await;
        let offer = notices.into_iter().rev().find_map(|notice| match notice {
            Notice::Offered(offer) => Some(offer),
            Notice::LookAfter(_) => None,
        });
        let Some(offer) = offer.filter(|_| relied()) else {
            return Wake::Retry;
        };
        let now = Clock::machine().now();
        let valid_until = self.clock.valid_until(&offer, now);
        let Some(valid_until) = valid_until.filter(|until| *until > now) else {
            return Wake::Retry;
        };
        self.waiters.forget(id);
        let token = offer.token;
        Wake::Granted(Grant { token, valid_until })
    }
}

/// Wakes the thread, which then finds that the listener is gone, and ends.
impl Drop for Listener {
    fn drop(&mut self) {
        self.needed.notify_one();
    }
}

impl Sink {
    /// `None` once no engine uses the listener any more. To be held no longer than for one request, so that the thread can notice that.
    pub(crate) fn listener(&self) -> Option<Arc<Listener>> {
        self.listener.upgrade()
    }

    /// The same, without keeping the listener in use.
    pub(crate) fn weak(&self) -> Weak<Listener> {
        Weak::clone(&self.listener)
    }

    /// The server has answered: the delay after the next failure is the shortest again.
    pub(crate) fn succeeded(&mut self) {
        self.delay = delays();
    }

    /// Returns true once somebody waits; false if no engine uses the listener any more.
    pub(crate) async fn is_needed(&mut self) -> bool {
        loop {
            match self.listener() {
                None => return false,
                Some(listener) if !listener.waiters.is_empty() => return true,
                Some(_) => {}
            }
            self.needed.notified().await;
        }
    }
}

/// Runs the thread. Reports whether it has a runtime: it has none if the process cannot open more files.
fn run(
    mut sink: Sink,
    mut listen: impl Listen,
    started: &std::sync::mpsc::Sender<std::io::Result<()>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(cause) => return drop(started.send(Err(cause))),
    };
    let _ = started.send(Ok(()));
    runtime.block_on(async {
        while sink.is_needed().await {
            let Err(error) = listen.session(&mut sink).await else {
                continue;
            };
            let Some(listener) = sink.listener() else {
                return;
            };
            listener.report.send_replace(Report::Failed(error));
            drop(listener);
            tokio::time::sleep(sink.delay.delay()).await;
        }
    });
}

fn delays() -> Backoff {
    Backoff::new(
        fastrand::u64(..),
        Duration::from_millis(20),
        Duration::from_secs(1),
    )
}

/// The listeners of this process, by what they listen to: engines with the same key share one.
#[derive(Debug)]
pub(crate) struct Registry<K, L>(Mutex<Option<HashMap<K, Weak<L>>>>);

impl<K: Hash + Eq, L> Registry<K, L> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn get_or_start(
        &self,
        key: K,
        start: impl FnOnce() -> Result<Arc<L>>,
    ) -> Result<Arc<L>> {
        let mut all = self.0.lock();
        let all = all.get_or_insert_default();
        if let Some(listener) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(listener);
        }
        let started = start()?;
        all.retain(|_, listener| listener.strong_count() > 0);
        all.insert(key, Arc::downgrade(&started));
        Ok(started)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::claim::ClaimId;

    /// Its sessions fail so often; the next one is alive for a minute.
    struct Fake {
        failures: usize,
        sessions: Arc<AtomicUsize>,
        /// Dropped when the thread ends.
        _running: std::sync::mpsc::Sender<()>,
    }

    impl Listen for Fake {
        async fn session(&mut self, sink: &mut Sink) -> Result<()> {
            let nth = self.sessions.fetch_add(1, Ordering::SeqCst);
            if nth < self.failures {
                return Err(Error::new(ErrorKind::Unreachable, "it is down"));
            }
            let minute = Duration::from_secs(60);
            let listener = sink.listener().unwrap();
            listener.set_alive_until(Clock::machine().now() + minute);
            drop(listener);
            sink.succeeded();
            while sink.is_needed().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        }
    }

    fn start(
        failures: usize,
    ) -> (
        Arc<Listener>,
        Arc<AtomicUsize>,
        std::sync::mpsc::Receiver<()>,
    ) {
        let sessions = Arc::<AtomicUsize>::default();
        let (running, ended) = std::sync::mpsc::channel();
        let fake = Fake {
            failures,
            sessions: Arc::clone(&sessions),
            _running: running,
        };
        (start_with(fake).unwrap(), sessions, ended)
    }

    fn start_with(fake: Fake) -> Result<Arc<Listener>> {
        let late = Error::new(ErrorKind::Unreachable, "it is late");
        let fallback = Fallback::new(false, "it polls");
        Listener::start("me".to_owned(), fallback, late, fake)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn session_begins_with_the_first_waiter() {
        let (listener, sessions, _) = start(0);
        let late = listener.connected(Duration::from_millis(50)).await;
        assert!(late.unwrap_err().to_string().contains("it is late"));
        assert_eq!(sessions.load(Ordering::SeqCst), 0);
        listener.waiters.expect_next(ClaimId::random().unwrap());
        listener.connected(LONG).await.unwrap();
        assert!(listener.is_alive());
    }

    #[tokio::test]
    async fn failed_session_is_reported_and_tried_again() {
        let (listener, sessions, _) = start(2);
        listener.waiters.expect_next(ClaimId::random().unwrap());
        let failed = listener.connected(LONG).await;
        assert!(failed.unwrap_err().to_string().contains("it is down"));
        while listener.connected(LONG).await.is_err() {}
        assert_eq!(sessions.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn thread_ends_with_the_last_user() {
        let (listener, _, ended) = start(0);
        listener.waiters.expect_next(ClaimId::random().unwrap());
        listener.connected(LONG).await.unwrap();
        drop(listener);
        // Nothing is ever sent: it waits for the other end to be dropped.
        let ended = ended.recv_timeout(LONG);
        assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }

    /// Runs again in a process of its own, which may open one file at a time: enough for the dynamic linker.
    #[cfg(unix)]
    #[test]
    fn start_fails_if_no_more_files_can_be_opened() {
        const TEST: &str =
            "engine::wakeup::listener::tests::start_fails_if_no_more_files_can_be_opened";
        const LIMITED: &str = "LEASEHOLD_TEST_FEW_FILES";
        if std::env::var_os(LIMITED).is_some() {
            let fake = Fake {
                failures: 0,
                sessions: Arc::default(),
                _running: std::sync::mpsc::channel().0,
            };
            let error = start_with(fake).expect_err("it cannot listen");
            assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
            return;
        }
        let ran = std::process::Command::new("sh")
            .args(["-c", "ulimit -n 4 && exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg(TEST)
            .env(LIMITED, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
