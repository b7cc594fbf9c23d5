//! The recipes on every engine: clients that know nothing of each other.

mod all;
mod beside;
mod child;
mod election;
mod ids;
mod meeting;
mod once_per;
mod revoke;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::conformance::{Stalls, Suite};
use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

use crate::target::Target;

/// How long a case may take over all.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A failure counts unless the host stalled for longer than this meanwhile.
const TOLERATED: Duration = Duration::from_millis(200);
const TRIES: usize = 5;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Case = fn(Arc<Target>) -> Work;

macro_rules! cases {
    ($($theme:ident: $($case:ident),*;)*) => {
        &[$($((concat!(stringify!($theme), "::", stringify!($case)), |target| Box::pin($theme::$case(target)))),*),*]
    };
}

const CASES: &[(&str, Case)] = cases! {
    all: random_sets_make_progress, none_is_left_behind, lost_with_one, circles_are_reported,
        killed_at_random_leaves_no_half;
    election: one_leader_at_a_time, followers_are_told_who_leads, a_leader_that_loses_stands_again;
    once_per: ten_at_once, a_failed_run_counts_unless_it_may_be_retried, a_crash_counts_as_failed,
        the_next_period_has_its_own_run, what_is_not_run_frees_the_lock, a_waiter_learns_that_it_was_done;
    ids: never_twice, claims_are_signed_from_a_pool;
    meeting: a_barrier_for_many_rounds, a_latch_opens_once, the_dead_do_not_count, a_killed_party_does_not_count;
    revoke: the_holder_hears_and_later_ones_do_not, nobody_to_ask;
    beside: users_locks_are_not_in_the_way, recipes_locks_are_in_no_list;
};

/// Does the work of a victim, if this process is one.
pub(crate) fn serve() -> bool {
    child::serve()
}

/// Every case on this engine.
pub(crate) fn trials(runtime: &Arc<Runtime>, suite: &Arc<Suite>) -> Vec<Trial> {
    let on_this_engine = CASES.iter().map(|(name, case)| {
        let name = format!("{}::recipes::{name}", suite.name());
        let (runtime, suite) = (Arc::clone(runtime), Arc::clone(suite));
        Trial::test(name, move || {
            let _turn = suite.turn();
            // Recipes with short TTLs fail on a host that stalls for as long, and say so.
            for nth in 0..TRIES {
                let stalls = Stalls::watch();
                let store = match nth {
                    0 => suite.store(),
                    // Without what the failure has left behind.
                    _ => suite.own_store(),
                };
                let finished = finish(&runtime, case(Target::new(store)));
                if finished.is_ok() || stalls.longest() < TOLERATED {
                    return finished;
                }
            }
            Err(format!("the host stalled in each of {TRIES} tries").into())
        })
    });
    on_this_engine.collect()
}

/// The case that needs a server of its own, since it is killed.
#[cfg(feature = "redis")]
pub(crate) fn trial_of_its_own(runtime: &Arc<Runtime>) -> Trial {
    let runtime = Arc::clone(runtime);
    let name = "redis::recipes::election::the_engine_goes_away_and_comes_back";
    Trial::test(name, move || {
        let work = election::the_engine_goes_away_and_comes_back();
        finish(&runtime, Box::pin(work))
    })
}

fn finish(runtime: &Runtime, work: Work) -> Result<(), Failed> {
    let work = async move { tokio::time::timeout(TIME_LIMIT, work).await };
    match runtime.block_on(runtime.spawn(work)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err("not done in time".into()),
        Err(panic) => Err(panic.to_string().into()),
    }
}
