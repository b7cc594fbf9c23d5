//! Acquire, renew, release; ask and force-release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State as Extract;
use leasehold::clock::Moment;
use leasehold::engine::{Query as Asked, Renew, Renewal};
use leasehold::{
    Brokered, Claim, ClaimId, Claimant, Error, Grant, LockInfo, LockName, LossReason, Mode,
    Released, Ttl, Wait,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Answer;
use crate::access::{Caller, Scope};
use crate::activity::End;
use crate::connection::Client;
use crate::peer::Peer;
use crate::places::Leaving;
use crate::problem::Problem;
use crate::request::{BATCH, ClaimHeader, Json, Named};
use crate::shapes::{self, Granted};
use crate::state::{State, drained};
use crate::time::{KeepPlace, Time, millis};

/// How long the engine may take to say who holds a lock, for an answer that can do without.
const HOLDERS: Duration = Duration::from_secs(1);

/// The body of an acquire.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AcquireForm {
    ttl: Option<Time>,
    wait: Option<Time>,
    keep_place: Option<KeepPlace>,
    mode: Option<ModeForm>,
    permits: Option<u32>,
    label: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    reason: Option<String>,
    max_hold: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModeForm {
    Exclusive,
    Shared,
    Permit,
}

/// What the bodies of acquire, hold and once-per say of a claim.
pub(crate) struct ClaimForm {
    pub(crate) ttl: Option<Time>,
    pub(crate) mode: Option<ModeForm>,
    pub(crate) permits: Option<u32>,
    pub(crate) label: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) reason: Option<String>,
}

impl ClaimForm {
    pub(crate) fn into_claim(
        self,
        state: &State,
        caller: &Caller,
        peer: &Peer,
        name: LockName,
        id: ClaimId,
    ) -> Result<Claim, Problem> {
        let mode = match (self.mode, self.permits) {
            (None | Some(ModeForm::Exclusive), None) => Mode::Exclusive,
            (Some(ModeForm::Shared), None) => Mode::Shared,
            (None | Some(ModeForm::Permit), Some(of)) => Mode::Permit { of },
            (Some(ModeForm::Permit), None) => {
                return Err(Problem::invalid("the mode \"permit\" needs \"permits\"")
                    .advise("say how many permits the lock has"));
            }
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("\"permits\" is for the mode \"permit\"")
                    .advise("leave one of them out"));
            }
        };
        let label = self
            .label
            .or_else(|| caller.name.as_deref().map(str::to_owned));
        let label = label.unwrap_or_else(|| "http".to_owned());
        let host = self.host.unwrap_or_else(|| peer.to_string());
        let mut claim = Claim::new(name, id);
        claim.mode = mode;
        claim.ttl = ttl(self.ttl)?;
        claim.claimant = Arc::new(Claimant::new(label, host, self.pid.unwrap_or(0)));
        claim.reason = self.reason.map(Arc::from);
        state.broker().check(&claim)?;
        Ok(claim)
    }
}

pub(crate) fn ttl(given: Option<Time>) -> Result<Ttl, Problem> {
    match given {
        Some(time) => Ok(Ttl::new(time.0)?),
        None => Ok(Ttl::DEFAULT),
    }
}

/// A claim of which only the id and the TTL matter.
fn known_claim(name: LockName, id: ClaimId, ttl: Ttl) -> Claim {
    let mut claim = Claim::new(name, id);
    claim.ttl = ttl;
    claim
}

pub(crate) fn granted(name: &LockName, grant: &Grant, ttl: Ttl, at: Received) -> Granted {
    let now = at.clock.now();
    Granted {
        name: name.as_str().to_owned(),
        token: grant.token.get(),
        valid_ms: millis(grant.valid_until.since(now)),
        took_ms: millis(now.since(at.moment)),
        ttl_ms: millis(ttl.get()),
    }
}

/// When a request came in.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    clock: leasehold::clock::Clock,
    moment: Moment,
}

