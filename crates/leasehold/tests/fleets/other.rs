//! A client of another package: a process that takes commands, or rslock in this one.
//!
//! | command | does |
//! |---|---|
//! | `try` | takes the lock if it is free, and says whether |
//! | `wait` | waits for the lock |
//! | `release` | gives it back |
//! | `contend ROUNDS LETTER FILE` | so many times: takes the lock, reads the file, and after a moment writes it with the letter added |

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Which package.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    RedisPy,
    PythonRedisLock,
    Redlock4,
    Redlock5,
    Rslock,
}

impl Kind {
    /// What it puts before a lock's name.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Kind::PythonRedisLock => "lock:",
            _ => "",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::RedisPy => "redis-py",
            Kind::PythonRedisLock => "python-redis-lock",
            Kind::Redlock4 => "redlock4",
            Kind::Redlock5 => "redlock5",
            Kind::Rslock => "rslock",
        }
    }
}

pub(crate) enum Other {
    Script {
        process: Box<Child>,
        commands: ChildStdin,
        answers: Lines<BufReader<ChildStdout>>,
    },
    Rslock(super::rslock::Client),
}

impl Other {
    pub(crate) fn start(kind: Kind, ports: &[u16], name: &str, ttl: Duration) -> Self {
        if kind == Kind::Rslock {
            return Other::Rslock(super::rslock::Client::new(ports, name, ttl));
        }
        let mut process = command(kind)
            .arg(kind.name())
            .arg(
                ports
                    .iter()
                    .map(u16::to_string)
                    .collect::<Vec<_>>()
                    .join(","),
            )
            .args([name, &ttl.as_secs().to_string()])
            .current_dir(installed())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node or python is missing: ./test.sh installs it");
        Other::Script {
            commands: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()).lines(),
            process: Box::new(process),
        }
    }

    /// Gives a command and waits for the answer.
    pub(crate) async fn ask(&mut self, command: &str) -> bool {
        self.tell(command).await;
        self.answer().await
    }

    pub(crate) async fn tell(&mut self, command: &str) {
        match self {
            Other::Script { commands, .. } => {
                let line = format!("{command}\n");
                commands.write_all(line.as_bytes()).await.unwrap();
            }
            Other::Rslock(client) => client.tell(command),
        }
    }

    pub(crate) async fn answer(&mut self) -> bool {
        let patience = Duration::from_secs(120);
        let answer = async {
            match self {
                Other::Script { answers, .. } => {
                    let line = answers.next_line().await.unwrap();
                    let line = line.expect("the other program has failed");
                    let answer: Value = serde_json::from_str(&line).unwrap();
                    answer["done"].as_bool().unwrap()
                }
                Other::Rslock(client) => client.answer().await,
            }
        };
        tokio::time::timeout(patience, answer)
            .await
            .expect("an answer in time")
    }

    /// Ends it where it stands, with what it holds.
    pub(crate) async fn kill(self) {
        match self {
            Other::Script { mut process, .. } => process.kill().await.unwrap(),
            Other::Rslock(client) => drop(client),
        }
    }
}

fn command(kind: Kind) -> Command {
    let script = |name| {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        tests.join("fleets").join(name)
    };
    match kind {
        Kind::Redlock4 | Kind::Redlock5 => {
            there(&installed().join("node_modules/redlock"));
            let mut node = Command::new("node");
            node.arg(script("fleet.mjs"));
            node
        }
        _ => {
            let mut python = Command::new(there(&installed().join("venv/bin/python")));
            python.arg(script("fleet.py"));
            python
        }
    }
}

fn installed() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join("fleets")
}

fn there(path: &Path) -> &Path {
    assert!(
        path.exists(),
        "{} is missing: ./test.sh installs it",
        path.display()
    );
    path
}
