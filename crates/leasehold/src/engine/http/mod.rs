//! `http://`, `https://`: locks through leasehold servers, which pass an engine on.
//!
//! Each method of the contract is one request: see `engine/wire.rs` for the messages, and `leasehold serve` for the other side. What the
//! locks can do is what the engine behind the server can do.
//!
//! # The life of a claim
//!
//! 1. **Attempt.** The server makes the attempt, and answers how long the grant can be relied on, and how long it took to answer. Both count
//!    from before the request left here, which is earlier than the server's own count.
//! 2. **Queue.** A refused claim that queues has its entry in the engine's queue, where the server waits for it: `wait` is a request that
//!    the server answers when there is something to do, or after a while.
//! 3. **Another server.** If the server does not answer, requests go to the next one. An attempt there finds the claim by its id: the same
//!    grant, or the same position in the queue.
//! 4. **The end.** Renewals go in one batch. A release is sent once: if it is not known whether it was carried out, the core
//!    releases again.
//!
//! One HTTP/2 connection carries all requests of an engine at once.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs` | URLs, TLS |
//! | `client.rs` | the connection, and which server it is to |
//! | `records.rs` | guarded records |

mod client;
mod config;
mod records;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::client::{Client, Repeat};
pub use self::config::HttpConfig;
use self::records::Records;
use crate::claim::{Claim, Ttl};
use crate::engine::doctor::{self, Finding};
use crate::engine::wire::{
    AttemptMessage, ClaimMessage, EngineMessage, FindingsMessage, FindingsRequest, LARGEST_BATCH,
    LockMessage, NameMessage, PROTOCOL, QueryMessage, ReleasedMessage, RenewMessage,
    RenewedMessage, WakeMessage,
};
use crate::engine::{
    About, Attempt, Capabilities, Driver, Engine, LockInfo, Query, Reach, Released, Renew, Renewal,
    Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;

/// How `http:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["http", "https"],
    options: config::OPTIONS,
    example: "http://127.0.0.1:7654",
    connect: |url| Box::pin(async move { HttpConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: None,
};

/// For how long a server lets a waiter wait before it answers that another attempt is worth while; then the client's own patience.
const LONG_POLL: Duration = Duration::from_secs(60);

/// Locks through leasehold servers.
#[derive(Debug)]
pub struct Http {
    client: Arc<Client>,
    capabilities: Capabilities,
    warnings: Vec<String>,
}

impl Http {
    async fn connect(config: HttpConfig) -> Result<Self> {
        let client = Client::new(config)?;
        let engine: EngineMessage = client.get("/v1/engine").await?.what;
        if engine.protocol != PROTOCOL {
            let theirs = engine.protocol;
            return Err(Error::new(
                ErrorKind::EngineUnfit,
                format!(
                    "the server speaks version {theirs} of the protocol, this program {PROTOCOL}"
                ),
            )
            .advise("use the same version of leasehold for client and server"));
        }
        Ok(Self {
            client: Arc::new(client),
            capabilities: Capabilities {
                // Whatever keeps the locks, all who reach the server share them.
                reach: Reach::Network,
                ..Capabilities::try_from(&engine.capabilities)?
            },
            warnings: engine.warnings,
        })
    }

    async fn renew_some(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let message = RenewMessage {
            claims: held.iter().map(Into::into).collect(),
        };
        let path = "/v1/engine/renew";
        let answer = self.client.call(path, &message, Repeat::Freely).await;
        let (sent, renewed): (_, RenewedMessage) = match answer {
            Ok(answer) => (answer.sent, answer.what),
            Err(error) => {
                let error = error.of_unknown_effect();
                return vec![Err(error); held.len()];
            }
        };
        let results = renewed.results.into_iter();
        results.map(|result| result.into_renewal(sent)).collect()
    }
}

#[async_trait]
impl Engine for Http {
    fn about(&self) -> About {
        let location = self.client.config().location();
        About::new("http", location, self.capabilities)
            .warnings(self.warnings.iter().cloned())
            .requests(self.client.requests())
    }

    /// Those of the engine behind the server, as the server sees them.
    async fn findings(&self, ttl: Ttl) -> Vec<Finding> {
        let config = self.client.config();
        let message = FindingsRequest {
            ttl_ms: u64::try_from(ttl.get().as_millis()).unwrap_or(u64::MAX),
        };
        let path = "/v1/engine/findings";
        let answer = self.client.call(path, &message, Repeat::Freely).await;
        let mut findings = match answer.map(|answer| answer.what) {
            Ok(FindingsMessage { findings }) => findings.into_iter().map(Finding::from).collect(),
            Err(error) => vec![Finding::unknown("settings", error.what())],
        };
        let hosts = config.servers.iter().map(|server| server.host.as_str());
        let (tls, has_token) = (config.tls.is_some(), config.token.is_some());
        // That is the way to the server; the server's own way to its store is another.
        findings.push(doctor::cleartext(hosts, tls, has_token).at(config.location()));
        findings
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let message = ClaimMessage::from(claim);
        let path = "/v1/engine/attempt";
        let answer = self.client.call(path, &message, Repeat::Freely).await?;
        let attempt: AttemptMessage = answer.what;
        attempt.into_attempt(answer.sent)
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let message = ClaimMessage::from(claim);
        let within = LONG_POLL + self.client.config().timeout;
        let path = "/v1/engine/wait";
        let answer = self
            .client
            .call_within(path, &message, Repeat::IfWithoutEffect, within)
            .await?;
        let woken: WakeMessage = answer.what;
        woken.into_wake(answer.sent)
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let mut renewals = Vec::with_capacity(held.len());
        for some in held.chunks(LARGEST_BATCH) {
            renewals.extend(self.renew_some(some).await);
        }
        renewals
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let message = ClaimMessage::from(claim);
        let path = "/v1/engine/release";
        let repeat = Repeat::IfWithoutEffect;
        let answer = self.client.call(path, &message, repeat).await?;
        let released: ReleasedMessage = answer.what;
        Ok(released.into())
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let message = QueryMessage::from(query);
        let path = "/v1/engine/inspect";
        let answer = self.client.call(path, &message, Repeat::Freely).await?;
        let locks: Vec<LockMessage> = answer.what;
        locks.into_iter().map(LockMessage::into_info).collect()
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let message = NameMessage::from(name);
        let path = "/v1/engine/force-release";
        let repeat = Repeat::IfWithoutEffect;
        let answer = self.client.call(path, &message, repeat).await?;
        let released: ReleasedMessage = answer.what;
        Ok(released.into())
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let records = || Arc::new(Records(Arc::clone(&self.client))) as _;
        self.capabilities.store.then(records)
    }
}
