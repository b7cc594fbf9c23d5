//! `redlock://a:6379,b:6379,c:6379`: a quorum of independent Redis servers, with fencing tokens.
//!
//! The scripts are those of the single server; what is added is the proposal of a token, the counting of votes, and
//! the mark that a server lacks that has been restarted. `docs/dev/redlock.md` explains the algorithm and why it is right.
//!
//! | file | what is there |
//! |---|---|
//! | `attempt.rs` | proposing a token until a quorum has granted or refused it |
//! | `protocol.rs`, `scripts/` | what is sent to a node, besides what `engine/redis` has |
//! | `proposals.rs` | which token each claim has proposed |
//! | `grants.rs` | what this process has been granted |
//! | `renewing.rs` | which claims are being renewed |
//! | `tally.rs` | counting the votes on a proposal |
//! | `nodes.rs` | asking all nodes at once |
//! | `member.rs` | one node, left out while it is unhealthy |
//! | `inspect.rs` | inspection: what the nodes agree on |
//! | `config.rs` | URLs |
//! | `doctor.rs` | what the nodes mean for locks |

mod attempt;
#[cfg(feature = "bench")]
mod baseline;
mod config;
mod doctor;
mod grants;
mod inspect;
mod member;
mod nodes;
mod proposals;
mod protocol;
mod renewing;
mod tally;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

