//! How the waiters of this process learn of offers: one connection for all of them.
//!
//! A message (`NOTIFY`) says which waiter was offered a lock, and the listener asks the server whether that is so. Every 300 ms it also calls `beat`, which reports
//! that this process is alive; the answer has the offers to its waiters, in case a message was lost. Where no messages come at all, because a pooler drops them,
//! it calls `beat` more often instead.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Row, Statement};

use super::client::cell;
use super::config::PostgresConfig;
use super::failure;
use super::shared_session::SharedSession;
use super::tls;
use crate::claim::ClaimId;
use crate::clock::Clock;
use crate::engine::sql::rows::{millis, token};
use crate::engine::wakeup::fallback::Fallback;
use crate::engine::wakeup::listener::{Listen, Listener, Registry, Sink};
use crate::engine::wakeup::offer::{Notice, Offer};
use crate::error::Result;
use crate::name::LockName;

/// For how long this process counts as alive after each beat, and how often to beat.
const ALIVE: Duration = Duration::from_millis(1000);
const BEAT: Duration = Duration::from_millis(300);
/// The same where no messages come: it beats at random intervals of so many milliseconds. It counts as alive for a shorter time, since the server has nothing but
/// the lack of beats to recognize that such a process was killed.
const ALIVE_POLLING: Duration = Duration::from_millis(400);
const POLL: (u64, u64) = (15, 45);
/// The message of an offer is taken for lost after so many microseconds.
const LATE: u64 = 150_000;
/// So many offers are asked about in one call.
const OFFERED: usize = 64;

const POLLS: &str = "no messages come through (a pooler in transaction mode?): waiters are served by asking instead, some tens of \
                     milliseconds later; with ?listen=host:port of the server itself they learn at once";

/// The listener, and its session for calls to use.
#[derive(Debug)]
pub(crate) struct PostgresListener {
    pub(crate) common: Arc<Listener>,
    pub(crate) session: Arc<SharedSession>,
}

impl PostgresListener {
    /// The listener of this process for this server and schema. It is started if there is none. `polls` if it is known that no messages can come.
    pub(crate) fn to(config: &PostgresConfig, polls: bool) -> Result<Arc<Self>> {
        static ALL: Registry<(String, bool), PostgresListener> = Registry::new();
        ALL.get_or_start((config.listens_to(), polls), || {
            let session = Arc::<SharedSession>::default();
            let listen = PostgresListen {
                config: config.clone(),
                shared: Arc::clone(&session),
            };
            let id = format!("leasehold_{}", ClaimId::random()?.reveal());
            let fallback = Fallback::new(polls, POLLS);
            let common = Listener::start(id, fallback, failure::no_connection_in_time(), listen)?;
            Ok(Arc::new(Self { common, session }))
        })
    }
}

/// What the listener's thread runs.
struct PostgresListen {
    config: PostgresConfig,
    shared: Arc<SharedSession>,
}

impl Listen for PostgresListen {
    async fn session(&mut self, sink: &mut Sink) -> Result<()> {
        let ended = self.listen(sink).await;
        self.shared.withdraw();
        ended
    }
}

impl PostgresListen {
    async fn listen(&self, sink: &mut Sink) -> Result<()> {
        let Some(mut session) = Session::connect(&self.config, sink).await? else {
            return Ok(());
        };
        // Before the first beat, after which waiters make their attempts: these use the session then.
        if session.is_listening {
            self.shared.lend(&session.client);
        }
        loop {
            let Some(listener) = sink.listener() else {
                return Ok(());
            };
            session.beat(&listener).await?;
            sink.succeeded();
            let polls = listener.fallback.polls();
            drop(listener);
            if polls {
                self.shared.withdraw();
            }
            session.receive(sink, polls).await?;
            tokio::select! {
                is_needed = sink.is_needed() => if !is_needed {
                    return Ok(());
                },
                _ = session.closed.changed() => return Err(failure::no_connection_in_time()),
            }
        }
    }
}

/// A connection that listens.
struct Session<'a> {
    config: &'a PostgresConfig,
    client: Arc<ClientWrapper>,
    /// Changes when the connection ends.
    closed: watch::Receiver<()>,
    /// The numbers of waiters that were offered a lock, as messages say.
    offered: mpsc::Receiver<u64>,
    is_listening: bool,
    /// Whether it has the advisory lock that ends with the connection, and so shows that this process is gone.
    has_life_lock: bool,
    /// When the first beat was answered, by the server's clock.
    began: Option<u64>,
    offers: OnceCell<Statement>,
}

