//! The group of waiters: processes, like those of several hosts, or threads of this process.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use leasehold::engine::Reach;
use serde::Serialize;

use super::last_holder::LastHolder;
use super::worker::{Round, RoundResult, Worker};
use super::{Subject, random_lock_name};
use crate::command::block_on;
use crate::exit::{Failure, Outcome, unexpected};

/// Whether the waiters are processes or threads. Each has its own connection, except on an engine within the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaiterKind {
    Processes,
    Threads,
}

pub(super) struct WaiterGroup {
    waiters: Vec<Waiter>,
    last_holder: PathBuf,
}

enum Waiter {
    Process {
        child: Child,
        rounds: Option<ChildStdin>,
        results: Lines<BufReader<ChildStdout>>,
    },
    Thread {
        rounds: mpsc::Sender<Round>,
        results: mpsc::Receiver<Outcome<RoundResult>>,
    },
}

impl WaiterGroup {
    /// Starts the waiters; all are connected when it returns.
    pub(super) fn start(url: &str, kind: WaiterKind, size: u32) -> Outcome<Self> {
        let lock = random_lock_name();
        let last_holder = std::env::temp_dir().join(&lock);
        LastHolder::create(&last_holder).map_err(|cause| {
            unexpected(&format!("cannot create {}", last_holder.display()), cause)
        })?;
        let mut group = Self {
            waiters: Vec::new(),
            last_holder,
        };
        let subject = block_on(async { Ok(Subject::connect(url).await?) })?;
        let shared = (subject.about().reach == Reach::Process).then_some(subject);
        for _ in 0..size {
            let waiter = match kind {
                WaiterKind::Processes => Waiter::process(url, &lock, &group.last_holder)?,
                WaiterKind::Threads => {
                    Waiter::thread(url, shared.clone(), &lock, &group.last_holder)
                }
            };
            group.waiters.push(waiter);
        }
        group.results()?;
        Ok(group)
    }

    /// Runs a round with all waiters.
    pub(super) fn run(&mut self, round: Round) -> Outcome<Vec<RoundResult>> {
        for waiter in &mut self.waiters {
            waiter.start(round)?;
        }
        self.results()
    }

    fn results(&mut self) -> Outcome<Vec<RoundResult>> {
        self.waiters.iter_mut().map(Waiter::result).collect()
    }
}

impl Drop for WaiterGroup {
    fn drop(&mut self) {
        for waiter in &mut self.waiters {
            if let Waiter::Process { child, rounds, .. } = waiter {
                // It exits at the end of its stdin.
                *rounds = None;
                let _ = child.wait();
            }
        }
        let _ = std::fs::remove_file(&self.last_holder);
    }
}

impl Waiter {
    fn process(url: &str, lock: &str, last_holder: &Path) -> Outcome<Self> {
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(["bench-worker", "--lock", lock, "--last-holder"])
                .arg(last_holder)
                // Not as an argument: it may contain a password, and every user can see arguments.
                .env("LEASEHOLD_URL", url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        });
        let mut child = started.map_err(|cause| unexpected("cannot start a waiter", cause))?;
        let rounds = child.stdin.take();
        let Some(results) = child.stdout.take() else {
            return Err(waiter_died());
        };
        Ok(Waiter::Process {
            child,
            rounds,
            results: BufReader::new(results).lines(),
        })
    }

    fn thread(url: &str, shared: Option<Subject>, lock: &str, last_holder: &Path) -> Self {
        let (rounds, next) = mpsc::channel();
        let (report, results) = mpsc::channel();
        let (url, lock, last_holder) = (url.to_owned(), lock.to_owned(), last_holder.to_owned());
        std::thread::spawn(move || {
            let outcome = block_on(async {
                let subject = match shared {
                    Some(subject) => subject,
                    None => Subject::connect(&url).await?,
                };
                let mut worker = Worker::new(subject, &lock, &last_holder).await?;
                let _ = report.send(Ok(RoundResult::default()));
                while let Ok(round) = next.recv() {
                    let _ = report.send(worker.run(round).await);
                }
                Ok(())
            });
            if let Err(failure) = outcome {
                let _ = report.send(Err(failure));
            }
        });
        Waiter::Thread { rounds, results }
    }

    fn start(&mut self, round: Round) -> Outcome<()> {
        match self {
            Waiter::Process {
                rounds: Some(stdin),
                ..
            } => {
                let line = serde_json::to_string(&round)
                    .map_err(|cause| unexpected("cannot write JSON", cause))?;
                writeln!(stdin, "{line}")
                    .map_err(|cause| unexpected("cannot reach a waiter", cause))
            }
            Waiter::Process { rounds: None, .. } => Err(waiter_died()),
            Waiter::Thread { rounds, .. } => rounds.send(round).map_err(|_| waiter_died()),
        }
    }

    fn result(&mut self) -> Outcome<RoundResult> {
        match self {
            Waiter::Process { results, .. } => {
                let line = results.next().ok_or_else(waiter_died)?;
                let line = line.map_err(|cause| unexpected("cannot reach a waiter", cause))?;
                serde_json::from_str(&line)
                    .map_err(|cause| unexpected("cannot parse the result of a waiter", cause))
            }
            Waiter::Thread { results, .. } => results.recv().map_err(|_| waiter_died())?,
        }
    }
}

fn waiter_died() -> Failure {
    leasehold::Error::new(
        leasehold::ErrorKind::Unexpected,
        "a waiter of the bench has died",
    )
    .into()
}
