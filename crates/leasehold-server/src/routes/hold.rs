//! A lock as a stream: the server waits, acquires and renews, and closing the stream releases the lock.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::State as Extract;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use futures_util::future::{FusedFuture, FutureExt};
use leasehold::engine::wire;
use leasehold::{Brokered, Claim, ClaimId, Lease, LeaseState, LossReason, Wait};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::locks::{ClaimForm, Held, ModeForm, check_max_hold, inspect, obtain};
use super::stream::{self, Gone, Sender};
use crate::access::{Caller, RECHECK, Scope, identify_again};
use crate::activity::End;
use crate::connection::Client;
use crate::peer::Peer;
use crate::places::Leaving;
use crate::problem::Problem;
use crate::request::{Json, Named};
use crate::shapes::{self, Who};
use crate::state::{State, draining};
use crate::time::{Time, WaitTime, millis};

/// The longest silence.
const PING: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HoldForm {
    ttl: Option<Time>,
    wait: Option<WaitTime>,
    mode: Option<ModeForm>,
    permits: Option<u32>,
    label: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    reason: Option<String>,
    max_hold: Option<Time>,
    hold_at_least: Option<Time>,
}

pub(crate) async fn hold(
    Extract(state): Extract<State>,
    caller: Caller,
    peer: Peer,
    client: Client,
    Named(name): Named,
    Json(form): Json<HoldForm>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let name = caller.lock(Scope::Hold, &name)?;
    let wait = match form.wait.unwrap_or(WaitTime::Forever) {
        WaitTime::UpTo(time) => Wait::UpTo(time),
        WaitTime::Forever => Wait::Forever,
    };
    let terms = Terms {
        max_hold: form.max_hold.map(|time| time.0),
        hold_at_least: form.hold_at_least.map(|time| time.0),
    };
    terms.check()?;
    let claim = ClaimForm {
        ttl: form.ttl,
        mode: form.mode,
        permits: form.permits,
        label: form.label,
        host: form.host,
        pid: form.pid,
        reason: form.reason,
    };
    let mut claim = claim.into_claim(&state, &caller, &peer, name, ClaimId::random()?)?;
    claim.queues = wait != Wait::UpTo(Duration::ZERO);
    if state.is_draining() {
        return Err(draining());
    }
    let slot = state.stream_slot(&caller)?;
    let (sender, events) = mpsc::channel(64);
    tokio::spawn(async move {
        let _slot = slot;
        let holding = Holding {
            client: client.behind_proxy(state.settings().behind_proxy),
            caller,
            claim,
            sender: Sender::new(sender),
            state,
        };
        // Whoever has gone needs no answer.
        let _ = holding.run(wait, terms).await;
    });
    Ok(stream::of(events))
}

struct Terms {
    max_hold: Option<Duration>,
    hold_at_least: Option<Duration>,
}

impl Terms {
    fn check(&self) -> Result<(), Problem> {
        use leasehold::Ttl;
        self.max_hold.map_or(Ok(()), check_max_hold)?;
        if self.hold_at_least.is_some_and(|it| it > Ttl::MAX.get()) {
            return Err(Problem::invalid("hold_at_least is too long").advise("use 24h or less"));
        }
        Ok(())
    }
}

struct Holding {
    state: State,
    caller: Caller,
    client: Client,
    claim: Claim,
    sender: Sender,
}

impl Holding {
    async fn run(&self, wait: Wait, terms: Terms) -> Result<(), Gone> {
        let began = Instant::now();
        let lease = match self.acquire(wait, &terms).await? {
            Ok(lease) => lease,
            Err((event, data)) => return self.sender.send(event, data).await,
        };
        self.keep(lease, began, &terms).await
    }

