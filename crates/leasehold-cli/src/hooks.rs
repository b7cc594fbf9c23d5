//! Commands of the user's that are run when a lock was acquired, lost or not obtained.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::exit;
use crate::held;
use crate::output::{self, age::age};
use crate::work::{self, Work};

/// For how long a hook may run.
const LIMIT: Duration = Duration::from_secs(10);

/// How often to check whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What has happened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Acquired,
    Lost,
    Skipped,
}

impl Event {
    const fn name(self) -> &'static str {
        match self {
            Event::Acquired => "acquire",
            Event::Lost => "lost",
            Event::Skipped => "skip",
        }
    }
}

impl Work<'_> {
    /// Runs the hook for this event, if there is one, and waits until it has ended. A hook that fails is a warning: it does not change
    /// the outcome.
    pub(crate) async fn run_hook(&self, event: Event, token: Option<u64>) {
        let hook = match event {
            Event::Acquired => &self.hooks.on_acquire,
            Event::Lost => &self.hooks.on_lost,
            Event::Skipped => &self.on_skip,
        };
        let Some(hook) = hook else { return };
        let mut command = Command::new("sh");
        command.arg("-c").arg(hook);
        work::set_environment(&mut command, self.context, self.request, token);
        command
            .env("LEASEHOLD_HOOK", event.name())
            // Secrets that a hook does not need, even if an enclosing run has set them.
            .env_remove("LEASEHOLD_CLAIM")
            .env_remove(held::VARIABLE);
        if let Err(why) = run(command).await {
            output::warn(&format!("warning: the hook --on-{} {why}", event.name()));
        }
    }
}

/// Fails with what went wrong.
async fn run(mut command: Command) -> Result<(), String> {
    // Stdout is CMD's.
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    command
        .stdin(Stdio::null())
        .stdout(stderr.map_or_else(|_| Stdio::null(), Stdio::from))
        .process_group(0);
    let started = command.spawn();
    let mut child = started.map_err(|cause| format!("could not be started: {cause}"))?;
    let end = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("ended with {}", exit::of_command(status))),
            Err(cause) => return Err(format!("could not be waited for: {cause}")),
            Ok(None) if Instant::now() < end => tokio::time::sleep(POLL_INTERVAL).await,
            Ok(None) => break,
        }
    }
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
    Err(format!("was killed after {}", age(LIMIT)))
}
