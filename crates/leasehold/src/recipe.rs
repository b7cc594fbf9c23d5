//! What is built of locks, leases and guarded records alone, and so works on every engine that has them.
//!
//! What a recipe keeps for a lock, in a lock or a record of its own, is under a name that no user can make, and in no list.
//!
//! | module | what is there |
//! |---|---|
//! | [`Locks::all`](crate::Locks::all) | several locks at once, all or none (`all.rs`) |
//! | [`Locks::deadlocks`](crate::Locks::deadlocks) | claimants that wait for each other in a cycle (`deadlocks.rs`) |
//! | [`Locks::elect`](crate::Locks::elect) | one leader at a time (`election.rs`) |
//! | [`LockRequest::once_per`](crate::LockRequest::once_per), [`Locks::forget_run`](crate::Locks::forget_run) | one run in a period, whatever the hosts' clocks say (`once_per.rs`, `gate.rs`) |
//! | [`IdPool`] | ids that are unique by construction (`ids.rs`) |
//! | [`Locks::barrier`](crate::Locks::barrier), [`Locks::latch`](crate::Locks::latch) | waiting for each other (`barrier.rs`, `latch.rs`) |
//! | [`Locks::request_revoke`](crate::Locks::request_revoke), [`LeaseView::revoke_requested`](crate::LeaseView::revoke_requested) | asking a holder to release a lock (`revoke.rs`) |

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
pub use deadlocks::{Deadlock, DeadlockEdge};
pub use election::{Election, ElectionEvent, Leader};
pub use gate::Ran;
pub use ids::IdPool;
pub use latch::Latch;
pub use once_per::{OncePer, PeriodRun, PeriodTurn};
pub use revoke::RevokeRequest;

use std::time::Duration;

use crate::backoff::Backoff;
use crate::claim::Claimant;
use crate::clock::{Clock, Moment};
use crate::engine::{HolderInfo, Query};
use crate::error::{Error, ErrorKind, Result};
use crate::locks::{LockRequest, Locks};
use crate::name::LockName;

/// For how long what latches and barriers remember is kept after it was written last, if nothing else is said.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A request for a lock of a recipe's own, whose name no user can make.
fn request(locks: &Locks, name: LockName) -> LockRequest {
    let mut request = locks.lock("beside");
    request.name = Ok(name);
    request
}

/// Who holds such a lock.
async fn holders(locks: &Locks, name: &LockName) -> Result<Vec<HolderInfo>> {
    let engine = locks.engine();
    let found = engine.inspect(&Query::Name(name.clone())).await;
    let found = found.map_err(|error| error.during("inspect", engine.about().location).on(name))?;
    Ok(found
        .into_iter()
        .next()
        .map_or(Vec::new(), |lock| lock.holders))
}

/// A claimant in a record: three lines.
fn write_claimant(claimant: &Claimant) -> String {
    let Claimant { label, host, pid } = claimant;
    // Labels are checked; what a host is called is not ours to choose.
    let host: String = host.chars().filter(|c| !c.is_control()).collect();
    format!("{pid}\n{host}\n{label}")
}

fn read_claimant(lines: &mut std::str::Lines<'_>) -> Option<Claimant> {
    Some(Claimant {
        pid: lines.next()?.parse().ok()?,
        host: lines.next()?.to_owned(),
        label: lines.next()?.to_owned(),
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

    fn left(&self) -> Duration {
        self.end.since(self.clock.now())
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::Engine;
    use crate::engine::memory::Memory;
    use crate::guard::{Fencing, MemoryStore, Store, StoredFence};
    use crate::token::FencingToken;

    /// Names that are used once must not leave something behind for ever.
    #[tokio::test]
    async fn what_was_used_once_is_forgotten() {
        let locks = Locks::new(Arc::new(Memory::default()) as Arc<dyn Engine>);
        let records = Arc::new(MemoryStore::default());
        let brief = Duration::from_millis(20);
        let store = Store::new(Arc::clone(&records) as _, "memory").remember_deleted(brief);
        let fence = StoredFence::new(store.clone());
        let token = FencingToken::new(7).unwrap();
        for nth in 0..200 {
            let name = LockName::new(format!("n{nth}")).unwrap();
            fence.check(&name, token).await.unwrap();
            let latch = locks.latch(name.as_str(), 1).unwrap();
            let latch = latch.kept_in(&store).keep_for(brief);
            latch.arrive("one").await.unwrap();
            let barrier = locks.barrier(name.as_str(), 1).unwrap();
            let barrier = barrier.kept_in(&store).keep_for(brief);
            barrier.pass(brief).await.unwrap();
            store.delete(name.as_str(), token).await.unwrap();
        }
        tokio::time::sleep(2 * brief).await;
        assert_eq!(records.len(), 0);
    }
}
