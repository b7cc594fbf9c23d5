//! This test again in a process of its own, to be killed.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::{ErrorKind, Locks};

const URL: &str = "LEASEHOLD_RECIPES_URL";
const WORK: &str = "LEASEHOLD_RECIPES_WORK";

/// Killed when dropped.
pub(crate) struct Victim(Child);

impl Victim {
    pub(crate) fn start(url: &str, work: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(URL, url).env(WORK, work).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does the work of a victim, if this process is one.
pub(crate) fn serve() -> bool {
    let (Ok(url), Ok(work)) = (std::env::var(URL), std::env::var(WORK)) else {
        return false;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let locks = Locks::connect(&url).await.unwrap();
        match work.as_str() {
            "all" => loop {
                // Whatever goes wrong here is found by those who are left.
                let _ = take_some(&locks, Duration::from_secs(1)).await;
            },
            name => {
                let barrier = locks.barrier(name, 2).unwrap();
                let _ = barrier
                    .ttl(Duration::from_secs(1))
                    .pass(Duration::MAX)
                    .await;
            }
        }
    });
    true
}

/// Two or three of five locks, for a moment.
pub(crate) async fn take_some(locks: &Locks, ttl: Duration) -> leasehold::Result<()> {
    let mut names: Vec<_> = (0..5).map(|nth| format!("killed/{nth}")).collect();
    fastrand::shuffle(&mut names);
    names.truncate(fastrand::usize(2..=3));
    let held = locks.all(names).ttl(ttl).wait(Duration::from_secs(60));
    let held = held.acquire().await?;
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..10))).await;
    held.release().await.map(|_| ())
}

/// Engines that promise little at first may lose a lease on a busy machine before it was renewed once. That costs a try, and
/// leaves nothing behind.
pub(crate) async fn despite_losses<T, F>(mut acquire: impl FnMut() -> F) -> leasehold::Result<T>
where
    F: Future<Output = leasehold::Result<T>>,
{
    for _ in 0..20 {
        match acquire().await {
            Err(error) if error.kind() == ErrorKind::LeaseLost => {}
            done => return done,
        }
    }
    acquire().await
}
