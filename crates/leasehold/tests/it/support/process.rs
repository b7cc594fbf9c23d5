//! A client of a crowd in a process of its own, which can be stopped: the test binary, started again for the one test
//! `as_a_process_of_its_own`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold::conformance::history::Event;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::crowd::{Crowd, ENTERED, LEFT, Notes, come_and_go};

const URL: &str = "LEASEHOLD_FAULTS_URL";
const TTL: &str = "LEASEHOLD_FAULTS_TTL";

#[tokio::test(flavor = "multi_thread")]
async fn as_a_process_of_its_own() {
    come_and_go_if_asked().await;
}

/// What that test does; nothing if nobody has started it as a process.
pub async fn come_and_go_if_asked() {
    let (Ok(url), Ok(ttl)) = (std::env::var(URL), std::env::var(TTL)) else {
        return;
    };
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    let notes = Arc::new(Notes::aloud());
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

/// This binary again, for one test of it alone.
pub fn this_test(name: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", name, "--nocapture"]);
    program
}

pub struct Process {
    child: Child,
    /// Whether it holds a lock, as far as it has said.
    inside: Arc<AtomicBool>,
    said: Option<JoinHandle<Vec<String>>>,
}

impl Process {
    pub fn start(url: &str, ttl: Duration) -> Self {
        Self::within(url, ttl, &[])
    }

    /// With more in its environment.
    pub fn within(url: &str, ttl: Duration, environment: &[(String, String)]) -> Self {
        let mut program = this_test("support::process::as_a_process_of_its_own");
        program.envs(environment.iter().cloned());
        program.env(URL, url);
        program.env(TTL, ttl.as_millis().to_string());
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let inside = Arc::new(AtomicBool::new(false));
        let said = listen(child.stdout.take().unwrap(), Arc::clone(&inside));
        Self {
            child,
            inside,
            said: Some(said),
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until it holds a lock.
    pub async fn until_inside(&self, within: Duration) {
        let deadline = Instant::now() + within;
        while !self.inside.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "it never held a lock");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops it while it holds a lock.
    pub async fn stop_inside(&self, within: Duration) {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.until_inside(left).await;
            self.signal(Signal::SIGSTOP);
            // It may have left just before, and its word of that be on the way.
            tokio::time::sleep(Duration::from_millis(20)).await;
            if self.inside.load(Ordering::SeqCst) {
                return;
            }
            self.signal(Signal::SIGCONT);
        }
    }

    /// What it did, and how many leases it lost.
    pub fn end(mut self) -> (Vec<Event>, usize) {
        drop(self.child.stdin.take());
        let (mut events, mut lost) = (Vec::new(), 0);
        for line in self.said.take().unwrap().join().unwrap() {
            if let Some(at) = line.find("event {") {
                events.push(serde_json::from_str(&line[at + 6..]).unwrap());
            } else if let Some(count) = line.strip_prefix("lost ") {
                lost = count.parse().unwrap();
            }
        }
        self.child.wait().unwrap();
        (events, lost)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stdout: ChildStdout, inside: Arc<AtomicBool>) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map(Result::unwrap);
        let is_other = |line: &String| {
            match line.as_str() {
                ENTERED => inside.store(true, Ordering::SeqCst),
                LEFT => inside.store(false, Ordering::SeqCst),
                _ => return true,
            }
            false
        };
        lines.filter(is_other).collect()
    })
}

/// A crowd, and processes among it that are stopped for longer than their leases last, by this much at most, every other time while they hold
/// a lock: nobody enters beside another.
pub async fn stop_past_leases(url: &str, ttl: Duration, by: Duration, soon: Duration) {
    let crowd = Crowd::of(13, url, ttl).await;
    let processes: Vec<_> = (0..3).map(|_| Process::start(url, ttl)).collect();
    crowd.goes_on(50, soon).await;
    let faults = 7;
    for (nth, process) in processes.iter().cycle().take(faults).enumerate() {
        match nth % 2 {
            0 => process.stop_inside(soon).await,
            _ => process.signal(Signal::SIGSTOP),
        }
        let longer = fastrand::u64(100..by.as_millis() as u64);
        tokio::time::sleep(ttl + Duration::from_millis(longer)).await;
        process.signal(Signal::SIGCONT);
    }
    crowd.goes_on(50, soon).await;
    let (mut events, mut lost) = (Vec::new(), 0);
    for process in processes {
        let (more, more_lost) = process.end();
        events.extend(more);
        lost += more_lost;
    }
    let what = format!("clients stopped past their leases ({lost} inside)");
    let violations = crowd.end(&what, faults, events).await;
    assert!(violations.is_empty(), "{}", violations[0]);
    assert!(lost > 0, "nobody was stopped inside");
}