impl Received {
    pub(crate) fn now(state: &State) -> Self {
        let clock = state.broker().clock().clone();
        Self {
            moment: clock.now(),
            clock,
        }
    }

    pub(crate) fn took(&self) -> Duration {
        self.clock.now().since(self.moment)
    }
}

pub(crate) async fn acquire(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    client: Client,
    Named(name): Named,
    id: ClaimHeader,
    Json(form): Json<AcquireForm>,
) -> Answer<Granted> {
    let received = Received::now(&state);
    let name = caller.lock(Scope::Hold, &name)?;
    let wait = form.wait.map_or(Duration::ZERO, |time| time.0);
    let longest = state.settings().limits.longest_wait;
    if wait > longest {
        let longest = humantime::format_duration(longest);
        return Err(Problem::invalid("the wait is too long").advise(format!(
            "wait up to {longest}, and keep the place for the next request: keep_place"
        )));
    }
    let keep = form.keep_place.and_then(|keep| keep.0);
    if keep.is_some_and(|keep| keep > longest) {
        let longest = humantime::format_duration(longest);
        return Err(
            Problem::invalid("the place is kept for too long").advise(format!(
                "keep it for up to {longest}, and ask again within that time"
            )),
        );
    }
    let claim = ClaimForm {
        ttl: form.ttl,
        mode: form.mode,
        permits: form.permits,
        label: form.label,
        host: form.host,
        pid: form.pid,
        reason: form.reason,
    };
    let mut claim = claim.into_claim(&state, &caller, &peer, name, id.0)?;
    if let Some(Time(most)) = form.max_hold {
        check_max_hold(most)?;
        claim.ttl = Ttl::new(claim.ttl.get().min(most))?;
    }
    claim.queues = !wait.is_zero() || keep.is_some();
    let leaving = match (claim.queues, keep) {
        (false, _) => Leaving::NoPlace,
        (true, None) => Leaving::AtOnce,
        (true, Some(time)) => Leaving::Later(time),
    };
    let slot = || {
        let slot = claim.queues.then(|| state.waiter_slot(&caller));
        slot.transpose()
    };
    let visit = state.places().visit(&claim, leaving, slot).await?;
    let mut waiting = None;
    let got = tokio::select! {
        biased;
        () = state.drained(), if claim.queues => return Err(drained()),
        () = visit.superseded(), if claim.queues => return Err(superseded()),
        got = obtain(&state, &client, &claim, Wait::UpTo(wait), |ahead| {
            waiting.get_or_insert_with(|| state.activity().waiting(&claim, ahead));
        }) => got?,
    };
    match got {
        Brokered::Granted(grant) => {
            visit.granted();
            let waited = waiting.map_or(Duration::ZERO, |waiting| waiting.granted());
            state.activity().acquired(&claim, grant.token, Some(waited));
            state.metrics().waited(waited);
            Ok(axum::Json(granted(
                &claim.name,
                &grant,
                claim.ttl,
                received,
            )))
        }
        Brokered::Held {
            ahead,
            look_again_in,
            because,
        } => {
            drop(visit);
            let held = Held {
                ahead,
                look_again_in,
                because,
                kept_place: keep.is_some(),
            };
            Err(held.problem(&state, &claim.name, received.took()).await)
        }
    }
}

/// Waits for a grant of the whole TTL, for a client that is there to learn of it.
pub(crate) async fn obtain(
    state: &State,
    client: &Client,
    claim: &Claim,
    wait: Wait,
    mut on_wait: impl FnMut(Option<usize>) + Send,
) -> Result<Brokered, Problem> {
    let (began, mut has_waited) = (Instant::now(), false);
    loop {
        let left = match wait {
            Wait::UpTo(time) => Wait::UpTo(time.saturating_sub(began.elapsed())),
            Wait::Forever => Wait::Forever,
        };
        let broker = state.broker();
        let on_wait = |ahead| {
            has_waited = true;
            state.places().waits(&claim.id);
            on_wait(ahead);
        };
        let grant = match broker.acquire(claim, left, on_wait).await? {
            Brokered::Granted(grant) => grant,
            held => return Ok(held),
        };
        // The lock may have been handed to a client that has died meanwhile.
        if has_waited && client.is_gone().await {
            return Err(Problem::new("unreachable", "the client has gone"));
        }
        let confirmed = broker.confirm(claim, grant).await;
        // The claim may hold the lock, whatever became of the renewal.
        if let Some(grant) = confirmed.map_err(Error::of_unknown_effect)? {
            return Ok(Brokered::Granted(grant));
        }
    }
}

