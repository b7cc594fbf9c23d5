//! How a process's waiters hear of hand-overs: one connection for all of them, on a thread of its own, so that it hears
//! whatever the user's tasks are busy with.
//!
//! It says again and again that this process is alive, and is told in the same breath what has been handed over. So a
//! message that was lost costs a moment only, and where no messages come at all, because a pooler swallows them, it asks more
//! often.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::{mpsc, watch};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::failure;
use super::heirs::Lines;
use super::server::cell;
use super::settings::Settings;
use super::tls;
use crate::backoff::Backoff;
use crate::claim::{ClaimId, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::handover::{HandedOver, Heard, ServerClock};
use crate::engine::waiters::Waiters;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// For how long waiters count as alive after each beat, and how often to say so.
const ALIVE: Duration = Duration::from_millis(1000);
const BEAT: Duration = Duration::from_millis(300);
/// The same where no messages come: it asks at random times between these. The server knows of a process that was killed by
/// this alone.
const ALIVE_POLLING: Duration = Duration::from_millis(400);
const POLL: (u64, u64) = (15, 45);
/// A message that comes later than this was not sent to us.
const LATE: u64 = 150_000;
/// So many missed messages are no accident.
const STRIKES: u8 = 2;

#[derive(Debug)]
pub(crate) struct Ears {
    /// The channel that we listen on, and what this process is called in the table of those who wait.
    id: String,
    pub(crate) waiters: Waiters<Heard>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) clock: ServerClock,
    /// Wakes the thread, if it does not know yet that someone waits.
    need: mpsc::Sender<()>,
    report: watch::Sender<Report>,
    /// Messages do not come: it asks instead.
    polls: AtomicBool,
    missed: AtomicU8,
    /// The next beat may find what was missed for another reason.
    is_excused: AtomicBool,
    /// Who has been told by message since the last beat, and before.
    told: Mutex<(HashSet<u64>, HashSet<u64>)>,
}

#[derive(Debug, Clone)]
enum Report {
    AliveUntil(Moment),
    Failed(ErrorKind, String, Option<String>),
}

impl Report {
    fn is_alive(&self) -> bool {
        matches!(self, Report::AliveUntil(until) if *until > Clock::machine().now())
    }
}

/// Those of one process that wait at the same place share one.
type Place = (String, String, bool);

impl Ears {
    pub(crate) fn at(settings: &Settings, pooled: bool) -> Result<Arc<Self>> {
        static ALL: OnceLock<Mutex<HashMap<Place, Weak<Ears>>>> = OnceLock::new();
        let all = ALL.get_or_init(Mutex::default);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let server = format!("{:?} {:?}", settings.listen, settings.server.get_password());
        let place = (server, settings.location.clone(), pooled);
        if let Some(ears) = all.get(&place).and_then(Weak::upgrade) {
            return Ok(ears);
        }
        let (need, needed) = mpsc::channel(1);
        let ears = Arc::new(Self::new(need, pooled)?);
        let listener = Listener {
            ears: Arc::downgrade(&ears),
            settings: settings.clone(),
            needed,
        };
        std::thread::Builder::new()
            .name("leasehold-ears".to_owned())
            .spawn(move || listener.live())
            .map_err(|cause| {
                Error::new(ErrorKind::Unexpected, "no thread can be started").caused_by(cause)
            })?;
        all.retain(|_, ears| ears.strong_count() > 0);
        all.insert(place, Arc::downgrade(&ears));
        Ok(ears)
    }

