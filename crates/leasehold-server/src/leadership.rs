//! A sidecar of an election: tells who leads, and is ready while this process does.

use axum::Router;
use axum::extract::State as Extract;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use leasehold::{LeaseView, LockName, Locks};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::problem::Problem;
use crate::serve::{Listening, serve_router};
use crate::shapes::Who;
use crate::time::millis;

/// Connections to a sidecar: probes, and a few people.
const CONNECTIONS: usize = 200;

#[derive(Debug, Clone)]
struct Leadership {
    locks: Locks,
    name: LockName,
    leading: watch::Receiver<Option<LeaseView>>,
}

impl Leadership {
    /// The lease of this process, if it can be relied on just now.
    fn lease(&self) -> Option<LeaseView> {
        let lease = self.leading.borrow().clone();
        lease.filter(LeaseView::is_valid)
    }
}

/// Serves `/` (who leads), `/readyz` (200 while this process leads, else 503) and `/healthz`, for as long as it is polled. `leading` has
/// the lease of this process while it is the leader.
///
/// # Cancel safety
///
/// Dropping the future stops it.
pub async fn serve_leadership(
    listening: Listening,
    locks: Locks,
    name: LockName,
    leading: watch::Receiver<Option<LeaseView>>,
) {
    let app = Router::new()
        .route("/", get(who_leads))
        .route("/readyz", get(readyz))
        .route("/healthz", get(async || "ok\n"))
        .with_state(Leadership {
            locks,
            name,
            leading,
        });
    let never = std::future::pending();
    serve_router(listening, app, CONNECTIONS, never, || {}).await;
}

async fn readyz(Extract(election): Extract<Leadership>) -> Response {
    match election.lease() {
        Some(_) => "leading\n".into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "not leading\n").into_response(),
    }
}

async fn who_leads(Extract(election): Extract<Leadership>) -> Result<axum::Json<Value>, Problem> {
    let lock = election.locks.inspect(&election.name).await?;
    let lease = election.lease();
    let leader = lock.holders.first();
    Ok(axum::Json(json!({
        "name": election.name.as_str(),
        "leading": lease.is_some(),
        "term": leader.map(|leader| leader.token.get()),
        "leader": leader.map(|leader| Who::from(&leader.claimant)),
        "leads_for_ms": leader.map(|leader| millis(leader.held_for)),
        "candidates": lock.waiters.len(),
        "valid_ms": lease.map(|lease| millis(lease.remaining())),
    })))
}
