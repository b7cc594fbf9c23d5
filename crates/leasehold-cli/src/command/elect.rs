//! `leasehold elect`: a command on exactly one host.

use std::time::{Duration, Instant};

use leasehold::backoff::Backoff;
use leasehold::{Error, ErrorKind, Lease, Locks};
use nix::sys::signal::Signal;
use sd_notify::NotifyState;

use super::Context;
use crate::args::ElectArgs;
use crate::child;
use crate::console::Console;
use crate::exit::{Failure, Outcome};
use crate::held::Held;
use crate::hooks::Event;
use crate::output::{self, age::age};
use crate::request::Request;
use crate::signals::Signals;
use crate::supervise::End;
use crate::waiting;
use crate::work::{self, Work};

/// Signals that end the candidacy when CMD has ended.
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT];

pub(super) async fn elect(context: Context, mut args: ElectArgs) -> Outcome {
    let mut request = Request::of_elect(&args)?;
    let hooks = std::mem::take(&mut args.hooks);
    let held = Held::inherited()?;
    let mut console = Console::open()?;
    let mut delays = Delays::new(&args);
    let locks = connect(&context, &mut request, &mut console.signals, &mut delays).await?;
    if held.covering(&request, &locks.location())?.is_some() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "an enclosing `leasehold run` holds the lock, so this would wait for itself",
        )
        .advise("use another name")
        .on(&request.name)
        .into());
    }
    let work = Work {
        context: &context,
        locks: &locks,
        request: &request,
        argv: &args.command,
        held,
        on_revoke: None,
        hooks,
        on_skip: None,
    };
    let leading = Leading::tell(&args, &locks, &request).await?;
    loop {
        notify_systemd(format!("candidate for {}", request.name));
        let lease = acquire(&work, &mut console.signals, &mut delays).await?;
        let news = format!("leading {} in term {}", request.name, lease.token());
        output::warn(&news);
        notify_systemd(news);
        let started = Instant::now();
        let token = Some(lease.token().get());
        let end = match work.run_acquire_hook(&lease).await {
            Ok(None) => {
                leading.begins(&lease);
                let end = work.run(&lease, &mut console).await;
                leading.ends();
                end
            }
            Ok(Some(end)) => Ok(end),
            Err(failure) => Err(failure),
        };
        match end {
            // The next leader must not enter while CMD may still run.
            Ok(End::StillRuns { .. }) => {
                lease.detach();
            }
            _ => work::release(lease).await,
        }
        let end = end?;
        if !matches!(end, End::Exited(_)) {
            work.run_hook(Event::Lost, token).await;
        }
        match end {
            End::Exited(code) if is_over(&console, code) => return Ok(code),
            End::Exited(code) => {
                let delay = delays.after(code, started.elapsed());
                let message = format!(
                    "the command ended with {code}; candidate again in {}",
                    age(delay)
                );
                output::warn(&message);
                unless_interrupted(tokio::time::sleep(delay), &mut console.signals).await?;
            }
            End::Terminated(what) if must_end(&console) => return Err(work.lost(what)),
            End::Terminated(what) => output::warn(&format!("no longer leading: {what}")),
            // Not a candidate again, which would start a second CMD on this host.
            End::StillRuns { what, why, groups } => {
                return Err(work.still_runs(what, &why, groups));
            }
        }
    }
}

/// Tells over HTTP whether this host leads, if that was asked for.
struct Leading {
    #[cfg(feature = "serve")]
    lease: tokio::sync::watch::Sender<Option<leasehold::LeaseView>>,
}

#[cfg(feature = "serve")]
impl Leading {
    async fn tell(args: &ElectArgs, locks: &Locks, request: &Request) -> Outcome<Self> {
        let (lease, leading) = tokio::sync::watch::channel(None);
        if let Some(address) = args.http {
            let listening = leasehold_server::Listening::at(address, None).await?;
            output::warn(&format!("telling who leads at {}", listening.url()));
            let (locks, name) = (locks.clone(), request.name.clone());
            tokio::spawn(leasehold_server::serve_leadership(
                listening, locks, name, leading,
            ));
        }
        Ok(Self { lease })
    }

