//! How a process's waiters hear of hand-overs: one connection for all of them, on a thread of its own.
//!
//! MySQL has no messages. The listener sleeps on the server, inside a call, and whoever hands over a lock ends its sleep with
//! `KILL QUERY`, after its own commit; the call then looks and answers. No wake-up is lost: a call looks before it sleeps. Which
//! connection sleeps is told by a lock of the server's own (`GET_LOCK`) that the listener has meanwhile: it cannot be out of date, as a number in
//! a table could after a restart. Who may not end another user's sleep, or cannot see it (a proxy, another node of a cluster), lets it
//! sleep; the listener notices that it was told too late, and from then on takes short naps instead.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error as Cause, Row};

use super::failure;
use super::server;
use super::settings::Settings;
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::handover::{Heard, ServerClock};
use crate::engine::rows::millis;
use crate::engine::vigil::{self, Listens, Places, Vigil, Watch};
use crate::engine::waiters::Waiters;
use crate::error::{Error, Result};
use crate::token::FencingToken;

/// For how long waiters count as alive after each beat.
const ALIVE: Duration = Duration::from_millis(600);
/// How long a call sleeps at most.
const HEAR: Duration = Duration::from_millis(150);
/// How long a nap is.
const NAP: Duration = Duration::from_millis(10);
/// A hand-over that is found later than this, at the end of a whole sleep, did not wake us.
const LATE: u64 = 15_000;
/// So many missed wake-ups in a row are no accident.
const STRIKES: u8 = 2;
/// For how long to remember what has been heard: longer than any hand-over lasts.
const REMEMBER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Ears {
    /// What this process is called in the table of those who wait.
    id: String,
    pub(crate) waiters: Waiters<Heard>,
    pub(crate) clock: ServerClock,
    vigil: Vigil,
    /// Nobody wakes us: it naps instead.
    naps: AtomicBool,
    missed: AtomicU8,
    heard: Mutex<VecDeque<(Moment, FencingToken)>>,
}

impl Listens for Ears {
    fn vigil(&self) -> &Vigil {
        &self.vigil
    }

    fn anyone_waits(&self) -> bool {
        !self.waiters.is_empty()
    }
}