    async fn acquire(
        &self,
        wait: Wait,
        terms: &Terms,
    ) -> Result<Result<Lease, (&'static str, Value)>, Gone> {
        let (state, claim) = (&self.state, &self.claim);
        let visit = match state.places().visit(claim, Leaving::Own, || Ok(None)).await {
            Ok(visit) => visit,
            Err(problem) => return Ok(Err(("error", problem.to_json()))),
        };
        let (met, mut ahead) = watch::channel(None);
        // Whether the client is there is known from its stream.
        let client = Client::default();
        let acquiring = obtain(state, &client, claim, wait, move |ahead| {
            met.send_if_modified(|last| last.replace(ahead) != Some(ahead));
        });
        let mut acquiring = std::pin::pin!(acquiring);
        let mut waiting = None;
        let (mut ping, mut recheck) = (pings(PING), pings(RECHECK));
        let began = Instant::now();
        // The client is told meanwhile: a lock that is handed over for a moment does not wait until it has read.
        let mut telling = futures_util::future::Fuse::terminated();
        let got = loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Gone::Closed),
                () = state.drained() => {
                    return Ok(Err(("goodbye", json!({"retry_after_ms": 1000}))));
                }
                got = &mut acquiring => break got,
                _ = recheck.tick() => {
                    if let Err(problem) = self.may_hold() {
                        return Ok(Err(("error", problem.to_json())));
                    }
                }
                told = &mut telling => told?,
                Ok(()) = ahead.changed(), if telling.is_terminated() => {
                    let ahead = (*ahead.borrow_and_update()).flatten();
                    waiting.get_or_insert_with(|| state.activity().waiting(claim, ahead));
                    telling = self.tell_waiting(ahead).boxed().fuse();
                }
                _ = ping.tick(), if telling.is_terminated() => {
                    telling = self.sender.send("ping", json!({})).boxed().fuse();
                }
            }
        };
        Ok(match got {
            Ok(Brokered::Granted(grant)) => {
                let (max, least) = (terms.max_hold, terms.hold_at_least);
                let lease = state.broker().keep(claim.clone(), grant, max, least);
                visit.granted();
                let waited = waiting.map_or(Duration::ZERO, |waiting| waiting.granted());
                state.metrics().waited(waited);
                state.activity().acquired(claim, grant.token, Some(waited));
                Ok(lease)
            }
            Ok(Brokered::Held {
                ahead,
                look_again_in,
                because,
            }) => {
                drop(visit);
                let held = Held {
                    ahead,
                    look_again_in,
                    because,
                    kept_place: false,
                };
                let problem = held.problem(state, &claim.name, began.elapsed()).await;
                Err(("timed-out", problem.to_json()))
            }
            Err(problem) => Err(("error", problem.to_json())),
        })
    }

    /// Whether the client's access token still allows it.
    fn may_hold(&self) -> Result<(), Problem> {
        let caller = identify_again(&self.state, &self.caller)?;
        caller.lock(Scope::Hold, self.claim.name.as_str())?;
        Ok(())
    }

    async fn tell_waiting(&self, ahead: Option<usize>) -> Result<(), Gone> {
        let lock = inspect(&self.state, &self.claim.name).await;
        let data = json!({
            "name": self.claim.name.as_str(),
            "ahead": ahead,
            "holders": shapes::holders(&lock),
        });
        self.sender.send("waiting", data).await
    }

    async fn keep(&self, lease: Lease, began: Instant, terms: &Terms) -> Result<(), Gone> {
        let told = self.watch(&lease, began).await;
        let (state, claim) = (&self.state, &self.claim);
        state.metrics().held(began.elapsed());
        let ended = |end| state.activity().ended(&claim.name, &claim.id, end);
        match told {
            Ok(Ended::Lost(reason)) => {
                state.metrics().lost(wire::loss(&reason));
                ended(match reason {
                    LossReason::Gone => End::Gone,
                    _ => End::Expired,
                });
                let data = json!({"reason": reason.to_string(), "kind": wire::loss(&reason)});
                self.sender.send("lost", data).await
            }
            Ok(Ended::Draining) => {
                lease.detach();
                let data = json!({"retry_after_ms": 1000});
                self.sender.send("goodbye", data).await
            }
            Ok(Ended::Forbidden(problem)) => {
                // As for a client that may no longer renew: it may still be at work until its time is over.
                lease.detach();
                self.sender.send("error", problem.to_json()).await
            }
            Err(gone) => {
                // A client that has not closed the stream may still be there, and relies on what it was told.
                let told_until = lease.valid_until();
                if gone == Gone::ReadsNothing || !self.client.has_hung_up().await {
                    tokio::select! {
                        () = state.broker().clock().sleep_until(told_until) => {}
                        () = state.drained() => {
                            lease.detach();
                            return Err(gone);
                        }
                    }
                }
                let stays = terms.hold_at_least.is_some_and(|it| began.elapsed() < it);
                // If this fails, it is completed in the background.
                let _ = lease.release().await;
                ended(if stays { End::Kept } else { End::Released });
                Err(gone)
            }
        }
    }

    /// Tells what becomes of the lease, until it is lost or the client has gone.
    async fn watch(&self, lease: &Lease, _began: Instant) -> Result<Ended, Gone> {
        let valid_ms = || json!(millis(lease.remaining()));
        let acquired = json!({
            "name": self.claim.name.as_str(),
            "token": lease.token().get(),
            "valid_ms": valid_ms(),
        });
        self.sender.send("acquired", acquired).await?;
        let look = (self.claim.ttl.get() / 6).clamp(Duration::from_millis(50), PING / 2);
        let (mut look, mut recheck) = (pings(look), pings(RECHECK));
        let (mut last, mut was_uncertain) = (Instant::now(), false);
        let mut valid_until = lease.valid_until();
        let revoked = std::pin::pin!(lease.revoke_requested());
        let mut revoked = revoked.fuse();
        loop {
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Gone::Closed),
                reason = lease.lost() => return Ok(Ended::Lost(reason)),
                () = self.state.drained() => return Ok(Ended::Draining),
                _ = recheck.tick() => {
                    if let Err(problem) = self.may_hold() {
                        return Ok(Ended::Forbidden(problem));
                    }
                }
                Ok(asked) = &mut revoked => {
                    let data = json!({"by": Who::from(&asked.by), "reason": asked.reason});
                    self.sender.send("revoke-requested", data).await?;
                }
                _ = look.tick() => {
                    let uncertain = lease.state() == LeaseState::Uncertain;
                    let renewed = lease.valid_until() != valid_until;
                    valid_until = lease.valid_until();
                    if renewed {
                        // So that others see until when it is held.
                        self.state.activity().renewed(&self.claim, lease.token());
                    }
                    let valid_ms = valid_ms();
                    if uncertain && !was_uncertain {
                        let reason = lease.last_failure().map(|it| it.to_string());
                        let data = json!({"valid_ms": valid_ms, "reason": reason});
                        self.sender.send("uncertain", data).await?;
                    } else if was_uncertain && !uncertain {
                        self.sender.send("held", json!({"valid_ms": valid_ms})).await?;
                    } else if renewed || last.elapsed() >= PING {
                        self.sender.send("ping", json!({"valid_ms": valid_ms})).await?;
                    } else {
                        continue;
                    }
                    was_uncertain = uncertain;
                    last = Instant::now();
                }
            }
        }
    }
}

