//! A client of a crowd in a process of its own, which can be stopped: the test binary, started again for the one test
//! `as_a_process_of_its_own`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold::Locks;
use leasehold::conformance::history::Event;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::crowd::{Notes, come_and_go};

const URL: &str = "LEASEHOLD_FAULTS_URL";

/// What that test does; nothing if nobody has started it as a process.
pub async fn come_and_go_if_asked(ttl: Duration) {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let notes = Arc::new(Notes::default());
    let locks = Locks::connect(&url).await.unwrap();
    let working = tokio::spawn(come_and_go(locks, ttl, 60, Arc::clone(&notes)));
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await.unwrap().unwrap();
    notes.close();
    working.await.unwrap();
    for event in notes.recorder.events() {
        println!("event {}", serde_json::to_string(&event).unwrap());
    }
    println!("lost {}", notes.lost.load(Ordering::SeqCst));
}

pub struct Process(Child);

impl Process {
    pub fn start(url: &str) -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "as_a_process_of_its_own", "--nocapture"]);
        program.env(URL, url);
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(program.spawn().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }

    /// What it did, and how many leases it lost.
    pub fn end(mut self) -> (Vec<Event>, usize) {
        drop(self.0.stdin.take());
        let (mut events, mut lost) = (Vec::new(), 0);
        for line in BufReader::new(self.0.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(at) = line.find("event {") {
                events.push(serde_json::from_str(&line[at + 6..]).unwrap());
            } else if let Some(count) = line.strip_prefix("lost ") {
                lost = count.parse().unwrap();
            }
        }
        self.0.wait().unwrap();
        (events, lost)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
