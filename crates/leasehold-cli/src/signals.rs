//! The signals that this process handles, as one stream.

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::child;
use crate::exit::{Outcome, unexpected};

/// Passed on to CMD.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Sent by the terminal to its foreground group: to CMD if it has the terminal, else to this process.
const OF_TERMINAL: [Signal; 2] = [Signal::SIGTSTP, Signal::SIGWINCH];

/// Only for this process.
const OWN: [Signal; 2] = [Signal::SIGCHLD, Signal::SIGCONT];

/// The signals that are CMD's once it runs.
pub(crate) fn of_command() -> impl Iterator<Item = Signal> {
    PASSED_ON.into_iter().chain(OF_TERMINAL)
}

#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Installs the handlers. A signal that this process was started to ignore stays ignored, for CMD too: a
    /// handler would undo what nohup did.
    pub(crate) fn listen() -> Outcome<Self> {
        of_command()
            .filter(|signal| !child::is_ignored(*signal))
            .chain(OWN)
            .map(|signal| Ok((signal, stream(signal)?)))
            .collect::<Outcome<_>>()
            .map(Self)
    }

    /// Only the ends of child processes. Other signals wait until someone else listens again.
    pub(crate) fn of_children() -> Outcome<Self> {
        Ok(Self(vec![(Signal::SIGCHLD, stream(Signal::SIGCHLD)?)]))
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let ready = self.0.iter_mut().find_map(|(signal, stream)| {
                stream.poll_recv(context).is_ready().then_some(*signal)
            });
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

fn stream(signal: Signal) -> Outcome<unix::Signal> {
    unix::signal(SignalKind::from_raw(signal as i32))
        .map_err(|cause| unexpected("cannot listen for signals", cause))
}
