//! Starting CMD and hearing of its end: the one file with unsafe code.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::unistd::{self, Pid};

use crate::exit::{Failure, Outcome};

/// CMD, the leader of its process group.
#[derive(Debug)]
pub(crate) struct Child {
    group: Pid,
}

/// CMD and its arguments, not yet started.
pub(crate) fn command(words: &[OsString]) -> Command {
    // The arguments were parsed with at least one word; an empty name fails to start.
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("".as_ref(), OsString::as_os_str));
    command.args(words);
    command
}

/// Becomes CMD: same process, same group. Returns only if that fails.
pub(crate) fn become_command(mut command: Command) -> Failure {
    let cause = command.exec();
    cannot_start(&command, cause)
}

fn cannot_start(command: &Command, cause: io::Error) -> Failure {
    Failure::Start {
        command: command.get_program().to_string_lossy().into_owned(),
        cause,
    }
}

impl Child {
    /// Starts CMD as the leader of a new process group, with the terminal on stdin if `with_terminal`.
    ///
    /// To be called on the main thread: the parent-death signal is sent when the *thread* ends.
    pub(crate) fn spawn(mut command: Command, with_terminal: bool) -> Outcome<Self> {
        let parent = unistd::getpid();
        command.process_group(0);
        // SAFETY: between fork and exec only system calls are made that are async-signal-safe, and
        // nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                die_with(parent)?;
                if with_terminal {
                    take_terminal()?;
                }
                Ok(())
            });
        }
        match command.spawn() {
            Ok(child) => Ok(Self {
                group: Pid::from_raw(child.id() as i32),
            }),
            Err(cause) => Err(cannot_start(&command, cause)),
        }
    }

    /// The process group, which has the number of its leader.
    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the whole group. A group that is gone needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Whether CMD has ended or stopped since the last call, without waiting.
    ///
    /// Not `std::process::Child::try_wait`, which does not tell of stops.
    pub(crate) fn try_wait(&self) -> Option<ExitStatus> {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let changed = unsafe {
            libc::waitpid(
                self.group.as_raw(),
                &mut status,
                libc::WNOHANG | libc::WUNTRACED,
            )
        };
        (changed > 0).then(|| ExitStatus::from_raw(status))
    }
}

/// In the child: an orphan must not work on without its lock.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with(parent: Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before that.
    if unistd::getppid() != parent {
        return Err(nix::errno::Errno::ESRCH.into());
    }
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

/// In the child, before it runs: done by the parent it could come too late for CMD's first read.
fn take_terminal() -> io::Result<()> {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let taken = unistd::tcsetpgrp(io::stdin(), unistd::getpid());
    before.thread_set_mask()?;
    Ok(taken?)
}

/// Whether this process was started with the signal ignored, as by nohup.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    // SAFETY: an all-zero sigaction is a valid value, and a null pointer only asks.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
