//! Once per period: a job that is started on many hosts at about the same time runs on one of them.

use std::time::Duration;

use super::gate::{Gate, Ran};
use crate::claim::{ClaimId, Ttl};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Pass;
use crate::lease::{Lease, LeaseView};
use crate::locks::{LockRequest, Locks};
use crate::name::LockName;
use crate::token::FencingToken;

/// After how long to look again at a run that ends just now.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl LockRequest {
    /// Asks to be the one that does the work in this period, which is 10 ms to 24 h long and begins with the start of the last
    /// run.
    ///
    /// Where locks expire by the engine's clock, the period does too, whatever the hosts' clocks say; on ZooKeeper, DynamoDB and S3 the clocks of
    /// the hosts count. Use a little less than the time
    /// between two starts, such as 50 minutes for an hourly job: a start that comes before the end of the period does not run.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    /// use leasehold::{Locks, recipe::PeriodTurn};
    ///
    /// let locks = Locks::connect("memory:").await?;
    /// let hourly = || locks.lock("report").once_per(Duration::from_secs(50 * 60));
    /// match hourly().begin().await? {
    ///     PeriodTurn::Ours(run) => run.succeeded().await?,
    ///     PeriodTurn::Taken(ran) => println!("{} has run it", ran.by.label),
    /// }
    /// assert!(matches!(hourly().begin().await?, PeriodTurn::Taken(_)));
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

/// A request to do the work of a period; made by [`LockRequest::once_per`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # async fn report() -> std::io::Result<()> { Ok(()) }
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// # let period = std::time::Duration::from_secs(3000);
/// let hourly = locks.lock("report").once_per(period).retry_failed();
/// match hourly.run(async |_lease| report().await).await? {
///     Some(Ok(_)) => println!("done"),
///     Some(Err(error)) => println!("failed, and is tried again in this period: {error}"),
///     None => println!("another host has done it"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is begun"]
pub struct OncePer {
    request: LockRequest,
    period: Duration,
    retry_failed: bool,
}

/// Whether the work of the period is to be done here.
#[derive(Debug)]
pub enum PeriodTurn {
    /// Do the work: nobody else does it in this period.
    Ours(PeriodRun),
    /// Another one has done it, or is doing it.
    Taken(Ran),
}

