//! Many at once, and what they did is checked afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::Ground;
use super::case::theme;
use super::child::{Report, Task};
use super::ground::{LONG, ms, now};
use super::operations::random_operations;
use super::stalls::unless_stalled;
use super::torture::processes_killed_at_random_break_nothing;
use crate::claim::Mode;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::locks::Locks;
use crate::torture::history::{Event, History, Recorder};

theme! { fuzz:
    a_counter_by_many_tasks [] caught by [GrantsSometimes, TokensFall, ReleaseFreesAnybodys];
    a_counter_by_many_processes [Processes] caught by [GrantsSometimes, TokensFall];
    a_mix_of_everything [] caught by [GrantsSometimes, TokensFall, NeverExpires, ReleaseLeavesGhosts];
    random_operations [] caught by [GrantsAlways, TokensFall, RenewReleases, ReleaseDoesNothing];
    processes_killed_at_random_break_nothing [Processes, OwnStore] caught by [GrantsSometimes, TokensFall, NeverExpires];
}

fn check(events: Vec<Event>, visits: usize) {
    let history = History::of(events);
    let wrong = history.violations();
    assert!(
        wrong.is_empty(),
        "{} violations, first: {}",
        wrong.len(),
        wrong[0]
    );
    assert!(history.visits() >= visits, "{} visits", history.visits());
}

/// A task that the host keeps from running for longer than it may rely on an offer is still inside when the next one enters.
async fn a_counter_by_many_tasks(ground: Ground) {
    unless_stalled(ms(300), async || count_by_many_tasks(&ground).await).await;
}

async fn count_by_many_tasks(ground: &Ground) -> std::result::Result<(), String> {
    let name = ground.name(&format!("x{}", fastrand::u32(..)));
    let counter = Arc::new(AtomicU64::new(0));
    let recorder = Arc::new(Recorder::default());
    let mut tasks = JoinSet::new();
    for nth in 0..16 {
        let locks = ground.locks().await;
        let (name, counter) = (name.clone(), Arc::clone(&counter));
        let recorder = Arc::clone(&recorder);
        tasks.spawn(async move {
            for round in 0..8 {
                let lease = locks.lock(&name).ttl(LONG).wait_forever().acquire().await;
                let lease = lease.unwrap();
                let visit = recorder.enter(&name, Mode::Exclusive, lease.token(), now());
                let read = counter.load(Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(300)).await;
                counter.store(read + 1, Ordering::SeqCst);
                recorder.leave(visit, now());
                // Some release twice, in case the second frees the next holder's.
                let id = lease.claim_id();
                lease.release().await.unwrap();
                if (nth + round) % 3 == 0 {
                    tokio::time::sleep(Duration::from_micros(100)).await;
                    let again = locks.resume(&name, id).unwrap();
                    again.release().await.unwrap();
                }
            }
        });
    }
    ground.soon("all rounds", tasks.join_all()).await;
    let history = History::of(recorder.events());
    assert_eq!(history.visits(), 16 * 8);
    if let Some(violation) = history.violations().first() {
        return Err(violation.to_string());
    }
    match counter.load(Ordering::SeqCst) {
        128 => Ok(()),
        count => Err(format!("counted {count} of 128")),
    }
}

async fn a_counter_by_many_processes(ground: Ground) {
    const PROCESSES: usize = 4;
    const ROUNDS: u32 = 20;
    let name = ground.name("x");
    let file = ground.name("counter").replace('/', "-");
    let file = std::env::temp_dir().join(format!("leasehold-{file}"));
    std::fs::write(&file, "0").unwrap();
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        let task = Task::Count {
            name: name.clone(),
            ttl: LONG,
            file: file.clone(),
            rounds: ROUNDS,
        };
        children.push(ground.child(task).await);
    }
    let mut events = Vec::new();
    for child in &mut children {
        loop {
            match child.report().await {
                Report::Happened(event) => events.push(event),
                Report::Done => break,
                other => panic!("{other:?}"),
            }
        }
    }
    let count = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    check(events, PROCESSES * ROUNDS as usize);
    assert_eq!(count, (PROCESSES * ROUNDS as usize).to_string());
}

/// Short enough that a detached lease expires while others wait for it.
const SHORT: Duration = ms(400);

/// How often each tries, and how many visits must come of it all: on a busy machine most tries may be too short, and more are made.
const TRIES: usize = 12;
const VISITS: usize = 10;

async fn a_mix_of_everything(ground: Ground) {
    let recorder = Arc::new(Recorder::default());
    let mut tasks = JoinSet::new();
    for nth in 0..12 {
        let locks = ground.locks().await;
        let names = [ground.name("x"), ground.name("y")];
        let recorder = Arc::clone(&recorder);
        let mut random = fastrand::Rng::with_seed(nth);
        tasks.spawn(async move {
            for nth in 0.. {
                if nth >= TRIES && recorder.events().len() >= 2 * VISITS {
                    break;
                }
                let name = &names[random.usize(..names.len())];
                visit(&locks, name, &recorder, &mut random).await;
            }
        });
    }
    ground.soon("all visits", tasks.join_all()).await;
    let locks = ground.locks().await;
    for rest in ["x", "y"] {
        let last = locks.lock(ground.name(rest)).wait_forever().acquire();
        let last = ground.soon("nothing is left behind", last).await;
        last.unwrap().release().await.unwrap();
    }
    check(recorder.events(), VISITS);
}

async fn visit(locks: &Locks, name: &str, recorder: &Recorder, random: &mut fastrand::Rng) {
    let able = locks.capabilities();
    let mode = match random.u8(..8) {
        0..2 if able.shared => Mode::Shared,
        2 if able.permits => Mode::Permit { of: 2 },
        _ => Mode::Exclusive,
    };
    let request = locks.lock(name).ttl(SHORT);
    let request = match mode {
        Mode::Exclusive => request,
        Mode::Shared => request.shared(),
        Mode::Permit { of } => request.permits(of),
    };
    let lease = match random.u8(..4) {
        0 => in_time(request.try_acquire().await).flatten(),
        1 => {
            // Cancelled at some moment, unless it was obtained by then.
            let cancelled = ms(random.u64(..60));
            let acquire = request.wait_forever().acquire();
            let obtained = tokio::time::timeout(cancelled, acquire).await;
            obtained.ok().and_then(in_time)
        }
        _ => in_time(request.wait(ms(random.u64(..600))).acquire().await),
    };
    let Some(lease) = lease else { return };
    let known = lease.valid_until();
    let entered = now();
    if entered >= known {
        return;
    }
    let visit = recorder.enter(name, mode, lease.token(), entered);
    tokio::time::sleep(ms(random.u64(..15))).await;
    recorder.leave(visit, inside_until(&lease, known));
    match random.u8(..8) {
        0 => drop(lease),
        1 => {
            lease.detach();
        }
        _ => {
            lease.release().await.unwrap();
        }
    }
}

/// `None` if it took too long: on a busy machine even an answer may take longer than such a TTL.
fn in_time<T>(answer: Result<T>) -> Option<T> {
    let late = |error: &Error| matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unreachable);
    match answer {
        Ok(answer) => Some(answer),
        Err(error) if late(&error) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Now; or if the lease was lost meanwhile (a busy machine), when it was surely still good.
fn inside_until(lease: &Lease, known: crate::clock::Moment) -> crate::clock::Moment {
    let now = now();
    if lease.is_valid() {
        now
    } else {
        now.min(known)
    }
}
