//! Once per period: a job that is started on many hosts at about the same time runs on one of them.

use std::ops::Deref;
use std::time::Duration;

use super::gate::{Gate, Ran};
use crate::claim::Ttl;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Lease, LeaseView};
use crate::locks::{LockRequest, Locks};

impl LockRequest {
    /// Asks to be the one that does the work in this period: 10 ms to 24 h, counted from the start of the last run.
    ///
    /// Where the engine has a clock that ends locks, the period is counted on it, whatever the hosts' clocks say. Use a little
    /// less than the time between two starts, such as 50 minutes for an hourly job: what asks too early is too early.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    /// use leasehold::{Locks, recipe::Turn};
    ///
    /// let locks = Locks::connect("memory:").await?;
    /// let hourly = || locks.lock("report").once_per(Duration::from_secs(50 * 60));
    /// match hourly().begin().await? {
    ///     Turn::Ours(run) => run.succeeded().await?,
    ///     Turn::Taken(ran) => println!("{} has run it", ran.by.owner),
    /// }
    /// assert!(matches!(hourly().begin().await?, Turn::Taken(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn once_per(self, period: Duration) -> OncePer {
        OncePer {
            request: self,
            period,
            retry_failed: false,
        }
    }
}

/// A request to do the work of a period.
#[derive(Debug)]
#[must_use = "a request does nothing until it is begun"]
pub struct OncePer {
    request: LockRequest,
    period: Duration,
    retry_failed: bool,
}

/// Whose turn it is.
#[derive(Debug)]
pub enum Turn {
    /// Ours: nobody else does the work in this period.
    Ours(Run),
    /// It was done already, or is being done.
    Taken(Ran),
}

impl OncePer {
    /// A run that failed, or that crashed, does not count: whoever asks next runs again. Without this it counts, and the next
    /// run is in the next period.
    ///
    /// Whoever asks while another is at it waits for its end, to take over if it fails.
    pub fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Obtains the lock for the work, unless the work was done. `ErrorKind::TimedOut` if others hold the lock for longer than
    /// we wait, and it is not known that they do the work of this period.
    pub async fn begin(self) -> Result<Turn> {
        self.request.must_be_exclusive("the work of a period")?;
        let (name, request) = self.request.named()?;
        let period = Period {
            length: check(self.period)?,
            retry_failed: self.retry_failed,
            gate: Gate::of(&name, &request.locks, request.owner.as_deref())?,
        };
        if let Some(ran) = period.gate.shut_by().await? {
            return Ok(Turn::Taken(ran));
        }
        let locks = request.locks.clone();
        let lease = match request.acquire().await {
            Ok(lease) => lease,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                // Whoever was in the way may have been the one.
                let ran = period.gate.shut_by().await?;
                return ran.map(Turn::Taken).ok_or(error);
            }
            Err(error) => return Err(error),
        };
        let began = locks.clock().now();
        match period.entered(&lease).await {
            Ok(None) => Ok(Turn::Ours(Run {
                lease,
                locks,
                period,
                began,
            })),
            Ok(Some(ran)) => {
                free(&locks, lease).await;
                Ok(Turn::Taken(ran))
            }
            Err(error) => {
                free(&locks, lease).await;
                Err(error)
            }
        }
    }

    /// Does the work if it is our turn, and takes down how it went; `None` if it is not. If the lease is lost, the work is
    /// dropped where it stands.
    pub async fn run<W, F, T, E>(self, work: W) -> Result<Option<std::result::Result<T, E>>>
    where
        W: FnOnce(LeaseView) -> F,
        F: Future<Output = std::result::Result<T, E>>,
    {
        let run = match self.begin().await? {
            Turn::Ours(run) => run,
            Turn::Taken(_) => return Ok(None),
        };
        let done = tokio::select! {
            biased;
            reason = run.lost() => return Err(run.lost_error(&reason)),
            done = work(run.view()) => done,
        };
        match &done {
            Ok(_) => run.succeeded().await?,
            Err(_) => run.failed().await?,
        }
        Ok(Some(done))
    }
}

fn check(period: Duration) -> Result<Duration> {
    if period < Ttl::MIN.get() || period > Ttl::MAX.get() {
        let told = humantime::format_duration(period);
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("a period of {told} is out of range"),
        )
        .advise("use 10ms to 24h"));
    }
    Ok(period)
}

/// Releases at once, whatever `hold_at_least` says: no work was done.
async fn free(locks: &Locks, lease: Lease) {
    let name = lease.name().clone();
    let resumed = locks.resume(name, lease.detach());
    if let Ok(resumed) = resumed {
        // If this fails the lock ends with its TTL.
        let _ = resumed.release().await;
    }
}

#[derive(Debug)]
struct Period {
    length: Duration,
    retry_failed: bool,
    gate: Gate,
}

impl Period {
    /// Whether the holder of the lock may do the work; if not, who has.
    ///
    /// Taken down before the work begins, so that a crash cannot let it run twice; or, if failed runs do not count, after it.
    async fn entered(&self, lease: &Lease) -> Result<Option<Ran>> {
        loop {
            if !self.retry_failed && self.gate.shut(self.length, lease).await? {
                return Ok(None);
            }
            match self.gate.shut_by().await? {
                None if self.retry_failed => return Ok(None),
                // It was opened in between.
                None => lease.still_good()?,
                ran => return Ok(ran),
            }
        }
    }
}

/// The work of a period, which nobody else does. Dropping it means that the work failed.
#[derive(Debug)]
#[must_use = "say whether the run succeeded or failed"]
pub struct Run {
    lease: Lease,
    locks: Locks,
    period: Period,
    began: Moment,
}

impl Run {
    /// The work is done. An error means that this could not be taken down, since the lease was lost or the engine did not
    /// answer: with `retry_failed` another may do it again.
    pub async fn succeeded(self) -> Result<()> {
        if self.period.retry_failed {
            self.still_good()?;
            let passed = self.locks.clock().now().since(self.began);
            let rest = self.period.length.saturating_sub(passed);
            if !rest.is_zero() {
                self.period.gate.shut(rest, &self.lease).await?;
            }
        }
        self.give_back().await
    }

    /// The work failed.
    pub async fn failed(self) -> Result<()> {
        self.give_back().await
    }

    async fn give_back(self) -> Result<()> {
        self.lease.release().await.map(|_| ())
    }
}

impl Deref for Run {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