impl<'a> Session<'a> {
    /// `None` if nobody needs it any more.
    async fn connect(config: &'a PostgresConfig, sink: &Sink) -> Result<Option<Self>> {
        let listening = config.listening();
        let connecting = listening.connect(tls::connector(&config.trust)?);
        let connecting = tokio::time::timeout(config.connect_timeout, connecting);
        let connected = connecting
            .await
            .map_err(|_| failure::no_connection_in_time())?;
        let (client, mut connection) = connected.map_err(failure::of_connection)?;
        let (open, closed) = watch::channel(());
        // Messages that do not fit are dropped: the next beat finds their offers.
        let (offer, offered) = mpsc::channel(OFFERED);
        let listener = sink.weak();
        let reading = tokio::spawn(async move {
            let mut messages = poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(message) = message
                    && let Some(number) = receive(&listener, message.payload())
                {
                    let _ = offer.try_send(number);
                }
            }
            drop(open);
        });
        let mut session = Self {
            config,
            client: Arc::new(ClientWrapper::new(client, reading)),
            closed,
            offered,
            is_listening: false,
            has_life_lock: false,
            began: None,
            offers: OnceCell::new(),
        };
        let Some(listener) = sink.listener() else {
            return Ok(None);
        };
        if !listener.fallback.polls() {
            let listening = session.start_listening(listener.id());
            let listening = tokio::time::timeout(config.timeout, listening).await;
            session.has_life_lock = listening
                .map_err(|_| failure::no_answer_in_time())?
                .map_err(failure::of_call)?;
            session.is_listening = true;
        }
        Ok(Some(session))
    }

    /// Returns whether it has the advisory lock. An earlier session of this process may not have ended yet, and still have it.
    async fn start_listening(&self, id: &str) -> std::result::Result<bool, tokio_postgres::Error> {
        let listen = format!("LISTEN \"{id}\"");
        self.client.batch_execute(&listen).await?;
        let lock = "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1, 0::pg_catalog.int8))";
        let rows = self.client.query_typed(lock, &[(&id, Type::TEXT)]).await?;
        let is_locked = |row: &Row| row.try_get(0).unwrap_or(false);
        Ok(rows.first().is_some_and(is_locked))
    }

    /// Reports to the server that this process is alive, and delivers what the answer says.
    async fn beat(&mut self, listener: &Listener) -> Result<()> {
        let beat = format!(
            "SELECT was_alive, now_us, number, token, offer_ms, at_us FROM \"{}\".beat($1, $2, $3, $4, $5)",
            self.config.schema
        );
        let alive = match listener.fallback.polls() {
            true => ALIVE_POLLING,
            false => ALIVE,
        };
        let names = listener.waiters.names();
        let names: Vec<_> = names.iter().map(LockName::as_str).collect();
        let (id, patience) = (listener.id(), self.config.patience());
        let alive_ms = millis(alive);
        let sent = Clock::machine().now();
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 5] = [
            (&id, Type::TEXT),
            (&self.has_life_lock, Type::BOOL),
            (&alive_ms, Type::INT8),
            (&names, Type::TEXT_ARRAY),
            (&patience, Type::INT8),
        ];
        let asked = self.client.query_typed(&beat, &parameters);
        let rows = tokio::time::timeout(self.config.limit(), asked).await;
        let rows = rows.map_err(|_| failure::no_answer_in_time())?;
        let rows = rows.map_err(failure::of_call)?;
        let first = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
        let now = cell::<i64>(first, 1)?.unsigned_abs();
        let is_first = self.began.is_none();
        let began = *self.began.get_or_insert(now);
        let notices: Vec<_> = rows.iter().filter_map(notice).collect();
        judge(listener, now, began, &notices);
        listener.answered(sent, now, notices);
        // Messages may have been missed while there was no session; and the waiters of a process that counted as dead may have been removed from their queues.
        if is_first || !cell::<bool>(first, 0)? {
            listener.waiters.wake_all();
        }
        // A little less than that, so that a claim that is queued in this time reaches the server while the process counts as alive. Last: a claim that
        // waits for this makes its attempt now, and need not be woken for another.
        listener.set_alive_until(sent + alive * 3 / 4);
        Ok(())
    }

    /// Waits for messages until the next beat is due, and asks the server about those of offers.
    async fn receive(&mut self, sink: &Sink, polls: bool) -> Result<()> {
        let pause = match polls {
            true => Duration::from_millis(fastrand::u64(POLL.0..=POLL.1)),
            false => BEAT,
        };
        let mut pause = pin!(tokio::time::sleep(pause));
        let mut numbers = Vec::new();
        loop {
            tokio::select! {
                () = &mut pause => return Ok(()),
                // 0 if the connection has ended.
                1.. = self.offered.recv_many(&mut numbers, OFFERED) => {
                    let Some(listener) = sink.listener() else {
                        return Ok(());
                    };
                    let asked = self.ask_about(&listener, &numbers);
                    let asked = tokio::time::timeout(self.config.limit(), asked).await;
                    asked.map_err(|_| failure::no_answer_in_time())??;
                    numbers.clear();
                }
                _ = self.closed.changed() => return Err(failure::no_connection_in_time()),
            }
        }
    }

    /// Asks whether these waiters were really offered a lock: a call that only reads.
    async fn ask_about(&self, listener: &Listener, numbers: &[u64]) -> Result<()> {
        let names = listener.waiters.names_of(numbers);
        let names: Vec<_> = names.iter().map(LockName::as_str).collect();
        let prepare = async || {
            let sql = format!(
                "SELECT number, token, offer_ms, at_us FROM \"{}\".offers($1, $2)",
                self.config.schema
            );
            let types = [Type::TEXT, Type::TEXT_ARRAY];
            self.client.prepare_typed(&sql, &types).await
        };
        let offers = self.offers.get_or_try_init(prepare).await;
        let offers = offers.map_err(failure::of_call)?;
        let rows = self.client.query(offers, &[&listener.id(), &names]).await;
        for row in rows.map_err(failure::of_call)? {
            let offer = Offer {
                token: token(cell(&row, 1)?)?,
                lasts: Duration::from_millis(cell::<i64>(&row, 2)?.unsigned_abs()),
                granted_at: cell::<i64>(&row, 3)?.unsigned_abs(),
            };
            listener.fallback.message_came();
            listener.deliver(cell::<i64>(&row, 0)?.unsigned_abs(), Notice::Offered(offer));
        }
        Ok(())
    }
}

