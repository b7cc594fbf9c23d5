//! Every case of the suite is shown to fail on an engine broken on purpose, and to pass on the same
//! engine unbroken.

#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::conformance::saboteur::{self, Sabotaged, Saboteur};
use leasehold::conformance::{Case, Fixture, Ground, Need, THEMES, child, run, run_trials};
use leasehold::engine::Engine;
use leasehold::engine::memory::Memory;
use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

/// How long a broken engine may hold a case up; far more than an unbroken one needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is broken mostly keeps its case waiting.
const AT_A_TIME: usize = 24;

/// One store a case, broken in one way.
struct Broken {
    how: Saboteur,
    memory: Mutex<Arc<saboteur::Memory>>,
    store: Store,
}

enum Store {
    Memory(Arc<Memory>),
    Sqlite(tempfile::TempDir),
}

impl Broken {
    fn new(how: Saboteur, case: &Case) -> Self {
        Self {
            how,
            memory: Mutex::default(),
            store: Store::for_case(case),
        }
    }
}

impl Store {
    fn for_case(case: &Case) -> Self {
        let needs_sqlite = [Need::Processes, Need::SurvivesRestart];
        if case.needs.iter().any(|need| needs_sqlite.contains(need)) {
            Store::Sqlite(tempfile::tempdir().unwrap())
        } else {
            Store::Memory(Arc::default())
        }
    }
}

#[async_trait]
impl Fixture for Broken {
    fn scheme(&self) -> &'static str {
        "saboteurs"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        let memory = Arc::clone(&self.memory.lock().unwrap());
        match &self.store {
            Store::Memory(store) => Arc::new(Sabotaged::new(store.clone(), self.how, memory)),
            Store::Sqlite(_) => Self::attach(&self.address().unwrap()).await,
        }
    }

    fn address(&self) -> Option<String> {
        match &self.store {
            Store::Memory(_) => None,
            Store::Sqlite(folder) => {
                let file = folder.path().join("locks.db");
                Some(format!("{}@sqlite:{}", self.how, file.display()))
            }
        }
    }

    async fn attach(address: &str) -> Arc<dyn Engine> {
        let (how, url) = address.split_once('@').unwrap();
        let locks = leasehold::Locks::connect(url).await.unwrap();
        let inner = Arc::clone(locks.engine());
        let how = how.parse().unwrap();
        Arc::new(Sabotaged::new(inner, how, Arc::default()))
    }

    async fn restart(&self) {
        *self.memory.lock().unwrap() = Arc::default();
    }
}

fn attempt(runtime: &Runtime, case: &'static Case, how: Saboteur) -> Result<(), Failed> {
    let fixture = Arc::new(Broken::new(how, case));
    run(runtime, case, Ground::new(fixture, PATIENCE), 4 * PATIENCE)
}

fn main() -> ExitCode {
    // The cases are meant to fail: what each of them says is no news.
    std::panic::set_hook(Box::new(|_| {}));
    if child::serve::<Broken>() {
        return ExitCode::SUCCESS;
    }
    let runtime = Arc::new(Runtime::new().unwrap());
    let mut trials = Vec::new();
    let mut used = Vec::new();
    for theme in THEMES {
        for case in theme.cases {
            let name = format!("saboteurs::{}::{}", theme.name, case.name);
            let lacks = [Need::NoShared, Need::NoPermits];
            let control = if case.needs.iter().any(|need| lacks.contains(need)) {
                Saboteur::LacksModes
            } else {
                Saboteur::Nobody
            };
            let on = Arc::clone(&runtime);
            let honest = format!("{name}::passes_if_nothing_is_wrong");
            trials.push(Trial::test(honest, move || attempt(&on, case, control)));
            if case.caught_by.is_empty() {
                let nobody = format!("{name}::catches_somebody");
                trials.push(Trial::test(nobody, || Err("it names no saboteur".into())));
            }
            for how in case.caught_by {
                used.push(*how);
                let on = Arc::clone(&runtime);
                let caught = format!("{name}::catches::{how}");
                trials.push(Trial::test(caught, move || {
                    match attempt(&on, case, *how) {
                        Ok(()) => Err("nothing was noticed".into()),
                        Err(_) => Ok(()),
                    }
                }));
            }
        }
    }
    let controls = [Saboteur::Nobody, Saboteur::LacksModes];
    let idle = |how: &&Saboteur| !controls.contains(how) && !used.contains(how);
    let idle: Vec<_> = Saboteur::ALL.iter().filter(idle).collect();
    trials.push(Trial::test(
        "saboteurs::all_are_caught",
        move || match idle.as_slice() {
            [] => Ok(()),
            idle => Err(format!("no case catches {idle:?}").into()),
        },
    ));
    run_trials(trials, AT_A_TIME)
}
