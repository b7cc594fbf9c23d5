//! All the waiters: processes where locks are shared between processes, else threads.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use leasehold::engine::Reach;

use super::board::Board;
use super::worker::{Done, Round, Worker};
use super::{About, Subject, a_lock_name};
use crate::command::block_on;
use crate::exit::{Failure, Outcome, unexpected};

pub(super) struct Crew {
    mates: Vec<Mate>,
    board: PathBuf,
}

enum Mate {
    Process {
        child: Child,
        rounds: Option<ChildStdin>,
        done: Lines<BufReader<ChildStdout>>,
    },
    Thread {
        rounds: mpsc::Sender<Round>,
        done: mpsc::Receiver<Outcome<Done>>,
    },
}

impl Crew {
    /// Starts them; all are connected when it returns.
    pub(super) fn gather(url: &str, about: &About, size: u32) -> Outcome<Self> {
        let lock = a_lock_name();
        let board = std::env::temp_dir().join(&lock);
        Board::create(&board).map_err(|cause| unexpected("cannot create the board", cause))?;
        let mut crew = Self {
            mates: Vec::new(),
            board,
        };
        let shared = match about.reach {
            Reach::Process => Some(block_on(async { Ok(Subject::connect(url).await?) })?),
            _ => None,
        };
        for _ in 0..size {
            let mate = match about.reach {
                Reach::Machine => Mate::process(url, &lock, &crew.board)?,
                _ => Mate::thread(url, shared.clone(), &lock, &crew.board),
            };
            crew.mates.push(mate);
        }
        crew.results()?;
        Ok(crew)
    }

    /// Lets all take part in a round.
    pub(super) fn play(&mut self, round: Round) -> Outcome<Vec<Done>> {
        for mate in &mut self.mates {
            mate.tell(round)?;
        }
        self.results()
    }

    fn results(&mut self) -> Outcome<Vec<Done>> {
        self.mates.iter_mut().map(Mate::result).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for mate in &mut self.mates {
            if let Mate::Process { child, rounds, .. } = mate {
                // The end of its stdin ends it.
                *rounds = None;
                let _ = child.wait();
            }
        }
        let _ = std::fs::remove_file(&self.board);
    }
}

impl Mate {
    fn process(url: &str, lock: &str, board: &Path) -> Outcome<Self> {
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(["--url", url, "bench-worker", "--lock", lock, "--board"])
                .arg(board)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        });
        let mut child = started.map_err(|cause| unexpected("cannot start a waiter", cause))?;
        let rounds = child.stdin.take();
        let Some(done) = child.stdout.take() else {
            return Err(lost_mate());
        };
        Ok(Mate::Process {
            child,
            rounds,
            done: BufReader::new(done).lines(),
        })
    }

    fn thread(url: &str, shared: Option<Subject>, lock: &str, board: &Path) -> Self {
        let (rounds, next) = mpsc::channel();
        let (report, done) = mpsc::channel();
        let (url, lock, board) = (url.to_owned(), lock.to_owned(), board.to_owned());
        std::thread::spawn(move || {
            let outcome = block_on(async {
                let subject = match shared {
                    Some(subject) => subject,
                    None => Subject::connect(&url).await?,
                };
                let mut worker = Worker::ready(subject, &lock, &board).await?;
                let _ = report.send(Ok(Done::default()));
                while let Ok(round) = next.recv() {
                    let _ = report.send(worker.take_part(round).await);
                }
                Ok(())
            });
            if let Err(failure) = outcome {
                let _ = report.send(Err(failure));
            }
        });
        Mate::Thread { rounds, done }
    }

    fn tell(&mut self, round: Round) -> Outcome<()> {
        match self {
            Mate::Process {
                rounds: Some(stdin),
                ..
            } => {
                let line = serde_json::to_string(&round)
                    .map_err(|cause| unexpected("cannot write JSON", cause))?;
                writeln!(stdin, "{line}").map_err(|cause| unexpected("a waiter is gone", cause))
            }
            Mate::Process { rounds: None, .. } => Err(lost_mate()),
            Mate::Thread { rounds, .. } => rounds.send(round).map_err(|_| lost_mate()),
        }
    }

    fn result(&mut self) -> Outcome<Done> {
        match self {
            Mate::Process { done, .. } => {
                let line = done.next().ok_or_else(lost_mate)?;
                let line = line.map_err(|cause| unexpected("a waiter is gone", cause))?;
                serde_json::from_str(&line)
                    .map_err(|cause| unexpected("a waiter does not make sense", cause))
            }
            Mate::Thread { done, .. } => done.recv().map_err(|_| lost_mate())?,
        }
    }
}

fn lost_mate() -> Failure {
    leasehold::Error::new(
        leasehold::ErrorKind::Unexpected,
        "a waiter of the bench has died",
    )
    .into()
}
