//! One leader at a time.

use std::fmt;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::unfold;

use crate::backoff::Backoff;
use crate::claim::Claimant;
use crate::clock::Moment;
use crate::engine::{HolderInfo, LossReason, Released};
use crate::error::Result;
use crate::lease::{Lease, LeaseView};
use crate::locks::{LockRequest, Locks};
use crate::name::LockName;
use crate::token::FencingToken;

/// Before the first look at who leads: whoever gets the lock at once follows nobody.
const FIRST_LOOK: Duration = Duration::from_millis(50);

impl Locks {
    /// Becomes a candidate with the default settings; for others, [`LockRequest::elect`].
    ///
    /// # Errors
    ///
    /// Those of [`LockRequest::elect`].
    pub fn elect(&self, name: impl AsRef<str>) -> Result<Election> {
        self.lock(name).elect()
    }

    /// Who leads; `None` if nobody does at this moment. For anyone, candidate or not.
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn leader(&self, name: impl AsRef<str>) -> Result<Option<Leader>> {
        let found = self.inspect(name).await?.holders;
        Ok(found.into_iter().next().map(Leader::of))
    }
}

impl LockRequest {
    /// Becomes a candidate: the holder of the lock leads. The others see its [label](Self::label). [`wait`](Self::wait) has no
    /// effect: a candidate waits forever.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName), or [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the mode is not exclusive or the TTL is out of range.
    pub fn elect(self) -> Result<Election> {
        self.must_be_exclusive("an election")?;
        let (name, mut request) = self.named()?;
        // Never a second lease of what its owner holds already: two elections of one owner would both lead.
        request.locks = request.locks.of_nobody();
        let ttl = request.ttl.clone()?.get();
        let now = request.locks.clock().now();
        Ok(Election {
            ttl,
            request: request.wait_forever(),
            name,
            state: State::Idle { until: now },
            delays: delays(),
            look_at: now,
            following: None,
        })
    }
}

/// A leader.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Who.
    pub claimant: Claimant,
    /// Its term: the fencing token, which grows from leader to leader.
    pub term: FencingToken,
    /// For how long already.
    pub leads_for: Duration,
}

impl Leader {
    fn of(holder: HolderInfo) -> Self {
        Self {
            claimant: holder.claimant,
            term: holder.token,
            leads_for: holder.held_for,
        }
    }
}

/// What [`Election::next`] returns.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ElectionEvent {
    /// This candidate leads, for as long as the lease is valid. The token is the term.
    Leading(LeaseView),
    /// Someone else leads.
    Following(Leader),
    /// This candidate led, and can no longer rely on it: whatever only a leader may do must stop. It is a candidate again with the
    /// next call.
    Lost(LossReason),
}

/// A candidate in an election. Dropping it ends the candidacy, and the lead.
///
/// ```no_run
/// # async fn work(_: leasehold::LeaseView) {}
/// # async fn example(locks: leasehold::Locks) -> leasehold::Result<()> {
/// use leasehold::recipe::ElectionEvent;
///
/// let mut election = locks.lock("scheduler").label("web1").elect()?;
/// loop {
///     match election.next().await? {
///         ElectionEvent::Leading(lease) => tokio::select! {
///             () = work(lease.clone()) => { election.resign().await?; }
///             reason = lease.lost() => println!("no longer leading: {reason}"),
///         },
///         ElectionEvent::Following(leader) => println!("{} leads", leader.claimant.label),
///         _ => {} // Lost: the work has been stopped above
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Election {
    request: LockRequest,
    name: LockName,
    state: State,
    /// After failures.
    delays: Backoff,
    ttl: Duration,
    /// When to look next who leads.
    look_at: Moment,
    /// The term that was reported last.
    following: Option<FencingToken>,
}

enum State {
    /// Not in the queue.
    Idle {
        until: Moment,
    },
    /// In the queue, with one claim.
    Queued(BoxFuture<'static, Result<Lease>>),
    Leading(Lease),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle { .. } => "idle",
            State::Queued(_) => "queued",
            State::Leading(_) => "leading",
        })
    }
}

fn delays() -> Backoff {
    let (first, cap) = (Duration::from_millis(100), Duration::from_secs(10));
    Backoff::new(fastrand::u64(..), first, cap)
}

impl Election {
    /// Returns the next change. The candidate enters the queue with the first call.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors), and those of [`LockRequest::acquire`] for a setting that cannot be used. An error
    /// does not end the candidacy: the next call tries again, after a delay that grows.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time: the candidate keeps its queue entry or its lead, and no change is missed.
    pub async fn next(&mut self) -> Result<ElectionEvent> {
        let locks = self.request.locks.clone();
        let clock = locks.clock();
        loop {
            match &mut self.state {
                State::Idle { until } => {
                    clock.sleep_until(*until).await;
                    let asking = self.request.alike(self.name.clone()).acquire();
                    self.state = State::Queued(Box::pin(asking));
                    self.look_at = clock.now() + FIRST_LOOK;
                    self.following = None;
                }
                State::Leading(lease) => {
                    let reason = lease.lost().await;
                    self.state = State::Idle { until: clock.now() };
                    return Ok(ElectionEvent::Lost(reason));
                }
                State::Queued(asking) => {
                    let look = async {
                        clock.sleep_until(self.look_at).await;
                        locks.leader(&self.name).await
                    };
                    let seen = tokio::select! {
                        biased;
                        obtained = &mut *asking => return self.obtained(obtained),
                        seen = look => seen,
                    };
                    self.look_at = clock.now() + (self.ttl / 3).max(FIRST_LOOK);
                    // One that cannot be seen just now is reported at the next look.
                    if let Ok(Some(leader)) = seen
                        && self.following != Some(leader.term)
                        && !self.may_be_us(&leader)
                    {
                        self.following = Some(leader.term);
                        return Ok(ElectionEvent::Following(leader));
                    }
                }
            }
        }
    }

    /// Whether it may be this candidate that leads: others can see the lead before the answer that says so. An answer that takes longer than
    /// the TTL is no lead.
    fn may_be_us(&self, leader: &Leader) -> bool {
        leader.leads_for <= self.ttl && leader.claimant == *self.request.claimant()
    }

    fn obtained(&mut self, obtained: Result<Lease>) -> Result<ElectionEvent> {
        match obtained {
            Ok(lease) => {
                let view = lease.view();
                self.state = State::Leading(lease);
                self.delays = delays();
                Ok(ElectionEvent::Leading(view))
            }
            Err(error) => {
                let until = self.request.locks.clock().now() + self.delays.delay();
                self.state = State::Idle { until };
                Err(error)
            }
        }
    }

    /// Gives up the lead; [`Released::WasNotHeld`] if this candidate did not lead. The next call of [`next`](Self::next) enters the end of
    /// the queue; where there is no other candidate, that may lead again at once.
    ///
    /// # Errors
    ///
    /// Those of [`Lease::release`]: the lead has ended all the same, and the release is completed in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lead has ended all the same, and the release is completed in the background.
    pub async fn resign(&mut self) -> Result<Released> {
        let until = self.request.locks.clock().now();
        match std::mem::replace(&mut self.state, State::Idle { until }) {
            State::Leading(lease) => lease.release().await,
            other => {
                self.state = other;
                Ok(Released::WasNotHeld)
            }
        }
    }

    /// The same as an endless stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<ElectionEvent>> {
        unfold(self, |mut election| async move {
            let next = election.next().await;
            Some((next, election))
        })
    }
}
