//! `leasehold torture`: attacks clients of an engine, and checks what they have seen.
//!
//! `client.rs` (what each process does) and `faults.rs` (what is done to it) -> `record.rs` (what happened) -> `check.rs` (whether that
//! was right) -> `report.rs` and `page.rs`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::engine::{Expiry, Fairness, Reach};
use leasehold::torture::proxy::Link;
use leasehold::{Error, ErrorKind, Locks, Ttl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use super::{Context, flushed};
use crate::args::TortureArgs;
use crate::exit::{Outcome, unexpected};
use crate::signals::Signals;

pub(crate) use faults::Fault;

use check::{Finals, Rules};
use faults::{Network, Plan};
use record::{Did, Line, Record, Struck, now};

mod check;
pub(super) mod client;
mod faults;
mod page;
mod record;
mod report;

/// How often the server is killed, if at all: one fault of so many.
const SERVER_FAULTS: usize = 10;

/// How long a client has to finish what it does.
const LAST_ROUND: Duration = Duration::from_secs(30);

/// How long to wait for a client to hold the lock before it is struck anyway.
const UNTIL_INSIDE: Duration = Duration::from_secs(1);

/// Where a session outlives its process, it usually does so for no longer than this.
const SESSION_ENDS: Duration = Duration::from_secs(10);

pub(super) fn torture(context: Context, args: TortureArgs) -> Outcome {
    let ttl = Ttl::new(args.ttl)?.get();
    if let Some(file) = &args.report {
        // Now, not after an hour.
        fs::write(file, "").map_err(|cause| cannot_write(file, &cause))?;
    }
    flushed(&context.connected, async {
        let locks = context.connect().await?;
        let rules = rules(&locks, ttl)?;
        let (servers, unavailable) = match faults::servers(&context.url) {
            Ok(servers) => (servers, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let faults = choose(&args, unavailable.is_some())?;
        let seed = args.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
        let folder = Folder::new()?;
        let mut run = Run {
            url: &context.url,
            args: &args,
            lock: format!("leasehold-torture/{:016x}", fastrand::u64(..)),
            folder: &folder.0,
            seed,
            slots: Vec::new(),
            clients: 0,
            record: Record::default(),
        };
        for _ in 0..args.clients {
            let network = Network::to(&servers).await?;
            run.slots.push(Slot::new(network));
        }
        let interrupted = run.attack(&faults).await?;
        let finals = run.finals(&locks).await?;
        let findings = check::check(&run.record, rules, finals);
        let not_available = unavailable.filter(|_| wants_network(&args));
        let report = report::Report {
            engine: locks.location(),
            seed,
            interrupted,
            args: &args,
            not_available,
            record: &run.record,
            findings: &findings,
        };
        if let Some(file) = &args.report {
            let page = page::page(&report);
            fs::write(file, page).map_err(|cause| cannot_write(file, &cause))?;
        }
        report.print(context.json)?;
        Ok(i32::from(!findings.violations.is_empty()))
    })
}

fn cannot_write(file: &Path, cause: &std::io::Error) -> Error {
    let what = format!("cannot write {}: {cause}", file.display());
    Error::new(ErrorKind::InvalidConfig, what).advise("name a file that can be written")
}

fn rules(locks: &Locks, ttl: Duration) -> leasehold::Result<Rules> {
    let able = locks.capabilities();
    if able.reach == Reach::Process {
        let what = "the clients are processes, and this engine's locks are those of one process";
        return Err(Error::new(ErrorKind::Unsupported, what)
            .advise("use an engine that processes share, such as sqlite:"));
    }
    Ok(Rules {
        ttl,
        fifo: able.fairness == Fairness::Fifo,
        claim_ends: match able.expiry {
            Expiry::Ttl | Expiry::Observed => ttl + Duration::from_secs(1),
            _ => ttl.max(SESSION_ENDS),
        },
    })
}

fn wants_network(args: &TortureArgs) -> bool {
    let named = |fault| args.faults.is_empty() || args.faults.contains(&fault);
    named(Fault::Cut) || named(Fault::Delay)
}

/// The faults that are asked for and available.
fn choose(args: &TortureArgs, no_network: bool) -> leasehold::Result<Vec<Fault>> {
    let available = |fault: &Fault| match fault {
        Fault::Cut | Fault::Delay => !no_network,
        Fault::Server => false,
        _ => true,
    };
    let asked = match args.faults.as_slice() {
        [] => &Fault::ALL,
        asked => asked,
    };
    let chosen: Vec<_> = asked.iter().copied().filter(available).collect();
    if chosen.is_empty() && args.kill_cmd.is_none() {
        let what = "none of these faults is available on this engine";
        return Err(Error::new(ErrorKind::Unsupported, what)
            .advise("pause, kill and clock are available on every engine"));
    }
    Ok(chosen)
}

/// A folder of this run's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Outcome<Self> {
        let name = format!("leasehold-torture-{:016x}", fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(cause) => Err(unexpected("cannot create a folder for the run", cause)),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The place of one client. If it is killed, another takes it.
struct Slot {
    network: Network,
    process: Option<Process>,
    /// What is being done to it, and until when.
    active: Option<(Struck, Instant)>,
}

impl Slot {
    fn new(network: Network) -> Self {
        Self {
            network,
            process: None,
            active: None,
        }
    }
}

struct Process {
    number: u32,
    child: Child,
    /// Closed, it tells the client to end.
    orders: Option<ChildStdin>,
}

impl Process {
    fn signal(&self, signal: Signal) {
        // It has not been waited for, so the number is still its own.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Lines = mpsc::UnboundedSender<(u32, Line)>;

struct Run<'a> {
    url: &'a str,
    args: &'a TortureArgs,
    lock: String,
    folder: &'a Path,
    seed: u64,
    slots: Vec<Slot>,
    /// How many have been started.
    clients: u32,
    record: Record,
}

impl Run<'_> {
    /// Lets the clients work, and attacks them. Returns whether a signal ended it early.
    async fn attack(&mut self, faults: &[Fault]) -> Outcome<bool> {
        let mut signals = Signals::listen()?;
        let stalls = watch_stalls();
        let progress = progress_bar(self.args.seconds);
        let (said, mut lines) = mpsc::unbounded_channel();
        self.record.began = now();
        for slot in 0..self.slots.len() {
            self.start(slot, &said)?;
        }
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut draw = || {
            let server = self.args.kill_cmd.is_some()
                && (faults.is_empty() || random.usize(..SERVER_FAULTS) == 0);
            let among = if server { &[Fault::Server] } else { faults };
            let clients = usize::from(self.args.clients);
            Plan::draw(&mut random, among, clients, self.args.ttl)
        };
        let start = Instant::now();
        let end = start + Duration::from_secs(self.args.seconds.into());
        let mut server: Option<(Struck, Instant)> = None;
        // The next fault, and when it strikes at the latest.
        let mut planned = (draw(), start + self.args.ttl / 2);
        let mut interrupted = false;
        let mut holds = 0;
        while Instant::now() < end {
            let ends = self.slots.iter().filter_map(|slot| slot.active.as_ref());
            let ends = ends.chain(&server).map(|(_, until)| *until);
            let wake = ends.chain([planned.1, end]).min().unwrap_or(end);
            tokio::select! {
                Some((client, line)) = lines.recv() => {
                    if let Did::Enter { .. } = line.did {
                        holds += 1;
                        let (plan, _) = planned;
                        if plan.inside && self.number_of(plan.slot) == Some(client) {
                            planned.1 = Instant::now();
                        }
                    }
                    self.record.lines.push((client, line));
                }
                () = tokio::time::sleep_until(wake.into()) => {}
                signal = signals.next() => match signal {
                    Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => {
                        interrupted = true;
                        break;
                    }
                    _ => {}
                },
            }
            for slot in 0..self.slots.len() {
                let due = |(_, until): &mut (Struck, Instant)| *until <= Instant::now();
                if let Some((struck, _)) = self.slots[slot].active.take_if(due) {
                    self.relieve(slot, struck);
                }
            }
            if let Some((struck, _)) = server.take_if(|(_, until)| *until <= Instant::now()) {
                self.restart_server(struck).await?;
            }
            if planned.1 <= Instant::now() {
                let (plan, _) = planned;
                match plan.fault {
                    Fault::Server if server.is_none() => {
                        server = Some((self.kill_server().await?, Instant::now() + plan.length));
                    }
                    Fault::Server => {}
                    _ => self.strike(plan, &said)?,
                }
                let next = draw();
                let wait = plan.pause_after
                    + if next.inside {
                        UNTIL_INSIDE
                    } else {
                        Duration::ZERO
                    };
                planned = (next, Instant::now() + wait);
            }
            progress.set_position(start.elapsed().as_millis() as u64);
            progress.set_message(format!(
                "{holds} holds, {} faults",
                self.record.faults.len()
            ));
        }
        if let Some((struck, _)) = server {
            self.restart_server(struck).await?;
        }
        drop(said);
        self.end(lines).await;
        progress.finish_and_clear();
        self.record.stalls = stalls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        self.record.ended = now();
        Ok(interrupted)
    }

    fn number_of(&self, slot: usize) -> Option<u32> {
        self.slots[slot]
            .process
            .as_ref()
            .map(|process| process.number)
    }

    /// Starts a client.
    fn start(&mut self, slot: usize, said: &Lines) -> Outcome<()> {
        self.clients += 1;
        let number = self.clients;
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .arg("torture-client")
                .args(["--lock", &self.lock])
                .args(["--number", &number.to_string()])
                .args(["--seed", &self.seed.wrapping_add(number.into()).to_string()])
                .args(["--ttl", &format!("{}us", self.args.ttl.as_micros())])
                .arg("--folder")
                .arg(self.folder)
                // Not as an argument: it may contain a password, and every user can see arguments.
                .env("LEASEHOLD_URL", self.slots[slot].network.url(self.url))
                .env_remove("LEASEHOLD_HELD")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                // Ctrl-C ends this process first, which then tells the clients.
                .process_group(0)
                .spawn()
        });
        let mut child = started.map_err(|cause| unexpected("cannot start a client", cause))?;
        let orders = child.stdin.take();
        if let Some(stdout) = child.stdout.take() {
            let said = said.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout).lines().map_while(Result::ok);
                for line in lines {
                    // A client that was killed may have left half a line.
                    if let Ok(line) = serde_json::from_str(&line) {
                        let _ = said.send((number, line));
                    }
                }
            });
        }
        self.slots[slot].process = Some(Process {
            number,
            child,
            orders,
        });
        Ok(())
    }

    /// Does it, unless something is being done to this client already. One client is left alone, so that there is always somebody who
    /// can go on.
    fn strike(&mut self, plan: Plan, said: &Lines) -> Outcome<()> {
        let busy = self.slots.iter().filter(|slot| slot.active.is_some());
        if busy.count() + 1 >= self.slots.len() || self.slots[plan.slot].active.is_some() {
            return Ok(());
        }
        let slot = &mut self.slots[plan.slot];
        let Some(process) = &mut slot.process else {
            return Ok(());
        };
        let from = now();
        let struck = Struck {
            fault: plan.fault,
            client: Some(process.number),
            from,
            until: from,
        };
        match plan.fault {
            Fault::Pause => process.signal(Signal::SIGSTOP),
            Fault::Cut | Fault::Delay => slot.network.set(plan.link),
            Fault::Kill => {
                self.record.ends.insert(process.number, from);
                self.record.faults.push(struck);
                slot.process = None;
                return self.start(plan.slot, said);
            }
            Fault::Clock | Fault::Server => {
                if let Some(orders) = &mut process.orders {
                    let _ = writeln!(orders, "{}", plan.step);
                }
                self.record.faults.push(struck);
                return Ok(());
            }
        }
        slot.active = Some((struck, Instant::now() + plan.length));
        Ok(())
    }

    /// Ends a fault.
    fn relieve(&mut self, slot: usize, mut struck: Struck) {
        let slot = &mut self.slots[slot];
        slot.network.set(Link::Open);
        if let (Fault::Pause, Some(process)) = (struck.fault, &slot.process) {
            process.signal(Signal::SIGCONT);
        }
        struck.until = now();
        self.record.faults.push(struck);
    }

    async fn kill_server(&self) -> Outcome<Struck> {
        let from = now();
        shell(self.args.kill_cmd.as_deref()).await?;
        Ok(Struck {
            fault: Fault::Server,
            client: None,
            from,
            until: from,
        })
    }

    async fn restart_server(&mut self, mut struck: Struck) -> Outcome<()> {
        shell(self.args.restart_cmd.as_deref()).await?;
        struck.until = now();
        self.record.faults.push(struck);
        Ok(())
    }

    /// Lets all clients finish what they do.
    async fn end(&mut self, mut lines: mpsc::UnboundedReceiver<(u32, Line)>) {
        for slot in 0..self.slots.len() {
            if let Some((struck, _)) = self.slots[slot].active.take() {
                self.relieve(slot, struck);
            }
            if let Some(process) = &mut self.slots[slot].process {
                process.orders = None;
            }
        }
        let all = async {
            while let Some(line) = lines.recv().await {
                self.record.lines.push(line);
            }
        };
        let _ = tokio::time::timeout(LAST_ROUND, all).await;
        for slot in &mut self.slots {
            if let Some(process) = slot.process.take() {
                self.record.ends.insert(process.number, now());
            }
        }
    }

    /// The last update in each set. Removes the record of the guarded one.
    async fn finals(&self, locks: &Locks) -> Outcome<Finals> {
        let parse = |text: &str| text.parse().unwrap_or(0);
        let unguarded = fs::read_to_string(client::unguarded_file(self.folder));
        let store = client::guarded_store(locks, self.folder)?;
        let deadline = Instant::now() + LAST_ROUND;
        let guarded = loop {
            match store.read(&self.lock).await {
                Ok(guarded) => break guarded,
                // The server may have been killed a moment ago.
                Err(_) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        let value = guarded.as_ref().map(|record| record.value.clone());
        if let Some(record) = guarded {
            let store = store.remember_deleted(Duration::from_secs(60));
            let _ = store.delete_if(&self.lock, record.version).await;
        }
        Ok(Finals {
            unguarded: unguarded.as_deref().map_or(0, parse),
            guarded: value.map_or(0, |value| parse(&String::from_utf8_lossy(&value))),
        })
    }
}

/// Runs a command of the user's.
async fn shell(command: Option<&str>) -> Outcome<()> {
    let Some(text) = command.map(str::to_owned) else {
        return Ok(());
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", &text])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let ran = tokio::task::spawn_blocking(move || command.status()).await;
    let failed = match ran {
        Ok(Ok(status)) if status.success() => return Ok(()),
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(cause)) => cause.to_string(),
        Err(cause) => cause.to_string(),
    };
    let what = format!("the command {text:?} failed: {failed}");
    let error = Error::new(ErrorKind::InvalidConfig, what);
    Err(error
        .advise("let it end with 0 when it has done its work")
        .into())
}

type Stalls = Arc<Mutex<Vec<(u64, Duration)>>>;

/// Measures when the host takes the processor away, until the process ends.
fn watch_stalls() -> Stalls {
    const TICK: Duration = Duration::from_millis(10);
    const NOTICED: Duration = Duration::from_millis(50);
    let stalls = Stalls::default();
    let found = Arc::clone(&stalls);
    std::thread::spawn(move || {
        loop {
            let before = Instant::now();
            std::thread::sleep(TICK);
            let stalled = before.elapsed().saturating_sub(TICK);
            if stalled > NOTICED {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.push((now(), stalled));
            }
        }
    });
    stalls
}

/// On stderr, and only on a terminal.
fn progress_bar(seconds: u32) -> ProgressBar {
    let bar = ProgressBar::new(u64::from(seconds) * 1000);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {eta:>4} {msg}") {
        bar.set_style(style);
    }
    bar.tick();
    bar
}