/// For a request that waits when a later one of the same claim comes, as of a client whose connection was lost in silence: only that one can be told that
/// it has the lock.
pub(crate) fn superseded() -> Problem {
    Problem::invalid("a later request has the same claim id")
        .advise("send one request of a claim at a time")
        // Its attempt may be under way.
        .of_unknown_effect()
}

/// A lock that was not obtained.
pub(crate) struct Held {
    pub(crate) ahead: Option<usize>,
    pub(crate) look_again_in: Option<Duration>,
    pub(crate) because: Option<String>,
    pub(crate) kept_place: bool,
}

impl Held {
    /// The answer, with who holds the lock if the engine tells that in time.
    pub(crate) async fn problem(self, state: &State, name: &LockName, waited: Duration) -> Problem {
        let lock = inspect(state, name).await;
        let holder = lock.holders.first().map(|holder| {
            format!(
                "held by {:?} on {:?} (pid {}) for {}",
                holder.claimant.label,
                holder.claimant.host,
                holder.claimant.pid,
                humantime::format_duration(Duration::from_secs(holder.held_for.as_secs())),
            )
        });
        let waited = humantime::format_duration(Duration::from_millis(millis(waited)));
        let detail = match self.because.or(holder) {
            Some(because) => format!("not obtained within {waited}: {because}"),
            None => format!("not obtained within {waited}"),
        };
        let again = self.look_again_in.unwrap_or(Duration::from_secs(1));
        Problem::new("held", detail)
            .advise("wait longer, or try again later")
            .retry_after(again.min(Duration::from_secs(5)))
            .with("lock", name.as_str())
            .with("operation", "acquire")
            .with("ahead", self.ahead)
            .with("kept_place", self.kept_place)
            .with("holders", shapes::holders(&lock))
    }
}

