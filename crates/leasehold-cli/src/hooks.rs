//! Commands of the user's that are run when a lock was acquired, lost or not obtained.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::Lease;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::child::Child;
use crate::console::Console;
use crate::exit::{self, Failure, Outcome};
use crate::held;
use crate::output::{self, age::age};
use crate::supervise::End;
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
    /// Runs the hook for an acquired lock, if there is one, and waits until it has ended. It is terminated as CMD is if the lease can no longer be relied on:
    /// how it ended then, and CMD must not be started.
    pub(crate) async fn run_acquire_hook(&self, lease: &Lease) -> Outcome<Option<End>> {
        let token = Some(lease.token().get());
        let Some(command) = self.hook(Event::Acquired, token) else {
            return Ok(None);
        };
        let what = "the hook --on-acquire";
        // This process may have been stopped since the lock was granted.
        if !lease.is_valid() {
            return Ok(Some(End::Terminated(format!(
                "{what} was not started, since the lease was lost before"
            ))));
        }
        let mut console = Console::of_hook()?;
        let child = match Child::spawn(command, false) {
            Ok(child) => child,
            Err(Failure::Start { cause, .. }) => {
                warn(Event::Acquired, &format!("could not be started: {cause}"));
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let mut supervisor = self.supervisor(what, child, lease, &mut console);
        match tokio::time::timeout(LIMIT, supervisor.until_end()).await {
            Ok(End::Exited(0)) => {}
            Ok(End::Exited(code)) => warn(Event::Acquired, &format!("ended with {code}")),
            Ok(end) => return Ok(Some(end)),
            Err(_) => {
                let groups = supervisor.kill().await;
                if !groups.is_empty() {
                    let why = format!("it ran for longer than {}", age(LIMIT));
                    return Ok(Some(End::StillRuns { what, why, groups }));
                }
                warn(Event::Acquired, &format!("was killed after {}", age(LIMIT)));
            }
        }
        Ok(None)
    }

    /// Runs the hook for an event after which no lock is held, if there is one, and waits until it has ended. A hook that fails is a warning: it does not
    /// change the outcome.
    pub(crate) async fn run_hook(&self, event: Event, token: Option<u64>) {
        let Some(command) = self.hook(event, token) else {
            return;
        };
        if let Err(why) = run(command).await {
            warn(event, &why);
        }
    }

    fn hook(&self, event: Event, token: Option<u64>) -> Option<Command> {
        let hook = match event {
            Event::Acquired => &self.hooks.on_acquire,
            Event::Lost => &self.hooks.on_lost,
            Event::Skipped => &self.on_skip,
        };
        let hook = hook.as_ref()?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(hook);
        work::set_environment(&mut command, self.context, self.request, token);
        command
            .env("LEASEHOLD_HOOK", event.name())
            // Secrets that a hook does not need, even if an enclosing run has set them.
            .env_remove("LEASEHOLD_CLAIM")
            .env_remove(held::VARIABLE);
        // Stdout is CMD's.
        let stderr = io::stderr().as_fd().try_clone_to_owned();
        command
            .stdin(Stdio::null())
            .stdout(stderr.map_or_else(|_| Stdio::null(), Stdio::from));
        Some(command)
    }
}

fn warn(event: Event, what: &str) {
    output::warn(&format!("warning: the hook --on-{} {what}", event.name()));
}

/// Fails with what went wrong.
async fn run(mut command: Command) -> Result<(), String> {
    let started = command.process_group(0).spawn();
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
