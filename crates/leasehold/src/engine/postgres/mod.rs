//! `postgres://`: locks as rows in a PostgreSQL database.
//!
//! | file | what is there |
//! |---|---|
//! | `sql/` | the tables, and the functions that decide, a file an idea |
//! | `schema.rs` | how they get there |
//! | `server.rs` | a few connections that mend themselves |
//! | `calls.rs` | what is said to the functions, and what they answer |
//! | `ears.rs` | how waiters hear of a hand-over |
//! | `heirs.rs` | who a lock is passed on to within this process |
//! | `ending.rs` | how a lock is given up, or passed on |
//! | `health.rs` | whether the server can be trusted |
//! | `records.rs` | guarded records |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `tls.rs`, `failure.rs` | URLs, encryption and errors |

mod calls;
mod ears;
mod ending;
mod failure;
mod health;
mod heirs;
#[cfg(feature = "bench")]
mod raw;
mod records;
pub mod schema;
mod server;
mod settings;
mod shown;
mod tls;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use self::calls::{Calls, Outcome};
use self::ears::Ears;
use self::heirs::Holder;
use self::server::{Answer, Lane, Server, cell};
pub use self::settings::DEFAULT_SCHEMA;
use self::settings::Settings;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::handover;
use crate::engine::rows::{self, millis, mode_number, signature};
use crate::engine::under_way::UnderWay;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::sql::Dialect;
use crate::name::LockName;
use crate::url::EngineUrl;

/// How `postgres:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["postgres", "postgresql"],
    options: settings::OPTIONS,
    example: "postgres://user@127.0.0.1:5432/database",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match Postgres::connect(&url).await {
                Ok(postgres) => Ok(Arc::new(postgres) as Arc<dyn Engine>),
                Err(error) => Err(error.during("connect", location)),
            }
        })
    },
};

/// How often to remove what nobody will ask for again.
const SWEEP: Duration = Duration::from_secs(60);

/// Locks in one PostgreSQL database.
#[derive(Debug)]
pub struct Postgres(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    server: Server,
    calls: Calls,
    ears: Arc<Ears>,
    under_way: Arc<UnderWay>,
    warnings: Vec<String>,
    next_sweep: Mutex<Moment>,
}

impl Postgres {
    /// Connects, sees whether the server can be trusted, and makes the tables if they are missing.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        let server = Server::new(&settings)?;
        let found = health::check(&settings).await?;
        if found.pooled {
            server.stop_preparing();
        }
        schema::ensure(&server).await?;
        let hears = !found.pooled || url.option("listen").is_some();
        Ok(Self(Arc::new(Shared {
            server,
            calls: Calls::in_schema(&settings.schema),
            ears: Ears::at(&settings, !hears)?,
            under_way: Arc::default(),
            warnings: found.warnings,
            next_sweep: Mutex::new(Clock::machine().now() + SWEEP / 60),
        })))
    }
}

impl Shared {
    async fn attempt(&self, claim: &Claim, number: Option<u64>) -> Result<Attempt> {
        let listener = number.map(|_| self.ears.id());
        let numbered = number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let Claim {
            name,
            claimant,
            reason,
            ..
        } = claim;
        let pid = i64::from(claimant.pid);
        let answered = self
            .server
            .call(
                Lane::Begin,
                &self.calls.acquire,
                &[
                    &name.as_str(),
                    &signature(&claim.id),
                    &mode_number(claim.mode),
                    &millis(claim.ttl.get()),
                    &listener,
                    &numbered,
                    &claimant.owner,
                    &claimant.host,
                    &pid,
                    &reason.as_deref(),
                    &self.server.patience(),
                ],
            )
            .await;
        let Answer { rows, sent, .. } = answered?;
        match Outcome::read(&rows, claim)? {
            Outcome::Granted { token, now } => {
                self.ears.clock.synchronize(sent, now);
                let valid_until = sent + claim.ttl.validity();
                Ok(Attempt::Granted(Grant { token, valid_until }))
            }
            Outcome::Held { now, left, is_next } => {
                self.ears.clock.synchronize(sent, now);
                Ok(Attempt::Held(rows::contention(left, is_next, number)))
            }
        }
    }

