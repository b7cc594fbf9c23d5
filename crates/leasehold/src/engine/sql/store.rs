//! What the engine needs of a database.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::records::Write;
use super::rows::{Cells, RenewalRow};
use crate::claim::{Claim, Ttl};
use crate::clock::Moment;
use crate::engine::doctor::Finding;
use crate::engine::wakeup::listener::Listener;
use crate::engine::wakeup::offer::Notice;
use crate::engine::{LockInfo, Query, SqlSupport};
use crate::error::{Error, Result};
use crate::guard::Key;
use crate::name::LockName;
use crate::token::FencingToken;

/// Which connections a call may use. Some are kept for upkeep, so that releases and renewals never wait behind a thousand attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Attempts, and inspection.
    Attempts,
    /// Renewals and releases.
    Upkeep,
}

/// What came back from a call.
#[derive(Debug)]
pub(crate) struct Answer<R> {
    pub(crate) rows: Vec<R>,
    /// When the request that was answered left.
    pub(crate) sent: Moment,
    /// The error of an earlier try, whose answer was lost with the connection, and which may have been carried out.
    pub(crate) maybe_applied: Option<Error>,
}

impl<R> Answer<R> {
    pub(crate) fn first(&self) -> Result<&R> {
        let first = self.rows.first();
        first.ok_or_else(|| super::failure::nonsense("no row"))
    }

    pub(crate) fn only(mut self) -> Result<R> {
        let last = self.rows.pop();
        last.ok_or_else(|| super::failure::nonsense("no row"))
    }
}

/// The answer to a call that decides about one lock.
#[derive(Debug)]
pub(crate) struct Decided<T> {
    pub(crate) what: T,
    pub(crate) sent: Moment,
    /// The server's time in microseconds since 1970, if the answer has it.
    pub(crate) now: Option<u64>,
    /// Notices to waiters of this process, with their numbers.
    pub(crate) notices: Vec<(u64, Notice)>,
    /// As in [`Answer`].
    pub(crate) maybe_applied: Option<Error>,
}

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(FencingToken),
    Held {
        /// Until the first holder expires.
        left: Duration,
        is_next: bool,
        ahead: Option<usize>,
    },
}

/// A claim that was renewed.
#[derive(Debug)]
pub(crate) struct Renewed {
    /// Its place among the rows of the call.
    pub(crate) nth: usize,
    pub(crate) token: Result<FencingToken>,
}

/// Locks as rows of one database. Each call is one transaction on the server.
#[async_trait]
pub(crate) trait RowStore: SqlSupport + Debug + 'static {
    type Row: Cells + Send + Sync;

    /// The scheme of its URLs.
    const SCHEME: &'static str;

    /// How long after connecting it sweeps for the first time.
    const FIRST_SWEEP: Duration;

    /// A URL without passwords.
    fn location(&self) -> &str;

    /// What was found when it was connected.
    fn found(&self) -> &[Finding];

    /// As [`Engine::findings`](crate::engine::Engine::findings).
    async fn findings(&self, ttl: Ttl) -> Vec<Finding>;

    fn listener(&self) -> &Arc<Listener>;

    /// How long a claim that queues waits for the listener to be connected.
    fn listener_timeout(&self) -> Duration;

    /// Whether a waiter may rely on an offer without another attempt.
    fn relies_on_offers(&self) -> bool {
        true
    }

    /// Makes one attempt. If there is a number, and the claim is refused, it is queued with that number. A claim that does not queue and is refused
    /// loses the queue entry that it has through this process. Any other entry stays.
    async fn acquire(&self, claim: &Claim, number: Option<u64>) -> Result<Decided<Outcome>>;

    /// Gives up the claim; returns whether it was held.
    async fn release(&self, claim: &Claim) -> Result<Decided<bool>>;

    /// Takes the lock away from all holders; returns whether it was held.
    async fn force_release(&self, name: &LockName) -> Result<Decided<bool>>;

    /// Renews the claims that are held; returns those, and when the request left.
    async fn renew(&self, claims: &[RenewalRow<'_>]) -> Result<(Moment, Vec<Renewed>)>;

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>>;

    /// Removes rows that are of no more use. False if no connection was idle.
    async fn sweep(&self) -> bool;

    /// A claim is about to queue: connections that are not needed meanwhile can be closed.
    fn prepare_to_wait(&self) {}

    /// A claim has waited for a while: connections that were not used since can be closed.
    fn close_unused(&self) {}

    /// Removes the listener's row if nobody waits.
    async fn close(&self) {}

    /// A row of version, token, lock, whether the record was deleted, whether its lifetime is over, the server's time and, if asked for, the
    /// value. All but the time are null if there is no row.
    async fn read_record(&self, key: &Key, with_value: bool) -> Result<Self::Row>;

    /// Writes a record if it still has the expected version; returns whether it was written.
    async fn write_record(&self, write: &Write<'_>) -> Result<bool>;

    /// How many calls it has sent.
    fn requests(&self) -> u64;
}
