//! Writes lines to stderr from a thread of its own, so that the caller never blocks.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How many lines are kept for a slow reader; further lines are dropped.
const MAX_LINES: usize = 100;

/// How long `flush` waits.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Queue {
    lines: VecDeque<String>,
    /// Whether a line is being written.
    writing: bool,
    has_thread: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    lines: VecDeque::new(),
    writing: false,
    has_thread: false,
});
static CHANGED: Condvar = Condvar::new();

/// Queues a line; returns at once.
pub(super) fn write(line: String) {
    let mut queue = lock();
    if queue.lines.len() < MAX_LINES {
        queue.lines.push_back(line);
    }
    if !queue.has_thread {
        queue.has_thread = thread::Builder::new().spawn(write_all).is_ok();
    }
    CHANGED.notify_all();
}

/// Waits until all lines are written, but no longer than the timeout.
pub(super) fn flush() {
    let busy = |queue: &mut Queue| queue.has_thread && (queue.writing || !queue.lines.is_empty());
    drop(CHANGED.wait_timeout_while(lock(), FLUSH_TIMEOUT, busy));
}

/// The thread. Never returns.
fn write_all() {
    // A terminal may be set to stop background groups that write to it, and CMD may be in the foreground.
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let _ = ttou.thread_block();
    let mut queue = lock();
    loop {
        queue.writing = false;
        let Some(line) = queue.lines.pop_front() else {
            CHANGED.notify_all();
            queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.writing = true;
        drop(queue);
        let _ = io::stderr().write_all(line.as_bytes());
        queue = lock();
    }
}

fn lock() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}
