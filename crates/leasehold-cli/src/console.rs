//! The signals and the terminal of this process.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use crate::exit::Outcome;
use crate::signals::Signals;
use crate::terminal::Terminal;

#[derive(Debug)]
pub(crate) struct Console {
    pub(crate) signals: Signals,
    /// The controlling terminal, if stdin is it.
    pub(crate) terminal: Option<Terminal>,
    /// The signals that were passed on to CMD.
    pub(crate) passed_on: BTreeSet<Signal>,
}

impl Console {
    /// Installs the signal handlers.
    pub(crate) fn open() -> Outcome<Self> {
        Ok(Self {
            signals: Signals::listen()?,
            terminal: Terminal::of_stdin(),
            passed_on: BTreeSet::new(),
        })
    }

    /// For a hook: the terminal stays with this process, and signals are kept for CMD.
    pub(crate) fn of_hook() -> Outcome<Self> {
        Ok(Self {
            signals: Signals::of_children()?,
            terminal: None,
            passed_on: BTreeSet::new(),
        })
    }
}
