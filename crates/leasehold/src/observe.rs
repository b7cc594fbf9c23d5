//! What an operator can watch: spans and events (feature `tracing`), counters and histograms
//! (feature `metrics`). Never a claim id. Without the features there is nothing here.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables)
)]

use crate::claim::Claim;
use crate::engine::{Contention, Engine, LossReason};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::lease::Lease;

/// Wraps an acquire from the first attempt to its outcome.
pub(crate) async fn acquiring(
    engine: &dyn Engine,
    claim: &Claim,
    work: impl Future<Output = Result<Option<Lease>>>,
) -> Result<Option<Lease>> {
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    let start = engine.clock().now();
    #[cfg(feature = "tracing")]
    let work = {
        use tracing::Instrument;
        work.instrument(tracing::debug_span!(
            "acquire",
            engine = engine.scheme(),
            lock = claim.name.as_str(),
            mode = %claim.mode,
        ))
    };
    let outcome = work.await;
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    let waited = engine.clock().now().since(start);
    #[cfg(feature = "tracing")]
    match &outcome {
        Ok(Some(lease)) => {
            tracing::debug!(lock = %claim.name, token = lease.token().get(), ?waited, "granted");
        }
        Ok(None) => tracing::debug!(lock = %claim.name, ?waited, "not obtained"),
        Err(error) => tracing::warn!(lock = %claim.name, ?waited, %error, "acquire failed"),
    }
    #[cfg(feature = "metrics")]
    {
        let result = match &outcome {
            Ok(Some(_)) => "granted",
            Ok(None) => "not_obtained",
            Err(_) => "failed",
        };
        let engine = engine.scheme();
        metrics::counter!("leasehold_acquires_total", "engine" => engine, "outcome" => result)
            .increment(1);
        metrics::histogram!("leasehold_wait_seconds", "engine" => engine, "outcome" => result)
            .record(waited.as_secs_f64());
        if matches!(outcome, Ok(Some(_))) {
            metrics::gauge!("leasehold_held", "engine" => engine).increment(1);
        }
    }
    outcome
}

pub(crate) fn warnings(engine: &dyn Engine) {
    #[cfg(feature = "tracing")]
    for warning in engine.warnings() {
        tracing::warn!(engine = engine.location(), "{warning}");
    }
}

pub(crate) fn waiting(claim: &Claim, contention: &Contention) {
    #[cfg(feature = "tracing")]
    tracing::trace!(lock = %claim.name, ahead = ?contention.ahead, "wait");
}

pub(crate) fn wake_up_failed(claim: &Claim, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(lock = %claim.name, %error, "no wake-up from the engine; trying again by the clock");
}

pub(crate) fn renewed(engine: &dyn Engine, hold: &Hold) {
    #[cfg(feature = "tracing")]
    tracing::trace!(lock = %hold.claim.name, token = hold.token.get(), "renewed");
    count_renewal(engine, "renewed");
}

pub(crate) fn renewal_failed(engine: &dyn Engine, hold: &Hold, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(lock = %hold.claim.name, token = hold.token.get(), %error, "renewal failed");
    let outcome = match error.kind() {
        ErrorKind::Unreachable => "unreachable",
        _ => "failed",
    };
    count_renewal(engine, outcome);
}

fn count_renewal(engine: &dyn Engine, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("leasehold_renewals_total", "engine" => engine.scheme(), "outcome" => outcome)
        .increment(1);
}

pub(crate) fn lost(engine: &dyn Engine, hold: &Hold, reason: &LossReason) {
    #[cfg(feature = "tracing")]
    tracing::error!(lock = %hold.claim.name, token = hold.token.get(), %reason, "lost");
    #[cfg(feature = "metrics")]
    metrics::counter!("leasehold_lost_total", "engine" => engine.scheme()).increment(1);
    ended(engine, hold);
}

pub(crate) fn released(engine: &dyn Engine, hold: &Hold) {
    #[cfg(feature = "tracing")]
    tracing::debug!(lock = %hold.claim.name, token = hold.token.get(), "released");
    ended(engine, hold);
}

fn ended(engine: &dyn Engine, hold: &Hold) {
    #[cfg(feature = "metrics")]
    {
        let held = engine.clock().now().since(hold.acquired);
        let engine = engine.scheme();
        metrics::histogram!("leasehold_hold_seconds", "engine" => engine)
            .record(held.as_secs_f64());
        metrics::gauge!("leasehold_held", "engine" => engine).decrement(1);
    }
}
