//! What is built of locks, leases and guarded records alone, and so works on every engine that has them.
//!
//! | module | what is there |
//! |---|---|
//! | [`Locks::all`](crate::Locks::all) | several locks at once, all or none (`all.rs`) |
//! | [`Locks::deadlocks`](crate::Locks::deadlocks) | who waits for whom in a circle (`deadlocks.rs`) |
//! | [`Locks::elect`](crate::Locks::elect) | one leader at a time (`election.rs`) |
//! | [`LockRequest::once_per`](crate::LockRequest::once_per) | one run in a period, whatever the hosts' clocks say (`once_per.rs`, `gate.rs`) |
//! | [`IdPool`] | ids that are unique by construction (`ids.rs`) |
//! | [`Locks::barrier`](crate::Locks::barrier), [`Locks::latch`](crate::Locks::latch) | waiting for each other (`barrier.rs`, `latch.rs`) |
//! | [`Locks::ask`](crate::Locks::ask), [`LeaseView::revoke_requested`](crate::LeaseView::revoke_requested) | asking a holder to give a lock up (`revoke.rs`) |

mod all;
mod barrier;
mod deadlocks;
mod election;
mod gate;
mod ids;
mod latch;
mod once_per;
mod revoke;

pub use all::{AllRequest, Leases};
pub use barrier::Barrier;
pub use deadlocks::{Deadlock, Wait};
pub use election::{Election, Leader, Standing};
pub use gate::Ran;
pub use ids::IdPool;
pub use latch::Latch;
pub use once_per::{OncePer, Run, Turn};
pub use revoke::RevokeRequest;

use std::time::Duration;

use crate::backoff::Backoff;
use crate::claim::Claimant;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// How a recipe calls its own lock or record that belongs to a user's lock: it stands beside it in every list.
fn beside(name: &LockName, what: &str) -> Result<LockName> {
    LockName::new(format!("{}#{what}", name.as_str())).map_err(|_| {
        Error::new(
            ErrorKind::InvalidName,
            format!(
                "the name {name} is too long for this: `#{what}` is to stand behind it, within {} bytes",
                LockName::MAX_BYTES
            ),
        )
        .advise("use a shorter name")
    })
}

/// A claimant in a record: three lines.
fn write_claimant(claimant: &Claimant) -> String {
    let Claimant { owner, host, pid } = claimant;
    // Owners are checked; what a host is called is not ours to choose.
    let host: String = host.chars().filter(|c| !c.is_control()).collect();
    format!("{pid}\n{host}\n{owner}")
}

fn read_claimant(lines: &mut std::str::Lines<'_>) -> Option<Claimant> {
    Some(Claimant {
        pid: lines.next()?.parse().ok()?,
        host: lines.next()?.to_owned(),
        owner: lines.next()?.to_owned(),
    })
}

/// Looks at something that others will change: often at first, seldom if it takes long.
struct Looks {
    clock: Clock,
    end: Moment,
    delays: Backoff,
}

impl Looks {
    fn within(wait: Duration) -> Self {
        let clock = Clock::machine();
        let (first, cap) = (Duration::from_millis(5), Duration::from_millis(500));
        Self {
            end: clock.now() + wait,
            clock,
            delays: Backoff::new(fastrand::u64(..), first, cap),
        }
    }

    /// Returns when it is time for another look; false if the time is over.
    async fn again(&mut self) -> bool {
        let now = self.clock.now();
        let next = self.end.min(now + self.delays.delay());
        self.clock.sleep_until(next).await;
        now < self.end
    }
}

fn at_least_one(parties: u32) -> Result<u32> {
    match parties {
        0 => {
            Err(Error::new(ErrorKind::InvalidConfig, "0 parties never meet")
                .advise("use 1 or more"))
        }
        parties => Ok(parties),
    }
}
