//! Once per period, and unique ids.

use std::time::Duration;

use axum::extract::State as Extract;
use leasehold::recipe::{OncePer, Ran};
use leasehold::{Brokered, ClaimId, Error, FencingToken, LockName, LossReason, Wait};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Answer;
use super::locks::{ClaimForm, Held, Received, lost, obtain, superseded, ttl};
use crate::access::{Caller, Scope};
use crate::activity::End;
use crate::connection::Client;
use crate::peer::Peer;
use crate::places::Leaving;
use crate::problem::Problem;
use crate::request::{ClaimHeader, Json, Named};
use crate::shapes::Who;
use crate::state::{State, drained};
use crate::time::{Time, millis};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OncePerForm {
    period: Time,
    #[serde(default)]
    retry_failed: bool,
    ttl: Option<Time>,
    wait: Option<Time>,
    label: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    reason: Option<String>,
}

pub(crate) async fn once_per(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    client: Client,
    Named(name): Named,
    id: ClaimHeader,
    Json(form): Json<OncePerForm>,
) -> Answer<Value> {
    let received = Received::now(&state);
    let name = caller.lock(Scope::Hold, &name)?;
    let wait = form.wait.map_or(Duration::ZERO, |time| time.0);
    if wait > state.settings().limits.longest_wait {
        return Err(Problem::invalid("the wait is too long").advise("wait for up to 5 minutes"));
    }
    let claim = ClaimForm {
        ttl: form.ttl,
        mode: None,
        permits: None,
        label: form.label,
        host: form.host,
        pid: form.pid,
        reason: form.reason,
    };
    let mut claim = claim.into_claim(&state, &caller, &peer, name.clone(), id.0)?;
    claim.queues = !wait.is_zero();
    let locks = state.locks().on_behalf_of((*claim.claimant).clone())?;
    let once_per = || {
        let once_per = locks.lock(&name).once_per(form.period.0);
        match form.retry_failed {
            true => once_per.retry_failed(),
            false => once_per,
        }
    };
    // As `acquire` does, so that the claim is given up only as far as no other server can have granted it.
    let places = state.places();
    let mut visit = places.visit(&claim, Leaving::NoPlace, || Ok(None)).await?;
    // The answer to an earlier request may have been lost.
    let resumed = state.locks().resume(&name, id.0)?;
    let (grant, is_new) = match resumed.renew(claim.ttl).await? {
        Some(grant) => (grant, false),
        None => {
            if let Some(ran) = once_per().taken_by().await? {
                return Ok(taken(&ran));
            }
            if claim.queues {
                // A release meanwhile means this request, too.
                if visit.is_superseded() {
                    return Err(superseded());
                }
                let slot = || state.waiter_slot(&caller).map(Some);
                visit = places.visit(&claim, Leaving::AtOnce, slot).await?;
            }
            let got = tokio::select! {
                biased;
                () = state.drained(), if claim.queues => return Err(drained()),
                () = visit.superseded(), if claim.queues => return Err(superseded()),
                got = obtain(&state, &client, &claim, Wait::UpTo(wait), |_| {}) => got?,
            };
            match got {
                Brokered::Granted(grant) => (grant, true),
                Brokered::Held {
                    ahead,
                    look_again_in,
                    because,
                } => {
                    drop(visit);
                    // Whoever was in the way may have been the one.
                    if let Some(ran) = once_per().taken_by().await? {
                        return Ok(taken(&ran));
                    }
                    let held = Held {
                        ahead,
                        look_again_in,
                        because,
                        kept_place: false,
                    };
                    return Err(held.problem(&state, &name, received.took()).await);
                }
            }
        }
    };
    let left = resumed.remaining(&grant);
    // To its end, whether or not the client stays: what was recorded is to be found by a repeated request, and so is the lock.
    let begun = tokio::spawn({
        let (once_per, state) = (once_per(), state.clone());
        async move {
            let begun = once_per.begin_held(grant.token).await?;
            match &begun {
                None if is_new => state.activity().acquired(&claim, grant.token, None),
                None => {}
                // If this fails, the lock ends with its TTL.
                Some(_) => {
                    drop(state.broker().release(&claim).await);
                    state.places().ended_for_good(&claim.id);
                }
            }
            visit.granted();
            Ok::<_, leasehold::Error>(begun)
        }
    });
    match begun.await {
        // The claim holds the lock, whatever became of the run.
        Ok(begun) => Ok(match begun.map_err(Error::of_unknown_effect)? {
            None => ours(grant.token.get(), left, &received),
            Some(ran) => taken(&ran),
        }),
        Err(_) => Err(Problem::new("unexpected", "the run was not begun").of_unknown_effect()),
    }
}

