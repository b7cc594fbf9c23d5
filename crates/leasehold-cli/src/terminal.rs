//! The terminal that we and CMD share: one process group at a time has it.

use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::{self, Pid};

/// The terminal that controls this session, on stdin.
#[derive(Debug)]
pub(crate) struct Terminal {
    given: bool,
}

impl Terminal {
    /// If stdin is that terminal.
    pub(crate) fn of_stdin() -> Option<Self> {
        let stdin = io::stdin();
        let controls_us = stdin.is_terminal() && unistd::tcgetpgrp(&stdin).is_ok();
        controls_us.then_some(Self { given: false })
    }

    /// Whether our process group has it: keys such as Ctrl-C come to us.
    pub(crate) fn is_ours(&self) -> bool {
        unistd::tcgetpgrp(io::stdin()) == Ok(unistd::getpgrp())
    }

    /// The group was to take it by itself; notes whether it did.
    pub(crate) fn was_taken_by(&mut self, group: Pid) {
        self.given = unistd::tcgetpgrp(io::stdin()) == Ok(group);
    }

    /// A group that is gone may have taken it.
    pub(crate) fn take_back_from_the_dead(&mut self) {
        self.given = true;
        self.take_back();
    }

    /// Gives it to a group, if it is ours to give.
    pub(crate) fn give_to(&mut self, group: Pid) {
        if self.is_ours() {
            self.given = set_foreground(group);
        }
    }

    /// Takes it back, if it was given away.
    pub(crate) fn take_back(&mut self) {
        if std::mem::replace(&mut self.given, false) {
            set_foreground(unistd::getpgrp());
        }
    }
}

/// Whoever is in the background gets SIGTTOU for this, and would be stopped by it.
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
