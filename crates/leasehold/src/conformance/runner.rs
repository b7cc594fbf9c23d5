//! Runs the cases: one trial each, side by side on one store.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use super::{Case, Fixture, Ground, Need, THEMES, child, torture};
use crate::engine::Reach;

/// How long a case may take over all.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How long a case waits for one thing that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Cases mostly sleep, so more at a time than there are processors.
const AT_A_TIME: usize = 12;

/// The `main` of a test file: runs every case that the engine's capabilities call for, on stores
/// that `start` brings.
pub fn main<F, S, Fut>(start: S) -> ExitCode
where
    F: Fixture,
    S: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = F> + Send,
{
    if child::serve::<F>() {
        return ExitCode::SUCCESS;
    }
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let fixture: Arc<dyn Fixture> = Arc::new(runtime.block_on(start()));
    let able = runtime.block_on(fixture.connect()).capabilities();
    let processes = fixture.address().is_some();
    assert!(
        processes || able.reach == Reach::Process,
        "an engine that reaches beyond the process needs a fixture with an address"
    );
    let mut trials = Vec::new();
    for theme in THEMES {
        let chosen = theme.cases.iter().filter(|c| c.applies(&able, processes));
        for case in chosen {
            let name = format!("{}::{}::{}", fixture.scheme(), theme.name, case.name);
            let (runtime, start) = (Arc::clone(&runtime), start.clone());
            let shared = Arc::clone(&fixture);
            trials.push(Trial::test(name, move || {
                let store = if case.needs.contains(&Need::OwnStore) {
                    drop(shared);
                    Arc::new(runtime.block_on(start()))
                } else {
                    shared
                };
                run(&runtime, case, Ground::new(store, PATIENCE), TIME_LIMIT)
            }));
        }
    }
    run_trials(trials, AT_A_TIME)
}

/// Runs one case; panics and passing the time limit are failures.
pub fn run(
    runtime: &Runtime,
    case: &'static Case,
    ground: Ground,
    time_limit: Duration,
) -> Result<(), Failed> {
    let time_limit = time_limit + torture::asked_for().unwrap_or_default();
    let work = || {
        let _inside = runtime.enter();
        runtime.block_on(tokio::time::timeout(time_limit, (case.run)(ground)))
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(format!("not done within {time_limit:?}").into()),
        Err(panic) => Err(words(&*panic).into()),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

/// Runs trials as the command line asks, `at_a_time` unless it says how many.
pub fn run_trials(trials: Vec<Trial>, at_a_time: usize) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(at_a_time);
    libtest_mimic::run(&arguments, trials).exit_code()
}
