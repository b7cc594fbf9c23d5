//! The only waiting loop: one deadline, cancellation, clean-up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use std::pin::pin;

use crate::backoff::Backoff;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::core::Core;
use crate::engine::{Attempt, Contention, Grant, Query, Wake};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::observe;

/// How long to clean up after a claim before that is left to the background.
const CLEAN_UP: Duration = Duration::from_secs(1);

/// A waiter looks again after so long at the latest, should no message come: whoever was told that the lock ends sooner may be gone.
const LOOK_AT_LEAST: Duration = Duration::from_secs(60);

/// For how long an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// No longer than this.
    UpTo(Duration),
    /// However long it takes.
    Forever,
}

impl From<Duration> for Wait {
    fn from(time: Duration) -> Self {
        Wait::UpTo(time)
    }
}

/// What a wait came to.
#[derive(Debug)]
pub(crate) enum Waited {
    Granted(Grant),
    /// Others held the lock until the deadline, or the claim does not queue.
    Held(Contention),
}

/// Obtains the grant; `None` if others hold the lock and the claim does not queue, `TimedOut` if it has queued until the
/// deadline. Whatever the claim has at the engine then is given up, also if the future is dropped.
///
/// The first attempt is always made and always finished, whatever the deadline.
pub(crate) async fn acquire(core: &Arc<Core>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
    // An engine that answers without waiting must not keep a loop of acquires from yielding to the renewer.
    tokio::task::coop::consume_budget().await;
    let start = core.clock.now();
    let mut entry = QueueEntry::of(core, claim);
    let mut queued = false;
    let on_wait = &mut |_: &Contention| queued = true;
    match wait_for_grant(core, claim, wait, AtDeadline::LeaveBehind, on_wait).await {
        Ok(Waited::Granted(grant)) => {
            entry.keep();
            Ok(Some(grant))
        }
        Ok(Waited::Held(_)) if !claim.queues => {
            entry.keep();
            Ok(None)
        }
        Ok(Waited::Held(contention)) => {
            entry.abandon().await;
            let waited = core.clock.now().since(start);
            Err(timed_out(core, claim, waited, contention.because).await)
        }
        Err(failure) => {
            if queued || failure.effect() == Effect::Unknown {
                entry.abandon().await;
            }
            entry.keep();
            Err(failure)
        }
    }
}

/// What becomes of an attempt that is under way at the deadline. The first attempt is always finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtDeadline {
    /// It is finished, so that whether the claim holds the lock is known: for callers that do not give up the claim.
    Finish,
    /// It is completed in the background, and the caller gives up the claim after it.
    LeaveBehind,
}

/// The waiting loop: makes attempts until the claim is granted or the deadline has passed, and does not give up the claim. Before each wait, and whenever the claim
/// may have an entry in the queue after a failure, it calls back with what the attempt met.
pub(crate) async fn wait_for_grant(
    core: &Core,
    claim: &Claim,
    wait: Wait,
    at_deadline: AtDeadline,
    on_wait: &mut (dyn FnMut(&Contention) + Send),
) -> Result<Waited> {
    let deadline = match wait {
        Wait::UpTo(time) => Some(core.clock.now() + time),
        Wait::Forever => None,
    };
    let attempt_again = async || {
        let attempt = self::attempt(core, claim);
        match at_deadline {
            AtDeadline::Finish => Some(attempt.await),
            AtDeadline::LeaveBehind => before(core, deadline, attempt).await,
        }
    };
    let mut delays = Backoff::new(
        claim.id.seed(),
        Duration::from_millis(5),
        Duration::from_secs(1),
    );
    let mut attempt = attempt(core, claim).await;
    loop {
        let contention = match attempt {
            Ok(Attempt::Granted(grant)) => return Ok(Waited::Granted(grant)),
            Ok(Attempt::Held(contention)) => contention,
            Err(failure) if failure.is_busy() && claim.queues => {
                if failure.effect() == Effect::Unknown {
                    on_wait(&Contention::default());
                }
                let pause = core.clock.now() + delays.delay();
                let paused = before(core, deadline, core.clock.sleep_until(pause)).await;
                let next = match paused {
                    Some(()) => attempt_again().await,
                    None => None,
                };
                attempt = match next {
                    Some(next) => next,
                    None => {
                        // The effect of the last attempt is unknown.
                        on_wait(&Contention::default());
                        return Err(core.with_context(failure, "acquire", &claim.name));
                    }
                };
                continue;
            }
            Err(failure) => return Err(core.with_context(failure, "acquire", &claim.name)),
        };
        if !claim.queues {
            return Ok(Waited::Held(contention));
        }
        on_wait(&contention);
        observe::waiting(claim, &contention);
        let woken = wake(core, claim, &contention, &mut delays);
        let next = match before(core, deadline, woken).await {
            Some(Some(grant)) => Some(Ok(Attempt::Granted(grant))),
            Some(None) => attempt_again().await,
            None => None,
        };
        attempt = match next {
            Some(next) => next,
            None => return Ok(Waited::Held(contention)),
        };
    }
}

