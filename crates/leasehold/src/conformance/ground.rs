//! What a case is given: clients, names of its own, other processes, and patience.

use std::sync::Arc;
use std::time::Duration;

use super::child::{Child, Task};
use super::fixture::Fixture;
use crate::claim::{Claim, ClaimId, Claimant, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::{Attempt, Engine, Fairness, Grant};
use crate::locks::Locks;
use crate::name::LockName;
use crate::sync::Mutex;

/// A TTL that no case outlives: whatever happens sooner was not brought about by expiry.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// Where a case runs.
#[derive(Clone)]
pub struct Ground {
    fixture: Arc<dyn Fixture>,
    /// One store serves all cases of a run at the same time.
    prefix: Arc<str>,
    patience: Duration,
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ground({}, {})", self.fixture.scheme(), self.prefix)
    }
}

impl Ground {
    /// A ground whose cases wait for what must happen no longer than `patience`.
    pub fn new(fixture: Arc<dyn Fixture>, patience: Duration) -> Self {
        let random = ClaimId::random().expect("random bits").reveal();
        Self {
            fixture,
            prefix: format!("{}/", &random[..8]).into(),
            patience,
        }
    }

    /// The store.
    pub fn fixture(&self) -> &dyn Fixture {
        &*self.fixture
    }

    /// How long a case waits for one thing that must happen.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// A name that only this case uses.
    pub fn name(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// A new client.
    pub async fn engine(&self) -> Arc<dyn Engine> {
        self.fixture.connect().await
    }

    /// A handle with a client of its own.
    pub async fn locks(&self) -> Locks {
        Locks::new(self.engine().await)
    }

    /// Waits for what must happen soon.
    pub async fn soon<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        match tokio::time::timeout(self.patience, work).await {
            Ok(done) => done,
            Err(_) => panic!("{what}: not within {:?}", self.patience),
        }
    }

    /// Waits for what must become true soon.
    pub async fn until(&self, what: &str, mut check: impl AsyncFnMut() -> bool) {
        self.soon(what, async {
            while !check().await {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }

    /// Waits until `count` claims wait for the lock. An engine without a queue cannot show it; there
    /// it waits a while.
    pub async fn until_queued(&self, locks: &Locks, name: &str, count: usize) {
        if locks.capabilities().fairness != Fairness::Fifo {
            return tokio::time::sleep(ms(200)).await;
        }
        let what = format!("{count} in the queue");
        self.until(&what, async || {
            locks.inspect(name).await.unwrap().waiters.len() == count
        })
        .await;
    }

    /// Another process on the same store.
    pub async fn child(&self, task: Task) -> Child {
        let address = self.fixture.address().expect("a store with an address");
        Child::start(&address, task, self.patience)
    }
}

pub(super) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A waiter that was offered a lock keeps it for so long at least, on every engine. If it has not renewed it by then, it loses its turn, and rightly.
const OFFER: Duration = ms(400);

/// Measures the steps of which none may take longer than an offer lasts.
#[derive(Debug, Clone)]
pub(super) struct Steps(Arc<Mutex<(Moment, Duration)>>);

impl Steps {
    /// The first step, or the next one that counts, begins.
    pub(super) fn begin(&self) {
        self.0.lock().0 = now();
    }

    /// A step is done, and the next one begins.
    pub(super) fn next(&self) {
        let (began, longest) = &mut *self.0.lock();
        *longest = now().since(*began).max(*longest);
        *began = now();
    }
}

/// Shows something about waiters that are offered a lock, each time with a new name. A failure counts as one unless a step took longer than an offer lasts.
pub(super) async fn unless_slow(
    ground: &Ground,
    mut shown: impl AsyncFnMut(String, Steps) -> Result<(), String>,
) {
    const TRIES: usize = 10;
    for nth in 0..TRIES {
        let steps = Steps(Arc::new(Mutex::new((now(), Duration::ZERO))));
        let Err(failure) = shown(ground.name(&format!("try{nth}")), steps.clone()).await else {
            return;
        };
        steps.next();
        let longest = steps.0.lock().1;
        assert!(
            longest > OFFER,
            "{failure}, although no step took longer than {longest:?}"
        );
    }
    panic!("a step took longer than {OFFER:?} in each of {TRIES} tries");
}

pub(super) async fn pause(millis: u64) {
    tokio::time::sleep(ms(millis)).await;
}

pub(super) fn now() -> Moment {
    Clock::machine().now()
}

/// A claim that does not queue.
pub(super) fn claim(name: &str, ttl: Duration) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        id: ClaimId::random().unwrap(),
        mode: Mode::Exclusive,
        ttl: Ttl::new(ttl).unwrap(),
        queues: false,
        claimant: Arc::new(Claimant::this_process()),
        reason: None,
    }
}

pub(super) fn queueing(name: &str, ttl: Duration) -> Claim {
    Claim {
        queues: true,
        ..claim(name, ttl)
    }
}

pub(super) async fn grant(engine: &dyn Engine, claim: &Claim) -> Grant {
    match engine.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(contention) => panic!("the lock should be free: {contention:?}"),
    }
}

pub(super) async fn is_refused(engine: &dyn Engine, claim: &Claim) -> bool {
    let attempt = engine.try_acquire(claim).await.unwrap();
    matches!(attempt, Attempt::Held(_))
}
