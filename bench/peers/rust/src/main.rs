//! One waiter: `bench-peers KIND ADDRESS LOCK LAST_HOLDER`. The protocol is described in `bench/README.md`.

use std::fs::File;
use std::io::{BufRead, stdin};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

mod rslock;
mod zookeeper;

/// What a peer is asked to do; an error ends the process.
trait Lock {
    async fn acquire(&mut self);
    async fn release(&mut self);
}

#[derive(Deserialize)]
struct Round {
    #[serde(rename = "do")]
    task: Task,
    start: u64,
    end: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Task {
    Cycle,
    Handover,
}

#[derive(Default, Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cycles: Vec<u64>,
    holds: Vec<(u64, u64)>,
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, address, lock, last_holder] = arguments.as_slice() else {
        panic!("usage: bench-peers KIND ADDRESS LOCK LAST_HOLDER");
    };
    let file = File::options().read(true).write(true).open(last_holder);
    let last_holder = LastHolder {
        file: file.expect("the file of the last holder"),
        id: fastrand::u64(1..),
    };
    match kind.as_str() {
        "rslock" => serve(rslock::Rslock::new(address, lock), last_holder).await,
        "zookeeper-client" => serve(zookeeper::Recipe::new(address, lock).await, last_holder).await,
        _ => panic!("{kind}: no such peer"),
    }
}

async fn serve(mut lock: impl Lock, last_holder: LastHolder) {
    println!("{{}}");
    for line in stdin().lock().lines() {
        let round: Round = serde_json::from_str(&line.expect("stdin")).expect("a round");
        std::thread::sleep(Duration::from_nanos(round.start.saturating_sub(now())));
        let answer = match round.task {
            Task::Cycle => cycle(&mut lock, round.end).await,
            Task::Handover => hand_over(&mut lock, &last_holder, round.end).await,
        };
        println!("{}", serde_json::to_string(&answer).expect("JSON"));
    }
}

async fn cycle(lock: &mut impl Lock, end: u64) -> Answer {
    let mut answer = Answer::default();
    while now() < end {
        let began = Instant::now();
        lock.acquire().await;
        lock.release().await;
        answer.cycles.push(began.elapsed().as_nanos() as u64);
    }
    answer
}

async fn hand_over(lock: &mut impl Lock, last_holder: &LastHolder, end: u64) -> Answer {
    let mut answer = Answer::default();
    while now() < end {
        lock.acquire().await;
        let began = now();
        last_holder.set();
        std::thread::sleep(Duration::from_micros(fastrand::u64(0..=1_000)));
        let ended = now();
        lock.release().await;
        answer.holds.push((began, ended));
        while last_holder.is_me() && now() < end {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    answer
}

/// A clock that all processes of the machine share, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

struct LastHolder {
    file: File,
    id: u64,
}

impl LastHolder {
    fn set(&self) {
        self.file
            .write_all_at(&self.id.to_ne_bytes(), 0)
            .expect("write");
    }

    fn is_me(&self) -> bool {
        let mut id = [0; 8];
        self.file.read_exact_at(&mut id, 0).expect("read");
        u64::from_ne_bytes(id) == self.id
    }
}
