//! The attempts and releases of one claim: never two at once, and each runs to completion even if its future is dropped.
//!
//! So a release never overtakes the attempt that it is to undo, and no engine needs to expect that a call ends half-way.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::sync::OwnedMutexGuard;

use crate::claim::{Claim, ClaimId};
use crate::engine::{About, Attempt, Engine, Released};
use crate::error::Result;
use crate::sync::Mutex;

type Numbers = Arc<Mutex<HashMap<ClaimId, u64>>>;
type InFlight = Arc<Mutex<HashMap<ClaimId, Arc<tokio::sync::Mutex<()>>>>>;

/// Makes the calls of one handle's claims.
#[derive(Debug, Clone)]
pub(crate) struct Claims {
    engine: Arc<dyn Engine>,
    about: Arc<About>,
    in_flight: InFlight,
    /// Which claims nobody wants any more, each with its number among attempts and such.
    given_up: Numbers,
    last: Arc<AtomicU64>,
}

/// A claim that nobody wants any more, unless another attempt of it is made.
#[derive(Debug)]
pub(crate) struct GivenUp {
    id: ClaimId,
    number: u64,
    all: Numbers,
}

impl GivenUp {
    /// Whether no other attempt has been made.
    fn counts(&self) -> bool {
        self.all.lock().get(&self.id) == Some(&self.number)
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        forget_if(&self.all, &self.id, |number| number == self.number);
    }
}

fn forget_if(given_up: &Numbers, id: &ClaimId, is: impl Fn(u64) -> bool) {
    let mut given_up = given_up.lock();
    if given_up.get(id).is_some_and(|number| is(*number)) {
        given_up.remove(id);
    }
}

impl Claims {
    pub(crate) fn new(engine: Arc<dyn Engine>, about: Arc<About>) -> Self {
        Self {
            engine,
            about,
            in_flight: InFlight::default(),
            given_up: Numbers::default(),
            last: Arc::default(),
        }
    }

    fn next_number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(crate) fn about(&self) -> &Arc<About> {
        &self.about
    }

    /// One attempt, after all earlier calls of the claim. If the claim waits or holds the lock by it, it is wanted again.
    pub(crate) fn try_acquire(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Attempt>> + use<> {
        let (given_up, number) = (Arc::clone(&self.given_up), self.next_number());
        self.call(claim, move |engine, claim| async move {
            let attempt = engine.try_acquire(&claim).await;
            let wanted = match &attempt {
                Ok(Attempt::Granted(_)) => true,
                Ok(Attempt::Held(_)) => claim.queues,
                Err(_) => false,
            };
            if wanted {
                forget_if(&given_up, &claim.id, |earlier| earlier < number);
            }
            attempt
        })
    }

    /// Notes that nobody wants the claim any more.
    pub(crate) fn give_up(&self, claim: &Claim) -> Arc<GivenUp> {
        let number = self.next_number();
        self.given_up.lock().insert(claim.id, number);
        Arc::new(GivenUp {
            id: claim.id,
            number,
            all: Arc::clone(&self.given_up),
        })
    }

    /// A release, after all earlier calls of the claim, unless it is wanted again.
    pub(crate) fn release_given_up(
        &self,
        claim: &Claim,
        given_up: &Arc<GivenUp>,
    ) -> impl Future<Output = Result<Released>> + use<> {
        let given_up = Arc::clone(given_up);
        self.call(claim, move |engine, claim| async move {
            match given_up.counts() {
                true => engine.release(&claim).await,
                false => Ok(Released::WasNotHeld),
            }
        })
    }

    /// A release, after all earlier calls of the claim.
    pub(crate) fn release(&self, claim: &Claim) -> impl Future<Output = Result<Released>> + use<> {
        self.call(claim, |engine, claim| async move {
            engine.release(&claim).await
        })
    }

    fn call<T, F>(
        &self,
        claim: &Claim,
        call: impl FnOnce(Arc<dyn Engine>, Claim) -> F + Send + 'static,
    ) -> RunToCompletion<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send,
    {
        let (engine, claim) = (Arc::clone(&self.engine), claim.clone());
        let in_flight = Arc::clone(&self.in_flight);
        RunToCompletion(Some(Box::pin(async move {
            let _turn = Turn::of(claim.id, in_flight).await;
            call(engine, claim).await
        })))
    }
}

/// While it lives, no other call of the claim is made.
struct Turn {
    id: ClaimId,
    in_flight: InFlight,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turn {
    async fn of(id: ClaimId, in_flight: InFlight) -> Self {
        let last = Arc::clone(in_flight.lock().entry(id).or_default());
        // Without tokio's budget, so that it is in the mutex's queue from the first poll on: if the call is dropped then, the release comes after it.
        let held = Some(tokio::task::unconstrained(last.lock_owned()).await);
        Self {
            id,
            in_flight,
            held,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut in_flight = self.in_flight.lock();
        self.held = None;
        let waits = in_flight.get(&self.id).map(Arc::strong_count);
        if waits == Some(1) {
            in_flight.remove(&self.id);
        }
    }
}

/// Does the work where it is awaited, without the cost of a task; if it is dropped, a task does the rest.
struct RunToCompletion<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> Future for RunToCompletion<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for RunToCompletion<T> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claimant, Mode, Ttl};
    use crate::clock::Clock;
    use crate::engine::memory::Memory;
    use crate::name::LockName;
    use std::time::Duration;

    fn claim() -> Claim {
        Claim {
            name: LockName::new("x").unwrap(),
            id: ClaimId::from_bytes([7; 16]),
            mode: Mode::Exclusive,
            ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
            queues: true,
            claimant: Arc::new(Claimant::this_process()),
            reason: None,
        }
    }

    fn claims() -> Claims {
        let engine = Memory::with_clock(Clock::machine());
        let about = Arc::new(engine.about());
        Claims::new(Arc::new(engine), about)
    }

    async fn for_a_while<T>(value: T) -> T {
        tokio::time::sleep(Duration::from_secs(2)).await;
        value
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_runs_on_and_the_next_waits_for_it() {
        let claims = claims();
        let (started, claim) = (tokio::time::Instant::now(), claim());
        let slow = claims.call(&claim, |_, _| for_a_while("attempt"));
        let in_time = tokio::time::timeout(Duration::from_secs(1), slow).await;
        assert!(in_time.is_err());
        let next = claims.call(&claim, |_, _| for_a_while("release"));
        assert_eq!(next.await, "release");
        assert_eq!(started.elapsed().as_secs(), 4);
        assert!(claims.in_flight.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_different_claims_do_not_wait() {
        let claims = claims();
        let started = tokio::time::Instant::now();
        let other = Claim {
            id: ClaimId::from_bytes([8; 16]),
            ..claim()
        };
        tokio::join!(
            claims.call(&claim(), |_, _| for_a_while(1)),
            claims.call(&other, |_, _| for_a_while(2)),
        );
        assert_eq!(started.elapsed().as_secs(), 2);
    }
}
