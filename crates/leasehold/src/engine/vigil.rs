//! One thread that listens for all who wait at one place, so that it hears whatever the user's tasks are busy with. It has a
//! connection of its own while anyone waits, and ends with the last engine that needs it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::backoff::Backoff;
use crate::clock::{Clock, Moment};
use crate::engine::rows::same;
use crate::error::{Error, ErrorKind, Result};

/// Whether anyone listens just now, and how to ask for it.
#[derive(Debug)]
pub(crate) struct Vigil {
    need: Needed,
    report: watch::Sender<Report>,
}

#[derive(Debug, Clone)]
enum Report {
    AliveUntil(Moment),
    Failed(Arc<Error>),
}

impl Report {
    fn is_alive(&self) -> bool {
        matches!(self, Report::AliveUntil(until) if *until > Clock::machine().now())
    }
}

/// Who listens.
pub(crate) trait Listens: Send + Sync + 'static {
    fn vigil(&self) -> &Vigil;

    fn anyone_waits(&self) -> bool;
}

/// What asks the thread to begin.
pub(crate) type Needed = Arc<Notify>;

impl Vigil {
    pub(crate) fn new() -> (Self, Needed) {
        let need = Needed::default();
        let needed = Arc::clone(&need);
        let nothing_yet = Error::new(ErrorKind::Unexpected, String::new());
        let report = watch::Sender::new(Report::Failed(Arc::new(nothing_yet)));
        (Self { need, report }, needed)
    }

    /// The server knows that this process is alive, and will until then.
    pub(crate) fn alive_until(&self, until: Moment) {
        self.report.send_replace(Report::AliveUntil(until));
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.report.borrow().is_alive()
    }

    /// Returns once this process counts as alive, so that what it puts into a queue is not passed over.
    pub(crate) async fn listening(
        &self,
        patience: Duration,
        too_late: fn() -> Error,
    ) -> Result<()> {
        // Even if it is alive: the thread may have just found that nobody waits, and would let that lapse.
        self.need.notify_one();
        let mut report = self.report.subscribe();
        if report.borrow_and_update().is_alive() {
            return Ok(());
        }
        let heard = async {
            while report.changed().await.is_ok() {
                match &*report.borrow_and_update() {
                    Report::Failed(error) => return Err(same(error)),
                    report if report.is_alive() => return Ok(()),
                    Report::AliveUntil(_) => {}
                }
            }
            Err(too_late())
        };
        match tokio::time::timeout(patience, heard).await {
            Ok(heard) => heard,
            Err(_) => Err(too_late()),
        }
    }
}

/// The thread sees that it is needed no more.
impl Drop for Vigil {
    fn drop(&mut self) {
        self.need.notify_one();
    }
}

/// The thread's own side.
pub(crate) struct Watch<L> {
    ears: Weak<L>,
    needed: Needed,
    delay: Backoff,
}

fn delays() -> Backoff {
    Backoff::new(
        fastrand::u64(..),
        Duration::from_millis(20),
        Duration::from_secs(1),
    )
}

/// Starts the thread. A session returns when nobody is left to listen for; after a failure, another one begins in a moment.
pub(crate) fn keep<L: Listens>(
    ears: &Arc<L>,
    needed: Needed,
    session: impl AsyncFn(&mut Watch<L>) -> Result<()> + Send + 'static,
) -> Result<()> {
    let mut watch = Watch {
        ears: Arc::downgrade(ears),
        needed,
        delay: delays(),
    };
    let live = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            while watch.is_needed().await {
                let Err(error) = session(&mut watch).await else {
                    return;
                };
                let Some(ears) = watch.ears() else { return };
                let failed = Report::Failed(Arc::new(error));
                ears.vigil().report.send_replace(failed);
                drop(ears);
                tokio::time::sleep(watch.delay.delay()).await;
            }
        });
    };
    let started = std::thread::Builder::new()
        .name("leasehold-ears".to_owned())
        .spawn(live);
    started.map(|_| ()).map_err(|cause| {
        Error::new(ErrorKind::Unexpected, "no thread can be started").caused_by(cause)
    })
}

impl<L: Listens> Watch<L> {
    /// For whom; `None` if for nobody any more.
    pub(crate) fn ears(&self) -> Option<Arc<L>> {
        self.ears.upgrade()
    }

    /// The next failure is the first again.
    pub(crate) fn went_well(&mut self) {
        self.delay = delays();
    }

    /// Returns when someone waits; false if nobody ever will.
    pub(crate) async fn is_needed(&mut self) -> bool {
        loop {
            match self.ears() {
                None => return false,
                Some(ears) if ears.anyone_waits() => return true,
                Some(_) => {}
            }
            self.needed.notified().await;
        }
    }
}

/// Those of one process that wait at the same place share one.
#[derive(Debug)]
pub(crate) struct Places<K, L>(Mutex<Option<HashMap<K, Weak<L>>>>);

impl<K: Hash + Eq, L> Places<K, L> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn at(&self, place: K, make: impl FnOnce() -> Result<Arc<L>>) -> Result<Arc<L>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(ears) = all.get(&place).and_then(Weak::upgrade) {
            return Ok(ears);
        }
        let made = make()?;
        all.retain(|_, ears| ears.strong_count() > 0);
        all.insert(place, Arc::downgrade(&made));
        Ok(made)
    }
}
