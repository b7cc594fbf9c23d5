//! Waiting for a lock, told to people on a terminal; Ctrl-C leaves the queue at once.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Claimant, Lease, LockInfo, Locks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;

use crate::exit::{Failure, Outcome};
use crate::output::{age::age, table::who};
use crate::request::Request;
use crate::signals::Signals;

/// Nobody needs to hear of a shorter wait.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often the line is drawn, and every how many times the engine is asked.
const TICK: Duration = Duration::from_millis(250);
const TICKS_A_LOOK: u32 = 4;
/// How long leaving the queue may take; the engine forgets an abandoned place in any case.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Obtains the lock, or gives up its place in the queue when a signal says so.
pub(crate) async fn obtain(
    locks: &Locks,
    request: &Request,
    signals: &mut Signals,
    quiet: bool,
) -> Outcome<Lease> {
    let acquire = request.to(locks).acquire();
    until_obtained(locks, request, signals, quiet, acquire).await
}

/// The same for whatever else waits for the lock.
pub(crate) async fn until_obtained<T>(
    locks: &Locks,
    request: &Request,
    signals: &mut Signals,
    quiet: bool,
    acquire: impl Future<Output = leasehold::Result<T>>,
) -> Outcome<T> {
    let ended_by = {
        let mut acquire = pin!(acquire);
        let mut telling = pin!(tell(locks, request, quiet));
        loop {
            tokio::select! {
                biased;
                obtained = &mut acquire => return Ok(obtained?),
                signal = signals.next() => match signal {
                    Signal::SIGCHLD | Signal::SIGWINCH => {}
                    Signal::SIGTSTP => drop(kill(getpid(), Signal::SIGSTOP)),
                    signal => break signal,
                },
                () = &mut telling => {}
            }
        }
    };
    // The library gives up the place in the background; this process is about to end.
    let _ = tokio::time::timeout(LEAVE_WITHIN, locks.settle()).await;
    Err(Failure::Signal(ended_by))
}

/// Keeps a line on the terminal up to date. Never returns.
async fn tell(locks: &Locks, request: &Request, quiet: bool) {
    if quiet || !io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let start = Instant::now();
    tokio::time::sleep(PATIENCE).await;
    let line = Line::new();
    loop {
        let found = locks.show(&request.name).await.ok();
        for _ in 0..TICKS_A_LOOK {
            let me = locks.claimant();
            line.say(&describe(request, me, found.as_ref(), start.elapsed()));
            tokio::time::sleep(TICK).await;
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
    if let Some(place) = waiters.position(|waiter| is_me(&waiter.claimant)) {
        text += &format!(", {} of {} in line", place + 1, lock.waiters.len());
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

/// One line on stderr that goes away when it is no longer needed.
struct Line(ProgressBar);

impl Line {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    fn say(&self, text: &str) {
        self.0.set_message(text.to_owned());
        self.0.tick();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
