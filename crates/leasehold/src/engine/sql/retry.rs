//! When a call is repeated.

use std::time::Duration;

use super::store::Answer;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};

/// The tries of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    /// For how long a call that is rolled back is repeated.
    timeout: Duration,
    /// When that is over. It counts from the first try, and not while the call waits for a connection.
    deadline: Option<Moment>,
    /// How often the call may still be repeated after its connection was lost with the answer.
    repeats: u32,
    /// The error of such a try, which may have been carried out.
    pub(crate) maybe_applied: Option<Error>,
}

impl Tries {
    /// For a call that may be carried out twice, or not.
    pub(crate) fn new(timeout: Duration, may_repeat: bool) -> Self {
        Self {
            timeout,
            deadline: None,
            repeats: if may_repeat { 2 } else { 0 },
            maybe_applied: None,
        }
    }

    /// A try is sent now.
    pub(crate) fn begin(&mut self) -> Moment {
        let now = Clock::machine().now();
        self.deadline.get_or_insert(now + self.timeout);
        now
    }

    /// The answer to the try that left at `sent`.
    pub(crate) fn answered<R>(self, rows: Vec<R>, sent: Moment) -> Answer<R> {
        Answer {
            rows,
            sent,
            maybe_applied: self.maybe_applied,
        }
    }

    /// The error with which the call fails: that of an earlier try which may have been carried out, if there is one, and this one's otherwise.
    pub(crate) fn refused(&mut self, error: Error) -> Error {
        self.maybe_applied.take().unwrap_or(error)
    }

    /// There is no connection for the next try. Waits if an earlier one was lost, since the server may not accept another yet.
    pub(crate) async fn not_connected(&mut self, error: Error) -> Result<()> {
        match error.is_busy() && self.maybe_applied.is_some() {
            true => self.pause(20..=100, error).await,
            false => Err(self.refused(error)),
        }
    }

    /// The try was rolled back because of others, as in a deadlock.
    pub(crate) async fn rolled_back(&mut self, error: Error) -> Result<()> {
        self.pause(0..=20, error).await
    }

    /// The connection was lost, and with it the answer.
    pub(crate) fn lost(&mut self, error: Error) -> Result<()> {
        if self.repeats == 0 {
            return Err(self.refused(error));
        }
        self.repeats -= 1;
        self.maybe_applied = Some(error);
        Ok(())
    }

    /// Waits for so many milliseconds; fails if the deadline has passed.
    async fn pause(&mut self, millis: std::ops::RangeInclusive<u64>, error: Error) -> Result<()> {
        if self
            .deadline
            .is_none_or(|end| Clock::machine().now() >= end)
        {
            return Err(self.refused(error));
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(millis))).await;
        Ok(())
    }
}