impl Ears {
    pub(crate) fn at(settings: &Settings) -> Result<Arc<Self>> {
        static ALL: Places<String, Ears> = Places::new();
        ALL.at(settings.place(), || {
            let (vigil, needed) = Vigil::new();
            let ears = Arc::new(Self {
                id: ClaimId::random()?.reveal(),
                waiters: Waiters::default(),
                clock: ServerClock::default(),
                vigil,
                naps: AtomicBool::new(false),
                missed: AtomicU8::new(0),
                heard: Mutex::default(),
            });
            let settings = settings.clone();
            vigil::keep(&ears, needed, async move |watch: &mut Watch<Self>| {
                session(&settings, watch).await
            })?;
            Ok(ears)
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.vigil.is_alive()
    }

    pub(crate) async fn listening(&self, patience: Duration) -> Result<()> {
        let listening = self
            .vigil
            .listening(patience, failure::no_connection_in_time);
        listening.await
    }

    pub(crate) fn warning(&self) -> Option<String> {
        let naps = self.naps.load(Ordering::Relaxed);
        naps.then(|| {
            "hand-overs do not wake this process's waiters (another user, a proxy, or another node of a cluster?): it looks for them \
             every 10 ms instead; let all who share locks connect to the same server as the same user"
                .to_owned()
        })
    }

    /// What the answer to a call says to waiters of this process: messages apart by `;`.
    pub(crate) fn told(&self, sent: Moment, now: u64, messages: &str) {
        self.clock.synchronize(sent, now);
        for message in messages.split(';').filter(|message| !message.is_empty()) {
            self.tell(message);
        }
    }

    fn tell(&self, message: &str) -> Option<u64> {
        let (number, what) = Heard::read(message)?;
        let granted_at = match &what {
            Heard::Granted(handed_over) => {
                self.remember(handed_over.token);
                Some(handed_over.granted_at)
            }
            Heard::LookAfter(_) => None,
        };
        if let Some(bell) = self.waiters.bell(number) {
            bell.ring(what);
        }
        granted_at
    }

    fn remember(&self, token: FencingToken) {
        let now = Clock::machine().now();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push_back((now, token));
    }

    /// Those that need not be told again.
    fn known(&self) -> String {
        let now = Clock::machine().now();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        while heard
            .front()
            .is_some_and(|(then, _)| now.since(*then) > REMEMBER)
        {
            heard.pop_front();
        }
        let tokens: Vec<_> = heard.iter().map(|(_, token)| token.to_string()).collect();
        tokens.join(",")
    }

    fn was_woken(&self, woken: bool) {
        if woken {
            self.missed.store(0, Ordering::Relaxed);
        } else if self.missed.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES
            && !self.naps.swap(true, Ordering::Relaxed)
        {
            #[cfg(feature = "tracing")]
            if let Some(warning) = self.warning() {
                tracing::warn!("{warning}");
            }
        }
    }
}

async fn session(settings: &Settings, watch: &mut Watch<Ears>) -> Result<()> {
    let mut connection = server::connect(settings).await?;
    let wakes = can_be_woken(&mut connection).await?;
    // It does nothing but to end with this process, at once, which the sleeper does not.
    let life = match (wakes, watch.ears()) {
        (true, Some(ears)) => Some(life_of(settings, ears.id()).await?),
        _ => None,
    };
    let mut dead = 0;
    while watch.is_needed().await {
        let Some(ears) = watch.ears() else {
            return Ok(());
        };
        if !wakes {
            ears.naps.store(true, Ordering::Relaxed);
        }
        let listened = listen(&ears, &mut connection, &settings.table, life.is_some());
        match tokio::time::timeout(settings.timeout + HEAR, listened).await {
            Ok(Ok(true)) => dead = 0,
            // The first time, nobody knows us yet. Later, our life has ended there.
            Ok(Ok(false)) if dead > 1 => return Err(failure::no_connection_in_time()),
            Ok(Ok(false)) => dead += 1,
            Ok(Err(Failed::Cut)) => {
                let spoilt = connection.id();
                connection = server::connect(settings).await?;
                // The client would wait for the rest of the answer for ever.
                let _ = connection.query_drop(format!("KILL {spoilt}")).await;
            }
            Ok(Err(Failed::With(error))) => return Err(error),
            Err(_) => return Err(failure::no_answer_in_time()),
        }
        watch.went_well();
    }
    Ok(())
}

/// Whether others can tell which connection is ours. With a proxy in between it may be lent to others, whose work must not be
/// ended; and some clusters have no locks of their own.
async fn can_be_woken(connection: &mut Conn) -> Result<bool> {
    let known_as = u64::from(connection.id());
    let asked = connection.query_first::<u64, _>("SELECT CONNECTION_ID()");
    let really = asked.await.map_err(failure::of_call)?;
    if really.map(|really| really & u64::from(u32::MAX)) != Some(known_as) {
        return Ok(false);
    }
    match connection.query_drop("DO RELEASE_ALL_LOCKS()").await {
        Ok(()) => Ok(true),
        Err(Cause::Server(_)) => Ok(false),
        Err(cause) => Err(failure::of_call(cause)),
    }
}

/// A connection whose lock shows that this process is alive.
async fn life_of(settings: &Settings, id: &str) -> Result<Conn> {
    let mut life = server::connect(settings).await?;
    let take = format!("DO GET_LOCK('leasehold-life:{id}', 1)");
    life.query_drop(take).await.map_err(failure::of_call)?;
    Ok(life)
}

/// Why there is no answer.
enum Failed {
    /// It was cut off in the middle.
    Cut,
    With(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::With(error)
    }
}

async fn listen(
    ears: &Ears,
    connection: &mut Conn,
    table: &str,
    lives: bool,
) -> std::result::Result<bool, Failed> {
    let step = match ears.naps.load(Ordering::Relaxed) {
        true => NAP,
        false => HEAR,
    };
    // Nothing but digits.
    let call = format!(
        "CALL {table}_listen('{}', {}, {}, {}, {}, {}, '{}')",
        ears.id(),
        millis(ALIVE),
        u8::from(lives),
        millis(HEAR),
        millis(step),
        u8::from(step == HEAR),
        ears.known()
    );
    let sent = Clock::machine().now();
    let answer = match connection.query_iter(call).await {
        Ok(answer) => answer,
        // Its sleep was ended, and the call with it; or it was rolled back. The next one looks.
        Err(Cause::Server(said)) if matches!(said.code, 1317 | 1205 | 1213) => return Ok(true),
        Err(cause) => return Err(failure::of_call(cause).into()),
    };
    let rows: Vec<Row> = match answer.collect_and_drop().await {
        Ok(rows) => rows,
        Err(Cause::Server(said)) if said.code == 1317 => return Err(Failed::Cut),
        Err(cause) => return Err(failure::of_call(cause).into()),
    };
    let nonsense = || failure::nonsense("no row");
    let first = rows.first().ok_or_else(nonsense)?;
    let (was_alive, now, left) = (
        first.get::<bool, _>(0).ok_or_else(nonsense)?,
        first.get::<u64, _>(1).ok_or_else(nonsense)?,
        first.get::<i64, _>(2).ok_or_else(nonsense)?,
    );
    let whole = Clock::machine().now().since(sent) >= HEAR;
    ears.clock.synchronize(sent, now);
    // A little less, so that what is put into a queue on the strength of it is in time.
    let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    ears.vigil
        .alive_until(sent + left.saturating_sub(ALIVE / 10));
    for row in &rows {
        let Some(message) = row.get::<Option<String>, _>(3).flatten() else {
            continue;
        };
        if let Some(granted_at) = ears.tell(&message)
            && step == HEAR
        {
            ears.was_woken(!whole || now.saturating_sub(granted_at) < LATE);
        }
    }
    // Whoever counted as dead may have been passed over.
    if !was_alive {
        ears.waiters.ring_all();
    }
    Ok(was_alive)
}
