//! Other processes: the test binary, started again with a task in its environment.
//!
//! A child reports by lines of JSON on its standard output, and ends with its standard input, so
//! that none outlives the test.

use std::io::{BufRead, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::torture::worker::{self, Haunt};
use crate::claim::Mode;
use crate::clock::{Clock, Moment};
use crate::engine::Engine;
use crate::guard::{Fenced, Store};
use crate::lease::Lease;
use crate::locks::Locks;
use crate::token::FencingToken;
use crate::torture::history::{Event, Recorder};

const ENVIRONMENT: &str = "LEASEHOLD_CONFORMANCE_TASK";

/// What a child is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Acquire, report, and hold until asked to release.
    Hold {
        /// The lock.
        name: String,
        /// The TTL.
        ttl: Duration,
    },
    /// Add one to the number in a file, again and again, each time under the lock.
    Count {
        /// The lock.
        name: String,
        /// The TTL.
        ttl: Duration,
        /// The file.
        file: std::path::PathBuf,
        /// How often.
        rounds: u32,
    },
    /// Write a record again and again with rising tokens until killed, each time the token as the value.
    WriteOn {
        /// The record.
        key: String,
        /// The first token.
        from: u64,
    },
    /// Acquire, report, wait until this process has stood still for longer than the TTL, and write then.
    WriteAfterSleep {
        /// The lock.
        name: String,
        /// The TTL.
        ttl: Duration,
        /// The record.
        key: String,
        /// Whether with the token, or just over whatever is there.
        fenced: bool,
    },
    /// Come and go, again and again, until killed.
    ComeAndGo([Haunt; 2]),
}

/// What a child says. Moments are those of the machine's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It waits for a lock.
    Asks {
        /// The lock.
        lock: String,
        /// From when.
        at: Duration,
    },
    /// The lock was obtained.
    Held {
        /// Its token.
        token: u64,
        /// Until when it can be relied on, on the machine's clock.
        valid_until: Duration,
    },
    /// The process stood still for longer than the TTL, and asked its lease at once.
    StoodStill {
        /// What the lease said.
        still_valid: bool,
    },
    /// The lease says that it is lost.
    Lost,
    /// The lock was released.
    Released,
    /// Something that happened under the lock.
    Happened(Event),
    /// Someone touched what only the holder may touch.
    Overwritten {
        /// In which visit.
        by: String,
        /// When it was found.
        at: Duration,
    },
    /// A record was written.
    Wrote {
        /// With this token.
        token: u64,
    },
    /// A record refused to be written.
    Refused {
        /// Because of this token.
        highest: u64,
    },
    /// The task is done.
    Done,
    /// It went wrong.
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Assignment {
    address: String,
    task: Task,
}

/// A child as its parent sees it; killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    input: ChildStdin,
    reports: Lines<BufReader<ChildStdout>>,
    patience: Duration,
}

impl Child {
    pub(super) fn start(address: &str, task: Task, patience: Duration) -> Self {
        let assignment = Assignment {
            address: address.to_owned(),
            task,
        };
        let mut process = Command::new(std::env::current_exe().expect("a path of its own"))
            .env(ENVIRONMENT, serde_json::to_string(&assignment).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the child starts");
        let output = process.stdout.take().expect("a pipe");
        Self {
            input: process.stdin.take().expect("a pipe"),
            reports: BufReader::new(output).lines(),
            process,
            patience,
        }
    }

    /// The next thing that it says.
    pub async fn report(&mut self) -> Report {
        let line = tokio::time::timeout(self.patience, self.reports.next_line()).await;
        let line = line.expect("the child reports in time").unwrap();
        serde_json::from_str(&line.expect("the child is alive")).expect("a report")
    }

    /// The next thing that it says, however long that takes; `None` once it has ended.
    pub(super) async fn next_report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.unwrap()?;
        Some(serde_json::from_str(&line).expect("a report"))
    }

    /// Waits until it holds the lock; returns the token, and until when it relies on it.
    pub async fn held(&mut self) -> (u64, Moment) {
        match self.report().await {
            Report::Held { token, valid_until } => (token, Moment::from_origin(valid_until)),
            other => panic!("the child should hold the lock: {other:?}"),
        }
    }

    /// Asks it to release.
    pub async fn release(&mut self) {
        self.input.write_all(b"release\n").await.unwrap();
        assert_eq!(self.report().await, Report::Released);
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Stops it where it stands.
    pub fn stop(&self) {
        self.signal("STOP");
    }

    /// Lets a stopped child go on.
    pub fn go_on(&self) {
        self.signal("CONT");
    }

    #[cfg(unix)]
    fn signal(&self, signal: &str) {
        use nix::sys::signal::{Signal, kill};
        let signal: Signal = format!("SIG{signal}").parse().unwrap();
        let id = self.process.id().expect("the child is alive");
        kill(nix::unistd::Pid::from_raw(id as i32), signal).unwrap();
    }

    #[cfg(not(unix))]
    fn signal(&self, signal: &str) {
        panic!("there is no SIG{signal} here");
    }
}

/// Does its task if this process is a child, and returns whether it was. `attach` leads to the store of the parent's
/// fixture: [`Fixture::attach`].
///
/// [`Fixture::attach`]: super::Fixture::attach
pub fn serve(attach: impl AsyncFnOnce(&str) -> Arc<dyn Engine>) -> bool {
    let Ok(assignment) = std::env::var(ENVIRONMENT) else {
        return false;
    };
    let Assignment { address, task } = serde_json::from_str(&assignment).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let locks = Locks::new(attach(&address).await);
        if let Err(error) = perform(&locks, task).await {
            say(&Report::Failed(error.to_string()));
        }
    });
    // A task that waits for the parent's input would keep the runtime from ending.
    runtime.shutdown_background();
    true
}

