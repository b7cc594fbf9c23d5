//! `redis://`, `rediss://`, `redis+unix:`: one Redis server.
//!
//! | file | what is there |
//! |---|---|
//! | `scripts/` | what is decided on the server |
//! | `keys.rs` | which keys a lock has |
//! | `node.rs` | one server: a connection that mends itself |
//! | `protocol.rs` | what is said to it, and what it answers |
//! | `health.rs` | whether it can be trusted |
//! | `ears.rs` | how a waiter hears of a hand-over |
//! | `records.rs` | guarded records |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `failure.rs` | URLs and errors |

pub(crate) mod ears;
pub(crate) mod failure;
pub(crate) mod health;
pub(crate) mod keys;
pub(crate) mod node;
pub(crate) mod protocol;
#[cfg(feature = "bench")]
pub(crate) mod raw;
mod records;
pub(crate) mod settings;
pub(crate) mod shown;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use self::ears::{Ears, News};
use self::keys::Keys;
use self::node::{ACQUIRE, BREAK, MARK, Node, RELEASE, RENEW};
use self::protocol::{Answer, Deployment, Listener, Renewed};
use self::settings::Settings;
use crate::claim::{Claim, ClaimId, Ttl};
use crate::clock::Clock;
use crate::engine::handover::{Heard, ServerClock};
use crate::engine::tls;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::url::EngineUrl;

/// How `redis:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["redis", "rediss", "redis+unix"],
    options: settings::OPTIONS,
    example: "redis://127.0.0.1:6379",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match Redis::connect(&url).await {
                Ok(redis) => Ok(Arc::new(redis) as Arc<dyn Engine>),
                Err(error) => Err(error.during("connect", location)),
            }
        })
    },
};

/// Those who are not next look again this much later than the one who is.
const NEXT_IN_LINE: Duration = Duration::from_millis(50);

/// How often to look at a lock that another program holds without a time limit.
const NO_LIMIT: Duration = Duration::from_secs(1);

/// How much longer than a server says to wait before looking: for the message that makes it unnecessary.
const A_MOMENT: Duration = Duration::from_millis(5);

/// Locks on one Redis server.
#[derive(Debug)]
pub struct Redis {
    node: Arc<Node>,
    keys: Keys,
    ears: Arc<Ears>,
    /// Whether the server has been told that someone listens.
    listens: AtomicBool,
    clock: ServerClock,
    settings: Settings,
    warnings: Vec<String>,
}

impl Redis {
    /// Connects, and sees whether the server can be trusted.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        if url.scheme == "rediss" {
            tls::install();
        }
        let keys = Keys::under(settings.prefix.clone());
        let ears = Arc::new(Ears::new(keys.channel(&ClaimId::random()?.reveal())));
        let node = Arc::new(Node::new(
            settings.server.clone(),
            settings.connect_timeout,
            settings.timeout,
            ears.listener(0),
        )?);
        let warnings = health::check(&node, settings.wait_replicas).await?;
        Ok(Self {
            node,
            keys,
            ears,
            listens: AtomicBool::new(false),
            clock: ServerClock::default(),
            settings,
            warnings,
        })
    }

    fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }

    /// Before a claim can queue, someone must listen: the server passes over whom nobody listens for.
    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let queues = claim.queues && self.listens();
        let listener = queues.then(|| Listener {
            channel: self.ears.channel(),
            number: self.ears.waiters.expect_next(claim.id),
        });
        let max_ttl = self.settings.max_ttl;
        let deployment = Deployment {
            proposed: 0,
            max_ttl,
        };
        let call = protocol::acquire(&self.keys, claim, listener, deployment);
        let mut sent = Clock::machine().now();
        let mut reply: Vec<String> = self.node.call(&ACQUIRE, &call).await?;
        if let Answer::Blank { uptime, .. } = Answer::read(&reply, claim)?
            && uptime >= max_ttl
        {
            let mark = protocol::mark(&self.keys, &claim.name, max_ttl);
            self.node.call::<Vec<String>>(&MARK, &mark).await?;
            sent = Clock::machine().now();
            reply = self.node.call(&ACQUIRE, &call).await?;
        }
        match Answer::read(&reply, claim)? {
            Answer::Granted { token, now } => {
                self.clock.synchronize(sent, now);
                self.ears.waiters.forget(&claim.id);
                self.replicate(claim).await?;
                let valid_until = sent + claim.ttl.validity();
                Ok(Attempt::Granted(Grant { token, valid_until }))
            }
            Answer::Held {
                left,
                now,
                rank,
                holders,
            } => {
                self.clock.synchronize(sent, now);
                // Whoever is not next only looks in case the next one is dead, and not all at once.
                let spread =
                    Duration::from_millis(listener.map_or(0, |listener| listener.number % 900));
                let later = if rank == 0 {
                    Duration::from_millis(1)
                } else {
                    NEXT_IN_LINE + spread
                };
                Ok(Attempt::Held(Contention {
                    look_again_in: Some(left.unwrap_or(NO_LIMIT) + later),
                    ahead: Some(holders + rank),
                    seen: 0,
                    because: None,
                }))
            }
            Answer::Blank { votes_in, uptime } => {
                // Uptimes are told in whole seconds.
                let up_in = max_ttl.saturating_sub(uptime);
                let wait = votes_in.min(up_in.max(Duration::from_millis(100)));
                let quarantine = protocol::in_quarantine(wait);
                if !claim.queues {
                    return Err(quarantine);
                }
                Ok(Attempt::Held(Contention {
                    look_again_in: Some(wait),
                    because: Some(quarantine.what().to_owned()),
                    ..Contention::default()
                }))
            }
            Answer::Behind(_) => Err(failure::nonsense(&reply)),
        }
    }

    /// With `wait_replicas`, a grant counts only once so many replicas have it; else it is given back.
    async fn replicate(&self, claim: &Claim) -> Result<()> {
        let wanted = self.settings.wait_replicas;
        if wanted == 0 {
            return Ok(());
        }
        let patience = (self.settings.timeout / 2).as_millis() as u64;
        let reached: u32 = self
            .node
            .send(redis::cmd("WAIT").arg(wanted).arg(patience))
            .await?;
        if reached >= wanted {
            return Ok(());
        }
        self.release(claim).await?;
        Err(Error::new(
            ErrorKind::Unreachable,
            format!("the grant reached {reached} of {wanted} replicas and was given back"),
        )
        .advise("see that the replicas are connected, or lower ?wait_replicas="))
    }
}

