//! The engine protocol: each method of the engine contract as a route, for the `http:` engine.

use std::time::Duration;

use axum::extract::State as Extract;
use leasehold::engine::wire::{
    AttemptMessage, ClaimMessage, FindingsMessage, FindingsRequest, GrantMessage, LARGEST_BATCH,
    LockMessage, NameMessage, QueryMessage, RecordAnswer, RecordCall, RecordMessage,
    ReleasedMessage, RenewMessage, RenewalMessage, RenewedMessage, WakeMessage, pass,
};
use leasehold::engine::{Attempt, Query, Renew, Renewal, Wake};
use leasehold::guard::{Content, Fenced, MAX_VALUE, Version};
use leasehold::recipe::Ran;
use leasehold::{Claim, Grant, Released, Ttl};
use tokio::sync::Mutex;

use super::Answer;
use super::locks::break_lock;
use crate::access::{Caller, Scope, record_scope};
use crate::activity::End;
use crate::connection::Client;
use crate::limits::Slot;
use crate::peer::Peer;
use crate::places::{Leaving, Visit};
use crate::problem::Problem;
use crate::request::{BATCH, Json, RECORD};
use crate::state::{State, draining};

/// Whether a run counts is read before another one is recorded: nobody records one in between.
static RECORDING_RUN: Mutex<()> = Mutex::const_new(());

/// The longest that a waiter is kept waiting before it is told to try again.
const LONG_POLL: Duration = Duration::from_secs(55);

/// After which time a claim that is not known here is told to try again.
const UNKNOWN: Duration = Duration::from_millis(100);

/// For how long a place is kept whose client has been answered: it asks again at once, unless it has died.
const ANSWERED: Duration = Duration::from_secs(10);

/// For how long a place is kept whose client's connection has ended: it may connect again.
const BROKEN_OFF: Duration = Duration::from_millis(500);

/// For how long a lock that was handed over to a waiter stays with it before its client has shown that it knows: the client's first renewal does. Where
/// the engine itself hands over for a moment only, that counts.
const OFFER: Duration = Duration::from_secs(1);

/// Counts a claim that queues among those of its client.
fn waiter_slot(state: &State, caller: &Caller, claim: &Claim) -> Result<Option<Slot>, Problem> {
    let slot = claim.queues.then(|| state.waiter_slot(caller));
    slot.transpose()
}

pub(crate) async fn attempt(
    Extract(state): Extract<State>,
    caller: Caller,
    Json(message): Json<ClaimMessage>,
) -> Answer<AttemptMessage> {
    let received = state.broker().clock().now();
    let claim = caller.claim(message)?;
    if claim.queues && state.is_draining() {
        return Err(draining());
    }
    let leaving = match claim.queues {
        true => Leaving::Later(ANSWERED),
        false => Leaving::NoPlace,
    };
    let slot = || waiter_slot(&state, &caller, &claim);
    let visit = state.places().visit(&claim, leaving, slot).await?;
    let mut answer = state.broker().try_acquire(&claim).await?;
    if let Attempt::Held(_) = answer {
        state.places().waits(&claim.id);
    }
    if let Attempt::Granted(grant) = &mut answer {
        state.activity().acquired(&claim, grant.token, None);
        match !claim.queues && visit.has_queued() {
            false => visit.granted(),
            // A server between this one and the client leaves the queue so, if its client is gone.
            true => *grant = offer(&state, visit, &claim, *grant)?,
        }
    }
    let now = state.broker().clock().now();
    Ok(axum::Json(AttemptMessage::new(answer, received, now)))
}

