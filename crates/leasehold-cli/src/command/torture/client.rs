//! A client: a process that takes the lock again and again, and updates two sets under it.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::guard::{Fenced, FileStore, Store};
use leasehold::torture::step_wall_clock;
use leasehold::{Lease, LeaseState, Locks, LossReason};

use super::record::{Did, Line, Set, Written, now, since_origin};
use crate::args::TortureClientArgs;
use crate::command::{Context, block_on};
use crate::exit::{Outcome, unexpected};
use crate::output;

/// How long a client waits for the lock before it asks again.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// Set when stdin has ended: the client is to finish what it does, and to exit.
static ENDS: AtomicBool = AtomicBool::new(false);

pub(in crate::command) fn main(context: Context, args: TortureClientArgs) -> Outcome {
    die_with_parent()?;
    std::thread::spawn(obey);
    block_on(async {
        let Some(locks) = connect(&context.url).await else {
            return Ok(0);
        };
        let store = guarded_store(&locks, &args.folder)?;
        let mut client = Client {
            random: fastrand::Rng::with_seed(args.seed),
            updates: u64::from(args.number) << 32,
            locks,
            store,
            args,
        };
        while !ENDS.load(Ordering::Relaxed) {
            client.round().await?;
        }
        let _ = tokio::time::timeout(super::super::FLUSH_TIMEOUT, client.locks.flush()).await;
        Ok(0)
    })
}

/// Where the guarded set is: at the engine, or in a folder if it keeps no records.
pub(super) fn guarded_store(locks: &Locks, folder: &Path) -> leasehold::Result<Store> {
    match locks.capabilities().store {
        true => locks.store(),
        false => FileStore::open(folder.join("guarded")),
    }
}

/// The file with the set that is not guarded.
pub(super) fn unguarded_file(folder: &Path) -> PathBuf {
    folder.join("unguarded")
}

/// Also while it is stopped.
fn die_with_parent() -> Outcome<()> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
        .map_err(|cause| unexpected("cannot ask to be killed with the parent", cause))?;
    Ok(())
}

/// Each line on stdin is a step of the wall clock, in microseconds.
fn obey() {
    for line in std::io::stdin().lock().lines() {
        match line.ok().and_then(|line| line.parse().ok()) {
            Some(micros) => step_wall_clock(micros),
            None => break,
        }
    }
    ENDS.store(true, Ordering::Relaxed);
}

/// `None` if the client is to end. Its network may be cut just now.
async fn connect(url: &str) -> Option<Locks> {
    while !ENDS.load(Ordering::Relaxed) {
        match Locks::connect(url).await {
            Ok(locks) => return Some(locks),
            Err(_) => tokio::time::sleep(AFTER_FAILURE).await,
        }
    }
    None
}

struct Client {
    args: TortureClientArgs,
    locks: Locks,
    store: Store,
    random: fastrand::Rng,
    /// The last update.
    updates: u64,
}

impl Client {
    async fn round(&mut self) -> Outcome<()> {
        say(Did::Ask)?;
        let request = self.locks.lock(&self.args.lock).ttl(self.args.ttl);
        let acquired = request.wait(PATIENCE).acquire().await;
        let lease = match acquired {
            Ok(lease) => lease,
            Err(error) => {
                say(Did::GiveUp {
                    why: error.to_string(),
                })?;
                tokio::time::sleep(AFTER_FAILURE).await;
                return Ok(());
            }
        };
        let valid_until = since_origin(lease.valid_until());
        // A process that was stopped may come too late.
        match now() < valid_until {
            true => self.hold(&lease, valid_until).await?,
            false => say(Did::GiveUp {
                why: "it was granted, but the client came too late".to_owned(),
            })?,
        }
        let _ = lease.release().await;
        Ok(())
    }

    async fn hold(&mut self, lease: &Lease, valid_until: u64) -> Outcome<()> {
        say(Did::Enter {
            token: lease.token().get(),
            valid_until,
        })?;
        let unguarded = self.read_unguarded();
        let guarded = self.read_guarded().await;
        tokio::time::sleep(Duration::from_millis(self.random.u64(5..=40))).await;

        self.updates += 1;
        let update = self.updates;
        say(Did::Write {
            set: Set::Unguarded,
            update,
            previous: unguarded,
        })?;
        self.write_unguarded(update)?;
        said(Set::Unguarded, update, accepted(lease))?;

        // If the set could not be read, there is nothing to write.
        if let Some(previous) = guarded {
            let set = Set::Guarded;
            say(Did::Write {
                set,
                update,
                previous,
            })?;
            let value = update.to_string();
            let written = match self.store.write_fenced(&self.args.lock, value, lease).await {
                Ok(Fenced::Written { .. }) => accepted(lease),
                Ok(Fenced::Refused { .. }) => Written::Refused,
                Err(_) => Written::Failed,
            };
            said(set, update, written)?;
        }
        self.leave(lease, valid_until).await
    }

    /// Asks the engine whether it still has the lock: a release could not tell, since a first one may have got through unheard.
    async fn leave(&self, lease: &Lease, valid_until: u64) -> Outcome<()> {
        let _ = lease.renew().await;
        let at = now();
        let until = match lease.state() {
            LeaseState::Lost(LossReason::Gone | LossReason::SessionEnded) if at < valid_until => {
                say(Did::Gone { valid_until })?;
                at
            }
            LeaseState::Lost(_) => at.min(valid_until),
            _ => at,
        };
        say(Did::Leave { until })
    }

    fn read_unguarded(&self) -> u64 {
        let text = std::fs::read_to_string(unguarded_file(&self.args.folder));
        text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn write_unguarded(&self, update: u64) -> Outcome<()> {
        let file = unguarded_file(&self.args.folder);
        let new = file.with_extension(self.args.number.to_string());
        std::fs::write(&new, update.to_string())
            .and_then(|()| std::fs::rename(&new, &file))
            .map_err(|cause| unexpected("cannot write the set", cause))
    }

    /// `None` if it is unknown.
    async fn read_guarded(&self) -> Option<u64> {
        match self.store.read(&self.args.lock).await {
            Ok(Some(record)) => std::str::from_utf8(&record.value).ok()?.parse().ok(),
            Ok(None) => Some(0),
            Err(_) => None,
        }
    }
}

fn accepted(lease: &Lease) -> Written {
    match lease.is_valid() {
        true => Written::Acknowledged,
        false => Written::Late,
    }
}

fn said(set: Set, update: u64, written: Written) -> Outcome<()> {
    say(Did::Wrote {
        set,
        update,
        written,
    })
}

fn say(did: Did) -> Outcome<()> {
    output::json_line(&Line { at: now(), did })
}
