//! zookeeper-client's own lock, named as Curator names its: a client that takes the same commands.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

pub(crate) struct Recipe {
    commands: UnboundedSender<String>,
    answers: UnboundedReceiver<bool>,
    task: JoinHandle<()>,
}

impl Recipe {
    pub(crate) async fn start(hosts: &str, path: &str) -> Self {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(4));
        let mut work = Work {
            client: connector.connect(hosts).await.unwrap(),
            path: path.to_owned(),
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
        self.answers.recv().await.expect("the recipe has failed")
    }

    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

struct Work {
    client: Client,
    path: String,
    held: Option<OwnedLockClient>,
}

impl Work {
    async fn carry_out(&mut self, command: &str) -> bool {
        let words: Vec<_> = command.split(' ').collect();
        match words.as_slice() {
            // It has no attempt that does not wait.
            ["try"] => {
                let a_while = Duration::from_millis(500);
                let acquired = tokio::time::timeout(a_while, self.acquire()).await;
                acquired.is_ok()
            }
            ["wait"] => {
                self.acquire().await;
                true
            }
            ["release"] => {
                self.release().await;
                true
            }
            ["contend", rounds, letter, file] => {
                for _ in 0..rounds.parse().unwrap() {
                    self.acquire().await;
                    let seen = std::fs::read_to_string(file).unwrap();
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    std::fs::write(file, seen + letter).unwrap();
                    self.release().await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                true
            }
            _ => true,
        }
    }

    async fn acquire(&mut self) {
        let anyone = Acls::anyone_all();
        let options = LockOptions::new(anyone);
        let options = options.with_ancestor_options(CreateMode::Container.with_acls(anyone));
        let prefix = LockPrefix::new_curator(&self.path, "lock-").unwrap();
        let lock = self.client.lock(prefix, b"", options.unwrap()).await;
        self.held = Some(lock.unwrap().into_owned());
    }

    /// It deletes its node in the background; nobody hears when.
    async fn release(&mut self) {
        let Some(held) = self.held.take() else { return };
        let path = held.lock_path().to_owned();
        drop(held);
        while self.client.check_stat(&path).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
