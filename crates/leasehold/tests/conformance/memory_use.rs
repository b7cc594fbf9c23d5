//! What a process keeps in memory does not depend on how many locks it has held before: on every engine, by a counting
//! allocator. The bytes are those of a whole process, so it is one of its own: this test binary, started again.

#![allow(unsafe_code)] // an allocator cannot be written without

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use leasehold::conformance::Suite;
use leasehold::{ErrorKind, Locks};
use libtest_mimic::{Failed, Trial};

#[global_allocator]
static COUNTING: Counting = Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, and the number of bytes that are in use.
struct Counting;

// SAFETY: everything is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

const URL: &str = "LEASEHOLD_MEMORY_USE_URL";
const ONE_THREAD: &str = "LEASEHOLD_MEMORY_USE_ONE_THREAD";

const TIME_LIMIT: Duration = Duration::from_secs(240);

/// Long enough that nothing is forgotten because it has expired.
const TTL: Duration = Duration::from_secs(3600);

/// What buffers, caches and statistics may grow by in all; one lease kept per cycle would be nine times as much.
const ALLOWANCE: usize = 100_000;

/// On the store of this engine, or in the memory of that process.
pub(crate) fn trials(suite: &Arc<Suite>) -> Vec<Trial> {
    let name = format!("{}::memory_use::past_cycles_take_none", suite.name());
    let of_this_engine = Arc::clone(suite);
    let mut trials = vec![Trial::test(name, move || {
        let _turn = of_this_engine.turn();
        let url = of_this_engine.store().address();
        let url = url.unwrap_or_else(|| "memory:".to_owned());
        // Nobody kills this process, so its session may outlast a busy machine.
        let url = url.replace("session_timeout=900ms", "session_timeout=10s");
        measured(Command::new(this()).env(URL, url))
    })];
    if suite.name() == "memory" {
        let name = "memory::memory_use::past_cycles_take_none_on_one_thread";
        trials.push(Trial::test(name, || {
            measured(Command::new(this()).env(URL, "memory:").env(ONE_THREAD, ""))
        }));
    }
    trials
}

fn this() -> std::path::PathBuf {
    std::env::current_exe().unwrap()
}

fn measured(process: &mut Command) -> Result<(), Failed> {
    let output = process.stdin(Stdio::null()).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

/// Measures if this process was started for it, and returns whether it was.
pub(crate) fn serve() -> bool {
    let Ok(url) = std::env::var(URL) else {
        return false;
    };
    let mut runtime = match std::env::var(ONE_THREAD) {
        Ok(_) => tokio::runtime::Builder::new_current_thread(),
        Err(_) => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build().unwrap();
    let done = async { tokio::time::timeout(TIME_LIMIT, past_cycles_take_none(&url)).await };
    runtime.block_on(done).expect("done in time");
    true
}

async fn past_cycles_take_none(url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    // On memory there are many, since each takes microseconds; and only one handle reaches it.
    let (other, cycles) = match url {
        "memory:" => (locks.clone(), 100_000),
        _ => (Locks::connect(url).await.unwrap(), 2_000),
    };
    // What is allocated once, and the first growth of every table.
    work(&locks, &other, 0..cycles).await;
    let before = LIVE.load(Ordering::SeqCst);
    work(&locks, &other, cycles..2 * cycles).await;
    let grown = LIVE.load(Ordering::SeqCst).saturating_sub(before);
    println!("{url}: {grown} bytes more after {cycles} cycles");
    assert!(
        grown < ALLOWANCE,
        "{grown} bytes more after {cycles} cycles"
    );
}

/// Takes locks of as many names; every tenth is also refused to one and waited for in vain by another.
async fn work(locks: &Locks, other: &Locks, cycles: std::ops::Range<usize>) {
    for cycle in cycles {
        let name = format!("past/{cycle}");
        let lease = loop {
            match locks.lock(&name).ttl(TTL).acquire().await {
                Ok(lease) => break lease,
                // Connections are lost at times on a busy machine.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
            }
        };
        if cycle % 10 == 0 {
            let refused = other.lock(&name).ttl(TTL).try_acquire().await.unwrap();
            assert!(refused.is_none());
            let mut waiting = Box::pin(other.lock(&name).ttl(TTL).wait_forever().acquire());
            assert!((&mut waiting).now_or_never().is_none());
            drop(waiting);
        }
        lease.release().await.unwrap();
    }
    locks.flush().await;
    other.flush().await;
}
