//! `redis://`, `rediss://`, `redis+unix:`: one Redis server.
//!
//! | file | what is there |
//! |---|---|
//! | `scripts/` | what is decided on the server |
//! | `keys.rs` | which keys a lock has |
//! | `node.rs` | one server: a connection that mends itself |
//! | `health.rs` | whether it can be trusted |
//! | `ears.rs` | how a waiter hears of a hand-over |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `failure.rs` | URLs and errors |

mod ears;
mod failure;
mod health;
mod keys;
mod node;
#[cfg(feature = "bench")]
mod raw;
mod settings;
mod shown;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::ears::{Ears, Heard};
use self::keys::Keys;
use self::node::{ACQUIRE, BREAK, Call, Node, RELEASE, RENEW};
use self::settings::Settings;
use crate::claim::{Claim, ClaimId, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Fairness, Grant, LockInfo, LossReason,
    Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;
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

/// Locks on one Redis server.
#[derive(Debug)]
pub struct Redis {
    node: Node,
    keys: Keys,
    ears: Arc<Ears>,
    settings: Settings,
    warnings: Vec<String>,
}

impl Redis {
    /// Connects, and sees whether the server can be trusted.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        if url.scheme == "rediss" {
            // One provider for the whole process; another one that was chosen before stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let keys = Keys::under(settings.prefix.clone());
        let ears = Arc::new(Ears::new(keys.channel(&ClaimId::random()?.reveal())));
        let node = Node::connect(&settings, ears.listener()).await?;
        let warnings = health::check(&node, settings.wait_replicas).await?;
        Ok(Self {
            node,
            keys,
            ears,
            settings,
            warnings,
        })
    }

    fn call(&self, name: &LockName, arguments: Vec<String>) -> Call {
        Call {
            lock: self.keys.of(name),
            arguments,
        }
    }

    /// Before a claim can queue, someone must listen: the server passes over whom nobody listens for.
    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let queues = claim.queues && self.ears.are_open();
        let (channel, number) = match queues {
            true => (self.ears.channel(), self.ears.expect(claim.id)),
            false => ("", 0),
        };
        let arguments = vec![
            claim.id.reveal(),
            mode_number(claim.mode).to_string(),
            millis(claim.ttl),
            u8::from(queues).to_string(),
            channel.to_owned(),
            number.to_string(),
            shown::meta(claim),
        ];
        let sent = Clock::machine().now();
        let reply: Vec<String> = self
            .node
            .call(&ACQUIRE, &self.call(&claim.name, arguments))
            .await?;
        match words(&reply).as_slice() {
            ["granted", token, now] => {
                self.ears.synchronize(sent, now);
                self.ears.waiters.forget(&claim.id);
                let grant = grant(token, sent, claim.ttl)?;
                self.replicate(claim).await?;
                Ok(Attempt::Granted(grant))
            }
            ["held", left, now, rank, holders] => {
                self.ears.synchronize(sent, now);
                let (left, rank, holders): (i64, usize, usize) =
                    (parse(left)?, parse(rank)?, parse(holders)?);
                let left = u64::try_from(left).map_or(NO_LIMIT, Duration::from_millis);
                // Whoever is not next only looks in case the next one is dead, and not all at once.
                let spread = Duration::from_millis(number % 900);
                let later = if rank == 0 {
                    Duration::from_millis(1)
                } else {
                    NEXT_IN_LINE + spread
                };
                Ok(Attempt::Held(Contention {
                    look_again_in: Some(left + later),
                    ahead: Some(holders + rank),
                    seen: 0,
                }))
            }
            ["mismatch", of] => {
                claim.mode.agrees_with(Mode::Permit { of: parse(of)? })?;
                Err(failure::nonsense(&reply))
            }
            _ => Err(failure::nonsense(&reply)),
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

fn mode_number(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit { of } => of.into(),
    }
}

fn millis(ttl: Ttl) -> String {
    ttl.get().as_millis().to_string()
}

fn words(reply: &[String]) -> Vec<&str> {
    reply.iter().map(String::as_str).collect()
}

fn parse<T: std::str::FromStr>(word: &str) -> Result<T> {
    word.parse()
        .map_err(|_| failure::nonsense(&[word.to_owned()]))
}

fn grant(token: &str, sent: Moment, ttl: Ttl) -> Result<Grant> {
    let token =
        FencingToken::new(parse(token)?).ok_or_else(|| failure::nonsense(&[token.to_owned()]))?;
    Ok(Grant {
        token,
        valid_until: sent + ttl.validity(),
    })
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
            reach: Reach::Network,
            safety: Safety::Efficiency,
            survives: &[Survives::ClientKilled],
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        match self.attempt(claim).await? {
            Attempt::Held(_) if claim.queues && !self.ears.are_open() => {
                self.node.subscribe(self.ears.channel()).await?;
                self.ears.open();
                self.attempt(claim).await
            }
            attempt => Ok(attempt),
        }
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        let Some((_, bell)) = self.ears.waiters.waiter(&claim.id) else {
            return Ok(Wake::Retry);
        };
        loop {
            match bell.heard().await {
                Some(Heard::Granted(handed_over)) if self.settings.wait_replicas == 0 => {
                    let Some(valid_until) = self.ears.valid_until(&handed_over) else {
                        return Ok(Wake::Retry);
                    };
                    self.ears.waiters.forget(&claim.id);
                    return Ok(Wake::Granted(Grant {
                        token: handed_over.token,
                        valid_until,
                    }));
                }
                // The one before us was handed the lock; if it says nothing, it is our turn.
                Some(Heard::LookAfter(time)) => {
                    let news = tokio::time::timeout(time + Duration::from_millis(5), bell.heard());
                    match news.await {
                        Ok(news) => bell.ring(news),
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
            .map(|Renew { claim, .. }| {
                self.call(&claim.name, vec![claim.id.reveal(), millis(claim.ttl)])
            })
            .collect();
        let sent = Clock::machine().now();
        let replies = self.node.call_all::<Vec<String>>(&RENEW, &calls).await;
        let answers = replies
            .into_iter()
            .zip(held)
            .map(|(reply, Renew { claim, token })| {
                let reply = reply?;
                match words(&reply).as_slice() {
                    // The note beside the lock is gone, but not the lock.
                    ["granted", "0"] => match token {
                        Some(token) => {
                            grant(&token.to_string(), sent, claim.ttl).map(Renewal::Renewed)
                        }
                        None => Err(failure::nonsense(&reply)),
                    },
                    ["granted", token] => grant(token, sent, claim.ttl).map(Renewal::Renewed),
                    ["lost"] => Ok(Renewal::Lost(LossReason::Gone)),
                    _ => Err(failure::nonsense(&reply)),
                }
            });
        answers.collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let call = self.call(&claim.name, vec![claim.id.reveal()]);
        let reply: Vec<String> = self.node.call(&RELEASE, &call).await?;
        self.ears.waiters.forget(&claim.id);
        released(&reply)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        shown::inspect(&self.node, &self.keys, query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let reply: Vec<String> = self.node.call(&BREAK, &self.call(name, Vec::new())).await?;
        released(&reply)
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.node.commands_sent())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(&self.settings)))
    }
}

fn released(reply: &[String]) -> Result<Released> {
    match words(reply).as_slice() {
        ["released"] => Ok(Released::Yes),
        ["not held"] => Ok(Released::WasNotHeld),
        _ => Err(failure::nonsense(reply)),
    }
}
