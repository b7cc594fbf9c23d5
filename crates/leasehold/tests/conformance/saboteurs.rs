//! Every case of the suite is shown to fail on an engine broken on purpose, and to pass on the same
//! engine unbroken.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::Locks;
use leasehold::conformance::saboteur::{self, Sabotaged, Saboteur};
use leasehold::conformance::{Case, Fixture, Ground, Need, THEMES, run};
use leasehold::engine::Engine;
use leasehold::engine::memory::Memory;
use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

/// How long a broken engine may hold a case up; far more than an unbroken one needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Those who break nothing. They wait for a busy machine; a saboteur is waited for in vain.
const CONTROLS: [Saboteur; 2] = [Saboteur::Nobody, Saboteur::LacksModes];
const PATIENCE_WITH_CONTROLS: Duration = Duration::from_secs(20);

/// What the threads of broken engines are called.
const THREADS: &str = "saboteurs";

thread_local! {
    /// Whether a case is carried out on this thread that is meant to fail.
    static MEANT_TO_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Cases that are meant to fail panic; what they say is no news.
pub(crate) fn be_silent() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let ours = std::thread::current().name() == Some(THREADS);
        if !ours && !MEANT_TO_FAIL.get() {
            others(panic);
        }
    }));
}

/// Leads other processes to the store of any fixture, through a saboteur if the address says so.
pub(crate) async fn attach(address: &str) -> Arc<dyn Engine> {
    if Broken::is_at(address) {
        std::panic::set_hook(Box::new(|_| {}));
    }
    Broken::attach(address).await
}

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
    fn is_at(address: &str) -> bool {
        address.contains("@sqlite:")
    }

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
        let Some((how, url)) = address.split_once('@').filter(|_| Broken::is_at(address)) else {
            return Arc::clone(Locks::connect(address).await.unwrap().engine());
        };
        let locks = Locks::connect(url).await.unwrap();
        let inner = Arc::clone(locks.engine());
        let how = how.parse().unwrap();
        Arc::new(Sabotaged::new(inner, how, Arc::default()))
    }

    async fn restart(&self) {
        *self.memory.lock().unwrap() = Arc::default();
    }
}

fn attempt(runtime: &Runtime, case: &'static Case, how: Saboteur) -> Result<(), Failed> {
    let patience = match CONTROLS.contains(&how) {
        true => PATIENCE_WITH_CONTROLS,
        false => PATIENCE,
    };
    let fixture = Arc::new(Broken::new(how, case));
    MEANT_TO_FAIL.set(true);
    let done = run(runtime, case, Ground::new(fixture, patience), 4 * patience);
    MEANT_TO_FAIL.set(false);
    done
}

/// Every case with nobody, and with each who must be caught by it.
pub(crate) fn trials() -> Vec<Trial> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().thread_name(THREADS).build();
    let runtime = Arc::new(runtime.unwrap());
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
                    // A case that draws lots may miss it once, the more so on a busy machine.
                    let caught = (0..3).find_map(|_| attempt(&on, case, *how).err());
                    match caught.map_or(Ok(()), Err) {
                        Ok(()) => Err("nothing was noticed".into()),
                        Err(_) => Ok(()),
                    }
                }));
            }
        }
    }
    let idle = |how: &&Saboteur| !CONTROLS.contains(how) && !used.contains(how);
    let idle: Vec<_> = Saboteur::ALL.iter().filter(idle).collect();
    trials.push(Trial::test(
        "saboteurs::all_are_caught",
        move || match idle.as_slice() {
            [] => Ok(()),
            idle => Err(format!("no case catches {idle:?}").into()),
        },
    ));
    trials
}