    fn new(need: mpsc::Sender<()>, pooled: bool) -> Result<Self> {
        Ok(Self {
            id: format!("leasehold_{}", ClaimId::random()?.reveal()),
            waiters: Waiters::default(),
            lines: Arc::default(),
            clock: ServerClock::default(),
            need,
            report: watch::Sender::new(Report::Failed(ErrorKind::Unexpected, String::new(), None)),
            polls: AtomicBool::new(pooled),
            missed: AtomicU8::new(0),
            is_excused: AtomicBool::new(false),
            told: Mutex::default(),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether it asks, since no messages come.
    pub(crate) fn polls(&self) -> bool {
        self.polls.load(Ordering::Relaxed)
    }

    pub(crate) fn warning(&self) -> Option<String> {
        self.polls().then(|| {
            "no messages come through (a pooler in transaction mode?): waiters are served by asking instead, some tens of \
             milliseconds later; with ?listen=host:port of the server itself they hear at once"
                .to_owned()
        })
    }

    /// Whether this process counts as alive just now.
    pub(crate) fn is_alive(&self) -> bool {
        self.report.borrow().is_alive()
    }

    /// Returns once this process counts as alive, so that what it puts into a queue is not passed over.
    pub(crate) async fn listening(&self, patience: Duration) -> Result<()> {
        let mut report = self.report.subscribe();
        // Also if it is alive just now: it may be about to rest.
        let _ = self.need.try_send(());
        if report.borrow_and_update().is_alive() {
            return Ok(());
        }
        let heard = async {
            while report.changed().await.is_ok() {
                match &*report.borrow_and_update() {
                    Report::Failed(kind, what, advice) => {
                        let error = Error::new(*kind, what.clone());
                        return Err(match advice {
                            Some(advice) => error.advise(advice.clone()),
                            None => error,
                        });
                    }
                    alive if alive.is_alive() => return Ok(()),
                    Report::AliveUntil(_) => {}
                }
            }
            Err(failure::no_connection_in_time())
        };
        match tokio::time::timeout(patience, heard).await {
            Ok(heard) => heard,
            Err(_) => Err(failure::no_connection_in_time()),
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, (HashSet<u64>, HashSet<u64>)> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message.
    fn hear(&self, message: &str) {
        let Some((number, what)) = Heard::read(message) else {
            return;
        };
        if matches!(what, Heard::Granted(_)) {
            self.told().0.insert(number);
            self.missed.store(0, Ordering::Relaxed);
        }
        if let Some(bell) = self.waiters.bell(number) {
            bell.ring(what);
        }
    }

    /// One of this process's own has handed the lock over: no message comes.
    pub(crate) fn tell(&self, number: u64, handed_over: HandedOver) {
        self.told().0.insert(number);
        if let Some(bell) = self.waiters.bell(number) {
            bell.ring(Heard::Granted(handed_over));
        }
    }

    /// Until when a lock that was handed over just now may be relied on.
    pub(crate) fn valid_until(&self, handed_over: &HandedOver) -> Option<Moment> {
        let now = Clock::machine().now();
        self.clock.valid_until(handed_over, now, Ttl::validity)
    }

    /// An answer that may tell of a hand-over is waited for.
    pub(crate) fn expect_answer(&self) -> AnswerDue<'_> {
        AnswerDue(self)
    }

    /// What a beat has found; no message may have told it. Those that were sent before this session began went to none.
    fn find(&self, now: u64, began: u64, found: Vec<(u64, Heard)>) {
        let told = {
            let mut told = self.told();
            let before = std::mem::take(&mut told.0);
            std::mem::replace(&mut told.1, before)
                .into_iter()
                .chain(told.1.iter().copied())
                .collect::<HashSet<_>>()
        };
        let is_excused = self.is_excused.swap(false, Ordering::Relaxed);
        for (number, what) in found {
            let Some(bell) = self.waiters.bell(number) else {
                continue;
            };
            if !is_excused
                && let Heard::Granted(offer) = &what
                && !told.contains(&number)
                && offer.granted_at > began
                && now.saturating_sub(offer.granted_at) > LATE
            {
                self.missed_one();
            }
            bell.ring(what);
        }
    }

    fn missed_one(&self) {
        if self.missed.fetch_add(1, Ordering::Relaxed) + 1 == STRIKES
            && !self.polls.swap(true, Ordering::Relaxed)
        {
            #[cfg(feature = "tracing")]
            if let Some(warning) = self.warning() {
                tracing::warn!("{warning}");
            }
        }
    }
}

/// If the answer never comes, a beat will find what it would have told, and that is not the fault of messages.
pub(crate) struct AnswerDue<'a>(&'a Ears);

impl AnswerDue<'_> {
    pub(crate) fn came(self) {
        std::mem::forget(self);
    }
}

impl Drop for AnswerDue<'_> {
    fn drop(&mut self) {
        self.0.is_excused.store(true, Ordering::Relaxed);
    }
}

/// The thread's own side. It ends with the last engine that needs it.
struct Listener {
    ears: Weak<Ears>,
    settings: Settings,
    needed: mpsc::Receiver<()>,
}

/// A connection that listens.
struct Session {
    client: Client,
    /// Ends when the connection does.
    closed: watch::Receiver<()>,
    /// The server can tell by it that this process is gone.
    is_own: bool,
}

impl Session {
    /// Returns whether the session is ours: the one before may not have ended yet.
    async fn listen(&self, id: &str) -> std::result::Result<bool, tokio_postgres::Error> {
        let listen = format!("LISTEN \"{id}\"");
        self.client.batch_execute(&listen).await?;
        let lock = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let rows = self.client.query_typed(lock, &[(&id, Type::TEXT)]).await?;
        Ok(rows
            .first()
            .is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }
}

/// Why a session ended.
enum End {
    NobodyLeft,
    Failed(Error),
}

impl Listener {
    fn live(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let delays = || {
                Backoff::new(
                    fastrand::u64(..),
                    Duration::from_millis(20),
                    Duration::from_secs(1),
                )
            };
            let mut delay = delays();
            while self.is_needed().await {
                match self.session(&mut || delay = delays()).await {
                    End::NobodyLeft => return,
                    End::Failed(error) => {
                        let Some(ears) = self.ears.upgrade() else {
                            return;
                        };
                        let advice = error.advice().map(str::to_owned);
                        let failed = Report::Failed(error.kind(), error.what().to_owned(), advice);
                        ears.report.send_replace(failed);
                        drop(ears);
                        tokio::time::sleep(delay.delay()).await;
                    }
                }
            }
        });
    }

