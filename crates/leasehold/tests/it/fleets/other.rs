//! A client of another package, and what it shares a lock with us for.
//!
//! | command | does |
//! |---|---|
//! | `try` | takes the lock if it is free, and says whether |
//! | `wait` | waits for the lock |
//! | `release` | gives it back |
//! | `contend ROUNDS LETTER FILE` | so many times: takes the lock, reads the file, and after a moment writes it with the letter added |

#![allow(dead_code)] // not every engine's tests use all of it

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{FencingToken, Locks};

use super::client::{Client, Lock, add_letter};
use super::script::Script;

pub(crate) const NAME: &str = "the-lock";
pub(crate) const OUR_TTL: Duration = Duration::from_secs(5);
const ROUNDS: usize = 40;

/// A process, or a task of this one.
pub(crate) enum Other {
    Process(Box<Script>),
    Task(Client),
}

impl Other {
    pub(crate) fn process(program: tokio::process::Command) -> Self {
        Other::Process(Box::new(Script::start(program)))
    }

    pub(crate) fn task(lock: impl Lock) -> Self {
        Other::Task(Client::start(lock))
    }

    /// Gives a command and waits for the answer.
    pub(crate) async fn ask(&mut self, command: &str) -> bool {
        self.tell(command).await;
        self.answer().await
    }

    pub(crate) async fn tell(&mut self, command: &str) {
        match self {
            Other::Process(script) => script.tell(command).await,
            Other::Task(client) => client.tell(command),
        }
    }

    pub(crate) async fn answer(&mut self) -> bool {
        match self {
            Other::Process(script) => script.answer().await,
            Other::Task(client) => client.answer().await,
        }
    }

    /// Ends it where it stands, with what it holds.
    pub(crate) async fn kill(self) {
        match self {
            Other::Process(script) => script.kill().await,
            Other::Task(client) => drop(client),
        }
    }
}

/// Who wants it while the other side holds it is refused.
pub(crate) async fn each_side_is_refused(locks: &Locks, mut other: Other) {
    let try_acquire = || locks.lock(NAME).ttl(OUR_TTL).try_acquire();
    assert!(other.ask("try").await);
    assert!(try_acquire().await.unwrap().is_none());
    let shown = locks.inspect(NAME).await.unwrap();
    assert_eq!(shown.holders[0].claimant.label, "another program");
    assert!(other.ask("release").await);

    let ours = try_acquire().await.unwrap().expect("free");
    assert!(!other.ask("try").await);
    ours.release().await.unwrap();
    assert!(other.ask("try").await);
    assert!(other.ask("release").await);
}

/// Two of each side at once: nothing that one has written under the lock is lost.
pub(crate) async fn nothing_is_lost(what: &str, locks: &Locks, others: [Other; 2]) {
    nothing_is_lost_in(ROUNDS, what, locks, others).await;
}

/// The same, so many times each. On a busy machine, one side may be done before the other begins; then they contend once more.
pub(crate) async fn nothing_is_lost_in(
    rounds: usize,
    what: &str,
    locks: &Locks,
    mut others: [Other; 2],
) {
    const TRIES: usize = 5;
    for _ in 0..TRIES {
        let turns = contend_at_once(rounds, locks, &mut others).await;
        println!("{what}: the lock changed sides {turns} times");
        if turns > 1 {
            return;
        }
    }
    panic!("one side after the other in each of {TRIES} tries");
}

/// Returns how often the lock changed sides.
async fn contend_at_once(rounds: usize, locks: &Locks, others: &mut [Other; 2]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letters").display().to_string();
    std::fs::write(&path, "").unwrap();
    for other in &mut *others {
        other.tell(&format!("contend {rounds} t {path}")).await;
    }
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let contend = || {
        let (locks, path, tokens) = (locks.clone(), path.clone(), tokens.clone());
        tokio::spawn(contend(rounds, locks, path, tokens))
    };
    for ours in [contend(), contend()] {
        ours.await.unwrap();
    }
    for other in others {
        assert!(other.answer().await);
    }
    let letters = std::fs::read_to_string(&path).unwrap();
    let count = |letter| letters.chars().filter(|there| *there == letter).count();
    assert_eq!(
        (count('o'), count('t')),
        (2 * rounds, 2 * rounds),
        "{letters}"
    );
    let tokens = tokens.lock().unwrap();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let turns = letters.as_bytes().windows(2);
    turns.filter(|pair| pair[0] != pair[1]).count()
}

async fn contend(rounds: usize, locks: Locks, path: String, tokens: Arc<Mutex<Vec<FencingToken>>>) {
    for _ in 0..rounds {
        let lease = locks.lock(NAME).ttl(OUR_TTL).wait_forever().acquire().await;
        let lease = lease.unwrap();
        tokens.lock().unwrap().push(lease.token());
        add_letter(&path, "o").await;
        lease.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