    fn begins(&self, lease: &Lease) {
        self.lease.send_replace(Some(lease.view()));
    }

    fn ends(&self) {
        self.lease.send_replace(None);
    }
}

#[cfg(not(feature = "serve"))]
impl Leading {
    async fn tell(_: &ElectArgs, _: &Locks, _: &Request) -> Outcome<Self> {
        Ok(Self {})
    }

    fn begins(&self, _: &Lease) {}

    fn ends(&self) {}
}

/// Tells systemd, if it started this as a service of `Type=notify`, what this host is. A candidate is ready: what depends on
/// the service need not wait until this host leads.
fn notify_systemd(status: String) {
    // A service manager that does not listen is no reason to stop.
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

async fn connect(
    context: &Context,
    request: &mut Request,
    signals: &mut Signals,
    delays: &mut Delays,
) -> Outcome<Locks> {
    loop {
        match unless_interrupted(context.connect_for(request), signals).await? {
            Ok(locks) => return Ok(locks),
            Err(error) => wait_if_unreachable(error, signals, delays).await?,
        }
    }
}

/// Becomes the leader, however long it takes.
async fn acquire(work: &Work<'_>, signals: &mut Signals, delays: &mut Delays) -> Outcome<Lease> {
    loop {
        let quiet = work.context.json;
        match waiting::acquire(work.locks, work.request, signals, quiet).await {
            Err(Failure::Locks(error)) => wait_if_unreachable(error, signals, delays).await?,
            acquired => return acquired,
        }
    }
}

/// Waits a while if the engine could not be reached; returns any other error.
async fn wait_if_unreachable(
    error: Error,
    signals: &mut Signals,
    delays: &mut Delays,
) -> Outcome<()> {
    if error.kind() != ErrorKind::Unreachable {
        return Err(error.into());
    }
    let delay = delays.next();
    output::warn(&format!("{error}; trying again in {}", age(delay)));
    unless_interrupted(tokio::time::sleep(delay), signals).await
}

/// Whether the candidacy ends with CMD: because a signal told this process to end, or the terminal sent it to CMD.
fn is_over(console: &Console, code: i32) -> bool {
    let killed_by = |signal: Signal| code == 128 + signal as i32;
    let hung_up = console.passed_on.contains(&Signal::SIGHUP) && killed_by(Signal::SIGHUP);
    let from_terminal = console.terminal.is_some() && ENDING.into_iter().any(killed_by);
    must_end(console) || hung_up || from_terminal
}

fn must_end(console: &Console) -> bool {
    ENDING
        .iter()
        .any(|signal| console.passed_on.contains(signal))
}

/// Waits for a future, unless a signal ends this process first.
async fn unless_interrupted<T>(
    awaited: impl Future<Output = T>,
    signals: &mut Signals,
) -> Outcome<T> {
    tokio::pin!(awaited);
    loop {
        tokio::select! {
            done = &mut awaited => return Ok(done),
            signal = signals.next() => match signal {
                Signal::SIGTSTP => child::stop_this_process(),
                signal if ENDING.contains(&signal) || signal == Signal::SIGHUP => {
                    return Err(Failure::Signal(signal));
                }
                _ => {}
            },
        }
    }
}

/// The delays between the end of CMD and the next candidacy.
struct Delays {
    shortest: Duration,
    longest: Duration,
    growing: Backoff,
}

impl Delays {
    fn new(args: &ElectArgs) -> Self {
        let (shortest, longest) = (args.restart_delay, args.max_restart_delay);
        Self {
            shortest,
            longest,
            growing: Backoff::new(fastrand::u64(..), shortest, longest),
        }
    }

    fn next(&mut self) -> Duration {
        self.growing.delay()
    }

    fn after(&mut self, code: i32, ran_for: Duration) -> Duration {
        if code == 0 || ran_for > self.longest {
            self.growing = Backoff::new(fastrand::u64(..), self.shortest, self.longest);
        }
        self.next()
    }
}
