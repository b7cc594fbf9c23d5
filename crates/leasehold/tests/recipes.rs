//! The recipes on every engine at hand: real servers, clients that know nothing of each other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "recipes/all.rs"]
mod all;
#[path = "recipes/child.rs"]
mod child;
#[path = "recipes/election.rs"]
mod election;
#[path = "recipes/ids.rs"]
mod ids;
#[path = "recipes/meeting.rs"]
mod meeting;
#[path = "recipes/once_per.rs"]
mod once_per;
#[path = "recipes/place.rs"]
mod place;
#[path = "recipes/revoke.rs"]
mod revoke;
mod support;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use leasehold::conformance::run_trials;
use libtest_mimic::Trial;
use place::Place;

/// How long a case may take over all.
const TIME_LIMIT: Duration = Duration::from_secs(120);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Case = fn(Arc<Place>) -> Work;

macro_rules! cases {
    ($($theme:ident: $($case:ident),*;)*) => {
        &[$($((concat!(stringify!($theme), "::", stringify!($case)), |place| Box::pin($theme::$case(place)))),*),*]
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
};

fn main() -> ExitCode {
    if child::serve() {
        return ExitCode::SUCCESS;
    }
    let runtime = Arc::new(tokio::runtime::Runtime::new().unwrap());
    let places = runtime.block_on(place::all());
    let trial = |name: String, work: Work| {
        let runtime = Arc::clone(&runtime);
        Trial::test(name, move || {
            let work = async move { tokio::time::timeout(TIME_LIMIT, work).await };
            match runtime.block_on(runtime.spawn(work)) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) => Err("not done in time".into()),
                Err(panic) => Err(panic.to_string().into()),
            }
        })
    };
    let mut trials = Vec::new();
    for place in &places {
        for (name, case) in CASES {
            let name = format!("{}::{name}", place.scheme());
            trials.push(trial(name, case(Arc::clone(place))));
        }
    }
    let name = "redis::election::the_engine_goes_away_and_comes_back";
    let work = Box::pin(election::the_engine_goes_away_and_comes_back());
    trials.push(trial(name.to_owned(), work));
    let code = run_trials(trials, 8);
    drop(places);
    code
}