/// Reads a message. It proves nothing, since anybody who may connect to the database can send one. A notice to look is delivered; if it says that a waiter was
/// offered a lock, the waiter's number is returned, so that the server is asked.
fn receive(listener: &Weak<Listener>, message: &str) -> Option<u64> {
    let listener = listener.upgrade()?;
    if let Some(number) = message.strip_prefix("offer:") {
        let number = number.parse().ok()?;
        return listener.waiters.mailbox(number).map(|_| number);
    }
    if let (number, look @ Notice::LookAfter(_)) = Notice::read(message)? {
        listener.deliver(number, look);
    }
    None
}

/// The offer or notice in a row of a beat's answer, if there is one.
fn notice(row: &Row) -> Option<(u64, Notice)> {
    let number = cell::<Option<i64>>(row, 2).ok()??.unsigned_abs();
    let time = Duration::from_millis(cell::<i64>(row, 4).ok()?.unsigned_abs());
    let notice = match cell::<Option<i64>>(row, 3).ok()? {
        Some(number) => Notice::Offered(Offer {
            token: token(number).ok()?,
            lasts: time,
            granted_at: cell::<i64>(row, 5).ok()?.unsigned_abs(),
        }),
        None => Notice::LookAfter(time),
    };
    Some((number, notice))
}

/// Whether messages come through, judged by the offers that a beat has found: an offer of this session whose message should have come by now was missed.
fn judge(listener: &Listener, now: u64, began: u64, found: &[(u64, Notice)]) {
    let delivered = listener.delivered();
    let is_excused = listener.fallback.take_excuse();
    for (number, notice) in found {
        if let Notice::Offered(offer) = notice
            && !is_excused
            && listener.waiters.mailbox(*number).is_some()
            && !delivered.contains(&(*number, offer.token))
            && offer.granted_at > began
            && now.saturating_sub(offer.granted_at) > LATE
        {
            listener.fallback.message_missed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::FencingToken;

    const SECOND: u64 = 1_000_000;

    /// A beat at this second finds an offer of a while before, which is another each time.
    fn find(listener: &Listener, number: u64, nth: u64, began: u64) {
        let now = nth * SECOND;
        let offer = Offer {
            token: FencingToken::new(nth).unwrap(),
            lasts: Duration::from_millis(500),
            granted_at: now - 200_000,
        };
        let found = [(number, Notice::Offered(offer))];
        judge(listener, now, began, &found);
        for (number, notice) in found {
            listener.deliver(number, notice);
        }
    }

    #[test]
    fn polls_if_messages_never_come_but_not_after_accidents() {
        let not_connected = failure::no_connection_in_time();
        let listener = Listener::new("x".to_owned(), Fallback::new(false, POLLS), not_connected);
        let number = listener.waiters.expect_next(ClaimId::random().unwrap());
        for nth in 10..20 {
            // Sent while nobody listened.
            find(&listener, number, nth, nth * SECOND);
            assert!(!listener.fallback.polls());
        }
        for nth in 20..25 {
            // The answer that should have named it was lost.
            listener.fallback.excuse();
            find(&listener, number, nth, SECOND);
            assert!(!listener.fallback.polls());
        }
        for nth in 25..30 {
            find(&listener, number, nth, SECOND);
            assert!(!listener.fallback.polls());
            // The next message comes; and what is delivered is not missed when it is found once more.
            listener.fallback.message_came();
            find(&listener, number, nth, SECOND);
            find(&listener, number, nth, SECOND);
        }
        for nth in 30..32 {
            find(&listener, number, nth, SECOND);
        }
        assert!(listener.fallback.polls());
    }
}