impl OncePer {
    /// A run that fails or crashes does not count: the next one who asks runs again. Without this it counts, and the next run is in the
    /// next period.
    ///
    /// A caller that asks while another one runs waits for its end, to take over if it fails.
    pub fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Obtains the lock for the work, unless the work was done in this period.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`] if others held the lock for longer than the request waits, and have not recorded a run of this period.
    /// - [`ErrorKind::InvalidConfig`] if the period is out of range or the mode is not exclusive; [`ErrorKind::Unsupported`] if
    ///   the engine has to record runs in guarded records, and has none.
    /// - The other errors of [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is given up as [`LockRequest::acquire`] does. Without [`retry_failed`](Self::retry_failed)
    /// the run may have been recorded already, and then counts although it was not begun; [`Locks::forget_run`] removes it.
    pub async fn begin(self) -> Result<PeriodTurn> {
        let (_, request, period) = self.checked()?;
        if let Some(ran) = period.gate.shut_by().await? {
            return Ok(PeriodTurn::Taken(ran));
        }
        let locks = request.locks.clone();
        let lease = match request.acquire().await {
            Ok(lease) => lease,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                // Whoever was in the way may have been the one.
                let ran = period.gate.shut_by().await?;
                return ran.map(PeriodTurn::Taken).ok_or(error);
            }
            Err(error) => return Err(error),
        };
        let began = locks.clock().now();
        let entered = period.entered(&lease, || lease.view.still_good());
        match entered.await {
            Ok(None) => Ok(PeriodTurn::Ours(PeriodRun {
                lease,
                locks,
                period,
                began,
            })),
            Ok(Some(ran)) => {
                free(&locks, lease).await;
                Ok(PeriodTurn::Taken(ran))
            }
            Err(error) => {
                free(&locks, lease).await;
                Err(error)
            }
        }
    }

    /// For servers, which obtain the lock for others with a [`Broker`](crate::Broker): who has done the work of this period, or is doing it.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin), but for [`ErrorKind::TimedOut`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: it only reads.
    pub async fn taken_by(self) -> Result<Option<Ran>> {
        let (_, _, period) = self.checked()?;
        period.gate.shut_by().await
    }

    /// For servers: begins the run of whoever holds the lock with this token, unless another one has done the work of this period. The lock is
    /// neither renewed nor released. A run that was begun already with the same token is begun again.
    ///
    /// # Errors
    ///
    /// Those of [`taken_by`](Self::taken_by).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the run may be recorded, and then counts although it was not begun.
    pub async fn begin_held(self, token: FencingToken) -> Result<Option<Ran>> {
        let (name, _, period) = self.checked()?;
        period.entered(Pass::new(token, name), || Ok(())).await
    }

    /// For servers: records that whoever holds the lock with this token has done the work, which began so long ago. The lock is neither renewed nor
    /// released, also if this fails. Without [`retry_failed`](Self::retry_failed) the run was recorded when it began.
    ///
    /// # Errors
    ///
    /// Those of [`taken_by`](Self::taken_by). It can be repeated.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the run may or may not be recorded.
    pub async fn record_held(self, token: FencingToken, began_ago: Duration) -> Result<()> {
        let (name, _, period) = self.checked()?;
        period.record(began_ago, Pass::new(token, name)).await
    }

    /// Takes up a run that this process or another one has begun and [detached](PeriodRun::detach), by its claim id; `None` if its lease
    /// is no longer held. `began_ago` is how long ago it began, as far as that is known.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin), but for [`ErrorKind::TimedOut`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be renewed. It is not released.
    pub async fn resume(self, claim: ClaimId, began_ago: Duration) -> Result<Option<PeriodRun>> {
        let (name, request, period) = self.checked()?;
        let (locks, ttl) = (request.locks, request.ttl?);
        let lease = locks.resume(name, claim)?.into_lease(ttl).await?;
        let began = locks.clock().now() - began_ago;
        Ok(lease.map(|lease| PeriodRun {
            lease,
            locks,
            period,
            began,
        }))
    }

    fn checked(self) -> Result<(LockName, LockRequest, Period)> {
        self.request.must_be_exclusive("the work of a period")?;
        let (name, mut request) = self.request.named()?;
        // Never a second lease of what its owner holds already: the work of a period is one run's alone.
        request.locks = request.locks.of_nobody();
        let period = Period {
            length: check(self.period)?,
            retry_failed: self.retry_failed,
            gate: Gate::of(&name, &request.locks, request.label.as_deref())?,
        };
        Ok((name, request, period))
    }

    /// Does the work, unless it was done in this period, and records how it ended; `None` if it was done. If the lease is lost, the work's
    /// future is dropped at its next `await`.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Self::begin), [`PeriodRun::succeeded`] and [`PeriodRun::failed`]; [`ErrorKind::LeaseLost`] if the lease was
    /// lost while the work was done.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the work is dropped too and counts as failed, and the lock is released in the background.
    pub async fn run<W, F, T, E>(self, work: W) -> Result<Option<std::result::Result<T, E>>>
    where
        W: FnOnce(LeaseView) -> F,
        F: Future<Output = std::result::Result<T, E>>,
    {
        let run = match self.begin().await? {
            PeriodTurn::Ours(run) => run,
            PeriodTurn::Taken(_) => return Ok(None),
        };
        let done = tokio::select! {
            biased;
            reason = run.lease.lost() => return Err(run.lease.view.lost_error(&reason)),
            done = work(run.lease.view()) => done,
        };
        // Work that blocks its thread for longer than the lease lasts is not dropped, but it was not alone.
        run.lease.view.still_good()?;
        match &done {
            Ok(_) => run.succeeded().await?,
            Err(_) => run.failed().await?,
        }
        Ok(Some(done))
    }
}

fn check(period: Duration) -> Result<Duration> {
    if period < Ttl::MIN.get() || period > Ttl::MAX.get() {
        let text = humantime::format_duration(period);
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("a period of {text} is out of range"),
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
    async fn entered(
        &self,
        pass: impl Into<Pass>,
        still_good: impl Fn() -> Result<()>,
    ) -> Result<Option<Ran>> {
        let pass = pass.into();
        loop {
            if !self.retry_failed && self.gate.shut(self.length, pass.clone()).await? {
                return Ok(None);
            }
            match self.gate.shut_by().await? {
                None if self.retry_failed => return Ok(None),
                // It was opened in between; or another clock, that of a server, says that the last run still counts.
                None => {
                    still_good()?;
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Some(ran) if !self.retry_failed && ran.is_of(pass.token) => return Ok(None),
                ran => return Ok(ran),
            }
        }
    }

    /// Takes down that the work is done, which began so long ago, unless that was done at its beginning.
    async fn record(&self, began_ago: Duration, pass: impl Into<Pass>) -> Result<()> {
        let rest = self.length.saturating_sub(began_ago);
        let pass = pass.into();
        if !self.retry_failed || rest.is_zero() || self.gate.shut(rest, pass.clone()).await? {
            return Ok(());
        }
        // The answer to an earlier request may have been lost.
        match self.gate.shut_by().await? {
            Some(ran) if ran.is_of(pass.token) => Ok(()),
            _ => Err(Error::new(
                ErrorKind::LeaseLost,
                "another run is recorded, or still counts by the clock of the server",
            )
            .advise(
                "the work may be done again in this period; see that the clocks of the hosts agree",
            )),
        }
    }
}

/// The work of a period, which nobody else does. Dropping it means that the work has failed; the lock is then released in the
/// background.
#[derive(Debug)]
#[must_use = "say whether the run succeeded or failed"]
pub struct PeriodRun {
    lease: Lease,
    locks: Locks,
    period: Period,
    began: Moment,
}

impl PeriodRun {
    /// The lease that the work is done under.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Records that the work is done, and releases the lock.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors), and with [`retry_failed`](OncePer::retry_failed) also
    /// [`ErrorKind::LeaseLost`] if the lease was lost: the success may then not be recorded, and another one may do the work again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released in the background; with [`retry_failed`](OncePer::retry_failed) the success may or
    /// may not be recorded.
    pub async fn succeeded(self) -> Result<()> {
        if self.period.retry_failed {
            self.lease.view.still_good()?;
            let passed = self.locks.clock().now().since(self.began);
            self.period.record(passed, &self.lease).await?;
        }
        self.release().await
    }

    /// Releases the lock after the work has failed. Without [`retry_failed`](OncePer::retry_failed) the run counts all the same.
    ///
    /// # Errors
    ///
    /// Those of [`Lease::release`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release is completed in the background.
    pub async fn failed(self) -> Result<()> {
        self.release().await
    }

    /// Leaves the lock to its TTL, as [`Lease::detach`] does, because the work may still run. The run counts as failed.
    pub fn detach(self) -> ClaimId {
        self.lease.detach()
    }

    async fn release(self) -> Result<()> {
        self.lease.release().await.map(|_| ())
    }
}