pub(crate) async fn wait(
    Extract(state): Extract<State>,
    caller: Caller,
    client: Client,
    Json(message): Json<ClaimMessage>,
) -> Answer<WakeMessage> {
    let received = state.broker().clock().now();
    let claim = caller.claim(message)?;
    let known = state.places().has(&claim.id);
    let (leaving, slot) = (Leaving::BrokenOff(BROKEN_OFF), || {
        waiter_slot(&state, &caller, &claim)
    });
    let mut visit = state.places().visit_to_wait(&claim, leaving, slot).await?;
    let began = std::time::Instant::now();
    let woken = async {
        match known {
            true => state.broker().wait(&claim).await,
            // It queued through another server, so nobody here would hear that it is its turn; or it is released by now, and this request was
            // overtaken. Only the client knows: its next attempt, if there is one, tells.
            false => {
                tokio::time::sleep(UNKNOWN).await;
                Ok(Wake::Retry)
            }
        }
    };
    let woken = tokio::select! {
        biased;
        () = state.drained() => {
            visit.then(Leaving::Later(ANSWERED));
            return Err(draining());
        }
        // The client asks over another connection: it must not be told here that it has the lock.
        () = visit.superseded() => Ok(Wake::Retry),
        woken = woken => woken,
        () = tokio::time::sleep(LONG_POLL) => Ok(Wake::Retry),
    };
    let grant = match woken {
        Ok(Wake::Granted(grant)) if !client.is_gone().await => grant,
        Ok(Wake::Granted(_)) => return Err(Problem::new("unreachable", "the client has gone")),
        Ok(_) => {
            visit.then(Leaving::Later(ANSWERED));
            return Ok(axum::Json(WakeMessage::Retry));
        }
        Err(error) => {
            visit.then(Leaving::Later(ANSWERED));
            return Err(error.into());
        }
    };
    let waited = began.elapsed();
    state.activity().acquired(&claim, grant.token, Some(waited));
    state.metrics().waited(waited);
    let grant = offer(&state, visit, &claim, grant)?;
    let now = state.broker().clock().now();
    let told = GrantMessage::new(&grant, received, now);
    Ok(axum::Json(WakeMessage::Granted(told)))
}

/// A grant to a claim that has queued, whose client may have died since. Where no other server can have granted it, the client has to confirm it: unless it is
/// renewed in time, it is released.
fn offer(state: &State, mut visit: Visit, claim: &Claim, grant: Grant) -> Result<Grant, Problem> {
    if !state.places().is_alone() || claim.ttl.get() <= OFFER {
        visit.granted();
        return Ok(grant);
    }
    visit.then(Leaving::Later(OFFER));
    let until = state.broker().clock().now() + Ttl::new(OFFER)?.validity();
    Ok(Grant::new(grant.token, grant.valid_until.min(until)))
}

pub(crate) async fn renew(
    Extract(state): Extract<State>,
    caller: Caller,
    Json(message): Json<RenewMessage, BATCH>,
) -> Answer<RenewedMessage> {
    let received = state.broker().clock().now();
    if message.claims.len() > LARGEST_BATCH {
        return Err(Problem::invalid("the batch is too large"));
    }
    let claims: Vec<_> = message
        .claims
        .into_iter()
        .map(|one| {
            let token = one.token.and_then(leasehold::FencingToken::new);
            (caller.claim(one.claim), token, one.shorten)
        })
        .collect();
    // One that may not be renewed is no reason to lose the others.
    let renews: Vec<_> = claims
        .iter()
        .filter_map(|(claim, token, shorten)| {
            let mut renew = Renew::new(claim.as_ref().ok()?);
            renew.token = *token;
            renew.shorten = *shorten;
            Some(renew)
        })
        .collect();
    let ids = renews.iter().map(|renew| &renew.claim.id);
    let _renewing = state.places().renewing(ids).await;
    let mut renewed = state.broker().renew(&renews).await.into_iter();
    let now = state.broker().clock().now();
    let mut results = Vec::with_capacity(claims.len());
    for (claim, _, shorten) in claims {
        let claim = match claim {
            Ok(claim) => claim,
            Err(problem) => {
                results.push(RenewalMessage::Failed(problem.into()));
                continue;
            }
        };
        let Some(renewal) = renewed.next() else {
            return Err(Problem::new("unexpected", "the engine gave no answer"));
        };
        match &renewal {
            Ok(Renewal::Renewed(grant)) => {
                state.places().holds(&claim);
                match shorten {
                    true => state.activity().ended(&claim.name, &claim.id, End::Kept),
                    false => state.activity().renewed(&claim, grant.token),
                }
            }
            Ok(Renewal::Lost(_)) => state.activity().ended(&claim.name, &claim.id, End::Expired),
            Err(_) => {}
        }
        results.push(RenewalMessage::new(renewal, received, now));
    }
    Ok(axum::Json(RenewedMessage { results }))
}