/// Who holds a lock and waits for it; nobody if the engine does not tell in time.
pub(crate) async fn inspect(state: &State, name: &LockName) -> LockInfo {
    let query = Asked::Name(name.clone());
    let found = tokio::time::timeout(HOLDERS, state.engine().inspect(&query)).await;
    let found = found.ok().and_then(Result::ok).unwrap_or_default();
    let found = found.into_iter().next();
    found.unwrap_or_else(|| LockInfo::new(name.clone()))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RenewForm {
    ttl: Option<Time>,
    max_hold: Option<Time>,
    token: Option<u64>,
}

pub(crate) async fn renew(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(name): Named,
    id: ClaimHeader,
    Json(form): Json<RenewForm>,
) -> Answer<Granted> {
    let received = Received::now(&state);
    let name = caller.lock(Scope::Hold, &name)?;
    let mut claim = known_claim(name, id.0, ttl(form.ttl)?);
    if let Some(Time(most)) = form.max_hold {
        check_max_hold(most)?;
        claim.ttl = within_max_hold(&state, &claim, form.token, most).await?;
    }
    let ids = std::iter::once(&claim.id);
    let _renewing = state.places().renewing(ids).await;
    let mut renewed = state.broker().renew(&[Renew::new(&claim)]).await;
    let renewal = renewed.pop().unwrap_or(Ok(Renewal::Lost(LossReason::Gone)));
    let grant = grant_of(&state, &claim, renewal)?;
    Ok(axum::Json(granted(
        &claim.name,
        &grant,
        claim.ttl,
        received,
    )))
}

pub(crate) fn check_max_hold(most: Duration) -> Result<(), Problem> {
    match most < Ttl::MIN.get() {
        true => Err(Problem::invalid("max_hold is too short").advise("use 10ms or more")),
        false => Ok(()),
    }
}

/// The TTL with which a claim is not held for longer than that, by what the engine says of how long it is held already: another server may have
/// granted it.
async fn within_max_hold(
    state: &State,
    claim: &Claim,
    token: Option<u64>,
    most: Duration,
) -> Result<Ttl, Problem> {
    let holders = state.locks().inspect(&claim.name).await?.holders;
    let mut of_claim = holders.iter().filter(|holder| match token {
        Some(token) => holder.token.get() == token,
        None => true,
    });
    // If nobody holds it, the renewal will say so.
    let held_for = of_claim.next().map_or(Duration::ZERO, |it| it.held_for);
    if of_claim.next().is_some() {
        return Err(Problem::invalid("several claims hold the lock")
            .advise("give the token that this one was granted, beside max_hold"));
    }
    match most.saturating_sub(held_for) {
        left if left < Ttl::MIN.get() => Err(lost(&claim.name, &LossReason::MaxHold)),
        left => Ok(Ttl::new(claim.ttl.get().min(left))?),
    }
}

fn grant_of(
    state: &State,
    claim: &Claim,
    renewal: leasehold::Result<Renewal>,
) -> Result<Grant, Problem> {
    match renewal? {
        Renewal::Renewed(grant) => {
            state.places().holds(claim);
            state.activity().renewed(claim, grant.token);
            Ok(grant)
        }
        Renewal::Lost(reason) => {
            state.activity().ended(&claim.name, &claim.id, End::Expired);
            Err(lost(&claim.name, &reason))
        }
    }
}

pub(crate) fn lost(name: &LockName, reason: &LossReason) -> Problem {
    Problem::new(
        "lease_lost",
        format!("the claim does not hold the lock: {reason}"),
    )
    .advise("stop the work, or check its writes with the fencing token; then acquire again")
    .with("lock", name.as_str())
    .with("operation", "renew")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchForm {
    claims: Vec<OneForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneForm {
    name: String,
    claim: String,
    ttl: Option<Time>,
}

#[derive(Debug, Serialize)]
pub(crate) struct BatchAnswer {
    took_ms: u64,
    results: Vec<Value>,
}

pub(crate) async fn renew_batch(
    Extract(state): Extract<State>,
    caller: Caller,
    Json(form): Json<BatchForm, BATCH>,
) -> Answer<BatchAnswer> {
    let received = Received::now(&state);
    caller.need(Scope::Hold)?;
    if form.claims.len() > leasehold::engine::wire::LARGEST_BATCH {
        return Err(Problem::invalid("the batch is too large").advise("send up to 1,000 claims"));
    }
    let claims: Vec<(String, Result<Claim, Problem>)> = form
        .claims
        .into_iter()
        .map(|one| {
            let claim = || {
                let name = caller.lock(Scope::Hold, &one.name)?;
                let id: ClaimId = one.claim.parse().map_err(|_| {
                    Problem::invalid("\"claim\" is no claim id")
                        .advise("give the 32 hexadecimal digits that it was acquired with")
                })?;
                Ok(known_claim(name, id, ttl(one.ttl)?))
            };
            let claim = claim();
            (one.name, claim)
        })
        .collect();
    let good = claims.iter().filter_map(|(_, claim)| claim.as_ref().ok());
    let renews: Vec<_> = good.map(Renew::new).collect();
    let ids = renews.iter().map(|renew| &renew.claim.id);
    let _renewing = state.places().renewing(ids).await;
    let mut renewed = state.broker().renew(&renews).await.into_iter();
    let mut results = Vec::with_capacity(claims.len());
    let now = received.clock.now();
    for (name, claim) in &claims {
        let grant = match claim {
            Ok(claim) => match renewed.next() {
                Some(renewal) => grant_of(&state, claim, renewal),
                None => Err(Problem::new("unexpected", "the engine gave no answer")),
            },
            Err(problem) => Err(problem.clone()),
        };
        results.push(match grant {
            Ok(grant) => serde_json::json!({
                "name": name,
                "token": grant.token.get(),
                "valid_ms": millis(grant.valid_until.since(now)),
            }),
            Err(problem) => serde_json::json!({"name": name, "problem": problem.to_json()}),
        });
    }
    Ok(axum::Json(BatchAnswer {
        took_ms: millis(now.since(received.moment)),
        results,
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReleaseForm {
    keep_for: Option<Time>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ReleaseAnswer {
    name: String,
    released: bool,
}

pub(crate) async fn release(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(name): Named,
    id: ClaimHeader,
    Json(form): Json<ReleaseForm>,
) -> Answer<ReleaseAnswer> {
    let name = caller.lock(Scope::Hold, &name)?;
    let claim = known_claim(name, id.0, Ttl::DEFAULT);
    let (released, end) = match form.keep_for {
        None => {
            // As of a client that has given up: whoever still waits for it here would take the lock for nobody.
            state.places().end_requests(&claim.id);
            (state.broker().release(&claim).await?, End::Released)
        }
        Some(time) => {
            let released = state.broker().release_later(&claim, time.0).await?;
            (released, End::Kept)
        }
    };
    state.places().released(&claim.id, end == End::Kept);
    state.activity().ended(&claim.name, &claim.id, end);
    Ok(axum::Json(ReleaseAnswer {
        name: claim.name.as_str().to_owned(),
        released: released == Released::Yes,
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskForm {
    reason: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct AskAnswer {
    name: String,
    asked: Value,
}

pub(crate) async fn ask(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    Named(name): Named,
    Json(form): Json<AskForm>,
) -> Answer<AskAnswer> {
    let name = caller.lock(Scope::Hold, &name)?;
    let label = caller.name.as_deref().unwrap_or("http");
    let by = Claimant::new(label, peer.to_string(), 0);
    let locks = state.locks().on_behalf_of(by)?;
    let holders = locks.request_revoke(&name, form.reason.as_str()).await?;
    let mut lock = LockInfo::new(name.clone());
    lock.holders = holders;
    if !lock.holders.is_empty() {
        state.metrics().asked();
        state
            .activity()
            .asked(&name, caller.name.clone(), form.reason);
    }
    Ok(axum::Json(AskAnswer {
        name: name.as_str().to_owned(),
        asked: shapes::holders(&lock),
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BreakForm {
    confirm: String,
    reason: Option<String>,
}

pub(crate) async fn force_release(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    Named(name): Named,
    Json(form): Json<BreakForm>,
) -> Answer<ReleaseAnswer> {
    let name = caller.lock(Scope::Break, &name)?;
    if form.confirm != name.as_str() {
        return Err(Problem::invalid("\"confirm\" is not the name of the lock")
            .advise("repeat the name, to show that this lock is meant"));
    }
    let reason = form.reason;
    if reason
        .as_ref()
        .is_some_and(|it| it.len() > 1024 || it.chars().any(char::is_control))
    {
        return Err(Problem::invalid("the reason cannot be used")
            .advise("use up to 1024 bytes of text without control characters"));
    }
    let released = break_lock(&state, &caller, &peer, &name, reason).await?;
    Ok(axum::Json(ReleaseAnswer {
        name: name.as_str().to_owned(),
        released: released == Released::Yes,
    }))
}

/// Takes a lock away, with a line in the audit log.
pub(crate) async fn break_lock(
    state: &State,
    caller: &Caller,
    peer: &Peer,
    name: &LockName,
    reason: Option<String>,
) -> Result<Released, Problem> {
    let address = peer.to_string();
    let by = caller.name.as_deref();
    let log = |what: &str| {
        let audit = state.audit();
        audit.write(what, name, by, Some(&address), reason.as_deref());
    };
    log("break");
    let broken = state.engine().force_release(name).await;
    let broken = broken.inspect_err(|_| log("break failed"))?;
    if broken == Released::Yes {
        state.metrics().broken();
        state.activity().broken(name, caller.name.clone(), reason);
    }
    Ok(broken)
}
