//! What an operator can watch: spans and events (feature `tracing`), counters and histograms
//! (feature `metrics`). Never a claim id. Without the features there is nothing here.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables)
)]

use crate::claim::Claim;
use crate::engine::{About, Contention, LossReason};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::token::FencingToken;

/// Wraps an acquire from the first attempt to its outcome.
pub(crate) async fn acquiring<T>(
    about: &About,
    claim: &Claim,
    work: impl Future<Output = Result<Option<T>>>,
    token: impl Fn(&T) -> FencingToken,
) -> Result<Option<T>> {
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    let start = about.clock.now();
    #[cfg(feature = "tracing")]
    let work = {
        use tracing::Instrument;
        work.instrument(tracing::debug_span!(
            "acquire",
            engine = about.scheme,
            lock = claim.name.as_str(),
            mode = %claim.mode,
        ))
    };
    let outcome = work.await;
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    let waited = about.clock.now().since(start);
    #[cfg(feature = "tracing")]
    match &outcome {
        Ok(Some(lease)) => {
            tracing::debug!(lock = %claim.name, token = token(lease).get(), ?waited, "granted");
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
        let engine = about.scheme;
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

pub(crate) fn warnings(about: &About) {
    #[cfg(feature = "tracing")]
    for warning in &about.warnings {
        tracing::warn!(engine = about.location, "{warning}");
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

pub(crate) fn renewed(about: &About, hold: &Hold) {
    #[cfg(feature = "tracing")]
    tracing::trace!(lock = %hold.claim.name, token = hold.token.get(), "renewed");
    count_renewal(about, "renewed");
}

pub(crate) fn renewal_failed(about: &About, hold: &Hold, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(lock = %hold.claim.name, token = hold.token.get(), %error, "renewal failed");
    let outcome = match error.kind() {
        ErrorKind::Unreachable => "unreachable",
        _ => "failed",
    };
    count_renewal(about, outcome);
}

fn count_renewal(about: &About, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!("leasehold_renewals_total", "engine" => about.scheme, "outcome" => outcome)
        .increment(1);
}

pub(crate) fn lost(about: &About, hold: &Hold, reason: &LossReason) {
    #[cfg(feature = "tracing")]
    tracing::error!(lock = %hold.claim.name, token = hold.token.get(), %reason, "lost");
    #[cfg(feature = "metrics")]
    metrics::counter!("leasehold_lost_total", "engine" => about.scheme).increment(1);
    ended(about, hold);
}

pub(crate) fn released(about: &About, hold: &Hold) {
    #[cfg(feature = "tracing")]
    tracing::debug!(lock = %hold.claim.name, token = hold.token.get(), "released");
    ended(about, hold);
}

fn ended(about: &About, hold: &Hold) {
    #[cfg(feature = "metrics")]
    {
        let held = about.clock.now().since(hold.acquired);
        let engine = about.scheme;
        metrics::histogram!("leasehold_hold_seconds", "engine" => engine)
            .record(held.as_secs_f64());
        metrics::gauge!("leasehold_held", "engine" => engine).decrement(1);
    }
}