fn taken(ran: &Ran) -> axum::Json<Value> {
    axum::Json(json!({
        "turn": "taken",
        "by": Who::from(&ran.by),
        "ago_ms": millis(ran.ago),
        "next_in_ms": millis(ran.next_in),
    }))
}

fn ours(token: u64, left: Duration, received: &Received) -> axum::Json<Value> {
    axum::Json(json!({
        "turn": "ours",
        "token": token,
        "valid_ms": millis(left),
        "took_ms": millis(received.took()),
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SucceededForm {
    period: Time,
    began_ms_ago: Option<Time>,
    ttl: Option<Time>,
    token: Option<u64>,
}

pub(crate) async fn succeeded(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(name): Named,
    id: ClaimHeader,
    Json(form): Json<SucceededForm>,
) -> Answer<Value> {
    let name = caller.lock(Scope::Hold, &name)?;
    let ago = form.began_ms_ago.map_or(Duration::ZERO, |time| time.0);
    let (period, ttl) = (period(&state, &caller, &name, &form)?, ttl(form.ttl)?);
    let resumed = state.locks().resume(&name, id.0)?;
    let token = form.token.and_then(FencingToken::new);
    // To its end, whether or not the client stays: if it were dropped half-way, the run would be recorded and the lock still held.
    let recorded = tokio::spawn(async move {
        match resumed.renew(ttl).await? {
            // The client relies on its lock until it is told that the run is recorded: an error takes nothing away.
            Some(grant) => {
                period.record_held(grant.token, ago).await?;
                let released = resumed.release().await;
                released.map_err(Error::of_unknown_effect)?;
                state.places().released(&id.0, false);
                state.activity().ended(&name, &id.0, End::Released);
            }
            None => {
                let ran = period.taken_by().await?;
                // The answer to an earlier request may have been lost.
                let is_ours = ran.zip(token).is_some_and(|(ran, token)| ran.is_of(token));
                if !is_ours {
                    return Err(lost(&name, &LossReason::Gone));
                }
            }
        }
        Ok(axum::Json(json!({"recorded": true})))
    });
    recorded.await.unwrap_or_else(|_| {
        Err(Problem::new("unexpected", "the run was not recorded").of_unknown_effect())
    })
}

/// The claimant is that of the token: whoever ran it is in the lease already.
fn period(
    state: &State,
    caller: &Caller,
    name: &LockName,
    form: &SucceededForm,
) -> Result<OncePer, Problem> {
    let mut request = state.locks().lock(name);
    if let Some(label) = caller.name.as_deref() {
        request = request.label(label);
    }
    Ok(request.once_per(form.period.0).retry_failed())
}

pub(crate) async fn forget_run(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    Named(name): Named,
) -> Answer<Value> {
    let name = caller.lock(Scope::Break, &name)?;
    let (by, address) = (caller.name.as_deref(), peer.to_string());
    state
        .audit()
        .write("forget run", &name, by, Some(&address), None);
    let forgotten = state.locks().forget_run(&name).await?;
    Ok(axum::Json(json!({"forgotten": forgotten})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct IdsForm {
    count: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(crate) struct IdsAnswer {
    ids: Vec<String>,
}

pub(crate) async fn ids(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(pool): Named,
    Json(form): Json<IdsForm>,
) -> Answer<IdsAnswer> {
    caller.key(Scope::Hold, &pool)?;
    let count = form.count.unwrap_or(1);
    if !(1..=10_000).contains(&count) {
        return Err(Problem::invalid("the count is out of range").advise("use 1 to 10,000"));
    }
    let ids = state.locks().id_pool(&pool)?.take(count).await?;
    Ok(axum::Json(IdsAnswer {
        ids: ids.iter().map(ClaimId::reveal).collect(),
    }))
}
