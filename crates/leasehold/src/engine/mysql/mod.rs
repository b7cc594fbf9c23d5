//! `mysql://`: locks as rows in a MySQL or MariaDB database.
//!
//! | file | what is there |
//! |---|---|
//! | `sql/` | the tables, and the procedures that decide |
//! | `schema.rs` | how they get there |
//! | `server.rs` | a few connections that mend themselves |
//! | `calls.rs` | what is said to the procedures, and what they answer |
//! | `ears.rs` | how waiters hear of a hand-over |
//! | `health.rs` | whether the server can be trusted |
//! | `records.rs` | guarded records |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `failure.rs` | URLs and errors |

mod calls;
mod ears;
mod failure;
mod health;
#[cfg(feature = "bench")]
mod raw;
mod records;
pub mod schema;
mod server;
mod settings;
mod shown;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::calls::Outcome;
use self::ears::Ears;
use self::server::{Answer, Lane, Server};
pub use self::settings::DEFAULT_TABLE;
use self::settings::Settings;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::rows::{self, contention, interrupted, same};
use crate::engine::under_way::UnderWay;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
    handover,
};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::sql::Dialect;
use crate::name::LockName;
use crate::url::EngineUrl;

/// How `mysql:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["mysql", "mariadb"],
    options: settings::OPTIONS,
    example: "mysql://user:password@127.0.0.1:3306/database",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match Mysql::connect(&url).await {
                Ok(mysql) => Ok(Arc::new(mysql) as Arc<dyn Engine>),
                Err(error) => Err(error.during("connect", location)),
            }
        })
    },
};

/// How often to remove what nobody will ask for again.
const SWEEP: Duration = Duration::from_secs(60);

/// How many claims are renewed by one call.
const BATCH: usize = 1000;

/// Locks in one MySQL or MariaDB database.
#[derive(Debug)]
pub struct Mysql(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    ears: Arc<Ears>,
    under_way: Arc<UnderWay>,
    warnings: Vec<String>,
    next_sweep: Mutex<Moment>,
}

impl Mysql {
    /// Connects, sees whether the server can be trusted, and makes the tables if they are missing.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        let server = Server::new(&settings);
        let warnings = health::check(&server).await?;
        schema::ensure(&server).await?;
        Ok(Self(Arc::new(Shared {
            server: Arc::new(server),
            ears: Ears::at(&settings)?,
            under_way: Arc::default(),
            warnings,
            next_sweep: Mutex::new(Clock::machine().now() + SWEEP / 60),
        })))
    }
}

impl Shared {
    async fn attempt(&self, claim: &Claim, number: Option<u64>) -> Result<Attempt> {
        let answer = self
            .server
            .call(
                Lane::Begin,
                calls::ACQUIRE,
                calls::acquire(claim, self.ears.id(), number),
            )
            .await?;
        let sent = answer.sent;
        let (outcome, now, told) = Outcome::read(answer.first()?, claim)?;
        self.ears.told(sent, now, &told);
        Ok(match outcome {
            Outcome::Granted { token } => Attempt::Granted(Grant {
                token,
                valid_until: sent + claim.ttl.validity(),
            }),
            Outcome::Held {
                left,
                rank,
                holders,
            } => Attempt::Held(Contention {
                ahead: Some(holders + rank),
                ..contention(left, rank == 0, number)
            }),
        })
    }

    /// Before a claim can queue, someone must listen: the server passes over whom nobody listens for.
    async fn queue(&self, claim: &Claim) -> Result<Attempt> {
        let number = self.ears.waiters.expect_next(claim.id);
        let queued = match self.ears.listening(self.server.settings().timeout).await {
            Ok(()) => self.attempt(claim, Some(number)).await,
            Err(error) => Err(error),
        };
        if !matches!(queued, Ok(Attempt::Held(_))) {
            self.ears.waiters.forget(&claim.id);
        }
        queued
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        // Whoever waits already keeps its place; and where someone listens anyhow, one call does it all.
        let waits = || self.ears.waiters.waiter(&claim.id).is_some();
        if claim.queues && (self.ears.is_listening() || waits()) {
            return self.queue(claim).await;
        }
        match self.attempt(claim, None).await? {
            Attempt::Held(_) if claim.queues => self.queue(claim).await,
            attempt => Ok(attempt),
        }
    }

    /// The answer to a call that may have handed the lock over.
    fn released(&self, answer: Answer) -> Result<Released> {
        let (held, now, told) = calls::told(answer.first()?)?;
        self.ears.told(answer.sent, now, &told);
        match (held, answer.doubt) {
            // The first try may have done it.
            (false, Some(doubt)) => Err(doubt),
            (true, _) => Ok(Released::Yes),
            (false, None) => Ok(Released::WasNotHeld),
        }
    }

