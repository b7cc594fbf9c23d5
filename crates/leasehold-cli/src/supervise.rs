//! Watching over CMD while it runs under its lease: signals, stops, and an end in time.

use std::fmt::{self, Debug};
use std::pin::Pin;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::recipe::RevokeRequest;
use leasehold::{LeaseState, LeaseView, LossReason};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{getpgrp, getpid};

use crate::child::Child;
use crate::exit;
use crate::output::{
    self,
    table::{printable, who},
};
use crate::process_tree;
use crate::signals::Signals;
use crate::terminal::Terminal;

/// What CMD gets between TERM and KILL if the lease is gone already.
const LAST_RESPITE: Duration = Duration::from_millis(200);

/// How often to look whether an ended group is gone: nobody tells us about grandchildren.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A killed process that hangs in the kernel is not waited for longer than this.
const WAIT_FOR_KILLED: Duration = Duration::from_secs(10);

/// What bounds the hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
}

/// When CMD is asked to end, and when it is made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ending {
    term_at: Moment,
    kill_at: Moment,
}

/// When CMD must end if nothing renews the lease: so early that its group is gone before validity is.
///
/// Renewals come at a third of the TTL and leave two thirds; less than a quarter is only ever left if
/// they fail, or if `max_hold` ends the lease.
fn when_to_end(valid_until: Moment, terms: Terms) -> Ending {
    let quarter = terms.ttl.min(terms.max_hold.unwrap_or(terms.ttl)) / 4;
    let grace = quarter.min(Duration::from_secs(5));
    Ending {
        term_at: valid_until - grace,
        kill_at: valid_until - grace / 5,
    }
}

/// How it went.
#[derive(Debug)]
pub(crate) enum End {
    /// CMD ended by itself, with this exit code.
    ByItself(i32),
    /// We ended it, for this reason.
    ByUs(String),
}

/// What someone asks of the holder, once someone does, and the signal that CMD gets then.
pub(crate) struct Listening {
    pub(crate) signal: Signal,
    pub(crate) asked: Pin<Box<dyn Future<Output = leasehold::Result<RevokeRequest>>>>,
}

impl Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listening({})", self.signal)
    }
}

#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) listening: Option<Listening>,
    /// The signals that were passed on.
    pub(crate) passed_on: Vec<Signal>,
    pub(crate) child: Child,
    pub(crate) lease: LeaseView,
    pub(crate) clock: Clock,
    pub(crate) terms: Terms,
    /// The longest time that the engine has promised at once.
    pub(crate) span: Duration,
    pub(crate) signals: Signals,
    pub(crate) terminal: Option<Terminal>,
}

impl Supervisor {
    /// Returns when CMD has ended, or had to be. The terminal is ours again then.
    pub(crate) async fn until_end(&mut self) -> End {
        let end = self.watch().await;
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        end
    }

    async fn watch(&mut self) -> End {
        loop {
            if let Some(code) = self.follow_child() {
                return End::ByItself(code);
            }
            // An engine with sessions may promise less at a time than the TTL.
            self.span = self.span.max(self.lease.remaining());
            let terms = Terms {
                ttl: self.terms.ttl.min(self.span),
                ..self.terms
            };
            let ending = when_to_end(self.lease.valid_until(), terms);
            let now = self.clock.now();
            if now >= ending.term_at {
                let kill_at = match self.lease.is_valid() {
                    true => ending.kill_at,
                    false => now + LAST_RESPITE,
                };
                let why = self.why();
                self.end(kill_at).await;
                return End::ByUs(why);
            }
            tokio::select! {
                biased;
                signal = self.signals.next() => self.pass_on(signal),
                asked = asked(&mut self.listening) => self.tell_of(asked),
                _ = self.lease.lost() => {}
                () = self.clock.sleep_until(ending.term_at) => {}
            }
        }
    }

    /// Collects CMD if it has ended; stops with it if it was stopped from the terminal.
    fn follow_child(&mut self) -> Option<i32> {
        let status = self.child.try_wait()?;
        if std::os::unix::process::ExitStatusExt::stopped_signal(&status).is_none() {
            return Some(exit::of_command(status));
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
            // All of our group, since a script that has started us is part of the same job. Ignored
            // by the system if there is no shell that could continue us.
            let _ = killpg(getpgrp(), Signal::SIGTSTP);
            self.go_on();
        }
        None
    }

