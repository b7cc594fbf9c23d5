//! How the waiters of this process learn of offers: one connection for all of them.
//!
//! MySQL has no messages. The listener's connection sleeps on the server, inside a call of `leasehold_listen`. A call that offers a lock to one of its
//! waiters ends the sleep with `KILL QUERY`, after its own commit; `leasehold_listen` then looks for offers, and answers. It also looks before it sleeps, so no
//! wake-up is lost.
//!
//! Which connection to wake is shown by a user-level lock (`GET_LOCK`), which the connection has while it sleeps. A connection number in a table could be
//! out of date after a restart of the server; a user-level lock cannot. Another such lock, which the connection always has, shows that its process is alive.
//!
//! A user may end only the sleep of its own connections, and behind a proxy the connection may not be ours. Then nobody wakes the listener. It notices that
//! offers were found too late, and from then on sleeps for 10 ms at a time.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error as Cause, Row};

use super::client;
use super::config::MysqlConfig;
use super::failure;
use crate::claim::ClaimId;
use crate::clock::Clock;
use crate::engine::sql::rows::millis;
use crate::engine::wakeup::fallback::Fallback;
use crate::engine::wakeup::listener::{Listen, Listener, Registry, Sink};
use crate::engine::wakeup::offer::Notice;
use crate::error::{Error, Result};

/// For how long this process counts as alive after each call, while its connection has the user-level lock that ends with it. Longer than a call
/// waits for a row that somebody else has locked (`innodb_lock_wait_timeout` in `SESSION`), with its sleep.
const ALIVE: Duration = Duration::from_millis(2000);
/// The same where there is no such lock, and so a killed process counts as alive for as long.
const ALIVE_UNSEEN: Duration = Duration::from_millis(600);
/// How long a call sleeps at most.
const SLEEP: Duration = Duration::from_millis(150);
/// How long it sleeps at a time if it cannot be woken.
const POLL: Duration = Duration::from_millis(10);
/// An offer that is older than so many microseconds when it is found at the end of a whole sleep did not wake the listener.
const LATE: u64 = 15_000;
/// For how long the connection is kept when nobody waits any more.
const LINGER: Duration = Duration::from_secs(1);

const POLLS: &str = "hand-overs do not wake this process's waiters (another user, or a proxy?): it looks for them \
                     every 10 ms instead; let all who share locks connect to the same server as the same user";

/// The listener of this process for this server and these tables. It is started if there is none.
pub(crate) fn start(config: &MysqlConfig) -> Result<Arc<Listener>> {
    static ALL: Registry<String, Listener> = Registry::new();
    ALL.get_or_start(config.listens_to(), || {
        let listen = MysqlListen {
            config: config.clone(),
        };
        let (id, fallback) = (ClaimId::random()?.reveal(), Fallback::new(false, POLLS));
        Listener::start(id, fallback, failure::no_connection_in_time(), listen)
    })
}

/// What the listener's thread runs.
struct MysqlListen {
    config: MysqlConfig,
}

/// What is known from one call to the next.
#[derive(Default)]
struct Known {
    /// Until when this process counts as alive, by the server's clock; 0 if nothing is known.
    alive_until: u64,
    /// The ids of the notices that were received, which the next call removes.
    noticed: Vec<String>,
}

impl Listen for MysqlListen {
    async fn session(&mut self, sink: &mut Sink) -> Result<()> {
        let config = &self.config;
        let mut connection = client::connect(config).await?;
        let can_be_woken = can_be_woken(&mut connection).await?;
        // The answers over an earlier connection may have been lost: the first call says that nothing is known, and so all waiters look again.
        let mut known = Known::default();
        let mut id = None;
        while let Ok(true) = tokio::time::timeout(LINGER, sink.is_needed()).await {
            let Some(listener) = sink.listener() else {
                break;
            };
            id.get_or_insert_with(|| listener.id().to_owned());
            if !can_be_woken {
                listener.fallback.poll();
            }
            let listened = listen(
                &listener,
                &mut connection,
                &config.table,
                can_be_woken,
                &mut known,
            );
            match tokio::time::timeout(config.timeout + SLEEP, listened).await {
                Ok(Ok(())) => {}
                Ok(Err(Failed::Cut)) => {
                    connection = in_place_of(&connection, config, listener.id()).await?;
                }
                Ok(Err(Failed::With(error))) => return Err(error),
                Err(_) => return Err(failure::no_answer_in_time()),
            }
            sink.succeeded();
        }
        if let Some(id) = id {
            // If it fails, the rows are swept later.
            let _ = leave(&mut connection, &config.table, &id).await;
        }
        let _ = connection.disconnect().await;
        Ok(())
    }
}

