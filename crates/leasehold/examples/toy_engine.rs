//! An engine of your own, in one file: each lock is a file in a directory, and waiters poll.
//!
//! A program uses it by URL: `Locks::new(Registry::builtin().with(DRIVER).connect("toy:/srv/locks").await?)`. Started by itself, it runs the conformance suite on the engine:
//! `cargo run -p leasehold --features conformance --example toy_engine`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::{io, process::ExitCode, time::Duration};

use leasehold::clock::{Clock, Moment};
use leasehold::engine::*;
use leasehold::{Claim, Claimant, Error, ErrorKind, FencingToken, LockName, Mode, Result};

#[path = "toy_engine/fixture.rs"]
mod fixture;

/// How a `Registry` finds the engine: by its scheme.
const DRIVER: Driver = Driver::new(&["toy"], "toy:/srv/locks", |url| {
    connecting(async move { Ok(Toy(url.path.into())) })
});

#[derive(Debug)]
struct Toy(PathBuf);

/// The content of a lock's file: its last holder. The file of a released lock stays, so that the next token is greater.
/// Times are on the boot clock, which all processes of the machine share.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Holder {
    lock: String,
    claim: String,
    token: u64,
    since: Duration,
    expires: Duration,
    claimant: (String, String, u32),
    reason: Option<String>,
}

impl Holder {
    /// A holder that began in the future did so before a reboot.
    fn is_live(&self) -> bool {
        self.since <= now() && now() < self.expires
    }

    /// Time counts from before the request was sent; the holder may rely on a little less than the TTL.
    fn extend(&mut self, claim: &Claim, sent: Moment, shorten: bool) -> Grant {
        let expires = sent.since_origin() + claim.ttl.get();
        if shorten || expires > self.expires {
            self.expires = expires;
        }
        let token = FencingToken::new(self.token).unwrap_or(FencingToken::MAX);
        Grant::new(token, sent + claim.ttl.validity())
    }
}

fn now() -> Duration {
    Clock::machine().now().since_origin()
}

fn read(path: &Path) -> io::Result<Holder> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Holder::default()),
        text => Ok(serde_json::from_slice(&text?)?),
    }
}

fn failed(cause: io::Error) -> Error {
    let what = format!("cannot use the directory: {cause}");
    Error::new(ErrorKind::Unreachable, what).of_unknown_effect()
}

impl Toy {
    /// Lets `work` change a lock while no other task or process can.
    fn change<T>(&self, name: &LockName, work: impl FnOnce(&mut Holder) -> T) -> Result<T> {
        let directory = File::open(&self.0).map_err(failed)?;
        directory.lock().map_err(failed)?;
        // A hash, since a lock's name may contain any character and be too long for a file name.
        let fnv = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul((1 << 88) + 0x13B);
        let hash = name.as_str().bytes().fold(0x6c62_272e_07bb_0142, fnv);
        let path = self.0.join(format!("{hash:032x}.lock"));
        let mut holder = read(&path).map_err(failed)?;
        if holder.token > 0 && holder.lock != name.as_str() {
            return Err(failed(io::Error::other("another lock has the same hash")));
        }
        let done = work(&mut holder);
        // The file is replaced as a whole, since this process may be killed at any point.
        let new = self.0.join("new");
        fs::write(&new, serde_json::json!(holder).to_string()).map_err(failed)?;
        fs::rename(new, path).map_err(failed)?;
        Ok(done)
    }

    fn end(&self, name: &LockName, chosen: impl Fn(&Holder) -> bool) -> Result<Released> {
        self.change(name, |holder| {
            if !holder.is_live() || !chosen(holder) {
                return Released::WasNotHeld;
            }
            holder.expires = Duration::ZERO;
            Released::Yes
        })
    }
}

#[async_trait::async_trait]
impl Engine for Toy {
    fn about(&self) -> About {
        let mut capabilities = Capabilities::new(Reach::Machine, Safety::Correctness);
        capabilities.survives = &[Survives::ClientKilled, Survives::EngineRestart];
        About::new("toy", format!("toy:{}", self.0.display()), capabilities)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if claim.mode != Mode::Exclusive {
            return Err(Error::new(ErrorKind::Unsupported, "exclusive mode only"));
        }
        let (sent, id) = (Clock::machine().now(), claim.id.reveal());
        self.change(&claim.name, |holder| {
            if !holder.is_live() {
                let token = FencingToken::after(holder.token, leasehold::wall_clock_micros())?;
                let by = (*claim.claimant).clone();
                *holder = Holder {
                    lock: claim.name.as_str().to_owned(),
                    claim: id,
                    token: token.get(),
                    since: now(),
                    expires: Duration::ZERO,
                    claimant: (by.label, by.host, by.pid),
                    reason: claim.reason.as_deref().map(str::to_owned),
                };
            } else if holder.claim != id {
                return Ok(Attempt::Held(Contention::default()));
            }
            Ok(Attempt::Granted(holder.extend(claim, sent, false)))
        })?
    }

    /// Nothing wakes a waiter, so it polls.
    async fn wait(&self, _claim: &Claim) -> Result<Wake> {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Wake::Retry)
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let sent = Clock::machine().now();
        let renew = |Renew { claim, shorten, .. }: &Renew<'_>| {
            self.change(&claim.name, |holder| {
                if !holder.is_live() || holder.claim != claim.id.reveal() {
                    return Renewal::Lost(LossReason::Gone);
                }
                Renewal::Renewed(holder.extend(claim, sent, *shorten))
            })
        };
        held.iter().map(renew).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.end(&claim.name, |holder| holder.claim == claim.id.reveal())
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.end(name, |_| true)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let mut locks = Vec::new();
        for file in fs::read_dir(&self.0).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            if path.extension().is_none() {
                continue;
            }
            let holder = read(&path).map_err(failed)?;
            if holder.is_live() {
                let (label, host, pid) = holder.claimant;
                let token = FencingToken::new(holder.token).unwrap_or(FencingToken::MAX);
                let by = Claimant::new(label, host, pid);
                let mut info = HolderInfo::new(by, Mode::Exclusive, token);
                info.reason = holder.reason;
                info.held_for = now().saturating_sub(holder.since);
                info.time_left = holder.expires.saturating_sub(now());
                let mut lock = LockInfo::new(LockName::stored(&holder.lock)?);
                lock.holders.push(info);
                locks.push(lock);
            }
        }
        locks.retain(|lock| query.asks_for(&lock.name));
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(locks)
    }
}

fn main() -> ExitCode {
    leasehold::conformance::main(fixture::Directory::create)
}
