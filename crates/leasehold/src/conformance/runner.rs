//! Runs the cases: one trial each, side by side on one store.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::{Case, Fixture, Ground, Need, THEMES, child, torture};
use crate::engine::Reach;

/// How long a case may take over all.
const TIME_LIMIT: Duration = Duration::from_secs(240);

/// How long a case waits for one thing that must happen. Less than the time after which a waiter looks again by itself, so that a lost wake-up is noticed.
const PATIENCE: Duration = Duration::from_secs(50);

/// Cases mostly sleep, so more at a time than there are processors.
const AT_A_TIME: usize = 12;

/// The `main` of a test file: runs every case that the engine's capabilities call for, on stores
/// that `start` brings.
pub fn main<F, S, Fut>(start: S) -> ExitCode
where
    F: Fixture,
    S: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = F> + Send + 'static,
{
    if child::serve(async |address: &str| F::attach(address).await) {
        return ExitCode::SUCCESS;
    }
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let store = runtime.block_on(start());
    let scheme = store.scheme();
    let unmet = unmet(&runtime, &store);
    let suite = Suite {
        store: OnceLock::from(Arc::new(store) as Arc<dyn Fixture>),
        ..Suite::new(&runtime, scheme, &unmet, start)
    };
    let trials = Arc::new(suite).trials();
    run_trials(trials, AT_A_TIME)
}

type Start = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Fixture>> + Send + Sync>;

/// The cases for one engine, and the store that they share: it starts with the first case that runs, and ends with the last.
pub struct Suite {
    name: &'static str,
    unmet: Vec<Need>,
    start: Start,
    store: OnceLock<Arc<dyn Fixture>>,
    runtime: Arc<Runtime>,
    /// For as many cases at a time as the store can bear.
    turns: Option<Arc<Semaphore>>,
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Suite({})", self.name)
    }
}

impl Suite {
    /// The suite for an engine that does not meet these needs; `name` is the first part of each case's name. All cases fail
    /// if the engine's capabilities say otherwise.
    pub fn new<F, S, Fut>(
        runtime: &Arc<Runtime>,
        name: &'static str,
        unmet: &[Need],
        start: S,
    ) -> Self
    where
        F: Fixture,
        S: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = F> + Send + 'static,
    {
        let start = move || -> BoxFuture<'static, Arc<dyn Fixture>> {
            let started = start();
            Box::pin(async move { Arc::new(started.await) as Arc<dyn Fixture> })
        };
        Self {
            name,
            unmet: unmet.to_vec(),
            start: Box::new(start),
            store: OnceLock::new(),
            runtime: Arc::clone(runtime),
            turns: None,
        }
    }

    /// No more than so many cases at a time: for a store that is slow.
    #[must_use]
    pub fn at_a_time(self, cases: usize) -> Self {
        let turns = Some(Arc::new(Semaphore::new(cases)));
        Self { turns, ..self }
    }

    /// Waits until the store can bear another case; while what is returned lives, that is one. Not to be called from within a runtime.
    pub fn turn(&self) -> impl Sized + use<> {
        let turns = self.turns.clone();
        turns.map(|turns| self.runtime.block_on(turns.acquire_owned()))
    }

    /// The first part of each case's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A trial for each case whose needs are met.
    pub fn trials(self: &Arc<Self>) -> Vec<Trial> {
        let mut trials = Vec::new();
        for theme in THEMES {
            let is_met = |need: &Need| !self.unmet.contains(need);
            let chosen = theme.cases.iter().filter(|c| c.needs.iter().all(is_met));
            for case in chosen {
                let name = format!("{}::{}::{}", self.name, theme.name, case.name);
                let suite = Arc::clone(self);
                trials.push(Trial::test(name, move || suite.run(case)));
            }
        }
        trials
    }

    /// The store that the cases share, started if it is not running yet. Not to be called from within a runtime.
    pub fn store(&self) -> Arc<dyn Fixture> {
        let store = self.store.get_or_init(|| {
            let store = self.own_store();
            let unmet = unmet(&self.runtime, &*store);
            let same = unmet.iter().all(|need| self.unmet.contains(need));
            assert!(
                same && unmet.len() == self.unmet.len(),
                "{} does not meet {unmet:?}, although {:?} was declared",
                self.name,
                self.unmet
            );
            store
        });
        Arc::clone(store)
    }

    /// A store of its own, for a case that would be in the way of others. Not to be called from within a runtime.
    pub fn own_store(&self) -> Arc<dyn Fixture> {
        self.runtime.block_on((self.start)())
    }

    fn run(&self, case: &'static Case) -> Result<(), Failed> {
        let _turn = self.turn();
        let store = match case.needs.contains(&Need::OwnStore) {
            true => self.own_store(),
            false => self.store(),
        };
        let ground = Ground::new(store, PATIENCE);
        run(&self.runtime, case, ground, TIME_LIMIT)
    }
}

fn unmet(runtime: &Runtime, store: &dyn Fixture) -> Vec<Need> {
    let able = runtime.block_on(store.connect()).about().capabilities;
    let processes = store.address().is_some();
    assert!(
        processes || able.reach == Reach::Process,
        "an engine that reaches beyond the process needs a fixture with an address"
    );
    Need::unmet(&able, processes)
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
