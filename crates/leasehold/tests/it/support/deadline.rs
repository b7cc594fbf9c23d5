//! A deadline for each test: one that stands still ends its test binary with its name once all others are done, instead of
//! holding up the run.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Far more than any test takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Within this time the next test begins.
const QUIET: Duration = Duration::from_secs(10);

static RUNNING: Mutex<Option<HashMap<String, Instant>>> = Mutex::new(None);

thread_local! {
    static TEST: OnceCell<Test> = const { OnceCell::new() };
}

/// A test that runs on this thread: it has ended when the thread has.
struct Test(String);

impl Drop for Test {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        running.get_or_insert_default().remove(&self.0);
    }
}

/// Gives the test on this thread its deadline, unless it has one already. Whatever starts servers or programs calls it.
pub fn begin() {
    static WATCHING: Once = Once::new();
    // Each test has a thread that is called by its name, except where they all run on the main thread.
    let Some(name) = thread::current()
        .name()
        .filter(|name| *name != "main" && !name.starts_with("tokio"))
        .map(str::to_owned)
    else {
        return;
    };
    WATCHING.call_once(|| drop(thread::spawn(watch)));
    TEST.with(|test| {
        test.get_or_init(|| {
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            running
                .get_or_insert_default()
                .insert(name.clone(), Instant::now());
            Test(name)
        });
    });
}

/// Ends the process once nothing runs but what stands still: the others come to their end first.
fn watch() {
    let mut quiet_since = Instant::now();
    loop {
        thread::sleep(Duration::from_secs(1));
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let tests = running.iter().flatten();
        let (late, others): (Vec<_>, Vec<_>) =
            tests.partition(|(_, since)| since.elapsed() > LIMIT);
        if late.is_empty() || !others.is_empty() {
            quiet_since = Instant::now();
        }
        if quiet_since.elapsed() > QUIET {
            for (name, _) in late {
                eprintln!("test {name} stands still: not done within {LIMIT:?}");
            }
            std::process::exit(101);
        }
    }
}
