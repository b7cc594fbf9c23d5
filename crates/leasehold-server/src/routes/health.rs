//! Whether the server and the engine answer, and what was counted.

use std::time::Duration;

use axum::extract::State as Extract;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use leasehold::LockName;
use leasehold::engine::Query;

use crate::access::{Caller, Scope};
use crate::metrics::{Gauges, by_lock_to_text};
use crate::problem::Problem;
use crate::state::{State, draining};

/// How recent a look at the engine must be to count.
const RECENT: Duration = Duration::from_secs(5);

/// How long the engine may take.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

pub(crate) async fn readyz(Extract(state): Extract<State>) -> Result<&'static str, Problem> {
    if state.is_draining() {
        return Err(draining());
    }
    let latest = state.activity().latest();
    if latest.is_some_and(|latest| latest.at.elapsed() < RECENT) {
        return Ok("ready\n");
    }
    // A lock that nobody has: the cheapest question.
    let query = Query::Name(LockName::new("leasehold/readyz")?);
    match tokio::time::timeout(PATIENCE, state.engine().inspect(&query)).await {
        Ok(Ok(_)) => Ok("ready\n"),
        // Without its words: whoever asks may be anybody.
        Ok(Err(_)) => Err(Problem::new("unreachable", "the engine has failed")),
        Err(_) => Err(Problem::new(
            "unreachable",
            "the engine did not answer in time",
        )),
    }
}

pub(crate) async fn metrics(
    Extract(state): Extract<State>,
    caller: Caller,
) -> Result<Response, Problem> {
    caller.need(Scope::Read)?;
    let latest = state.activity().latest();
    let by_lock = match state.settings().name_metrics {
        true => {
            let locks = state.locks().list("").await?;
            let seen = locks
                .iter()
                .filter(|lock| caller.reaches(lock.name.as_str()));
            seen.map(|lock| {
                let name = lock.name.as_str().to_owned();
                (name, lock.holders.len(), lock.waiters.len())
            })
            .collect()
        }
        false => Vec::new(),
    };
    let text = match caller.is_limited() {
        // All the rest counts locks that it must not see.
        true => by_lock_to_text(&by_lock),
        false => state.metrics().to_text(&Gauges {
            held: latest.as_ref().map_or(0, |latest| latest.held),
            waiting: latest.as_ref().map_or(0, |latest| latest.waiting),
            places: state.places().count(),
            engine_seconds: latest.map(|latest| latest.took.as_secs_f64()),
            engine_requests: state.engine().about().requests,
            draining: state.is_draining(),
            examined: state.doctor().latest(),
            by_lock,
        }),
    };
    let media_type = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(CONTENT_TYPE, media_type)], text).into_response())
}