    /// We were continued: CMD is too, if it still has its lease. If not, it is ended.
    fn go_on(&mut self) {
        if self.lease.is_valid() {
            if let Some(terminal) = &mut self.terminal {
                terminal.give_to(self.child.group());
            }
            self.child.signal(Signal::SIGCONT);
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {}
            Signal::SIGTSTP => {
                // If we stop, nothing renews the lease: CMD must not go on, whatever it thinks of SIGTSTP.
                self.child.signal(Signal::SIGSTOP);
                let _ = kill(getpid(), Signal::SIGSTOP);
                self.go_on();
            }
            signal => {
                self.passed_on.push(signal);
                self.child.signal(signal);
            }
        }
    }

    /// Told once: CMD decides what comes of it.
    fn tell_of(&mut self, asked: leasehold::Result<RevokeRequest>) {
        let Some(Listening { signal, .. }) = self.listening.take() else {
            return;
        };
        // Without an answer the lease is lost, and that is told elsewhere.
        if let Ok(RevokeRequest { reason, by }) = asked {
            let (by, reason) = (who(&by), printable(&reason));
            output::warn(&format!("asked to give the lock up by {by}: {reason}"));
            self.child.signal(signal);
        }
    }

    fn why(&self) -> String {
        match self.lease.state() {
            LeaseState::Lost(reason) => reason.to_string(),
            LeaseState::Uncertain => match self.lease.last_failure() {
                Some(failure) => {
                    format!("its time was running out while renewals failed: {failure}")
                }
                None => "its time was running out while renewals failed".to_owned(),
            },
            LeaseState::Held if self.terms.max_hold.is_some() => LossReason::MaxHold.to_string(),
            LeaseState::Held => LossReason::Expired { last_failure: None }.to_string(),
        }
    }

    /// Ends CMD and all below it; returns when they are gone.
    async fn end(&mut self, kill_at: Moment) {
        let mut groups = process_tree::groups_below(self.child.group());
        // Nested runs pass TERM on to the groups that they have made.
        self.child.signal(Signal::SIGTERM);
        for group in &groups {
            let _ = killpg(*group, Signal::SIGCONT);
        }
        let mut kill_at = Some(kill_at);
        let give_up_at =
            self.clock.now().max(kill_at.unwrap_or(self.clock.now())) + WAIT_FOR_KILLED;
        loop {
            let _ = self.child.try_wait();
            groups.retain(|group| !process_tree::is_gone(*group));
            let now = self.clock.now();
            if groups.is_empty() || now >= give_up_at {
                return;
            }
            if kill_at.is_some_and(|at| now >= at) {
                kill_at = None;
                groups.append(&mut process_tree::groups_below(self.child.group()));
                for group in &groups {
                    let _ = killpg(*group, Signal::SIGKILL);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

async fn asked(listening: &mut Option<Listening>) -> leasehold::Result<RevokeRequest> {
    match listening {
        Some(listening) => listening.asked.as_mut().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn an_end_in_time() {
        struct Row {
            ttl: u64,
            max_hold: Option<u64>,
            term_before: u64,
            kill_before: u64,
        }
        let row = |ttl, max_hold, term_before, kill_before| Row {
            ttl,
            max_hold,
            term_before,
            kill_before,
        };
        let table = [
            row(30_000, None, 5_000, 1_000),
            row(3_600_000, None, 5_000, 1_000),
            row(2_000, None, 500, 100),
            row(100, None, 25, 5),
            row(30_000, Some(600_000), 5_000, 1_000),
            row(30_000, Some(1_000), 250, 50),
        ];
        let valid_until = Moment::from_origin(Duration::from_secs(1_000_000));
        for row in table {
            let terms = Terms {
                ttl: ms(row.ttl),
                max_hold: row.max_hold.map(ms),
            };
            let expected = Ending {
                term_at: valid_until - ms(row.term_before),
                kill_at: valid_until - ms(row.kill_before),
            };
            assert_eq!(when_to_end(valid_until, terms), expected, "{terms:?}");
        }
    }

    #[test]
    fn a_lease_that_is_renewed_in_time_is_never_ended() {
        for ttl in [10, 100, 1_000, 30_000, 86_400_000].map(ms) {
            let start = Moment::from_origin(Duration::from_secs(1_000_000));
            let validity = leasehold::Ttl::new(ttl).unwrap().validity();
            let terms = Terms {
                ttl,
                max_hold: None,
            };
            let ending = when_to_end(start + validity, terms);
            assert!(ending.term_at > start + ttl / 3, "{ttl:?}");
        }
    }

    #[test]
    fn a_lost_lease_ends_at_once() {
        let terms = Terms {
            ttl: ms(1_000),
            max_hold: None,
        };
        let ending = when_to_end(Moment::from_origin(Duration::ZERO), terms);
        assert!(ending.term_at <= Clock::machine().now());
    }
}
