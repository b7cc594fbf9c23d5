//! Another package's lock in this process, as a client that takes the commands of `other.rs`.

#![allow(dead_code)] // not every engine's tests use all of it

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

pub(crate) trait Lock: Send + 'static {
    /// Takes the lock if it is free, and says whether.
    fn try_acquire(&mut self) -> impl Future<Output = bool> + Send;
    fn acquire(&mut self) -> impl Future<Output = ()> + Send;
    fn release(&mut self) -> impl Future<Output = ()> + Send;
}

/// When it is dropped, it ends where it stands, with what it holds.
pub(crate) struct Client {
    commands: UnboundedSender<String>,
    answers: UnboundedReceiver<bool>,
    task: JoinHandle<()>,
}

impl Client {
    pub(crate) fn start(mut lock: impl Lock) -> Self {
        let (commands, mut told) = unbounded_channel::<String>();
        let (done, answers) = unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(command) = told.recv().await {
                let answer = carry_out(&mut lock, &command).await;
                let _ = done.send(answer);
            }
        });
        Self {
            commands,
            answers,
            task,
        }
    }

    pub(crate) fn tell(&self, command: &str) {
        self.commands.send(command.to_owned()).unwrap();
    }

    pub(crate) async fn answer(&mut self) -> bool {
        self.answers.recv().await.expect("the client has failed")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry_out(lock: &mut impl Lock, command: &str) -> bool {
    let words: Vec<_> = command.split(' ').collect();
    match words.as_slice() {
        ["ping"] => {}
        ["try"] => return lock.try_acquire().await,
        ["wait"] => lock.acquire().await,
        ["release"] => lock.release().await,
        ["contend", rounds, letter, path] => {
            for _ in 0..rounds.parse().unwrap() {
                lock.acquire().await;
                add_letter(path, letter).await;
                lock.release().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        _ => panic!("{command}"),
    }
    true
}

/// Loses what another writes meanwhile.
pub(crate) async fn add_letter(path: &str, letter: &str) {
    let seen = std::fs::read_to_string(path).unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    std::fs::write(path, seen + letter).unwrap();
}