    /// Returns when someone waits; false if nobody ever will.
    async fn is_needed(&mut self) -> bool {
        loop {
            match self.ears.upgrade() {
                None => return false,
                Some(ears) if !ears.waiters.is_empty() => return true,
                Some(_) => {}
            }
            if self.needed.recv().await.is_none() {
                return false;
            }
        }
    }

    async fn session(&mut self, went_well: &mut impl FnMut()) -> End {
        let Session {
            client,
            mut closed,
            is_own,
        } = match self.connect().await {
            Ok(connected) => connected,
            Err(error) => return End::Failed(error),
        };
        let beat = format!(
            "SELECT was_alive, now_us, number, token, offer_ms, at_us FROM \"{}\".beat($1, $2, $3, $4, $5)",
            self.settings.schema
        );
        let mut began = None;
        loop {
            let is_first = began.is_none();
            let limit = self.settings.limit();
            let polls = {
                let Some(ears) = self.ears.upgrade() else {
                    return End::NobodyLeft;
                };
                let beating = self.beat(&ears, &client, is_own, &beat, &mut began);
                match tokio::time::timeout(limit, beating).await {
                    Ok(Ok(())) => went_well(),
                    Ok(Err(error)) => return End::Failed(error),
                    Err(_) => return End::Failed(failure::no_answer_in_time()),
                }
                // Messages may have been missed while there was no session.
                if is_first {
                    ears.waiters.ring_all();
                }
                ears.polls()
            };
            let pause = match polls {
                true => Duration::from_millis(fastrand::u64(POLL.0..=POLL.1)),
                false => BEAT,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = closed.changed() => return End::Failed(failure::no_connection_in_time()),
            }
            tokio::select! {
                needed = self.is_needed() => if !needed {
                    return End::NobodyLeft;
                },
                _ = closed.changed() => return End::Failed(failure::no_connection_in_time()),
            }
        }
    }

    async fn connect(&self) -> Result<Session> {
        let connector = tls::connector(&self.settings.trust)?;
        let connecting = self.settings.listen.connect(connector);
        let connecting = tokio::time::timeout(self.settings.connect_timeout, connecting);
        let connected = connecting
            .await
            .map_err(|_| failure::no_connection_in_time())?;
        let (client, mut connection) = connected.map_err(failure::of_connection)?;
        let (open, closed) = watch::channel(());
        let ears = Weak::clone(&self.ears);
        tokio::spawn(async move {
            let mut messages = poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = messages.next().await {
                if let (AsyncMessage::Notification(note), Some(ears)) = (message, ears.upgrade()) {
                    ears.hear(note.payload());
                }
            }
            drop(open);
        });
        let mut session = Session {
            client,
            closed,
            is_own: false,
        };
        let Some(ears) = self.ears.upgrade() else {
            return Ok(session);
        };
        if !ears.polls() {
            let listening = session.listen(&ears.id);
            let listening = tokio::time::timeout(self.settings.timeout, listening).await;
            session.is_own = listening
                .map_err(|_| failure::no_answer_in_time())?
                .map_err(failure::of_call)?;
        }
        Ok(session)
    }

