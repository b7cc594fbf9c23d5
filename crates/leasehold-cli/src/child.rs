//! Starting CMD, reaping it, and stopping this process: the only file with unsafe code.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use nix::libc;
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, killpg, sigaction,
};
use nix::unistd::{self, Pid};

use crate::exit::{Failure, Outcome};
use crate::signals;

/// CMD, the leader of its process group.
#[derive(Debug)]
pub(crate) struct Child {
    group: Pid,
}

/// CMD and its arguments, not yet started.
pub(crate) fn command(argv: &[OsString]) -> Command {
    // clap requires at least one argument; an empty program fails to start.
    let mut argv = argv.iter();
    let mut command = Command::new(argv.next().map_or("".as_ref(), OsString::as_os_str));
    command.args(argv);
    command
}

/// Replaces this process with CMD, in the same process group. Returns only if that fails.
pub(crate) fn exec(mut command: Command) -> Failure {
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
    /// Starts CMD as the leader of a new process group, which takes the terminal on stdin if `with_terminal`.
    ///
    /// Call this on the main thread: the parent-death signal is sent when the *thread* that called it ends.
    pub(crate) fn spawn(mut command: Command, with_terminal: bool) -> Outcome<Self> {
        let parent = unistd::getpid();
        // SAFETY: `prepare` makes only system calls that are async-signal-safe.
        unsafe {
            command.pre_exec(move || Ok(prepare(parent, with_terminal)?));
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

    /// Sends a signal to the whole group; does nothing if the group is gone.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Returns CMD's status if it has exited or stopped since the last call; does not wait.
    ///
    /// Not `std::process::Child::try_wait`, which does not report stops.
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

/// What the child does between fork and exec.
fn prepare(parent: Pid, with_terminal: bool) -> nix::Result<()> {
    unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    set_parent_death_signal(parent)?;
    // exec would reset the handlers too, but Ctrl-C may come as soon as the child has the terminal.
    for signal in signals::of_command() {
        if !is_ignored(signal) {
            set_default_action(signal)?;
        }
    }
    if with_terminal {
        // If another group has taken the terminal meanwhile, CMD is in the background, as this process is.
        let _ = take_terminal();
    }
    Ok(())
}

/// CMD must not keep running without its lock.
#[cfg(target_os = "linux")]
fn set_parent_death_signal(parent: Pid) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the call.
    if unistd::getppid() != parent {
        return Err(nix::errno::Errno::ESRCH);
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn set_parent_death_signal(_parent: Pid) -> nix::Result<()> {
    Ok(())
}

/// Makes this process's group the foreground group. In the child, because the parent could be too late for CMD's first read.
fn take_terminal() -> nix::Result<()> {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    // SAFETY: stdin is open, or the call fails.
    let stdin = unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) };
    let taken = unistd::tcsetpgrp(stdin, unistd::getpid());
    before.thread_set_mask()?;
    taken
}

/// Whether the signal is ignored, as after `nohup`.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    // SAFETY: an all-zero sigaction is a valid value, and a null pointer only queries.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as i32, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Makes this process ignore what it would pass on to a CMD, and what a terminal sends.
pub(crate) fn ignore_signals() {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    for signal in signals::of_command() {
        // SAFETY: an ignored signal runs no code of this process.
        let _ = unsafe { sigaction(signal, &ignore) };
    }
}

/// Stops this process as SIGTSTP does by default; returns when it is continued. Returns at once if nobody could
/// continue it (the system ignores the signal then), or if the signal is ignored.
pub(crate) fn stop_this_process() {
    with_default_action(Signal::SIGTSTP, || {
        let _ = kill(unistd::getpid(), Signal::SIGTSTP);
    });
}

/// The same for the whole process group of this process: a script that has started it belongs to the same job.
pub(crate) fn stop_this_job() {
    with_default_action(Signal::SIGTSTP, || {
        let _ = killpg(unistd::getpgrp(), Signal::SIGTSTP);
    });
}

/// Calls `work` while a signal that has a handler has its default action.
fn with_default_action(signal: Signal, work: impl FnOnce()) {
    if is_ignored(signal) {
        return work();
    }
    let before = set_default_action(signal);
    work();
    if let Ok(before) = before {
        // SAFETY: this action was in place before the call.
        let _ = unsafe { sigaction(signal, &before) };
    }
}

fn set_default_action(signal: Signal) -> nix::Result<SigAction> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    unsafe { sigaction(signal, &default) }
}
