//! The terminal that this process shares with CMD: one process group at a time is in its foreground.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::{self, Pid};

/// The controlling terminal of this session, on stdin.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Whether CMD's group was put into the foreground.
    given: bool,
}

impl Terminal {
    /// Returns it if stdin is the controlling terminal.
    pub(crate) fn of_stdin() -> Option<Self> {
        let stdin = io::stdin();
        let controls_us = stdin.is_terminal() && unistd::tcgetpgrp(&stdin).is_ok();
        controls_us.then_some(Self { given: false })
    }

    /// Whether this process's group is in the foreground, and gets keys such as Ctrl-C.
    pub(crate) fn is_ours(&self) -> bool {
        unistd::tcgetpgrp(io::stdin()) == Ok(unistd::getpgrp())
    }

    /// Notes whether the group, which was to take the terminal by itself, has done so.
    pub(crate) fn was_taken_by(&mut self, group: Pid) {
        self.given = unistd::tcgetpgrp(io::stdin()) == Ok(group);
    }

    /// Takes it back from a group that is gone and may have taken it.
    pub(crate) fn reclaim(&mut self) {
        self.given = true;
        self.take_back();
    }

    /// Puts a group into the foreground if this process's group is there; returns whether it did.
    pub(crate) fn give_to(&mut self, group: Pid) -> bool {
        let given = self.is_ours() && set_foreground(group);
        self.given |= given;
        given
    }

    /// Puts this process's group back into the foreground, if CMD's was put there.
    pub(crate) fn take_back(&mut self) {
        if std::mem::replace(&mut self.given, false) {
            set_foreground(unistd::getpgrp());
        }
    }
}

/// Blocks SIGTTOU, which would stop a process that does this from the background.
fn set_foreground(group: Pid) -> bool {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let done = unistd::tcsetpgrp(io::stdin(), group).is_ok();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    done
}