pub(crate) async fn release(
    Extract(state): Extract<State>,
    caller: Caller,
    Json(message): Json<ClaimMessage>,
) -> Answer<ReleasedMessage> {
    let claim = caller.claim(message)?;
    let released = state.broker().release(&claim).await?;
    // A `wait` that is still open makes no attempt, so there is nothing to give up after it.
    state.places().ended_for_good(&claim.id);
    if released == Released::Yes {
        state
            .activity()
            .ended(&claim.name, &claim.id, End::Released);
    }
    Ok(axum::Json(released.into()))
}

pub(crate) async fn inspect(
    Extract(state): Extract<State>,
    caller: Caller,
    Json(message): Json<QueryMessage>,
) -> Answer<Vec<LockMessage>> {
    caller.need(Scope::Read)?;
    let query: Query = message.into_query()?;
    let mut found = state.engine().inspect(&query).await?;
    found.retain(|lock| caller.reaches(lock.name.as_str()));
    Ok(axum::Json(found.iter().map(Into::into).collect()))
}

pub(crate) async fn findings(
    Extract(state): Extract<State>,
    caller: Caller,
    Json(message): Json<FindingsRequest>,
) -> Answer<FindingsMessage> {
    caller.need(Scope::Read)?;
    let ttl = Ttl::new(Duration::from_millis(message.ttl_ms))?;
    let findings = state.engine().findings(ttl).await;
    let findings = findings.iter().map(Into::into).collect();
    Ok(axum::Json(FindingsMessage { findings }))
}

pub(crate) async fn force_release(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    Json(message): Json<NameMessage>,
) -> Answer<ReleasedMessage> {
    let name = caller.sent_name(Scope::Break, message)?;
    let broken = break_lock(&state, &caller, &peer, &name, None).await?;
    Ok(axum::Json(broken.into()))
}

pub(crate) async fn record(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    Json(message): Json<RecordMessage, RECORD>,
) -> Answer<RecordAnswer> {
    let key = message.key()?;
    caller.key(record_scope(&message), key.as_str())?;
    if let Some(lock) = message.forgets_run_of() {
        let (by, address) = (caller.name.as_deref(), peer.to_string());
        let audit = state.audit();
        audit.write("forget run", &lock, by, Some(&address), None);
    }
    let Some(store) = state.engine().store() else {
        return Err(Problem::new(
            "unsupported",
            "the engine keeps no guarded records",
        ));
    };
    let is_run = message.records_run() && !caller.has(Scope::Break);
    let _one_at_a_time = match is_run {
        true => Some(RECORDING_RUN.lock().await),
        false => None,
    };
    if is_run && let Some(there) = store.read(&key).await? {
        // One that is over may be replaced. To holders the answer is the same as if a later one had recorded a run: there is one.
        if Ran::counts_for(&there.value) != Some(Duration::ZERO) {
            let highest = there.token;
            return Ok(axum::Json(Fenced::Refused { highest }.into()));
        }
    }
    Ok(axum::Json(match message.call {
        RecordCall::Read => store.read(&key).await?.into(),
        RecordCall::Fenced {
            content,
            token,
            lock,
        } => {
            let (value, lifetime) = content.into_parts()?;
            if is_run && value.as_deref().and_then(Ran::counts_for).is_none() {
                return Err(Problem::invalid("the value is not the record of a run"));
            }
            let content = content_of(value.as_deref(), lifetime)?;
            let pass = pass(token, lock)?;
            store.write_fenced(&key, content, &pass).await?.into()
        }
        RecordCall::If { content, version } => {
            let (value, lifetime) = content.into_parts()?;
            let content = content_of(value.as_deref(), lifetime)?;
            let version = version.map(Version::new);
            store.write_if(&key, content, version).await?.into()
        }
    }))
}

fn content_of(value: Option<&[u8]>, lifetime: Option<Duration>) -> Result<Content<'_>, Problem> {
    if value.is_some_and(|value| value.len() > MAX_VALUE) {
        return Err(Problem::new("body_too_large", "the value is too large")
            .advise(format!("keep it within {MAX_VALUE} bytes")));
    }
    let mut content = Content::value(value.unwrap_or_default());
    content.value = value;
    content.lifetime = lifetime;
    Ok(content)
}