/// A new connection in the place of one on which an answer was cut off. The client would wait for the rest of that answer for ever.
async fn in_place_of(spoilt: &Conn, settings: &MysqlConfig, id: &str) -> Result<Conn> {
    let mut connection = client::connect(settings).await?;
    // The user-level lock that shows that this process is alive ends with the old connection. Until the new one has it, alive_until alone counts.
    let counts = format!(
        "UPDATE {}_listeners SET sure_until = alive_until WHERE id = '{id}'",
        settings.table
    );
    connection
        .query_drop(counts)
        .await
        .map_err(failure::of_call)?;
    let _ = connection.query_drop(format!("KILL {}", spoilt.id())).await;
    Ok(connection)
}

/// Removes the rows of this listener, once nobody waits any more.
async fn leave(connection: &mut Conn, table: &str, id: &str) -> std::result::Result<(), Cause> {
    let notices = format!("DELETE FROM {table}_notices WHERE listener = '{id}'");
    connection.query_drop(notices).await?;
    let listener = format!("DELETE FROM {table}_listeners WHERE id = '{id}'");
    connection.query_drop(listener).await
}

/// Whether others can wake this connection. Not with a proxy in between, which may lend the server's connection to other clients, whose queries must not
/// be killed; nor on servers without user-level locks.
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
    listener: &Listener,
    connection: &mut Conn,
    table: &str,
    can_be_woken: bool,
    known: &mut Known,
) -> std::result::Result<(), Failed> {
    let step = match listener.fallback.polls() {
        true => POLL,
        false => SLEEP,
    };
    let alive = match can_be_woken {
        true => ALIVE,
        false => ALIVE_UNSEEN,
    };
    // Offers that need not be sent again.
    let delivered = listener.delivered().into_iter();
    let delivered = delivered.map(|(number, token)| format!("{number}-{token}"));
    let delivered = delivered.collect::<Vec<_>>().join(",");
    // Nothing in it needs to be escaped: digits, letters of ids, and commas.
    let call = format!(
        "CALL {table}_listen('{}', {}, {}, {}, {}, {}, {}, '{}', '{}')",
        listener.id(),
        millis(alive),
        known.alive_until,
        u8::from(can_be_woken),
        millis(SLEEP),
        millis(step),
        u8::from(step == SLEEP),
        delivered,
        known.noticed.join(",")
    );
    let sent = Clock::machine().now();
    let answer = match connection.query_iter(call).await {
        Ok(answer) => answer,
        // KILL QUERY has ended the call with its sleep, or the call was rolled back. The next one looks for offers.
        Err(Cause::Server(said)) if matches!(said.code, 1317 | 1205 | 1213) => return Ok(()),
        Err(cause) => return Err(failure::of_call(cause).into()),
    };
    let rows: Vec<Row> = match answer.collect_and_drop().await {
        Ok(rows) => rows,
        Err(Cause::Server(said)) if said.code == 1317 => return Err(Failed::Cut),
        Err(cause) => return Err(failure::of_call(cause).into()),
    };
    let nonsense = || failure::nonsense("no row");
    let first = rows.first().ok_or_else(nonsense)?;
    let (was_alive, now, alive_until) = (
        first.get::<bool, _>(0).ok_or_else(nonsense)?,
        first.get::<u64, _>(1).ok_or_else(nonsense)?,
        first.get::<u64, _>(2).ok_or_else(nonsense)?,
    );
    let was_whole_sleep = Clock::machine().now().since(sent) >= SLEEP;
    *known = Known {
        alive_until,
        noticed: Vec::new(),
    };
    let text = |row: &Row, column: usize| row.get::<Option<String>, _>(column).flatten();
    let mut notices = Vec::new();
    for row in &rows {
        known.noticed.extend(text(row, 4));
        notices.extend(text(row, 3).and_then(|message| Notice::read(&message)));
    }
    for (_, notice) in &notices {
        match notice {
            Notice::Offered(offer) if step == SLEEP => {
                match was_whole_sleep && now.saturating_sub(offer.granted_at) >= LATE {
                    true => listener.fallback.message_missed(),
                    false => listener.fallback.message_came(),
                }
            }
            _ => {}
        }
    }
    listener.answered(sent, now, notices);
    // The waiters of a process that counted as dead may have been removed from their queues.
    if !was_alive {
        listener.waiters.wake_all();
    }
    // A little less than that, so that a claim that is queued in this time reaches the server while the process counts as alive. Last: a claim that waits for
    // this makes its attempt now, and need not be woken for another.
    let left = Duration::from_micros(alive_until.saturating_sub(now));
    listener.set_alive_until(sent + left.saturating_sub(alive / 10));
    Ok(())
}
