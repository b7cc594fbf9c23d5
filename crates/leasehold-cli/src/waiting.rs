//! Waits for a lock, with a status line on a terminal; Ctrl-C leaves the queue at once.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Claimant, Lease, LockInfo, Locks};
use nix::sys::signal::Signal;

use crate::child;
use crate::exit::{Failure, Outcome};
use crate::output::{age::age, table::who};
use crate::request::Request;
use crate::signals::Signals;

/// How long to wait before the status line appears.
const STATUS_DELAY: Duration = Duration::from_millis(300);
/// How often the status line is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);
/// How often it is redrawn for each query of the engine.
const REDRAWS_PER_QUERY: u32 = 4;

/// Acquires the lock; leaves the queue on a signal.
pub(crate) async fn acquire(
    locks: &Locks,
    request: &Request,
    signals: &mut Signals,
    quiet: bool,
) -> Outcome<Lease> {
    let acquire = request.to(locks).acquire();
    until_acquired(locks, request, signals, quiet, acquire).await
}

/// The same for any future that waits for the lock.
pub(crate) async fn until_acquired<T>(
    locks: &Locks,
    request: &Request,
    signals: &mut Signals,
    quiet: bool,
    acquire: impl Future<Output = leasehold::Result<T>>,
) -> Outcome<T> {
    let ended_by = {
        let mut acquire = pin!(acquire);
        let mut status = pin!(show_status(locks, request, quiet));
        loop {
            tokio::select! {
                biased;
                acquired = &mut acquire => return Ok(acquired?),
                signal = signals.next() => match signal {
                    Signal::SIGCHLD | Signal::SIGCONT | Signal::SIGWINCH => {}
                    Signal::SIGTSTP => child::stop_this_process(),
                    signal => break signal,
                },
                () = &mut status => {}
            }
        }
    };
    // The library leaves the queue in the background; `flush` completes that before the process ends.
    Err(Failure::Signal(ended_by))
}

/// Keeps the status line up to date. Never returns.
async fn show_status(locks: &Locks, request: &Request, quiet: bool) {
    if quiet || !io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let start = Instant::now();
    tokio::time::sleep(STATUS_DELAY).await;
    let line = StatusLine::new();
    loop {
        let found = locks.inspect(&request.name).await.ok();
        for _ in 0..REDRAWS_PER_QUERY {
            let me = locks.claimant();
            line.set(&describe(request, me, found.as_ref(), start.elapsed()));
            tokio::time::sleep(REDRAW_INTERVAL).await;
        }
    }
}

fn describe(
    request: &Request,
    me: &Claimant,
    found: Option<&LockInfo>,
    waited: Duration,
) -> String {
    let mut text = format!("waiting {} for {}", age(waited), request.name);
    let Some(lock) = found else {
        return text;
    };
    let is_me = |who: &Claimant| who.pid == me.pid && who.host == me.host;
    let mut waiters = lock.waiters.iter();
    if let Some(position) = waiters.position(|waiter| is_me(&waiter.claimant)) {
        text += &format!(", {} of {} in the queue", position + 1, lock.waiters.len());
    }
    if let Some(holder) = lock.holders.first() {
        let since = age(holder.held_for);
        text += &format!(": held by {} for {since}", who(&holder.claimant));
    }
    if lock.holders.len() > 1 {
        text += &format!(" and {} more", lock.holders.len() - 1);
    }
    text
}

/// One line on stderr, cleared on drop.
struct StatusLine(ProgressBar);

impl StatusLine {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    fn set(&self, text: &str) {
        self.0.set_message(text.to_owned());
        self.0.tick();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
