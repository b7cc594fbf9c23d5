//! rslock, as a client that takes the same commands.

use std::time::Duration;

use ::rslock::{Lock, LockManager};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

pub(crate) struct Client {
    commands: UnboundedSender<String>,
    answers: UnboundedReceiver<bool>,
    task: JoinHandle<()>,
}

impl Client {
    pub(crate) fn new(ports: &[u16], name: &str, ttl: Duration) -> Self {
        let servers = ports.iter().map(|port| format!("redis://127.0.0.1:{port}"));
        let mut manager = LockManager::new(servers.collect());
        manager.set_retry(1, Duration::from_millis(10));
        let mut work = Work {
            manager,
            name: name.to_owned(),
            ttl,
            held: None,
        };
        let (commands, mut told) = unbounded_channel::<String>();
        let (done, answers) = unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(command) = told.recv().await {
                let answer = work.carry_out(&command).await;
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
        self.answers.recv().await.expect("rslock has failed")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Work {
    manager: LockManager,
    name: String,
    ttl: Duration,
    held: Option<Lock>,
}

impl Work {
    async fn carry_out(&mut self, command: &str) -> bool {
        let words: Vec<_> = command.split(' ').collect();
        match words.as_slice() {
            ["try"] => self.take().await,
            ["wait"] => {
                while !self.take().await {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                true
            }
            ["release"] => self.release().await,
            ["contend", rounds, letter, path] => {
                self.contend(rounds.parse().unwrap(), letter, path).await
            }
            ["ping"] => true,
            _ => panic!("{command}"),
        }
    }

    async fn take(&mut self) -> bool {
        match self.manager.lock(self.name.as_str(), self.ttl).await {
            Ok(lock) => {
                self.held = Some(lock);
                true
            }
            Err(::rslock::LockError::Unavailable) => false,
            Err(error) => panic!("{error}"),
        }
    }

    async fn release(&mut self) -> bool {
        self.held.take().expect("held").release().await;
        true
    }

    async fn contend(&mut self, rounds: usize, letter: &str, path: &str) -> bool {
        for _ in 0..rounds {
            while !self.take().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            super::add_letter(path, letter).await;
            self.release().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }
}
