//! The only waiting loop: one deadline, cancellation, clean-up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use std::pin::pin;

use crate::backoff::Backoff;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::{Attempt, Contention, Grant, Query, Wake};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::locks::Core;
use crate::observe;

/// How long to clean up after a claim before that is left to the background.
const CLEAN_UP: Duration = Duration::from_secs(1);

/// For how long an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// No longer than this.
    UpTo(Duration),
    /// However long it takes.
    Forever,
}

/// Obtains the grant; `None` if others hold the lock and the claim does not queue, `TimedOut` if it has queued until the
/// deadline.
///
/// The first attempt is always made and always finished, whatever the deadline.
pub(crate) async fn acquire(core: &Arc<Core>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
    let start = core.clock.now();
    let deadline = match wait {
        Wait::UpTo(time) => Some(start + time),
        Wait::Forever => None,
    };
    let mut queued = false;
    let mut place = Place::taken_by(core, claim);
    let mut delays = Backoff::new(
        claim.id.seed(),
        Duration::from_millis(5),
        Duration::from_secs(1),
    );
    let mut attempt = attempt(core, claim).await;
    loop {
        let contention = match attempt {
            Ok(Attempt::Granted(grant)) => {
                place.keep();
                return Ok(Some(grant));
            }
            Ok(Attempt::Held(contention)) => contention,
            Err(failure) => {
                if queued || failure.effect() == Effect::Unknown {
                    place.give_up().await;
                }
                place.keep();
                return Err(core.place(failure, "acquire", &claim.name));
            }
        };
        if !claim.queues {
            place.keep();
            return Ok(None);
        }
        queued = true;
        observe::waiting(claim, &contention);
        let next = before(core, deadline, async {
            match wake(core, claim, &contention, &mut delays).await {
                Some(grant) => Ok(Attempt::Granted(grant)),
                None => self::attempt(core, claim).await,
            }
        });
        attempt = match next.await {
            Some(next) => next,
            None => {
                place.give_up().await;
                let waited = core.clock.now().since(start);
                return Err(timed_out(core, claim, waited, contention.because).await);
            }
        };
    }
}

/// One attempt. Validity counts from before it left, whatever the engine says.
async fn attempt(core: &Core, claim: &Claim) -> Result<Attempt> {
    let sent = core.clock.now();
    let grant = match core.engine.try_acquire(claim).await? {
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
}

/// Returns when another attempt is worth while, or with the grant that was handed over.
async fn wake(
    core: &Core,
    claim: &Claim,
    contention: &Contention,
    delays: &mut Backoff,
) -> Option<Grant> {
    let woken = pin!(core.engine.wait(claim, contention));
    let look_again = pin!(async {
        match contention.look_again_in {
            Some(time) => core.clock.sleep_until(core.clock.now() + time).await,
            None => std::future::pending().await,
        }
    });
    match select(woken, look_again).await {
        Either::Left((Ok(Wake::Granted(grant)), _)) if grant.valid_until > core.clock.now() => {
            Some(grant)
        }
        // Handed over, but too long ago to be relied on: the attempt will tell.
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

/// The place that a claim may have at the engine. Given up in the background when dropped: by
/// cancellation at any await.
struct Place<'a> {
    core: &'a Arc<Core>,
    claim: Option<&'a Claim>,
}

impl<'a> Place<'a> {
    fn taken_by(core: &'a Arc<Core>, claim: &'a Claim) -> Self {
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
    async fn give_up(&mut self) {
        let Some(claim) = self.claim else { return };
        let deadline = Some(self.core.clock.now() + CLEAN_UP);
        if let Some(Ok(_)) = before(self.core, deadline, self.core.engine.release(claim)).await {
            self.keep();
        }
        if let Some(claim) = self.claim.take() {
            self.core.keeper.give_up(claim.clone());
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.core.keeper.give_up(claim.clone());
        }
    }
}

/// The error for a lock that was not obtained; names the holder if the engine tells in time.
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
    core.place(error, "acquire", &claim.name)
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
    Some(format!(
        "held by {:?} on {:?} (pid {}) for {}",
        holder.claimant.owner,
        holder.claimant.host,
        holder.claimant.pid,
        humantime::format_duration(Duration::from_secs(holder.held_for.as_secs())),
    ))
}