    /// Notes by the server's clock when the session `began`.
    async fn beat(
        &self,
        ears: &Ears,
        client: &Client,
        is_own: bool,
        beat: &str,
        began: &mut Option<u64>,
    ) -> Result<()> {
        let alive = match ears.polls() {
            true => ALIVE_POLLING,
            false => ALIVE,
        };
        let alive_ms = i64::try_from(alive.as_millis()).unwrap_or(i64::MAX);
        let names = ears.waiters.names();
        let names: Vec<_> = names.iter().map(LockName::as_str).collect();
        let patience = self.settings.patience();
        let sent = Clock::machine().now();
        let rows = client
            .query_typed(
                beat,
                &[
                    (&ears.id, Type::TEXT),
                    (&is_own, Type::BOOL),
                    (&alive_ms, Type::INT8),
                    (&names, Type::TEXT_ARRAY),
                    (&patience, Type::INT8),
                ],
            )
            .await;
        let rows = rows.map_err(failure::of_call)?;
        let first = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
        let now = cell::<i64>(first, 1)?.unsigned_abs();
        ears.clock.synchronize(sent, now);
        // A little less, so that what is put into a queue on the strength of it is in time.
        ears.report
            .send_replace(Report::AliveUntil(sent + alive * 3 / 4));
        let found = rows.iter().filter_map(|row| {
            let number = cell::<Option<i64>>(row, 2).ok()??.unsigned_abs();
            let time = Duration::from_millis(cell::<i64>(row, 4).ok()?.unsigned_abs());
            let what = match cell::<Option<i64>>(row, 3).ok()? {
                Some(token) => Heard::Granted(HandedOver {
                    token: FencingToken::new(token.unsigned_abs())?,
                    offer: time,
                    granted_at: cell::<i64>(row, 5).ok()?.unsigned_abs(),
                    heirs: None,
                }),
                None => Heard::LookAfter(time),
            };
            Some((number, what))
        });
        ears.find(now, *began.get_or_insert(now), found.collect());
        // Whoever counted as dead may have been passed over.
        if !cell::<bool>(first, 0)? {
            ears.waiters.ring_all();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer_at(granted_at: u64) -> Heard {
        Heard::Granted(HandedOver {
            token: FencingToken::new(1).unwrap(),
            offer: Duration::from_millis(500),
            granted_at,
            heirs: None,
        })
    }

    #[test]
    fn messages_that_never_come_are_asked_for_and_those_lost_by_accident_are_not() {
        let (need, _needed) = mpsc::channel(1);
        let ears = Ears::new(need, false).unwrap();
        let number = ears.waiters.expect_next(ClaimId::random().unwrap());
        let second = 1_000_000;
        for nth in 10..20 {
            // Sent while nobody listened.
            let (now, sent) = (nth * second, nth * second - 200_000);
            ears.find(now, now, vec![(number, offer_at(sent))]);
            assert!(!ears.polls());
        }
        for nth in 20..25 {
            // It should have been in an answer that never came.
            drop(ears.expect_answer());
            let (now, sent) = (nth * second, nth * second - 200_000);
            ears.find(now, second, vec![(number, offer_at(sent))]);
            assert!(!ears.polls());
        }
        for nth in 25..30 {
            let (now, sent) = (nth * second, nth * second - 200_000);
            ears.find(now, second, vec![(number, offer_at(sent))]);
            ears.hear(&format!("granted:{number}:1:500:{now}"));
            assert!(!ears.polls());
            // Until what was heard is forgotten.
            ears.find(now, second, Vec::new());
            ears.find(now, second, Vec::new());
        }
        for nth in 30..32 {
            let (now, sent) = (nth * second, nth * second - 200_000);
            ears.find(now, second, vec![(number, offer_at(sent))]);
        }
        assert!(ears.polls());
    }
}