    /// A claim's time was cut short: whoever is first is to know.
    async fn look(&self, claim: &Claim) {
        let parameters = calls::look(claim, self.ears.id());
        // If it fails, they look when the time ends that they know of.
        if let Ok(answer) = self.server.call(Lane::GoOn, calls::LOOK, parameters).await
            && let Ok((_, now, told)) = answer.first().and_then(calls::told)
        {
            self.ears.told(answer.sent, now, &told);
        }
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let (batch, order) = calls::renew(held);
        let answered = self
            .server
            .call(Lane::GoOn, calls::RENEW, vec![batch.into()])
            .await;
        let Answer { rows, sent, .. } = match answered {
            Ok(answer) => answer,
            Err(error) => return held.iter().map(|_| Err(same(&error))).collect(),
        };
        let mut renewals: Vec<_> = held
            .iter()
            .map(|_| Ok(Renewal::Lost(LossReason::Gone)))
            .collect();
        for row in rows {
            let nth = row.get::<usize, _>(0).and_then(|nth| nth.checked_sub(1));
            let Some(&nth) = nth.and_then(|nth| order.get(nth)) else {
                continue;
            };
            let claim = held[nth].claim;
            if row.get(2) == Some(true) {
                self.look(claim).await;
            }
            renewals[nth] = rows::token(row.get(1).unwrap_or(-1)).map(|token| {
                let valid_until = sent + claim.ttl.validity();
                Renewal::Renewed(Grant { token, valid_until })
            });
        }
        renewals
    }

    /// In the background, now and then.
    fn sweep(self: &Arc<Self>) {
        let now = Clock::machine().now();
        {
            let mut next = self
                .next_sweep
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if *next > now {
                return;
            }
            *next = now + SWEEP;
        }
        let server = Arc::clone(&self.server);
        tokio::spawn(async move {
            drop(server.call(Lane::Begin, calls::SWEEP, Vec::new()).await);
        });
    }
}

#[async_trait]
impl Engine for Mysql {
    fn scheme(&self) -> &'static str {
        "mysql"
    }

    fn location(&self) -> String {
        self.0.server.settings().location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Network,
            safety: Safety::Correctness,
            store: true,
            survives: &[
                Survives::ClientKilled,
                Survives::EngineRestart,
                Survives::PowerLoss,
            ],
        }
    }

    fn warnings(&self) -> Vec<String> {
        let ears = self.0.ears.warning();
        self.0.warnings.iter().cloned().chain(ears).collect()
    }

    /// Goes on in the background if it is dropped: a release on another connection could overtake it otherwise.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.0.sweep();
        let (shared, claim) = (Arc::clone(&self.0), claim.clone());
        let attempting = shared.under_way.begin(claim.id).await;
        let attempt = tokio::spawn(async move {
            let attempt = shared.try_acquire(&claim).await;
            drop(attempting);
            attempt
        });
        attempt.await.unwrap_or_else(|_| Err(interrupted()))
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let ears = &self.0.ears;
        let (woken, _) = handover::wake(&ears.waiters, &ears.clock, &claim.id, || true).await;
        Ok(woken)
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.0.sweep();
        let mut renewals = Vec::with_capacity(held.len());
        for some in held.chunks(BATCH) {
            renewals.extend(self.0.renew(some).await);
        }
        renewals
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let shared = &self.0;
        shared.under_way.is_over(&claim.id).await;
        let parameters = calls::release(claim, shared.ears.id());
        let answer = shared
            .server
            .call(Lane::GoOn, calls::RELEASE, parameters)
            .await?;
        shared.ears.waiters.forget(&claim.id);
        shared.released(answer)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        shown::inspect(&self.0.server, query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let shared = &self.0;
        let parameters = calls::break_lock(name, shared.ears.id());
        let answer = shared
            .server
            .call(Lane::GoOn, calls::BREAK, parameters)
            .await?;
        shared.released(answer)
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::new(records::Records::on(&self.0.server)))
    }

    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Mysql)
    }

    fn check_sql(&self, _claim: &Claim) -> Option<String> {
        Some(self.0.server.named("CALL leasehold_check_lease(?, ?)"))
    }

    async fn run_sql(&self, statements: &[String]) -> Result<()> {
        let done = self.0.server.run(Lane::Begin, statements).await;
        done.map_err(failure::of_users_table)
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.0.server.calls_sent())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(self.0.server.settings())))
    }
}
