//! What the engine's settings mean for locks: the report of `leasehold doctor`, as far as it takes no locks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use leasehold::engine::doctor::{Report, Verdict, Weight};
use leasehold::{Locks, Ttl};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::time::rfc3339;

/// The engine is asked no more often.
const EVERY: Duration = Duration::from_secs(60);

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the engine in the background, when somebody wants to know.
#[derive(Debug)]
pub(crate) struct Doctor {
    locks: Locks,
    asked: Mutex<Option<Instant>>,
    latest: watch::Sender<Option<Arc<Examined>>>,
}

/// What was found, and when.
#[derive(Debug)]
pub(crate) struct Examined {
    report: Report,
    at: SystemTime,
}

impl Doctor {
    pub(crate) fn new(locks: Locks) -> Arc<Self> {
        Arc::new(Self {
            locks,
            asked: Mutex::default(),
            latest: watch::Sender::new(None),
        })
    }

    /// What was found last, if anything was. The engine is asked again if that was a while ago.
    pub(crate) fn latest(self: &Arc<Self>) -> Option<Arc<Examined>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_none_or(|at| at.elapsed() >= EVERY) {
            *asked = Some(Instant::now());
            let doctor = Arc::clone(self);
            tokio::spawn(async move {
                let examination = doctor.locks.check_settings(Ttl::DEFAULT);
                if let Ok(report) = tokio::time::timeout(PATIENCE, examination).await {
                    let at = SystemTime::now();
                    let examined = Arc::new(Examined { report, at });
                    doctor.latest.send_replace(Some(examined));
                }
            });
        }
        self.latest.borrow().clone()
    }

    /// The same; the first time, after the engine has answered. `None` if it has not in time.
    pub(crate) async fn first(self: &Arc<Self>) -> Option<Arc<Examined>> {
        if let Some(latest) = self.latest() {
            return Some(latest);
        }
        let mut latest = self.latest.subscribe();
        let found = tokio::time::timeout(PATIENCE, latest.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }
}

impl Examined {
    pub(crate) fn to_json(&self) -> Value {
        let findings = self.report.findings.iter().map(|finding| {
            json!({
                "id": finding.id,
                "weight": finding.weight.as_str(),
                "accepted": finding.accepted,
                "place": finding.place,
                "seen": finding.seen,
                "means": finding.means,
                "fix": finding.fix,
            })
        });
        json!({
            "at": rfc3339(self.at),
            "engine": self.report.location,
            "verdict": self.report.verdict.as_str(),
            "findings": findings.collect::<Vec<_>>(),
        })
    }

    /// How many findings there are of each weight.
    pub(crate) fn by_weight(&self) -> Vec<(&'static str, usize)> {
        let count = |weight: Weight| {
            let findings = self.report.findings.iter();
            findings.filter(|finding| finding.weight == weight).count()
        };
        let weights = [
            Weight::Good,
            Weight::Unknown,
            Weight::Warning,
            Weight::Efficiency,
            Weight::Unfit,
        ];
        let counted = weights.map(|weight| (weight.as_str(), count(weight)));
        counted.to_vec()
    }

    /// Each verdict, and whether it is this one.
    pub(crate) fn verdicts(&self) -> Vec<(&'static str, usize)> {
        let all = [Verdict::Correctness, Verdict::Efficiency, Verdict::Unfit];
        let is_this = |verdict| usize::from(verdict == self.report.verdict);
        all.map(|verdict| (verdict.as_str(), is_this(verdict)))
            .to_vec()
    }
}
