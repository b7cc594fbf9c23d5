//! The watchdog: a second process that terminates CMD in time if the supervisor is stopped, hangs or dies.
//!
//! The supervisor sends it the deadlines of the lease again and again. A watchdog that has not heard of later ones acts a little after the
//! supervisor would have, and sends a byte back. It never talks to the engine, and ends with the supervisor.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::clock::{Clock, Moment};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::child;
use crate::exit::{Outcome, unexpected};
use crate::output;
use crate::process_tree;
use crate::supervise::Deadlines;

/// How often to look again at a group that is stopped, or that was killed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How often to look which groups are below CMD: once CMD is dead, they cannot be found any more. Less often where that takes long, since it reads about all
/// processes of the machine: for no more than a hundredth of the time.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Timers stand still while the machine is suspended: no wait is longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Watchdog {
    group: Pid,
    /// `Err` once it is known that it cannot be started.
    process: io::Result<Option<Process>>,
}

impl Watchdog {
    /// A watchdog for this process group, which is started with its first deadlines.
    pub(crate) fn of(group: Pid) -> Self {
        Self {
            group,
            process: Ok(None),
        }
    }

    /// Replaces its deadlines.
    pub(crate) fn set(&mut self, deadlines: Deadlines) {
        let Ok(process) = &mut self.process else {
            return;
        };
        if process.as_ref().is_some_and(|it| it.send(deadlines)) {
            return;
        }
        // Not started yet, or killed.
        self.process = Process::start(self.group, deadlines).map(Some);
        if let Err(cause) = &self.process {
            output::warn(&format!(
                "warning: cannot start the watchdog: {cause}; if leasehold itself is stopped, the command is not terminated in time"
            ));
        }
    }

    /// Ends it: CMD has ended, or was terminated. Returns whether it has signalled CMD.
    pub(crate) fn dismiss(&mut self) -> bool {
        match std::mem::replace(&mut self.process, Ok(None)) {
            Ok(Some(process)) => {
                process.send(Deadlines::NEVER);
                (&process.socket)
                    .read(&mut [0])
                    .is_ok_and(|length| length > 0)
            }
            _ => false,
        }
    }
}

#[derive(Debug)]
struct Process {
    socket: UnixStream,
    child: Option<Child>,
}

impl Process {
    fn start(group: Pid, deadlines: Deadlines) -> io::Result<Self> {
        let (socket, stdin) = UnixStream::pair()?;
        // A watchdog that is stopped must not stop the supervisor.
        socket.set_nonblocking(true)?;
        // This file is there even if the program was replaced since.
        let this = Path::new("/proc/self/exe");
        let program = match this.exists() {
            true => this.to_owned(),
            false => std::env::current_exe()?,
        };
        let child = Command::new(program)
            .arg0("leasehold")
            .args(["watchdog", &group.to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(stdin)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Whoever stops the supervisor's group is not to stop it too.
            .process_group(0)
            .spawn()?;
        let process = Self {
            socket,
            child: Some(child),
        };
        process.send(deadlines);
        Ok(process)
    }

    /// Whether it is still there.
    fn send(&self, deadlines: Deadlines) -> bool {
        match (&self.socket).write_all(&deadlines.to_bytes()) {
            Ok(()) => true,
            // It has a lot to read: it is stopped.
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

impl Drop for Process {
    /// It ends when its socket is closed, and is collected then: `elect` may run for long after.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            std::thread::spawn(move || child.wait());
        }
    }
}

/// The process itself: watches over a group until the supervisor dismisses it.
pub(crate) fn main(group: i32) -> Outcome {
    child::ignore_signals();
    let group = Pid::from_raw(group);
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let supervisor = UnixStream::from(stdin.map_err(broken)?);
    let clock = Clock::machine();
    let mut deadlines = Deadlines::NEVER;
    let mut groups = BTreeSet::from([group]);
    let mut look_at = Instant::now();
    let mut asked_to_end = false;
    loop {
        let now = clock.now();
        let next = match asked_to_end {
            false => deadlines.term_at.min(deadlines.kill_at),
            true => deadlines.kill_at,
        };
        let news = news(&supervisor, next.since(now)).map_err(broken)?;
        let may_look = !asked_to_end && !matches!(news, News::Gone);
        let began = Instant::now();
        if may_look && began >= look_at {
            groups = process_tree::groups_below([group]);
            look_at = Instant::now() + LOOK_INTERVAL.max(began.elapsed() * 100);
        }
        match news {
            News::Deadlines(later) => {
                deadlines = later;
                asked_to_end = false;
                continue;
            }
            News::Gone => {
                if deadlines != Deadlines::NEVER {
                    kill_all(&groups);
                }
                return Ok(0);
            }
            News::None => {}
        }
        let now = clock.now();
        if now < next {
            continue;
        }
        // What is stopped writes nothing, and is terminated in good order when the supervisor is continued with it.
        if process_tree::is_running(&groups) {
            // Before CMD can end by it.
            let _ = (&supervisor).write_all(b"!");
            if now >= deadlines.kill_at {
                kill_all(&groups);
            } else {
                groups = process_tree::groups_below([group]);
                asked_to_end = true;
                let _ = killpg(group, Signal::SIGTERM);
                continue;
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills these groups, and all below them.
fn kill_all(groups: &BTreeSet<Pid>) {
    // Only those that still exist: the number of one that is gone may have been reused.
    let there = groups
        .iter()
        .filter(|group| !process_tree::is_gone(**group));
    for group in process_tree::groups_below(there.copied()) {
        let _ = killpg(group, Signal::SIGKILL);
    }
}

enum News {
    Deadlines(Deadlines),
    /// The supervisor has ended.
    Gone,
    None,
}

/// Waits for a message of the supervisor.
fn news(mut supervisor: &UnixStream, wait: Duration) -> io::Result<News> {
    let wait = wait.clamp(Duration::from_millis(1), LONGEST_WAIT);
    supervisor.set_read_timeout(Some(wait))?;
    let mut bytes = [0; Deadlines::LENGTH];
    match supervisor.read_exact(&mut bytes) {
        Ok(()) => Ok(News::Deadlines(Deadlines::from_bytes(bytes))),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(News::None),
            _ => Ok(News::Gone),
        },
    }
}

fn broken(cause: io::Error) -> crate::exit::Failure {
    unexpected("cannot watch over the command", cause)
}

impl Deadlines {
    /// Those of nobody.
    pub(crate) const NEVER: Self = Self {
        term_at: Moment::from_origin(Duration::from_nanos(u64::MAX)),
        kill_at: Moment::from_origin(Duration::from_nanos(u64::MAX)),
    };

    const LENGTH: usize = 16;

    fn to_bytes(self) -> [u8; Self::LENGTH] {
        let nanos = |at: Moment| u64::try_from(at.since_origin().as_nanos()).unwrap_or(u64::MAX);
        let both = u128::from(nanos(self.term_at)) << 64 | u128::from(nanos(self.kill_at));
        both.to_le_bytes()
    }

    fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let both = u128::from_le_bytes(bytes);
        let at = |nanos: u128| Moment::from_origin(Duration::from_nanos(nanos as u64));
        Self {
            term_at: at(both >> 64),
            kill_at: at(both),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_survive_the_way_to_the_watchdog() {
        let at = |seconds| Moment::from_origin(Duration::from_millis(seconds));
        let deadlines = Deadlines {
            term_at: at(1),
            kill_at: at(u64::MAX / 2_000_000),
        };
        for deadlines in [deadlines, Deadlines::NEVER] {
            assert_eq!(Deadlines::from_bytes(deadlines.to_bytes()), deadlines);
        }
    }
}
