//! A client of another package: a process that takes commands, or rslock in this one.
//!
//! | command | does |
//! |---|---|
//! | `try` | takes the lock if it is free, and says whether |
//! | `wait` | waits for the lock |
//! | `release` | gives it back |
//! | `contend ROUNDS LETTER FILE` | so many times: takes the lock, reads the file, and after a moment writes it with the letter added |

use std::time::Duration;

use tokio::process::Command;

use super::script::{self, Script};

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
    Script(Box<Script>),
    Rslock(super::rslock::Client),
}

impl Other {
    pub(crate) fn start(kind: Kind, ports: &[u16], name: &str, ttl: Duration) -> Self {
        if kind == Kind::Rslock {
            return Other::Rslock(super::rslock::Client::new(ports, name, ttl));
        }
        let mut program = command(kind);
        let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
        program.arg(kind.name()).arg(ports.join(","));
        program.args([name, &ttl.as_secs().to_string()]);
        Other::Script(Box::new(Script::start(program)))
    }

    /// Gives a command and waits for the answer.
    pub(crate) async fn ask(&mut self, command: &str) -> bool {
        self.tell(command).await;
        self.answer().await
    }

    pub(crate) async fn tell(&mut self, command: &str) {
        match self {
            Other::Script(script) => script.tell(command).await,
            Other::Rslock(client) => client.tell(command),
        }
    }

    pub(crate) async fn answer(&mut self) -> bool {
        match self {
            Other::Script(script) => script.answer().await,
            Other::Rslock(client) => client.answer().await,
        }
    }

    /// Ends it where it stands, with what it holds.
    pub(crate) async fn kill(self) {
        match self {
            Other::Script(script) => script.kill().await,
            Other::Rslock(client) => drop(client),
        }
    }
}

fn command(kind: Kind) -> Command {
    match kind {
        Kind::Redlock4 | Kind::Redlock5 => script::node("redlock", "fleet.mjs"),
        _ => script::python("fleet.py"),
    }
}
