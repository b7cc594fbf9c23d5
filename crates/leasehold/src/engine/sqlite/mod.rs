//! `sqlite:[PATH]`: the embedded default, for all processes of one machine. No server.
//!
//! | file | what is there |
//! |---|---|
//! | `file.rs` | where the database is, how it is opened |
//! | `table.rs` | the one table and what is done to it within a transaction |
//! | `turnstile.rs` | how writers take turns |
//! | `door.rs` | how a waiter is woken |
//! | `records.rs` | guarded records, in a file of their own |
//! | `failure.rs` | errors |

mod door;
mod failure;
mod file;
#[cfg(feature = "bench")]
mod raw;
mod records;
mod table;
mod turnstile;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::records::Records;
use self::table::{Place, TakeOut, Walk};
use self::turnstile::Store;
use crate::claim::{Claim, ClaimId, Ttl};
use crate::clock::Clock;
use crate::engine::waiters::Bell;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::url::EngineUrl;

/// How `sqlite:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["sqlite"],
    options: &[(
        "busy_timeout",
        "how long to wait for a file that another process keeps locked, 5s",
    )],
    example: "sqlite:/var/lib/app/locks.db",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match Sqlite::connect(&url) {
                Ok(sqlite) => Ok(Arc::new(sqlite) as Arc<dyn Engine>),
                Err(error) => Err(error.during("open the database", location)),
            }
        })
    },
};

/// Those who are not next look again this much later than the one who is.
const NEXT_IN_LINE: Duration = Duration::from_millis(50);

/// Locks in one file.
#[derive(Debug)]
pub struct Sqlite {
    store: Store,
    records: Records,
}

impl Sqlite {
    /// Opens the file, and makes it if need be.
    pub fn connect(url: &EngineUrl) -> Result<Self> {
        if !url.hosts.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "sqlite: URLs name no host, but this one has {:?}",
                    url.hosts.join(",")
                ),
            )
            .advise("write sqlite:/absolute/path or sqlite:relative/path"));
        }
        let busy_timeout = url.duration("busy_timeout")?;
        let busy_timeout = busy_timeout.unwrap_or(Duration::from_secs(5));
        let path = file::locate(&url.path)?;
        Ok(Self {
            records: Records::beside(&path, busy_timeout),
            store: Store::open(path, busy_timeout)?,
        })
    }

    fn contention(&self, claim: &Claim, walk: &Walk, token: Option<FencingToken>) -> Contention {
        let now = Clock::machine().now();
        let left = walk.first_expiry.map(|expiry| expiry.since(now));
        let next = walk.own.is_some();
        // Whoever is not next only looks in case the next one is dead, and not all at once.
        let spread = Duration::from_millis(token.map_or(0, |token| token.get() % 900));
        let later = if next {
            Duration::ZERO
        } else {
            NEXT_IN_LINE + spread
        };
        Contention {
            look_again_in: claim.queues.then(|| left.unwrap_or_default() + later),
            ahead: (next || !walk.blocked).then_some(walk.holders.len()),
            seen: 0,
            because: None,
        }
    }

    /// A waiter's place and what rings for it.
    fn waiter(&self, id: &ClaimId) -> Option<(FencingToken, Arc<Bell<()>>)> {
        let (token, bell) = self.store.doors().listening()?.waiters.waiter(id)?;
        Some((FencingToken::new(token)?, bell))
    }

    fn forget(&self, id: &ClaimId) {
        if let Some(door) = self.store.doors().listening() {
            door.waiters.forget(id);
        }
    }
}

fn grant(place: Place, ttl: Ttl) -> Grant {
    let margin = ttl.get().saturating_sub(ttl.validity());
    Grant {
        token: place.token,
        valid_until: place.expires - margin,
    }
}

/// What an attempt came to within its transaction.
enum Tried {
    Granted(Place),
    Held(Walk, Option<FencingToken>),
    /// It must queue, but this process has no door yet.
    NeedsDoor,
}

