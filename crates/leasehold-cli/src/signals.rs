//! The signals that concern us, in one stream.

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::child;
use crate::exit::{Outcome, unexpected};

/// These go to CMD.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// A CMD that has the terminal gets these from it.
const FROM_TERMINAL: [Signal; 2] = [Signal::SIGTSTP, Signal::SIGWINCH];

#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to listen. A signal that we were told to ignore stays ignored, for CMD as well: a
    /// handler would undo what nohup did.
    pub(crate) fn listen(cmd_has_terminal: bool) -> Outcome<Self> {
        let from_terminal = FROM_TERMINAL.iter().filter(|_| !cmd_has_terminal);
        let wanted = PASSED_ON.iter().chain(from_terminal).copied();
        let wanted = wanted.filter(|signal| !child::is_ignored(*signal));
        wanted
            .chain([Signal::SIGCHLD])
            .map(|signal| {
                unix::signal(SignalKind::from_raw(signal as i32))
                    .map(|stream| (signal, stream))
                    .map_err(|cause| unexpected("cannot listen for signals", cause))
            })
            .collect::<Outcome<_>>()
            .map(Self)
    }

    /// The next one.
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
