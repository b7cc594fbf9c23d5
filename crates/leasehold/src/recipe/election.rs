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
    /// Stands for election; with other settings than the usual, [`LockRequest::elect`].
    pub fn elect(&self, name: impl AsRef<str>) -> Result<Election> {
        self.lock(name).elect()
    }

    /// Who leads, for anyone to read; `None` if nobody does just now.
    pub async fn leader(&self, name: impl AsRef<str>) -> Result<Option<Leader>> {
        let found = self.show(name).await?.holders;
        Ok(found.into_iter().next().map(Leader::of))
    }
}

impl LockRequest {
    /// Stands for election: whoever holds the lock leads. The [owner](Self::owner) is the label that others see.
    pub fn elect(self) -> Result<Election> {
        self.must_be_exclusive("an election")?;
        let (name, request) = self.named()?;
        let now = request.locks.clock().now();
        Ok(Election {
            request: request.wait_forever(),
            name,
            state: State::Idle { until: now },
            delays: delays(),
            look_at: now,
            following: None,
        })
    }
}

/// A leader as all see it.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// What [`Election::next`] tells.
#[derive(Debug, Clone)]
pub enum Standing {
    /// We lead, for as long as the lease is good. Its token is the term.
    Leading(LeaseView),
    /// Someone else does.
    Following(Leader),
    /// We led, and can no longer rely on it: whatever a leader does must stop. We stand again.
    Lost(LossReason),
}

/// Takes part in an election until it is dropped; leading ends then too.
///
/// ```no_run
/// # async fn work(_: leasehold::LeaseView) {}
/// # async fn example(locks: leasehold::Locks) -> leasehold::Result<()> {
/// use leasehold::recipe::Standing;
///
/// let mut election = locks.lock("scheduler").owner("web1").elect()?;
/// loop {
///     match election.next().await? {
///         Standing::Leading(lease) => tokio::select! {
///             () = work(lease.clone()) => { election.resign().await?; }
///             reason = lease.lost() => println!("no longer leading: {reason}"),
///         },
///         Standing::Following(leader) => println!("{} leads", leader.claimant.owner),
///         Standing::Lost(_) => {}
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
    /// When to look again who leads.
    look_at: Moment,
    /// The term that was told last.
    following: Option<FencingToken>,
}

enum State {
    /// Not in the queue.
    Idle {
        until: Moment,
    },
    /// In the queue, with one claim.
    Standing(BoxFuture<'static, Result<Lease>>),
    Leading(Lease),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle { .. } => "idle",
            State::Standing(_) => "standing",
            State::Leading(_) => "leading",
        })
    }
}

fn delays() -> Backoff {
    let (first, cap) = (Duration::from_millis(100), Duration::from_secs(10));
    Backoff::new(fastrand::u64(..), first, cap)
}

impl Election {
    /// Returns the next change. An error is none: the engine did not answer, say; call it again, and it is tried
    /// again after a delay that grows.
    ///
    /// Dropping the future loses nothing: neither the place in the queue nor the lead.
    pub async fn next(&mut self) -> Result<Standing> {
        let locks = self.request.locks.clone();
        let clock = locks.clock();
        loop {
            match &mut self.state {
                State::Idle { until } => {
                    clock.sleep_until(*until).await;
                    let asking = self.request.alike(self.name.clone()).acquire();
                    self.state = State::Standing(Box::pin(asking));
                    self.look_at = clock.now() + FIRST_LOOK;
                    self.following = None;
                }
                State::Leading(lease) => {
                    let reason = lease.lost().await;
                    self.state = State::Idle { until: clock.now() };
                    return Ok(Standing::Lost(reason));
                }
                State::Standing(asking) => {
                    let look = async {
                        clock.sleep_until(self.look_at).await;
                        locks.leader(&self.name).await
                    };
                    tokio::select! {
                        biased;
                        obtained = asking => return self.obtained(obtained),
                        seen = look => {
                            self.look_at = clock.now() + (self.request.ttl / 3).max(FIRST_LOOK);
                            // One that cannot be seen just now is told of at the next look.
                            if let Ok(Some(leader)) = seen
                                && self.following.replace(leader.term) != Some(leader.term)
                            {
                                return Ok(Standing::Following(leader));
                            }
                        }
                    }
                }
            }
        }
    }

    fn obtained(&mut self, obtained: Result<Lease>) -> Result<Standing> {
        match obtained {
            Ok(lease) => {
                let view = lease.view();
                self.state = State::Leading(lease);
                self.delays = delays();
                Ok(Standing::Leading(view))
            }
            Err(error) => {
                let until = self.request.locks.clock().now() + self.delays.delay();
                self.state = State::Idle { until };
                Err(error)
            }
        }
    }

    /// Hands the lead over and goes to the end of the queue; [`Released::WasNotHeld`] if we did not lead. Where
    /// nobody else stands, we may lead again at once.
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
    pub fn into_stream(self) -> impl Stream<Item = Result<Standing>> {
        unfold(self, |mut election| async move {
            let next = election.next().await;
            Some((next, election))
        })
    }
}