enum Ended {
    Lost(LossReason),
    Draining,
    Forbidden(Problem),
}

fn pings(every: Duration) -> tokio::time::Interval {
    let start = tokio::time::Instant::now() + every;
    let mut ticks = tokio::time::interval_at(start, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Settings;
    use leasehold::{LockName, Locks, Ttl};

    #[tokio::test]
    async fn client_that_reads_nothing_keeps_what_it_was_told() {
        let locks = Locks::connect("memory:").await.unwrap();
        let state = State::new(locks.clone(), Settings::default()).unwrap();
        let mut claim = Claim::new(LockName::new("x").unwrap(), ClaimId::from_bytes([1; 16]));
        claim.ttl = Ttl::new(Duration::from_secs(3)).unwrap();
        // There is room for the first event, and not for that after the first renewal.
        let (sender, _unread) = mpsc::channel(1);
        let mut sender = Sender::new(sender);
        sender.slowest = Duration::from_millis(10);
        let holding = Holding {
            state,
            caller: Caller::anybody(false),
            client: Client::default(),
            claim,
            sender,
        };
        let terms = Terms {
            max_hold: None,
            hold_at_least: None,
        };
        let run = tokio::spawn(async move { holding.run(Wait::Forever, terms).await });
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
        assert_eq!(run.await.unwrap(), Err(Gone::ReadsNothing));
        assert!(locks.inspect("x").await.unwrap().holders.is_empty());
    }
}
