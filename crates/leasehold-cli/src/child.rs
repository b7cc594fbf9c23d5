//! Starting CMD and hearing of its end: the one file with unsafe code.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
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
    pub(crate) fn spawn(command: Command, with_terminal: bool) -> Outcome<Self> {
        match birth::start(&command, with_terminal) {
            Ok(group) => Ok(Self { group }),
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

/// What the child does before it becomes CMD. System calls only: it may share our memory.
fn prepare(parent: Pid, with_terminal: bool) -> nix::Result<()> {
    unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    die_with(parent)?;
    if with_terminal {
        // If someone else has got it meanwhile, CMD is in the background, as we are.
        let _ = take_terminal();
    }
    Ok(())
}

/// An orphan must not work on without its lock.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> nix::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before that.
    if unistd::getppid() != parent {
        return Err(nix::errno::Errno::ESRCH);
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> nix::Result<()> {
    Ok(())
}

/// Done here, since done by the parent it could come too late for CMD's first read.
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

/// As `posix_spawn` does it, which cannot set a parent-death signal: the child borrows our memory until it
/// becomes CMD. A fork would copy our page tables first, and take a fault for each page touched after.
#[cfg(target_os = "linux")]
mod birth {
    use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
    use std::io;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;
    use std::ptr;

    use nix::errno::Errno;
    use nix::libc;
    use nix::sys::signal::{SigSet, SigmaskHow};
    use nix::unistd::{self, Pid};

    use super::prepare;

    /// For the search through PATH, which has a path's length on the stack.
    const STACK: usize = 64 * 1024;

    struct Birth {
        words: Vec<*const c_char>,
        environment: Vec<*const c_char>,
        parent: Pid,
        with_terminal: bool,
        mask: SigSet,
        /// What went wrong; the child writes it, into our memory.
        failure: c_int,
    }

    pub(super) fn start(command: &Command, with_terminal: bool) -> io::Result<Pid> {
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let words = strings(words.map(OsStr::to_owned))?;
        let environment = strings(environment_of(command))?;
        // A signal between here and CMD's start must not run our handlers in the child.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let mut birth = Birth {
            words: pointers(&words),
            environment: pointers(&environment),
            parent: unistd::getpid(),
            with_terminal,
            mask,
            failure: 0,
        };
        let birth: *mut Birth = &raw mut birth;
        // Reserved, not filled: pages that are not touched cost nothing.
        let mut stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>());
        let stack = stack.spare_capacity_mut().as_mut_ptr_range();
        // SAFETY: this thread stands still until the child has become CMD or has ended, so that the stack,
        // `birth` and all that it points to outlive the child's use of them, and nobody else touches them.
        let child = unsafe {
            libc::clone(
                child,
                stack.end.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                birth.cast(),
            )
        };
        let started = Errno::result(child);
        mask.thread_set_mask()?;
        let child = started?;
        // SAFETY: as above; written by the child, hence volatile.
        match unsafe { ptr::read_volatile(&raw const (*birth).failure) } {
            0 => Ok(Pid::from_raw(child)),
            failure => {
                // SAFETY: a null pointer says that the status is not wanted.
                unsafe { libc::waitpid(child, ptr::null_mut(), 0) };
                Err(io::Error::from_raw_os_error(failure))
            }
        }
    }

    extern "C" fn child(birth: *mut c_void) -> c_int {
        let birth: *mut Birth = birth.cast();
        // SAFETY: see `start`. Nothing below allocates, locks or panics.
        unsafe {
            let failure = match prepare((*birth).parent, (*birth).with_terminal) {
                Ok(()) => {
                    forget_handlers();
                    let _ = (*birth).mask.thread_set_mask();
                    let words = (*birth).words.as_ptr();
                    libc::execvpe(*words, words, (*birth).environment.as_ptr());
                    Errno::last_raw()
                }
                Err(failure) => failure as c_int,
            };
            ptr::write_volatile(&raw mut (*birth).failure, failure);
        }
        127
    }

    /// Our handlers would work on our memory. SIGPIPE is ignored by us alone: CMD gets the usual one.
    ///
    /// # Safety
    ///
    /// For the child only, whose handlers are its own.
    unsafe fn forget_handlers() {
        for signal in 1..libc::SIGSYS {
            // SAFETY: an all-zero sigaction is a valid value: the default, with no flags.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, ptr::null(), &mut action);
                let ignored = action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE;
                if !ignored && action.sa_sigaction != libc::SIG_DFL {
                    let default: libc::sigaction = std::mem::zeroed();
                    libc::sigaction(signal, &default, ptr::null_mut());
                }
            }
        }
    }

    /// Ours, with the changes that the command asks for.
    fn environment_of(command: &Command) -> impl Iterator<Item = OsString> {
        let pair = |name: &OsStr, value: &OsStr| {
            let mut pair = name.to_owned();
            pair.push("=");
            pair.push(value);
            pair
        };
        let changed = |name: &OsStr| command.get_envs().any(|(changed, _)| changed == name);
        let kept = std::env::vars_os().filter(move |(name, _)| !changed(name));
        let set = command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        let set = set.map(move |(name, value)| pair(name, value));
        kept.map(move |(name, value)| pair(&name, &value))
            .chain(set)
    }

    fn strings(texts: impl Iterator<Item = OsString>) -> io::Result<Vec<CString>> {
        let strings = texts.map(|text| CString::new(text.into_vec()));
        Ok(strings.collect::<Result<_, _>>()?)
    }

    /// With the null pointer that ends such a list.
    fn pointers(strings: &[CString]) -> Vec<*const c_char> {
        let pointers = strings.iter().map(|string| string.as_ptr());
        pointers.chain([ptr::null()]).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod birth {
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use nix::unistd::{self, Pid};

    use super::prepare;

    pub(super) fn start(command: &Command, with_terminal: bool) -> io::Result<Pid> {
        let parent = unistd::getpid();
        let mut fork = Command::new(command.get_program());
        fork.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => fork.env(name, value),
                None => fork.env_remove(name),
            };
        }
        // SAFETY: only system calls are made between fork and exec.
        unsafe {
            fork.pre_exec(move || Ok(prepare(parent, with_terminal)?));
        }
        Ok(Pid::from_raw(fork.spawn()?.id() as i32))
    }
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