pub use self::config::RedlockConfig;
use self::grants::Grants;
use self::nodes::Nodes;
use self::proposals::Proposals;
use self::renewing::Renewing;
use crate::claim::{Claim, Mode, Ttl};
use crate::clock::Clock;
use crate::engine::doctor::Finding;
use crate::engine::redis::keys::Keys;
use crate::engine::redis::listener::{Heard, Listener};
use crate::engine::redis::protocol as on_one;
use crate::engine::wakeup::offer::Notice;
use crate::engine::{
    About, Attempt, Capabilities, Driver, Engine, Expiry, Fairness, Grant, LockInfo, LossReason,
    Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// How `redlock:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["redlock", "redlocks"],
    options: config::OPTIONS,
    example: "redlock://a:6379,b:6379,c:6379",
    connect: |url| Box::pin(async move { RedlockConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| {
        let config = RedlockConfig::from_url(url)?;
        Ok(Arc::new(baseline::RedlockBaseline(config)))
    }),
};

/// How long a waiter that some nodes have let in waits for the others.
const SPLIT: Duration = Duration::from_millis(20);

/// How long connecting may take for a node, before it counts as unhealthy.
const CONNECT: Duration = Duration::from_secs(2);

/// Locks on a quorum of independent servers.
#[derive(Debug)]
pub struct Redlock {
    nodes: Nodes,
    keys: Keys,
    listener: Arc<Listener>,
    proposals: Proposals,
    grants: Grants,
    renewing: Renewing,
    config: RedlockConfig,
    findings: Vec<Finding>,
}

impl Redlock {
    async fn connect(
        config: RedlockConfig,
        nodes: Vec<(String, redis::Client)>,
        quorum: usize,
    ) -> Result<Self> {
        let keys = Keys::under(config.prefix.clone());
        let listener = Listener::new(&keys)?;
        let timeout = config.node_timeout;
        let connecting = Nodes::connect(nodes, quorum, &keys, &listener, timeout);
        let (nodes, findings) = connecting.await?;
        Ok(Self {
            nodes,
            keys,
            listener,
            proposals: Proposals::default(),
            grants: Grants::default(),
            renewing: Renewing::default(),
            config,
            findings,
        })
    }

    fn forget(&self, claim: &Claim) {
        self.listener.waiters.forget(&claim.id);
        self.proposals.forget(&claim.id);
    }
}

#[async_trait]
impl Engine for Redlock {
    fn about(&self) -> About {
        let capabilities = Capabilities {
            shared: true,
            // N·k/quorum holders of a semaphore of k could fit on N nodes.
            permits: false,
            fairness: Fairness::Random,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Network,
            safety: Safety::Correctness,
            store: false,
            survives: &[
                Survives::ClientKilled,
                Survives::NodeLoss,
                Survives::EngineRestart,
                Survives::PowerLoss,
            ],
        };
        let members = self.nodes.members.iter();
        About::new("redlock", self.config.location.clone(), capabilities)
            .with_offers()
            .findings(self.findings.iter().cloned())
            .requests(members.map(|member| member.client.commands_sent()).sum())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if matches!(claim.mode, Mode::Permit { .. }) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "Redlock has no permits: on several nodes more holders could fit than there are permits",
            )
            .advise("use one Redis server (redis:), or another engine"));
        }
        on_one::check_max_ttl(claim, self.config.max_ttl)?;
        let attempt = self.attempt(claim).await;
        if let Ok(Attempt::Granted(grant)) = attempt {
            self.grants.insert(claim.id, grant, Clock::machine().now());
        }
        // A waiter keeps its proposal, and with it its position in the queues.
        if !matches!(attempt, Ok(Attempt::Held(_))) || !claim.queues {
            self.forget(claim);
        }
        attempt
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let Some((_, mailbox)) = self.listener.waiters.waiter(&claim.id) else {
            // No message would come: the core looks again by the clock.
            return std::future::pending().await;
        };
        let proposed = self.proposals.of(&claim.id);
        let mut offers = HashSet::new();
        let mut ends: Option<Instant> = None;
        loop {
            let notices = match ends {
                None => mailbox.read().await,
                Some(ends) => match tokio::time::timeout_at(ends, mailbox.read()).await {
                    Ok(notices) => notices,
                    Err(_) => return Ok(Wake::Retry),
                },
            };
            if notices.is_empty() {
                return Ok(Wake::Retry);
            }
            for Heard {
                server: node,
                notice,
                ..
            } in notices
            {
                match notice {
                    // The others should follow at once. If they do not, the votes are split: an attempt
                    // gathers what is there, or goes back to the queue.
                    Notice::Offered(offer) if offer.token.get() == proposed => {
                        offers.insert(node);
                        ends = Some(Instant::now() + SPLIT + self.stagger(claim));
                    }
                    Notice::Offered(_) => return Ok(Wake::Retry),
                    Notice::LookAfter(time) if time.is_zero() => return Ok(Wake::Retry),
                    // With an offer there is no time to lose.
                    Notice::LookAfter(_) if !offers.is_empty() => {}
                    // Of several times, the one that comes first counts.
                    Notice::LookAfter(time) => {
                        let then = Instant::now() + time + self.stagger(claim);
                        ends = Some(ends.map_or(then, |ends| ends.min(then)));
                    }
                }
            }
            if offers.len() >= self.nodes.quorum {
                return Ok(Wake::Retry);
            }
        }
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let shortest = held.iter().map(|renew| renew.claim.ttl).min();
        let patience = self.config.patience(shortest.unwrap_or(Ttl::DEFAULT));
        let _in_flight = self.renewing.begin(held.iter().map(|renew| renew.claim.id));
        let sent = Clock::machine().now();
        let max_ttl = self.config.max_ttl;
        let renewed = self.nodes.renew(&self.keys, held, max_ttl, patience).await;
        let renewals = held.iter().zip(renewed).map(|(renew, renewed)| {
            let valid_until = sent + self.config.validity(renew.claim.ttl);
            Ok(match renewed? {
                Some(token) => Renewal::Renewed(Grant { token, valid_until }),
                None => Renewal::Lost(LossReason::Gone),
            })
        });
        renewals.collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.forget(claim);
        self.grants.forget(&claim.id);
        let call = on_one::release(&self.keys, claim);
        let patience = self.config.patience(claim.ttl);
        // A renewal that is carried out later would plant the claim again. It takes no longer than this.
        let renewed = self.renewing.none_of(&claim.id);
        let _ = tokio::time::timeout(patience, renewed).await;
        self.nodes.release(call, patience).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        inspect::inspect(&self.nodes, &self.keys, query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let call = on_one::break_lock(&self.keys, name);
        self.nodes.break_lock(call, CONNECT).await
    }

    async fn findings(&self, ttl: Ttl) -> Vec<Finding> {
        doctor::findings(self, ttl).await
    }
}
