//! Watches CMD while it runs under its lease: passes signals on, stops with it, and terminates it in time.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::recipe::RevokeRequest;
use leasehold::{LeaseState, LeaseView, LossReason};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::child::{self, Child};
use crate::console::Console;
use crate::exit;
use crate::output::{
    self,
    table::{printable, who},
};
use crate::process_tree;
use crate::watchdog::Watchdog;

/// The time between TERM and KILL if the lease is lost already.
const GRACE_AFTER_LOSS: Duration = Duration::from_millis(200);

/// How often to check whether a terminated group is gone: the system reports only the end of direct children.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long to wait for a killed process, which may hang in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// What bounds the hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
}

/// A command that ends sooner needs no watchdog: starting one would only take time.
const WATCHDOG_AFTER: Duration = Duration::from_millis(100);

/// When CMD gets TERM, and when it gets KILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadlines {
    pub(crate) term_at: Moment,
    pub(crate) kill_at: Moment,
}

impl Deadlines {
    /// The deadlines for a lease that is not renewed again: early enough that CMD's group is gone before validity ends.
    ///
    /// Renewals happen at a third of the TTL and leave two thirds, so less than a quarter is left only if
    /// they fail, or if `max_hold` ends the lease.
    fn before(valid_until: Moment, limits: Limits) -> Self {
        let quarter = limits.ttl.min(limits.max_hold.unwrap_or(limits.ttl)) / 4;
        let grace = quarter.min(Duration::from_secs(5));
        Self {
            term_at: valid_until - grace,
            kill_at: valid_until - grace / 5,
        }
    }

    /// Those of the watchdog: later than these, and before validity ends.
    fn of_watchdog(self, valid_until: Moment) -> Self {
        let halfway = |from: Moment, to: Moment| from + to.since(from) / 2;
        Self {
            term_at: halfway(self.term_at, self.kill_at),
            kill_at: halfway(self.kill_at, valid_until),
        }
    }
}

/// How the supervision of CMD ended.
#[derive(Debug)]
pub(crate) enum End {
    /// CMD ended by itself, with this exit code.
    Exited(i32),
    /// CMD was terminated or not started: which, and why.
    Terminated(String),
    /// CMD or its hook had to be terminated, but these groups of it are still running.
    StillRuns {
        what: &'static str,
        why: String,
        groups: BTreeSet<Pid>,
    },
}

/// Waits for a request to release the lock, and the signal that CMD gets then.
pub(crate) struct RevokeListener {
    pub(crate) signal: Signal,
    pub(crate) request: Pin<Box<dyn Future<Output = leasehold::Result<RevokeRequest>>>>,
}

impl Debug for RevokeListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RevokeListener({})", self.signal)
    }
}

#[derive(Debug)]
pub(crate) struct Supervisor<'a> {
    /// What runs, as messages name it.
    pub(crate) what: &'static str,
    pub(crate) revoke: Option<RevokeListener>,
    pub(crate) child: Child,
    pub(crate) watchdog: Watchdog,
    pub(crate) lease: LeaseView,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    /// The longest validity that the engine has granted at once.
    pub(crate) longest_validity: Duration,
    pub(crate) console: &'a mut Console,
    /// The groups that this process has stopped, and continues when it is continued.
    pub(crate) stopped: BTreeSet<Pid>,
}

