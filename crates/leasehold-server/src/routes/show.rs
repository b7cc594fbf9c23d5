//! What is shown: locks, events, history, contention, who waits for whom, the engine.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use axum::extract::State as Extract;
use axum::response::sse::{Event as SseEvent, Sse};
use futures_util::Stream;
use http::HeaderMap;
use leasehold::engine::wire::{CapabilitiesMessage, PROTOCOL};
use leasehold::engine::{Capabilities, Expiry, Fairness, Reach, Safety, Survives};
use leasehold::{Claimant, LockInfo};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::Answer;
use super::stream::{self, Gone, Sender};
use crate::access::{Caller, RECHECK, Scope, identify_again};
use crate::activity::{Event, Filter, From as Begin};
use crate::problem::Problem;
use crate::request::{Named, Query};
use crate::shapes::{Lock, Who};
use crate::state::State;
use crate::time::{millis, rfc3339};

/// How often a stream gets a comment, so that whatever stands between does not close it.
const COMMENT: Duration = Duration::from_secs(10);

pub(crate) async fn whoami(Extract(state): Extract<State>, caller: Caller) -> Answer<Value> {
    Ok(axum::Json(json!({
        "name": caller.name,
        "scopes": caller.scopes,
        "prefixes": caller.prefixes,
        "read_only": caller.read_only,
        "tokens": state.tokens().is_some(),
        "may": {
            "read": caller.has(Scope::Read),
            "hold": caller.has(Scope::Hold),
            "break": caller.has(Scope::Break),
        },
        "server": state.instance(),
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    #[serde(default)]
    prefix: String,
    limit: Option<usize>,
    cursor: Option<String>,
}

pub(crate) async fn list(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> Answer<Value> {
    let limit = within(query.limit, 500, 5_000)?;
    let locks = visible(&state, &caller, &query.prefix).await?;
    let total = locks.len();
    let is_after = |lock: &&LockInfo| match &query.cursor {
        Some(cursor) => lock.name.as_str() > cursor.as_str(),
        None => true,
    };
    let rest: Vec<_> = locks.iter().filter(is_after).collect();
    let page: Vec<Lock> = rest.iter().take(limit).map(|lock| (*lock).into()).collect();
    let next = match rest.len() > limit {
        true => page.last().map(|lock| lock.name.clone()),
        false => None,
    };
    Ok(axum::Json(json!({
        "locks": page,
        "next": next,
        "at": rfc3339(SystemTime::now()),
        "total": total,
    })))
}

fn within(given: Option<usize>, default: usize, most: usize) -> Result<usize, Problem> {
    match given.unwrap_or(default) {
        limit if (1..=most).contains(&limit) => Ok(limit),
        _ => Err(Problem::invalid("the limit is out of range").advise(format!("use 1 to {most}"))),
    }
}

/// The locks that a caller may see.
pub(crate) async fn visible(
    state: &State,
    caller: &Caller,
    prefix: &str,
) -> Result<Vec<LockInfo>, Problem> {
    caller.may_list()?;
    let mut locks = state.locks().list(prefix).await?;
    locks.retain(|lock| caller.reaches(lock.name.as_str()));
    Ok(locks)
}

pub(crate) async fn show(
    Extract(state): Extract<State>,
    caller: Caller,
    Named(name): Named,
) -> Answer<Value> {
    let name = caller.lock(Scope::Read, &name)?;
    let info = state.locks().inspect(&name).await?;
    let activity = state.activity();
    let filter = Filter {
        lock: Some(name.as_str().to_owned()),
        ..Filter::default()
    };
    let asked = activity
        .asked_for(&info)
        .map(|asked| json!({"by": asked.by, "reason": asked.reason, "at": rfc3339(asked.at)}));
    let history = activity.history().find(filter, 20, |_| true).await?;
    let mut shown = serde_json::to_value(Lock::from(&info)).unwrap_or_default();
    if let Some(members) = shown.as_object_mut() {
        let events = json!(activity.events_of(&name, 50));
        members.insert("events".to_owned(), events);
        members.insert("history".to_owned(), json!(history));
        members.insert("asked".to_owned(), asked.unwrap_or(Value::Null));
        members.insert("at".to_owned(), rfc3339(SystemTime::now()).into());
    }
    Ok(axum::Json(shown))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    replay: Option<usize>,
}

pub(crate) async fn events(
    Extract(state): Extract<State>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>, Problem> {
    caller.may_list()?;
    let slot = state.stream_slot(&caller)?;
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let after = query.after.or(header.map(str::to_owned));
    let begin = match (after, query.replay) {
        (Some(id), _) => Begin::After(id),
        (None, Some(count)) => Begin::Last(count),
        (None, None) => Begin::Now,
    };
    let (sender, stream) = mpsc::channel(64);
    tokio::spawn(async move {
        let _slot = slot;
        let mut reader = Reader {
            state,
            caller,
            prefix: query.prefix,
            sender: Sender::new(sender),
        };
        let _ = reader.run(&begin).await;
    });
    Ok(stream::of(stream))
}

struct Reader {
    state: State,
    caller: Caller,
    prefix: String,
    sender: Sender,
}

impl Reader {
    async fn run(&mut self, begin: &Begin) -> Result<(), Gone> {
        let (replay, mut live) = self.state.activity().subscribe(begin);
        match replay {
            Some(events) => {
                for event in events {
                    self.tell(&event).await?;
                }
            }
            None => self.sender.send("reset", json!({})).await?,
        }
        let mut recheck = tokio::time::interval(RECHECK);
        let mut told = tokio::time::Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Gone::Closed),
                _ = recheck.tick() => {
                    let caller = identify_again(&self.state, &self.caller);
                    match caller.and_then(|it| it.may_list().map(|()| it)) {
                        Ok(caller) => self.caller = caller,
                        Err(problem) => return self.sender.send("error", problem.to_json()).await,
                    }
                    if told.elapsed() >= COMMENT {
                        told = tokio::time::Instant::now();
                        self.sender.send_event(SseEvent::default().comment("")).await?;
                    }
                }
                () = self.state.drained() => {
                    return self.sender.send("goodbye", json!({"retry_after_ms": 1000})).await;
                }
                event = live.recv() => match event {
                    Ok(event) => self.tell(&event).await?,
                    Err(RecvError::Lagged(_)) => self.sender.send("reset", json!({})).await?,
                    Err(RecvError::Closed) => return Ok(()),
                },
            }
        }
    }

    async fn tell(&self, event: &Event) -> Result<(), Gone> {
        if !event.lock.starts_with(&self.prefix) || !self.caller.reaches(&event.lock) {
            return Ok(());
        }
        let data = serde_json::to_string(event).unwrap_or_default();
        let told = SseEvent::default().id(&event.id).event(event.what.name());
        self.sender.send_event(told.data(data)).await
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    lock: Option<String>,
    holder: Option<String>,
    end: Option<String>,
    #[serde(default)]
    prefix: String,
    before: Option<u64>,
    limit: Option<usize>,
}

pub(crate) async fn history(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<HistoryQuery>,
) -> Answer<Value> {
    caller.may_list()?;
    let limit = within(query.limit, 100, 1_000)?;
    let filter = Filter {
        lock: query.lock,
        prefix: query.prefix,
        holder: query.holder,
        end: query.end,
        before: query.before,
    };
    let history = state.activity().history();
    let may_see = move |lock: &str| caller.reaches(lock);
    let mut holds = history.find(filter, limit + 1, may_see).await?;
    let more = holds.len() > limit;
    holds.truncate(limit);
    let next = holds.last().filter(|_| more);
    Ok(axum::Json(json!({
        "next": next.map(|hold| hold.number.to_string()),
        "holds": holds,
        "kept": history.kept_in(),
    })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentionQuery {
    #[serde(default)]
    prefix: String,
    limit: Option<usize>,
}

pub(crate) async fn contention(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<ContentionQuery>,
) -> Answer<Value> {
    caller.may_list()?;
    let limit = within(query.limit, 20, 100)?;
    let is_asked_for = |name: &str| name.starts_with(&query.prefix) && caller.reaches(name);
    let contended = state.activity().contention(limit, is_asked_for);
    let locks: Vec<_> = contended
        .into_iter()
        .map(|(name, buckets)| {
            let waited: u64 = buckets.iter().sum();
            json!({"name": name, "waited_ms": waited, "buckets_ms": buckets})
        })
        .collect();
    Ok(axum::Json(json!({
        "bucket_ms": 60_000,
        "ends_at": rfc3339(SystemTime::now()),
        "locks": locks,
    })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrefixQuery {
    #[serde(default)]
    prefix: String,
}

pub(crate) async fn summary(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<PrefixQuery>,
) -> Answer<Value> {
    let started = std::time::Instant::now();
    let locks = visible(&state, &caller, &query.prefix).await?;
    let took = started.elapsed();
    let waits = locks.iter().flat_map(|lock| &lock.waiters);
    let oldest = waits.clone().map(|waiter| waiter.waited_for).max();
    let series = state.activity().series();
    let of_all = (!caller.is_limited())
        .then(|| json!({"bucket_ms": 60_000, "held": series.held, "waiting": series.waiting}));
    let lost =
        (!caller.is_limited()).then(|| json!({"expired": series.expired, "broken": series.broken}));
    let held: usize = locks.iter().map(|lock| lock.holders.len()).sum();
    Ok(axum::Json(json!({
        "at": rfc3339(SystemTime::now()),
        "held": held,
        "waiting": waits.count(),
        "locks": locks.len(),
        "oldest_wait_ms": oldest.map(millis),
        "lost_last_hour": lost,
        "series": of_all,
        "engine_ms": millis(took),
        "engine_ok": true,
    })))
}

pub(crate) async fn graph(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<PrefixQuery>,
) -> Answer<Value> {
    let locks = visible(&state, &caller, &query.prefix).await?;
    let mut deadlocks = state.locks().deadlocks(query.prefix).await?;
    let is_seen = |name: &str| caller.reaches(name);
    deadlocks.retain(|cycle| cycle.edges.iter().all(|edge| is_seen(edge.lock.as_str())));
    let mut claimants: BTreeMap<&Claimant, (Vec<&str>, Vec<&str>)> = BTreeMap::new();
    for lock in locks.iter().filter(|lock| !lock.waiters.is_empty()) {
        for holder in &lock.holders {
            let (holds, _) = claimants.entry(&holder.claimant).or_default();
            holds.push(lock.name.as_str());
        }
        for waiter in &lock.waiters {
            let (_, waits) = claimants.entry(&waiter.claimant).or_default();
            waits.push(lock.name.as_str());
        }
    }
    let number = |who: &Claimant| claimants.keys().position(|known| *known == who);
    let mut edges = Vec::new();
    for lock in &locks {
        for waiter in &lock.waiters {
            for holder in &lock.holders {
                let (from, to) = (number(&waiter.claimant), number(&holder.claimant));
                edges.push(json!({"from": from, "to": to, "lock": lock.name.as_str()}));
            }
        }
    }
    let cycles: Vec<Vec<_>> = deadlocks
        .iter()
        .map(|cycle| {
            cycle
                .edges
                .iter()
                .filter_map(|edge| number(&edge.who))
                .collect()
        })
        .collect();
    let nodes: Vec<_> = claimants
        .iter()
        .enumerate()
        .map(|(id, (who, (holds, waits)))| {
            let who = Who::from(*who);
            json!({"id": id, "label": who.label, "host": who.host, "pid": who.pid, "holds": holds, "waits_for": waits})
        })
        .collect();
    Ok(axum::Json(
        json!({"claimants": nodes, "edges": edges, "cycles": cycles}),
    ))
}

pub(crate) async fn engine(Extract(state): Extract<State>, caller: Caller) -> Answer<Value> {
    if !caller.has(Scope::Hold) {
        caller.need(Scope::Read)?;
    }
    let about = state.engine().about();
    let settings = state.settings();
    Ok(axum::Json(json!({
        "protocol": PROTOCOL,
        "scheme": about.scheme,
        "location": about.location,
        "warnings": about.warnings,
        "requests": about.requests,
        "capabilities": CapabilitiesMessage::from(about.capabilities),
        "plain": plain(&about.capabilities),
        "server": {
            "version": env!("CARGO_PKG_VERSION"),
            "started_at": rfc3339(state.started_at()),
            "instance": state.instance(),
            "history": state.activity().history().kept_in(),
            "observes_every_ms": settings.observe.map(millis),
            "read_only": state.read_only(),
        },
    })))
}

pub(crate) async fn doctor(Extract(state): Extract<State>, caller: Caller) -> Answer<Value> {
    caller.need(Scope::Read)?;
    let examined = state.doctor().first().await;
    let examined = examined.ok_or_else(|| {
        Problem::new(
            "unreachable",
            "the engine has not told its settings in time",
        )
    })?;
    Ok(axum::Json(examined.to_json()))
}

/// Capabilities in sentences.
fn plain(able: &Capabilities) -> Vec<&'static str> {
    let mut told = vec![match able.reach {
        Reach::Process => {
            "The locks live in this server's memory: they end with it, and no other server can share them."
        }
        Reach::Machine => {
            "The locks are in a file of this machine: only one server can pass them on."
        }
        _ => "The locks are in a store that other servers and programs can share.",
    }];
    told.push(match able.safety {
        Safety::Correctness => "Fit for correctness: two never hold a lock at once within its validity, as long as nothing happens that the store does not survive.",
        _ => "Fit for efficiency: a failure of the store, such as a restart without its memory, can let a second holder in.",
    });
    told.push(match able.fairness {
        Fairness::Fifo => "Whoever has waited longest is next.",
        _ => "Who is next is a matter of luck.",
    });
    told.push(match able.expiry {
        Expiry::Session => "A lock ends with the session of the server that holds it.",
        Expiry::Observed => "A lock whose holder has died ends with its TTL, which each client counts from when it first saw the last renewal.",
        _ => "A lock whose holder has died ends with its TTL.",
    });
    told.push(match (able.shared, able.permits) {
        (true, true) => "It has shared locks and permits.",
        (true, false) => "It has shared locks, but no permits.",
        (false, true) => "It has permits, but no shared locks.",
        (false, false) => "It has neither shared locks nor permits.",
    });
    told.push(match able.store {
        true => "It keeps guarded records, which refuse writes with an older token.",
        false => "It keeps no guarded records.",
    });
    let survives = able.survives.iter().filter_map(|it| match it {
        Survives::ClientKilled => Some("It survives clients that are killed."),
        Survives::EngineRestart => Some("It survives a restart of the store."),
        Survives::PowerLoss => Some("It survives a loss of power."),
        Survives::NodeLoss => Some("It survives the loss of a minority of its nodes."),
        Survives::ClockStep => Some("It survives clocks that step."),
        _ => None,
    });
    told.extend(survives);
    told
}