#[async_trait]
impl Engine for Sqlite {
    fn scheme(&self) -> &'static str {
        "sqlite"
    }

    fn location(&self) -> String {
        format!("sqlite:{}", self.store.path().display())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Machine,
            safety: Safety::Correctness,
            store: true,
            survives: &[
                Survives::ClientKilled,
                Survives::EngineRestart,
                Survives::PowerLoss,
                Survives::ClockStep,
            ],
        }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        loop {
            let door = self.store.doors().listening();
            let asked = claim.clone();
            let tried = self.store.write(move |table| {
                let walk = table.walk(&asked.name, TakeOut::Nobody, Some(&asked.id))?;
                let own = match walk.own {
                    Some(own) if own.held => return Ok(Tried::Granted(own)),
                    None if walk.blocked => table.find(&asked.name, &asked.id)?,
                    own => own,
                };
                if let Some(own) = own {
                    let Some(door) = door else {
                        return Ok(Tried::NeedsDoor);
                    };
                    if door.waiters.waiter(&asked.id).is_none() {
                        table.move_to(&asked.name, own.token, door.name())?;
                        door.waiters.expect(asked.id, own.token.get());
                    }
                    return Ok(Tried::Held(walk, Some(own.token)));
                }
                table.check_permits(&asked)?;
                if !walk.blocked && asked.mode.fits(walk.holders.iter().copied()) {
                    return table.insert(&asked, None).map(Tried::Granted);
                }
                if !asked.queues {
                    return Ok(Tried::Held(walk, None));
                }
                let Some(door) = door else {
                    return Ok(Tried::NeedsDoor);
                };
                let place = table.insert(&asked, Some(door.name()))?;
                door.waiters.expect(asked.id, place.token.get());
                let first = !walk.blocked;
                let walk = Walk {
                    own: first.then_some(place),
                    blocked: true,
                    ..walk
                };
                Ok(Tried::Held(walk, Some(place.token)))
            });
            match tried.await? {
                Tried::Granted(place) => {
                    self.forget(&claim.id);
                    return Ok(Attempt::Granted(grant(place, claim.ttl)));
                }
                Tried::Held(walk, token) => {
                    return Ok(Attempt::Held(self.contention(claim, &walk, token)));
                }
                Tried::NeedsDoor => self.store.doors().open().map(|_| ())?,
            }
        }
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let Some((token, bell)) = self.waiter(&claim.id) else {
            return Ok(Wake::Retry);
        };
        bell.heard().await;
        let (name, id) = (claim.name.clone(), claim.id);
        let place = self.store.read(|table| table.at(&name, token, &id));
        Ok(match place? {
            Some(place) if place.held => {
                self.forget(&claim.id);
                Wake::Granted(grant(place, claim.ttl))
            }
            _ => Wake::Retry,
        })
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let asked: Vec<_> = held
            .iter()
            .map(|renew| (renew.claim.clone(), renew.token))
            .collect();
        let renewed = self.store.write(move |table| {
            let renew = |(claim, token): &(Claim, _)| {
                let place = table.renew(&Renew {
                    claim,
                    token: *token,
                })?;
                Ok(place.map(|place| grant(place, claim.ttl)))
            };
            asked.iter().map(renew).collect::<failure::Result<Vec<_>>>()
        });
        match renewed.await {
            Ok(grants) => grants
                .into_iter()
                .map(|grant| Ok(grant.map_or(Renewal::Lost(LossReason::Gone), Renewal::Renewed)))
                .collect(),
            Err(error) => {
                let again = || Error::new(error.kind(), error.to_string()).of_unknown_effect();
                held.iter().map(|_| Err(again())).collect()
            }
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let token = self.waiter(&claim.id).map(|(token, _)| token);
        let (name, id) = (claim.name.clone(), claim.id);
        let held = self.store.write(move |table| {
            let walk = table.walk(&name, TakeOut::Claim(&id), None)?;
            if let Some(held) = walk.taken_out {
                return Ok(held);
            }
            if walk.blocked {
                let place = match token {
                    Some(token) => table.at(&name, token, &id)?,
                    None => table.find(&name, &id)?,
                };
                if let Some(place) = place {
                    table.delete(&name, place.token)?;
                }
            }
            Ok(false)
        });
        let held = held.await?;
        self.forget(&claim.id);
        Ok(if held {
            Released::Yes
        } else {
            Released::WasNotHeld
        })
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let query = query.clone();
        self.store.write(move |table| table.inspect(&query)).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let name = name.clone();
        let walk = self
            .store
            .write(move |table| table.walk(&name, TakeOut::AllHolders, None));
        Ok(match walk.await?.taken_out {
            Some(true) => Released::Yes,
            _ => Released::WasNotHeld,
        })
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::new(self.records.clone()))
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.store.transactions())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::beside(self.store.path())))
    }
}