async fn perform(locks: &Locks, task: Task) -> crate::Result<()> {
    let orders = listen();
    match task {
        Task::Hold { name, ttl } => hold(acquire(locks, &name, ttl).await?, ttl, orders).await,
        Task::Count {
            name,
            ttl,
            file,
            rounds,
        } => {
            let recorder = Recorder::default();
            let mut counted = 0;
            while counted < rounds {
                let lease = acquire(locks, &name, ttl).await?;
                let (entered, valid_until) = (Clock::machine().now(), lease.valid_until());
                // A busy machine may stop this process for longer than a hand-over lasts.
                if entered < valid_until {
                    let visit = recorder.enter(&name, Mode::Exclusive, lease.token(), entered);
                    // Two at once may meet a half-written file; the history shows it.
                    let count = std::fs::read_to_string(&file).unwrap();
                    let count = count.parse::<u64>().unwrap_or_default();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    if lease.is_valid() {
                        std::fs::write(&file, (count + 1).to_string()).unwrap();
                        counted += 1;
                        recorder.leave(visit, Clock::machine().now());
                    } else {
                        recorder.leave(visit, valid_until);
                    }
                }
                lease.release().await?;
            }
            for event in recorder.events() {
                say(&Report::Happened(event));
            }
            say(&Report::Done);
            Ok(())
        }
        Task::WriteOn { key, from } => {
            let store = locks.store()?;
            for number in from.. {
                let token = FencingToken::new(number).unwrap();
                store.write_fenced(&key, number.to_string(), token).await?;
                say(&Report::Wrote { token: number });
            }
            Ok(())
        }
        Task::WriteAfterSleep {
            name,
            ttl,
            key,
            fenced,
        } => {
            let lease = acquire(locks, &name, ttl).await?;
            write_after_sleep(lease, &locks.store()?, ttl, &key, fenced).await
        }
        Task::ComeAndGo(haunts) => worker::come_and_go(locks, &haunts).await,
    }
}

async fn acquire(locks: &Locks, name: &str, ttl: Duration) -> crate::Result<Lease> {
    locks.lock(name).ttl(ttl).wait_forever().acquire().await
}

async fn write_after_sleep(
    lease: Lease,
    store: &Store,
    ttl: Duration,
    key: &str,
    fenced: bool,
) -> crate::Result<()> {
    let token = lease.token().get();
    let mut last = Clock::machine().now();
    // Only now: whoever reads it may stop this process at once.
    say(&Report::Held {
        token,
        valid_until: lease.valid_until().since_origin(),
    });
    loop {
        let now = Clock::machine().now();
        if now.since(last) > ttl {
            break;
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let value = "by the sleeper";
    if !fenced {
        store.update(key, |_| value).await?;
        say(&Report::Wrote { token });
        return Ok(());
    }
    match store.write_fenced(key, value, &lease).await? {
        Fenced::Written { .. } => say(&Report::Wrote { token }),
        Fenced::Refused { highest } => say(&Report::Refused {
            highest: highest.get(),
        }),
    }
    Ok(())
}

async fn hold(
    lease: Lease,
    ttl: Duration,
    mut orders: tokio::sync::mpsc::UnboundedReceiver<String>,
) -> crate::Result<()> {
    let view = lease.view();
    let mut last = Clock::machine().now();
    std::thread::spawn(move || {
        loop {
            let now = Clock::machine().now();
            let still_valid = view.is_valid();
            if now.since(last) > ttl {
                say(&Report::StoodStill { still_valid });
                return;
            }
            last = now;
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    // Only now: whoever reads it may stop this process at once.
    say(&Report::Held {
        token: lease.token().get(),
        valid_until: lease.valid_until().since_origin(),
    });
    tokio::select! {
        _ = lease.lost() => say(&Report::Lost),
        order = orders.recv() => {
            if order.is_some() {
                lease.release().await?;
                say(&Report::Released);
            } else {
                return Ok(());
            }
        }
    }
    while orders.recv().await.is_some() {}
    Ok(())
}

/// The parent's orders, line by line. The process ends when the parent does.
fn listen() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (sender, orders) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            let _ = sender.send(line);
        }
        std::process::exit(0);
    });
    orders
}

pub(super) fn say(report: &Report) {
    let mut output = std::io::stdout().lock();
    let line = serde_json::to_string(report).unwrap();
    // A parent that is gone reads nothing.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}
