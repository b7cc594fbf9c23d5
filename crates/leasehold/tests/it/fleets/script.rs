//! Another program that takes commands, a line each, and answers each with a line of JSON.

#![allow(dead_code)] // not every test runs every language

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Script {
    process: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Script {
    pub(crate) fn start(mut program: Command) -> Self {
        let mut process = program
            .current_dir(installed())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node or python is missing: ./test.sh installs it");
        Self {
            commands: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    /// Gives a command and waits for the answer.
    pub(crate) async fn ask(&mut self, command: &str) -> bool {
        self.tell(command).await;
        self.answer().await
    }

    pub(crate) async fn tell(&mut self, command: &str) {
        let line = format!("{command}\n");
        self.commands.write_all(line.as_bytes()).await.unwrap();
    }

    pub(crate) async fn answer(&mut self) -> bool {
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line()).await;
        let line = line.expect("an answer in time").unwrap();
        let line = line.expect("the other program has failed");
        let answer: Value = serde_json::from_str(&line).unwrap();
        answer["done"].as_bool().unwrap()
    }

    /// Ends it where it stands, with what it holds.
    pub(crate) async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// A script of this folder, by the Python that ./test.sh installs.
pub(crate) fn python(script: &str) -> Command {
    let mut python = Command::new(there(&installed().join("venv/bin/python")));
    python.arg(in_this_folder(script));
    python
}

/// A script of this folder that uses a package of node's.
pub(crate) fn node(package: &str, script: &str) -> Command {
    there(&installed().join("node_modules").join(package));
    let mut node = Command::new("node");
    node.arg(in_this_folder(script));
    node
}

fn in_this_folder(script: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    tests.join("fleets").join(script)
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