/// One attempt. Validity counts from before the request left, whatever the engine says.
async fn attempt(core: &Core, claim: &Claim) -> Result<Attempt> {
    let sent = core.clock.now();
    let grant = match core.claims.try_acquire(claim).await? {
        Attempt::Granted(grant) => grant,
        held => return Ok(held),
    };
    let valid_until = grant.valid_until.min(sent + claim.ttl.validity());
    if valid_until <= core.clock.now() {
        return Err(too_late());
    }
    Ok(Attempt::Granted(Grant {
        valid_until,
        ..grant
    }))
}

fn too_late() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "it was granted, but the answer took longer than the TTL",
    )
    .advise("use a longer TTL, or see why the engine is so slow")
    .of_unknown_effect()
    .because_busy()
}

/// Returns when another attempt is worth while, or with the grant that was handed over.
async fn wake(
    core: &Core,
    claim: &Claim,
    contention: &Contention,
    delays: &mut Backoff,
) -> Option<Grant> {
    let woken = pin!(core.engine.wait(claim));
    // Not all waiters at once.
    let at_the_latest = LOOK_AT_LEAST + Duration::from_millis(claim.id.seed() % 30_000);
    let look_again_in = contention.look_again_in.unwrap_or(at_the_latest);
    let look_again = pin!(async {
        let time = look_again_in.min(at_the_latest);
        core.clock.sleep_until(core.clock.now() + time).await;
    });
    match select(woken, look_again).await {
        Either::Left((Ok(Wake::Granted(grant)), _)) if grant.valid_until > core.clock.now() => {
            Some(grant)
        }
        // The lock was handed over too long ago to be relied on. Another attempt shows whether it is still held.
        Either::Left((Ok(_), _)) | Either::Right(_) => None,
        Either::Left((Err(failure), look_again)) => {
            observe::wake_up_failed(claim, &failure);
            let pause = pin!(core.clock.sleep_until(core.clock.now() + delays.delay()));
            select(pause, look_again).await;
            None
        }
    }
}

async fn before<T>(
    core: &Core,
    deadline: Option<Moment>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Some(deadline) = deadline else {
        return Some(work.await);
    };
    match select(pin!(work), pin!(core.clock.sleep_until(deadline))).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// What a claim may have at the engine: an entry in the queue, or a grant whose answer was lost. When it is dropped, as when the acquire is cancelled, the claim is
/// given up in the background.
struct QueueEntry<'a> {
    core: &'a Arc<Core>,
    claim: Option<&'a Claim>,
}

impl<'a> QueueEntry<'a> {
    fn of(core: &'a Arc<Core>, claim: &'a Claim) -> Self {
        Self {
            core,
            claim: Some(claim),
        }
    }

    /// There is nothing to clean up.
    fn keep(&mut self) {
        self.claim = None;
    }

    /// Cleans up now; if that takes too long or fails, in the background.
    async fn abandon(&mut self) {
        let Some(claim) = self.claim else { return };
        let deadline = Some(self.core.clock.now() + CLEAN_UP);
        if let Some(Ok(_)) = before(self.core, deadline, self.core.claims.release(claim)).await {
            self.keep();
        }
        if let Some(claim) = self.claim.take() {
            self.core.renewer.abandon(claim.clone());
        }
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.core.renewer.abandon(claim.clone());
        }
    }
}

/// The error for a lock that was not obtained; names the holder if the engine answers in time.
pub(crate) async fn timed_out(
    core: &Core,
    claim: &Claim,
    waited: Duration,
    because: Option<String>,
) -> Error {
    let because = match because {
        Some(because) => Some(because),
        None => holder(core, claim).await,
    };
    let waited = humantime::format_duration(Duration::from_millis(waited.as_millis() as u64));
    let what = match because {
        Some(because) => format!("not obtained within {waited}: {because}"),
        None => format!("not obtained within {waited}"),
    };
    let error = Error::new(ErrorKind::TimedOut, what).advise("wait longer, or try again later");
    core.with_context(error, "acquire", &claim.name)
}

async fn holder(core: &Core, claim: &Claim) -> Option<String> {
    let query = Query::Name(claim.name.clone());
    let deadline = Some(core.clock.now() + CLEAN_UP);
    let locks = before(core, deadline, core.engine.inspect(&query)).await?;
    let holder = locks
        .ok()?
        .into_iter()
        .flat_map(|lock| lock.holders)
        .next()?;
    let process = match holder.claimant.pid {
        0 => String::new(),
        pid => format!(" (pid {pid})"),
    };
    let reason = holder.reason.map(|reason| format!(", reason: {reason:?}"));
    Some(format!(
        "held by {:?} on {:?}{process} for {}{}",
        holder.claimant.label,
        holder.claimant.host,
        humantime::format_duration(Duration::from_secs(holder.held_for.as_secs())),
        reason.unwrap_or_default(),
    ))
}
