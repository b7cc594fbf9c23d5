//! Clients that come and go on two locks while things break, and the record of what they did.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::clock::Clock;
use leasehold::conformance::history::{Event, History, Recorder, Violation};
use leasehold::{ErrorKind, Lease, Locks, Mode};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;

pub const CLIENTS: usize = 16;

/// Of so many visits one is long enough to need renewals; not the first.
const ONE_LONG: usize = 400;
const LONG: usize = 100;

/// More clusters under load than this at once, of whatever engine, would only wait for each other.
pub async fn a_turn() -> SemaphorePermit<'static> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    TURNS.acquire().await.unwrap()
}

/// What a client that notes aloud prints.
pub const ENTERED: &str = "entered";
pub const LEFT: &str = "left";

#[derive(Default)]
pub struct Notes {
    /// Whether to print whoever enters and leaves.
    aloud: bool,
    pub recorder: Recorder,
    pub visits: AtomicUsize,
    pub lost: AtomicUsize,
    errors: Mutex<BTreeMap<String, usize>>,
    last_error: Mutex<String>,
    ended: AtomicBool,
}

impl Notes {
    pub fn aloud() -> Self {
        Self {
            aloud: true,
            ..Self::default()
        }
    }

    fn say(&self, what: &str) {
        if self.aloud {
            println!("{what}");
        }
    }

    /// Lets those who write them come to an end.
    pub fn close(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

pub struct Crowd {
    pub notes: Arc<Notes>,
    clients: JoinSet<()>,
    began: Instant,
}

impl Crowd {
    pub async fn start(url: &str, ttl: Duration) -> Self {
        Self::of(CLIENTS, url, ttl).await
    }

    pub async fn of(clients: usize, url: &str, ttl: Duration) -> Self {
        Self::at(&vec![url; clients], ttl).await
    }

    /// A client at each of these.
    pub async fn at(urls: &[&str], ttl: Duration) -> Self {
        let notes = Arc::new(Notes::default());
        let mut all = Vec::new();
        for url in urls {
            all.push(connected(url).await);
        }
        let mut crowd = JoinSet::new();
        for locks in all {
            crowd.spawn(come_and_go(locks, ttl, 3, Arc::clone(&notes)));
        }
        Self {
            notes,
            clients: crowd,
            began: Instant::now(),
        }
    }

    /// Waits until so many more visits have been made.
    pub async fn goes_on(&self, visits: usize, within: Duration) {
        let goal = self.notes.visits.load(Ordering::SeqCst) + visits;
        let deadline = Instant::now() + within;
        while self.notes.visits.load(Ordering::SeqCst) < goal {
            let errors = self.notes.errors.lock().unwrap().clone();
            let last = self.notes.last_error.lock().unwrap().clone();
            assert!(
                Instant::now() < deadline,
                "no progress: {errors:?}, last: {last}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops the clients and tells what they did; what must not happen is for the caller to judge.
    pub async fn end(mut self, what: &str, faults: usize, more: Vec<Event>) -> Vec<Violation> {
        self.notes.close();
        while let Some(client) = self.clients.join_next().await {
            client.unwrap();
        }
        let mut events = self.notes.recorder.events();
        events.extend(more);
        let history = History::of(events);
        let violations = history.violations();
        println!(
            "{what}: {} operations, {faults} faults in {:.1} s, {} violations; leases lost: {}, errors: {:?}",
            history.visits(),
            self.began.elapsed().as_secs_f64(),
            violations.len(),
            self.notes.lost.load(Ordering::SeqCst),
            self.notes.errors.lock().unwrap(),
        );
        violations
    }

    /// As `end`, and nothing has gone wrong.
    pub async fn ends_well(self, what: &str, faults: usize) {
        let violations = self.end(what, faults, Vec::new()).await;
        assert!(violations.is_empty(), "{}", violations[0]);
    }
}

/// A busy server may take longer to answer than a client that is to notice its faults allows.
async fn connected(url: &str) -> Locks {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match Locks::connect(url).await {
            Err(error) if error.kind() == ErrorKind::Unreachable && Instant::now() < deadline => {}
            connected => return connected.unwrap(),
        }
    }
}

/// Until the notes say that it is over; holds for up to so many milliseconds.
pub async fn come_and_go(locks: Locks, ttl: Duration, longest: u64, notes: Arc<Notes>) {
    while !notes.ended.load(Ordering::SeqCst) {
        let name = if fastrand::u8(..4) == 0 { "y" } else { "x" };
        let request = locks.lock(name).ttl(ttl).wait(Duration::from_secs(2));
        let visited = match request.acquire().await {
            Ok(lease) => visit(lease, name, ttl, longest, &notes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = visited {
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::LeaseLost
                ),
                "{error}"
            );
            let kind = format!("{:?}", error.kind());
            *notes.errors.lock().unwrap().entry(kind).or_default() += 1;
            *notes.last_error.lock().unwrap() = error.to_string();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..=20))).await;
        }
    }
}

async fn visit(
    lease: Lease,
    name: &str,
    ttl: Duration,
    longest: u64,
    notes: &Notes,
) -> leasehold::Result<()> {
    let now = || Clock::machine().now();
    let (mut valid_until, entered) = (lease.valid_until(), now());
    if entered < valid_until {
        let visit = notes
            .recorder
            .enter(name, Mode::Exclusive, lease.token(), entered);
        notes.say(ENTERED);
        let stay = match notes.visits.fetch_add(1, Ordering::SeqCst) % ONE_LONG {
            LONG => ttl * 3 / 2,
            _ => Duration::from_millis(fastrand::u64(..=longest)),
        };
        let mut left = entered;
        loop {
            let rest = stay.saturating_sub(left.since(entered));
            tokio::time::sleep(rest.min(Duration::from_millis(20))).await;
            left = now();
            // Only then: what the clock said before the lease did was inside.
            if !lease.is_valid() {
                notes.lost.fetch_add(1, Ordering::SeqCst);
                left = left.min(valid_until);
                break;
            }
            if left.since(entered) >= stay {
                break;
            }
            valid_until = valid_until.max(lease.valid_until());
        }
        notes.say(LEFT);
        notes.recorder.leave(visit, left);
    }
    lease.release().await.map(|_| ())
}

/// Sixty-four tasks that take and release locks, each its own.
pub async fn many_at_once(locks: &Locks, rounds: usize) {
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let lock = locks.lock(format!("task/{task}"));
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    locks.flush().await;
}

/// So many tasks that wait for the lock, and release it as soon as they have it; returns once all of them wait.
pub async fn queue_of(locks: &Locks, waiters: u64) -> JoinSet<()> {
    let mut queue = JoinSet::new();
    for _ in 0..waiters {
        let request = locks.lock("x").wait_forever();
        queue.spawn(async move {
            let lease = request.acquire().await.unwrap();
            lease.release().await.unwrap();
        });
    }
    while (locks.inspect("x").await.unwrap().waiters.len() as u64) < waiters {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    queue
}
