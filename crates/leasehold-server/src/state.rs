//! What all routes share.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leasehold::engine::{Engine, Reach};
use leasehold::{Broker, Locks};
use tokio::sync::watch;

use crate::access::Caller;
use crate::activity::{Activity, History};
use crate::audit::Audit;
use crate::doctor::Doctor;
use crate::limits::{Limits, Slot, Slots};
use crate::metrics::Metrics;
use crate::places::Places;
use crate::problem::Problem;
use crate::tokens::Tokens;

/// How a server is set up.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Who may do what; `None` if everybody may do everything.
    pub tokens: Option<Tokens>,
    /// Whether it only shows locks.
    pub read_only: bool,
    /// Whether requests must be for an address or `localhost`: for a server without tokens, so that no web page gets at it by a name of
    /// its own. Off where the router is nested in another service.
    pub check_host: bool,
    /// Whether clients connect through a proxy or a load balancer. Then the end of a connection does not mean that the client has gone. A proxy that adds
    /// `Via`, `Forwarded` or `X-Forwarded-For` to requests is known by that.
    pub behind_proxy: bool,
    /// How often it looks at all locks, for events, history and metrics; `None` for never.
    pub observe: Option<Duration>,
    /// How much of it one client can use.
    pub limits: Limits,
    /// Whether metrics have the names of locks.
    pub name_metrics: bool,
    /// Where it is written who broke which lock; standard error if it is not set.
    pub audit: Option<std::path::PathBuf>,
    /// A SQLite file for the last 100,000 holds that have ended; the last 10,000 are kept in memory if it is not set.
    #[cfg(feature = "history")]
    pub history: Option<std::path::PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tokens: None,
            read_only: false,
            check_host: false,
            behind_proxy: false,
            observe: Some(Duration::from_secs(2)),
            limits: Limits::default(),
            name_metrics: false,
            audit: None,
            #[cfg(feature = "history")]
            history: None,
        }
    }
}

/// What all routes of a server share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct State(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    locks: Locks,
    broker: Broker,
    places: Arc<Places>,
    activity: Arc<Activity>,
    metrics: Metrics,
    doctor: Arc<Doctor>,
    audit: Audit,
    slots: Arc<Slots>,
    settings: Settings,
    instance: Arc<str>,
    started: (Instant, SystemTime),
    draining: watch::Sender<bool>,
}

impl State {
    /// A server over these locks. Call it within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](leasehold::ErrorKind::InvalidConfig) if the audit log or the history cannot be opened.
    pub fn new(locks: Locks, settings: Settings) -> leasehold::Result<Self> {
        let instance: Arc<str> = format!("{:08x}", fastrand::u32(..)).into();
        let broker = locks.broker();
        // Locks of one process or machine: there is no other server that could have granted a claim.
        let alone = locks.capabilities().reach != Reach::Network;
        let activity = Arc::new(Activity::new(Arc::clone(&instance), history(&settings)?));
        match settings.observe {
            Some(every) => activity.observe(locks.clone(), every),
            None => activity.expire(),
        }
        Ok(Self(Arc::new(Inner {
            places: Places::new(broker.clone(), alone, locks.engine().about().offers),
            broker,
            doctor: Doctor::new(locks.clone()),
            locks,
            activity,
            metrics: Metrics::default(),
            audit: Audit::open(settings.audit.as_deref())?,
            slots: Arc::default(),
            settings,
            instance,
            started: (Instant::now(), SystemTime::now()),
            draining: watch::Sender::new(false),
        })))
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        self.0.locks.engine()
    }

    pub(crate) fn broker(&self) -> &Broker {
        &self.0.broker
    }

    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.0.places
    }

    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.0.activity
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn doctor(&self) -> &Arc<Doctor> {
        &self.0.doctor
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.0.audit
    }

    pub(crate) fn tokens(&self) -> Option<&Tokens> {
        self.0.settings.tokens.as_ref()
    }

    pub(crate) fn read_only(&self) -> bool {
        self.0.settings.read_only
    }

    pub(crate) fn checks_host(&self) -> bool {
        self.0.settings.check_host
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn instance(&self) -> &str {
        &self.0.instance
    }

    pub(crate) fn started_at(&self) -> SystemTime {
        self.0.started.1
    }

    /// A slot for a waiter of this caller, for as long as it is kept.
    pub(crate) fn waiter_slot(&self, caller: &Caller) -> Result<Slot, Problem> {
        let limit = self.0.settings.limits.waiters;
        Slots::take(&self.0.slots, "waiters", caller.name.clone(), limit)
    }

    /// A slot for a stream of this caller, for as long as it is kept.
    pub(crate) fn stream_slot(&self, caller: &Caller) -> Result<Slot, Problem> {
        let limit = self.0.settings.limits.streams;
        Slots::take(&self.0.slots, "streams", caller.name.clone(), limit)
    }

    /// Lets the waiters go, and refuses new ones: the server is about to end. Other requests are still answered.
    pub fn drain(&self) {
        self.0.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.0.draining.borrow()
    }

    /// Returns when the server is about to end.
    pub(crate) async fn drained(&self) {
        let mut draining = self.0.draining.subscribe();
        // The sender lives as long as this.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    /// Gives up what is left in the background, and frees what the engine keeps for future locks. For the end of the server.
    pub async fn close(&self) {
        self.0.activity.history().flush().await;
        self.0.locks.flush().await;
    }
}

fn history(settings: &Settings) -> leasehold::Result<History> {
    #[cfg(feature = "history")]
    if let Some(path) = &settings.history {
        return Ok(History::File(crate::activity::HistoryFile::open(path)?));
    }
    let _ = settings;
    Ok(History::default())
}

/// What a request gets that waits when the server is about to end: its attempt may be under way.
pub(crate) fn drained() -> Problem {
    draining().of_unknown_effect()
}

/// What a request gets that comes while the server is about to end.
pub(crate) fn draining() -> Problem {
    Problem::new("draining", "the server is about to end")
        .advise("go to another server, or come back")
        .retry_after(Duration::from_secs(1))
}