    /// Before a claim can queue, someone must listen: the server passes over whom nobody listens for.
    async fn queue(&self, claim: &Claim) -> Result<Attempt> {
        let number = self.ears.waiters.expect_next_for(claim.id, &claim.name);
        // It may be at it already, to no avail.
        let patience = self.server.settings().limit() * 2;
        let queued = match self.ears.listening(patience).await {
            Ok(()) => self.attempt(claim, Some(number)).await,
            Err(error) => Err(error),
        };
        if !matches!(queued, Ok(Attempt::Held(_))) {
            self.ears.waiters.forget(&claim.id);
        }
        queued
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        // Whoever waits already keeps its place; and where others of this process wait, one call both tries and queues.
        let is_known = || self.ears.waiters.waiter(&claim.id).is_some();
        if claim.queues && (self.ears.is_alive() || is_known()) {
            return self.queue(claim).await;
        }
        match self.attempt(claim, None).await? {
            Attempt::Held(_) if claim.queues => self.queue(claim).await,
            attempt => Ok(attempt),
        }
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
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            // A few at a time. Whatever stands in its way may be gone in a minute.
            while let Ok(swept) = shared
                .server
                .call(Lane::Begin, &shared.calls.sweep, &[])
                .await
                && let Some(row) = swept.rows.first()
                && cell(row, 0).unwrap_or(false)
            {}
        });
    }
}

#[async_trait]
impl Engine for Postgres {
    fn scheme(&self) -> &'static str {
        "postgres"
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
        attempt.await.unwrap_or_else(|_| Err(rows::interrupted()))
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let ears = &self.0.ears;
        // Heard of late, it is taken for its whole TTL before it is relied on.
        let relies = || !ears.polls();
        let number = ears.waiters.waiter(&claim.id).map(|(number, _)| number);
        let (woken, handed_over) =
            handover::wake(&ears.waiters, &ears.clock, &claim.id, relies).await;
        let heirs = handed_over.and_then(|handed_over| handed_over.heirs);
        if let (Wake::Granted(grant), Some(heirs), Some(number)) = (&woken, heirs, number) {
            let holder = Holder {
                id: claim.id,
                number,
                token: grant.token,
            };
            ears.lines
                .begin(&claim.name, holder, heirs, grant.valid_until);
        }
        Ok(woken)
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.0.sweep();
        let names: Vec<_> = held.iter().map(|renew| renew.claim.name.as_str()).collect();
        let claims: Vec<_> = held
            .iter()
            .map(|renew| signature(&renew.claim.id))
            .collect();
        let ttls: Vec<_> = held
            .iter()
            .map(|renew| millis(renew.claim.ttl.get()))
            .collect();
        let lines = &self.0.ears.lines;
        for Renew { claim, .. } in held {
            ending::settled(&self.0, claim).await;
            let now = Clock::machine().now();
            lines.cut_short(&claim.name, &claim.id, now + claim.ttl.validity());
        }
        let server = &self.0.server;
        let answered = server
            .call(
                Lane::GoOn,
                &self.0.calls.renew,
                &[&names, &claims, &ttls, &server.patience()],
            )
            .await;
        let Answer { rows, sent, .. } = match answered {
            Ok(answer) => answer,
            Err(error) => return held.iter().map(|_| Err(rows::same(&error))).collect(),
        };
        let mut renewals: Vec<_> = held
            .iter()
            .map(|_| Ok(Renewal::Lost(LossReason::Gone)))
            .collect();
        for row in &rows {
            let nth = cell::<i64>(row, 0).ok();
            let nth = nth.and_then(|nth| usize::try_from(nth - 1).ok());
            let nth = nth.unwrap_or(usize::MAX);
            let (Some(renewal), Some(Renew { claim, .. })) = (renewals.get_mut(nth), held.get(nth))
            else {
                return held.iter().map(|_| Err(failure::nonsense("row"))).collect();
            };
            *renewal = calls::check_signature(row, 2, &claim.id)
                .and_then(|()| rows::token(cell(row, 1)?))
                .map(|token| {
                    let valid_until = sent + claim.ttl.validity();
                    Renewal::Renewed(Grant { token, valid_until })
                });
        }
        for (renew, renewal) in held.iter().zip(&renewals) {
            if matches!(renewal, Ok(Renewal::Lost(_))) {
                lines.end(&renew.claim.name, &renew.claim.id);
            }
        }
        renewals
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        ending::release(&self.0, claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        shown::inspect(&self.0.server, &self.0.calls, query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let server = &self.0.server;
        let answered = server
            .call(
                Lane::GoOn,
                &self.0.calls.break_lock,
                &[&name.as_str(), &server.patience()],
            )
            .await;
        ending::released(&answered?)
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::new(records::Records(Arc::clone(&self.0))))
    }

    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Postgres)
    }

    fn check_sql(&self, claim: &Claim) -> Option<String> {
        // Its release must wait for the transaction, and so must whoever comes next.
        self.0.ears.lines.keep(&claim.name, &claim.id);
        let schema = self.0.server.quoted_schema();
        Some(format!("SELECT {schema}.check_lease($1, $2)"))
    }

    async fn run_sql(&self, statements: &[String]) -> Result<()> {
        // Sent together, they are one transaction.
        let script = statements.join("\n");
        let done = self.0.server.try_script(Lane::Begin, &script);
        done.await?.map_err(failure::of_table)
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.0.server.calls_sent())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(self.0.server.settings())))
    }
}
