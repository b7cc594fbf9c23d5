//! `etcdctl lock` on the same lock, at the same time: exclusion holds both ways, and nobody is stranded.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::etcd_cluster::EtcdCluster;
use leasehold::{FencingToken, Locks};

const ROUNDS: usize = 15;

async fn fleet() -> (EtcdCluster, Locks) {
    let cluster = EtcdCluster::start(1);
    let locks = Locks::connect(format!("{}?prefix=jobs/", cluster.url())).await;
    (cluster, locks.unwrap())
}

/// Holds the lock as `etcdctl lock jobs/report` does: it prints its key once it has it, and ends on TERM.
struct Theirs(Child);

impl Theirs {
    fn ask(cluster: &EtcdCluster) -> Self {
        let mut command = cluster.etcdctl_command(&cluster.host(0), &["lock", "jobs/report"]);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn until_held(&mut self) {
        let mut key = String::new();
        let out = self.0.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut key).unwrap();
        assert!(key.starts_with("jobs/report/"), "{key:?}");
    }

    fn release(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_side_waits_for_the_other() {
    let (cluster, locks) = fleet().await;
    let mut theirs = Theirs::ask(&cluster);
    tokio::task::block_in_place(|| theirs.until_held());
    assert!(locks.lock("report").try_acquire().await.unwrap().is_none());
    let shown = locks.inspect("report").await.unwrap();
    assert_eq!(shown.holders[0].claimant.label, "another program");
    assert_ne!(shown.holders[0].token, FencingToken::NONE);
    let reader = locks.lock("report").shared().try_acquire();
    assert!(reader.await.unwrap().is_none());
    let ours = tokio::spawn(locks.lock("report").wait(Duration::from_secs(30)).acquire());
    while locks.inspect("report").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Behind us.
    let mut last = Theirs::ask(&cluster);
    while locks.inspect("report").await.unwrap().waiters.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::task::block_in_place(|| theirs.release());
    let ours = ours.await.unwrap().unwrap();
    // Longer than a waiter may take to take the lock: we are not passed over, and neither are they.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(locks.inspect("report").await.unwrap().waiters.len(), 1);
    ours.release().await.unwrap();
    tokio::task::block_in_place(|| last.until_held());
    assert!(locks.lock("report").try_acquire().await.unwrap().is_none());
    tokio::task::block_in_place(|| last.release());
    drop(locks.lock("report").acquire().await.unwrap());
}

/// A reader that does not stop at a foreign waiter would share with its writer.
#[tokio::test(flavor = "multi_thread")]
async fn breaking_ends_theirs_too() {
    let (cluster, locks) = fleet().await;
    let mut theirs = Theirs::ask(&cluster);
    tokio::task::block_in_place(|| theirs.until_held());
    locks.force_release("report").await.unwrap();
    drop(locks.lock("report").acquire().await.unwrap());
    tokio::task::block_in_place(|| theirs.release());
}

/// Both add lines to a file by reading and writing all of it: one that is lost was not excluded.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_by_both() {
    let (cluster, locks) = fleet().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines");
    std::fs::write(&file, "").unwrap();
    let script = folder.path().join("add.sh");
    let lines = format!(
        "x=$(cat {0}); sleep 0.01; echo \"$x t\" > {0}",
        file.display()
    );
    std::fs::write(&script, lines).unwrap();
    let contend = |cluster: &EtcdCluster| {
        let script = script.display().to_string();
        let arguments = ["lock", "jobs/report", "sh", &script];
        let mut command = cluster.etcdctl_command(&cluster.host(0), &arguments);
        command.stdout(Stdio::null());
        command
    };
    let started = Instant::now();
    let theirs = async {
        for _ in 0..ROUNDS {
            let mut command = contend(&cluster);
            let status = tokio::task::spawn_blocking(move || command.status());
            assert!(status.await.unwrap().unwrap().success());
        }
    };
    let ours = async {
        for _ in 0..ROUNDS {
            let lease = locks.lock("report").wait_forever().acquire().await.unwrap();
            add(&file).await;
            lease.release().await.unwrap();
        }
    };
    tokio::join!(theirs, ours);
    let written = std::fs::read_to_string(&file).unwrap();
    let count = |letter: &str| written.matches(letter).count();
    assert_eq!((count("t"), count("o")), (ROUNDS, ROUNDS), "{written:?}");
    println!("{} visits in {:?}", 2 * ROUNDS, started.elapsed());
}

async fn add(file: &Path) {
    let read = std::fs::read_to_string(file).unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    std::fs::write(file, format!("{} o\n", read.trim_end())).unwrap();
}