#[async_trait]
impl Engine for Redis {
    fn scheme(&self) -> &'static str {
        "redis"
    }

    fn location(&self) -> String {
        self.settings.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Network,
            safety: Safety::Efficiency,
            store: true,
            survives: &[Survives::ClientKilled],
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        protocol::check_max_ttl(claim, self.settings.max_ttl)?;
        match self.attempt(claim).await? {
            Attempt::Held(_) if claim.queues && !self.listens() => {
                self.node.subscribe(self.ears.channel()).await?;
                self.listens.store(true, Ordering::Release);
                self.attempt(claim).await
            }
            attempt => Ok(attempt),
        }
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let Some((_, bell)) = self.ears.waiters.waiter(&claim.id) else {
            return Ok(Wake::Retry);
        };
        let mut news = bell.heard().await;
        loop {
            match news.pop().map(|News { what, .. }| what) {
                Some(Heard::Granted(handed_over)) if self.settings.wait_replicas == 0 => {
                    let now = Clock::machine().now();
                    let valid_until = self.clock.valid_until(&handed_over, now, Ttl::validity);
                    let Some(valid_until) = valid_until.filter(|until| *until > now) else {
                        return Ok(Wake::Retry);
                    };
                    self.ears.waiters.forget(&claim.id);
                    let token = handed_over.token;
                    return Ok(Wake::Granted(Grant { token, valid_until }));
                }
                // The one before us was handed the lock; if it says nothing, it is our turn.
                Some(Heard::LookAfter(time)) => {
                    match tokio::time::timeout(time + A_MOMENT, bell.heard()).await {
                        Ok(more) => news = more,
                        Err(_) => return Ok(Wake::Retry),
                    }
                }
                Some(Heard::Granted(_)) | None => return Ok(Wake::Retry),
            }
        }
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let calls: Vec<_> = held
            .iter()
            .map(|renew| protocol::renew(&self.keys, renew.claim, Deployment::default()))
            .collect();
        let sent = Clock::machine().now();
        let replies = self.node.call_all::<Vec<String>>(&RENEW, &calls).await;
        let answers = replies
            .into_iter()
            .zip(held)
            .map(|(reply, Renew { claim, token })| {
                let reply = reply?;
                let known = match Renewed::read(&reply)? {
                    Renewed::Yes(known) => known.or(*token),
                    Renewed::Lost => return Ok(Renewal::Lost(LossReason::Gone)),
                    Renewed::Planted => None,
                };
                let valid_until = sent + claim.ttl.validity();
                let token = known.ok_or_else(|| failure::nonsense(&reply))?;
                Ok(Renewal::Renewed(Grant { token, valid_until }))
            });
        answers.collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let call = protocol::release(&self.keys, claim);
        let reply: Vec<String> = self.node.call(&RELEASE, &call).await?;
        self.ears.waiters.forget(&claim.id);
        protocol::read_released(&reply)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        shown::inspect(&self.node, &self.keys, query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let call = protocol::break_lock(&self.keys, name);
        let reply: Vec<String> = self.node.call(&BREAK, &call).await?;
        protocol::read_released(&reply)
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        Some(Arc::new(records::Records::on(
            Arc::clone(&self.node),
            self.keys.clone(),
        )))
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.node.commands_sent())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(&self.settings)))
    }
}