impl Supervisor<'_> {
    /// Returns when CMD has ended or was terminated; the terminal is this process's again then.
    pub(crate) async fn until_end(&mut self) -> End {
        let mut end = self.watch().await;
        if self.watchdog.dismiss() && matches!(end, End::Exited(_)) {
            end = End::Terminated(format!(
                "{} was terminated by the watchdog because leasehold itself was stopped, and could not renew the lease",
                self.what
            ));
        }
        if let Some(terminal) = &mut self.console.terminal {
            terminal.take_back();
        }
        end
    }

    /// Kills what runs, whatever the lease says. Returns the groups that could not be killed.
    pub(crate) async fn kill(&mut self) -> BTreeSet<Pid> {
        let groups = self.terminate(self.clock.now()).await;
        self.watchdog.dismiss();
        groups
    }

    async fn watch(&mut self) -> End {
        let start = self.clock.now();
        loop {
            if let Some(code) = self.reap_child() {
                return End::Exited(code);
            }
            // An engine with sessions may grant less than the TTL at a time.
            self.longest_validity = self.longest_validity.max(self.lease.remaining());
            let limits = Limits {
                ttl: self.limits.ttl.min(self.longest_validity),
                ..self.limits
            };
            let valid_until = self.lease.valid_until();
            let deadlines = Deadlines::before(valid_until, limits);
            // Often enough that the watchdog hears of a renewal long before it would act.
            let tell_watchdog_every = limits.ttl / 10;
            let watchdog_from = start + WATCHDOG_AFTER.min(tell_watchdog_every);
            let now = self.clock.now();
            if now >= deadlines.term_at {
                let kill_at = match self.lease.is_valid() {
                    true => deadlines.kill_at,
                    false => now + GRACE_AFTER_LOSS,
                };
                let why = loss_reason(&self.lease, self.limits);
                let groups = self.terminate(kill_at).await;
                return match groups.is_empty() {
                    true => End::Terminated(format!(
                        "{} was terminated because the lease could not be kept: {why}",
                        self.what
                    )),
                    false => End::StillRuns {
                        what: self.what,
                        why,
                        groups,
                    },
                };
            }
            let tell_watchdog_at = match now >= watchdog_from {
                true => {
                    self.watchdog.set(deadlines.of_watchdog(valid_until));
                    now + tell_watchdog_every
                }
                false => watchdog_from,
            };
            tokio::select! {
                biased;
                signal = self.console.signals.next() => self.handle_signal(signal),
                request = next_request(&mut self.revoke) => self.signal_request(request),
                _ = self.lease.lost() => {}
                () = self.clock.sleep_until(deadlines.term_at.min(tell_watchdog_at)) => {}
            }
        }
    }

    /// Returns CMD's exit code if it has ended. Stops this process too if CMD was stopped from the terminal.
    fn reap_child(&mut self) -> Option<i32> {
        let status = self.child.try_wait()?;
        let Some(stopped_by) = status.stopped_signal() else {
            return Some(exit::of_command(status));
        };
        let group = self.child.group();
        let terminal = self.console.terminal.as_mut()?;
        if !self.stopped.insert(group) {
            // Stopped by this process, which has been continued since.
            return None;
        }
        let wants_terminal = [Signal::SIGTTIN, Signal::SIGTTOU].map(|signal| signal as i32);
        if wants_terminal.contains(&stopped_by) && terminal.give_to(group) {
            // A shell has brought this job to the foreground, which no signal reports.
            self.resume();
        } else {
            terminal.take_back();
            self.stop_all();
            child::stop_this_job();
            self.resume();
        }
        None
    }

    /// Stops CMD and everything below it, since a stopped process renews no lease, and nested runs renew none either. Groups that
    /// were stopped before are not ours to continue.
    fn stop_all(&mut self) {
        loop {
            let running = process_tree::running_groups_below(self.child.group());
            // A process that was still running may have started others.
            let more = &running - &self.stopped;
            if more.is_empty() {
                return;
            }
            for group in more {
                // Not SIGTSTP, which a command may ignore.
                let _ = killpg(group, Signal::SIGSTOP);
                self.stopped.insert(group);
            }
        }
    }

    /// This process was continued: continues CMD if its lease is still valid. If not, `watch` terminates it.
    fn resume(&mut self) {
        if !self.lease.is_valid() {
            return;
        }
        let group = self.child.group();
        if let Some(terminal) = &mut self.console.terminal {
            terminal.give_to(group);
        }
        let stopped = std::mem::take(&mut self.stopped);
        // Nested runs are in CMD's group and go first: they check their leases before they continue their commands.
        if stopped.contains(&group) {
            self.child.signal(Signal::SIGCONT);
        }
        for group in stopped {
            let _ = killpg(group, Signal::SIGCONT);
        }
    }

    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {}
            Signal::SIGCONT => self.resume(),
            Signal::SIGTSTP => {
                self.stop_all();
                child::stop_this_process();
                self.resume();
            }
            signal => {
                self.console.passed_on.insert(signal);
                self.child.signal(signal);
            }
        }
    }

    /// Signals CMD once, and leaves the decision to it.
    fn signal_request(&mut self, request: leasehold::Result<RevokeRequest>) {
        let Some(RevokeListener { signal, .. }) = self.revoke.take() else {
            return;
        };
        // An error means that the lease is lost, which is handled elsewhere.
        if let Ok(RevokeRequest { reason, by, .. }) = request {
            let (by, reason) = (who(&by), printable(&reason));
            self.child.signal(signal);
            output::warn(&format!("asked to release the lock by {by}: {reason}"));
        }
    }

    /// Terminates CMD and everything below it. Returns when they are gone, or those groups that could not be terminated.
    async fn terminate(&mut self, kill_at: Moment) -> BTreeSet<Pid> {
        let mut groups = process_tree::groups_below([self.child.group()]);
        // CMD is told by this process, and once. Before the next holder can enter, unless the lease is lost already.
        let valid_until = self.lease.valid_until();
        let late = valid_until.since(kill_at) / 2;
        self.watchdog.set(Deadlines {
            kill_at: kill_at
                + if late.is_zero() {
                    GRACE_AFTER_LOSS
                } else {
                    late
                },
            ..Deadlines::NEVER
        });
        // Nested runs pass TERM on to the groups that they have created.
        self.child.signal(Signal::SIGTERM);
        for group in &groups {
            let _ = killpg(*group, Signal::SIGCONT);
        }
        let give_up_at = self.clock.now().max(kill_at) + KILL_TIMEOUT;
        let mut kill_at = Some(kill_at);
        loop {
            let _ = self.child.try_wait();
            groups.retain(|group| !process_tree::is_gone(*group));
            let now = self.clock.now();
            if groups.is_empty() || now >= give_up_at {
                return groups;
            }
            if kill_at.is_some_and(|at| now >= at) {
                kill_at = None;
                // Only below groups that still exist: the number of one that is gone may have been reused.
                groups = process_tree::groups_below(groups);
                for group in &groups {
                    let _ = killpg(*group, Signal::SIGKILL);
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Why the lease can no longer be relied on.
pub(crate) fn loss_reason(lease: &LeaseView, limits: Limits) -> String {
    match lease.state() {
        LeaseState::Lost(reason) => reason.to_string(),
        LeaseState::Uncertain => match lease.last_failure() {
            Some(failure) => {
                format!("its time was running out while renewals failed: {failure}")
            }
            None => "its time was running out while renewals failed".to_owned(),
        },
        _ if limits.max_hold.is_some() => LossReason::MaxHold.to_string(),
        _ => LossReason::Expired { last_failure: None }.to_string(),
    }
}

async fn next_request(listener: &mut Option<RevokeListener>) -> leasehold::Result<RevokeRequest> {
    match listener {
        Some(listener) => listener.request.as_mut().await,
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
    fn deadlines_scale_with_ttl_and_max_hold() {
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
            let limits = Limits {
                ttl: ms(row.ttl),
                max_hold: row.max_hold.map(ms),
            };
            let expected = Deadlines {
                term_at: valid_until - ms(row.term_before),
                kill_at: valid_until - ms(row.kill_before),
            };
            assert_eq!(
                Deadlines::before(valid_until, limits),
                expected,
                "{limits:?}"
            );
        }
    }

    #[test]
    fn renewed_lease_is_never_terminated() {
        for ttl in [10, 100, 1_000, 30_000, 86_400_000].map(ms) {
            let start = Moment::from_origin(Duration::from_secs(1_000_000));
            let validity = leasehold::Ttl::new(ttl).unwrap().validity();
            let limits = Limits {
                ttl,
                max_hold: None,
            };
            let deadlines = Deadlines::before(start + validity, limits);
            assert!(deadlines.term_at > start + ttl / 3, "{ttl:?}");
        }
    }

    #[test]
    fn lost_lease_is_terminated_at_once() {
        let limits = Limits {
            ttl: ms(1_000),
            max_hold: None,
        };
        let deadlines = Deadlines::before(Moment::from_origin(Duration::ZERO), limits);
        assert!(deadlines.term_at <= Clock::machine().now());
    }
}
