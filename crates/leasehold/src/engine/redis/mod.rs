//! `redis://`, `rediss://`, `redis+unix:`: one Redis server. `redis+sentinel://`: the one that sentinels name. `redis+cluster://`: the nodes of a
//! cluster, each of which has some of the locks.
//!
//! # The life of a claim
//!
//! 1. **Attempt.** `try_acquire` runs `acquire.lua`, and proposes a token by the server's clock, or 1 if that was asked too long ago. If the lock is free, the script sets the
//!    lock's key, with the TTL: claim id, token, who. It raises a token that is behind. The lease is valid from before the request
//!    left. If others hold the lock, the answer tells how long they have left. A claim that holds the lock already gets the same token again.
//! 2. **Queue.** A claim that waits is put into the lock's queue. Before the first one is, the process subscribes to a channel of
//!    its own: a script skips and removes waiters that nobody listens for, since their process is dead.
//! 3. **Offer.** A release makes the first in the queue the holder, for half a second, and puts a message into the inbox of its
//!    process, a list that only the scripts write to. The claim has the lock with that, for as long as the offer lasts; its first renewal
//!    gives it its whole TTL. If it does not renew, the offer expires; two others have been told to look then.
//! 4. **Looking again.** If no message comes, the core attempts again when the holders' time is over, the first in the queue
//!    before the others. That is how an expired lock, or one that another program has deleted, finds its next holder.
//! 5. **Renewal.** `renew.quick.lua` gives many claims their TTL from now on, as long as their keys still name them. What is left of
//!    them is for `renew.lua`: other modes, other TTLs, and claims that are lost, since they have expired, or were broken.
//! 6. **Release.** `release.lua` removes the claim, whatever has become of it: held, offered, queued or unknown. If it
//!    is not called, Redis deletes the key when the TTL is over.
//!
//! With `max_ttl`, a server that has restarted answers `blank` to attempts and renewals until all has expired that it can have
//! forgotten. Several servers vote on the same scripts: see `engine/redlock`.
//!
//! | file | what is there |
//! |---|---|
//! | `protocol.rs` | the calls of the scripts, and their answers |
//! | `scripts/` | what is decided on the server; `head.lua` describes the keys |
//! | `keys.rs` | the names of the keys |
//! | `client.rs`, `connection.rs`, `connector.rs` | a server, the connection to it, and how another one is made |
//! | `server_time.rs` | what the server's clock says |
//! | `renewals.rs` | many renewals in one call |
//! | `sentinel/` | which server is the primary |
//! | `servers.rs`, `cluster/` | which node has a lock |
//! | `listener.rs`, `inbox.rs` | the messages to waiters |
//! | `inspect.rs`, `records.rs` | inspection, guarded records |
//! | `config.rs`, `health.rs`, `failure.rs` | URLs, unfit servers, errors |
//! | `doctor.rs` | what the settings of a server mean for locks |

#[cfg(feature = "bench")]
pub(crate) mod baseline;
pub(crate) mod client;
pub mod cluster;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod connector;
pub(crate) mod doctor;
pub(crate) mod failure;
pub(crate) mod health;
mod inbox;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod listener;
pub(crate) mod protocol;
mod records;
pub(crate) mod renewals;
pub mod sentinel;
mod server_time;
pub(crate) mod servers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use self::client::Client;
use self::cluster::nodes::Nodes;
pub use self::config::RedisConfig;
use self::connection::Connection;
use self::connector::Target;
use self::inbox::Inbox;
use self::keys::Keys;
use self::listener::{Heard, Listener};
use self::protocol::{Address, Answer, Proposal, Renewed, Reply};
use self::renewals::Batches;
use self::sentinel::sentinels::Sentinels;
use self::servers::Servers;
use crate::claim::{Claim, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::doctor::Finding;
use crate::engine::wakeup::look_again::delay_behind_first;
use crate::engine::wakeup::offer::Notice;
use crate::engine::{
    About, Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::token::FencingToken;
use crate::url::Server;

/// The client crate, in the version whose types [`RedisConfig`] takes.
pub use redis;

const SCHEME: &str = "redis";

/// How `redis:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &[SCHEME, "rediss", "redis+unix"],
    options: config::OPTIONS,
    example: "redis://127.0.0.1:6379",
    connect: |url| Box::pin(async move { RedisConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| {
        let config = RedisConfig::from_url(url)?;
        Ok(Arc::new(baseline::RedisBaseline(config)))
    }),
};

/// How often to look at a lock that another program holds without a time limit.
const NO_LIMIT: Duration = Duration::from_secs(1);

/// Locks on one Redis server, or on those of a cluster.
#[derive(Debug)]
pub struct Redis {
    servers: Servers,
    keys: Keys,
    listener: Arc<Listener>,
    /// On one server whose word is enough: that no other takes the place of, and that need not be asked after a restart.
    inbox: Option<Inbox>,
    scheme: &'static str,
    config: RedisConfig,
    sentinels: Option<Arc<Sentinels>>,
    findings: Vec<Finding>,
}

impl Redis {
    async fn connect(config: RedisConfig, scheme: &'static str, target: Target) -> Result<Self> {
        let keys = Keys::under(config.prefix.clone());
        // What comes into the inbox is relied on without asking. A server that has restarted, or has replicas, is to be asked.
        let relies_on_offers = config.max_ttl.is_zero() && config.wait_replicas == 0;
        let (own, sentinels) = match &target {
            Target::Server(client) => (relies_on_offers.then(|| (**client).clone()), None),
            Target::Primary(sentinels) => (None, Some(Arc::clone(sentinels))),
            Target::Node(_) => (None, None),
        };
        let listener = match own {
            Some(_) => Listener::with_inbox(&keys)?,
            None => Listener::new(&keys)?,
        };
        let client = Arc::new(Client::new(
            target,
            !config.max_ttl.is_zero(),
            config.connect_timeout,
            config.timeout,
            listener.on_push(0),
        ));
        let inbox = own.map(|own| Inbox::new(own, config.connect_timeout, client.counter()));
        let mut findings = health::check(&client, Some(config.wait_replicas)).await?;
        if let Some(sentinels) = &sentinels {
            findings.extend(sentinels.disagreements().await);
        }
        health::check_layout(&client, &keys).await?;
        Ok(Self {
            servers: Servers::One(client),
            keys,
            listener,
            inbox,
            scheme,
            config,
            sentinels,
            findings,
        })
    }

    async fn connect_to_cluster(
        config: RedisConfig,
        scheme: &'static str,
        seeds: Vec<Server>,
    ) -> Result<Self> {
        let keys = Keys::in_cluster(config.prefix.clone())?;
        let listener = Listener::new(&keys)?;
        let nodes = Nodes::connect(seeds, config.clone(), Arc::clone(&listener));
        let (nodes, mut findings) = nodes.await?;
        findings.extend(one_slot(&keys, &config));
        Ok(Self {
            servers: Servers::Cluster(nodes),
            keys,
            listener,
            inbox: None,
            scheme,
            config,
            sentinels: None,
            findings,
        })
    }
}

fn one_slot(keys: &Keys, config: &RedisConfig) -> Option<Finding> {
    keys.are_in_one_slot().then(|| {
        Finding::warning("hash_tag", format!("the prefix {:?}", config.prefix))
            .means("the prefix contains a hash tag: all locks are in one slot, so on one node")
            .fix("use a prefix without braces (?prefix=)")
    })
}

#[async_trait]
impl Engine for Redis {
    fn about(&self) -> About {
        let capabilities = Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::HybridClock,
            expiry: Expiry::Ttl,
            reach: Reach::Network,
            safety: Safety::Efficiency,
            store: true,
            survives: &[Survives::ClientKilled],
        };
        About::new(self.scheme, self.config.location.clone(), capabilities)
            .with_offers()
            .findings(self.findings.iter().cloned())
            .requests(self.servers.commands_sent())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        protocol::check_max_ttl(claim, self.config.max_ttl)?;
        let attempt = self.attempt_and_queue(claim).await;
        let attempt = attempt.map_err(failure::of_attempt);
        // A claim that does not queue may have queued before, and leaves the queue so.
        if attempt.is_err() || !claim.queues {
            self.listener.waiters.forget(&claim.id);
        }
        attempt
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        if let Some((_, mailbox)) = self.listener.waiters.waiter(&claim.id) {
            let delay = |heard: &[Heard]| Notice::delay(heard.iter().map(|heard| &heard.notice));
            let heard = mailbox.read_past_delays(delay).await;
            if let Some(grant) = self.offered(heard) {
                self.listener.waiters.forget(&claim.id);
                return Ok(Wake::Granted(grant));
            }
        }
        Ok(Wake::Retry)
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let locks = held.iter().map(|renew| self.keys.lock(&renew.claim.name));
        let groups = self.servers.groups(locks);
        let renewing = groups.iter().map(async |group| {
            let held: Vec<_> = group.iter().map(|nth| held[*nth]).collect();
            self.renew_together(&held).await
        });
        let renewals = join_all(renewing).await.into_iter().flatten();
        let mut renewals: Vec<_> = groups.into_iter().flatten().zip(renewals).collect();
        renewals.sort_by_key(|(nth, _)| *nth);
        renewals.into_iter().map(|(_, renewal)| renewal).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.listener.waiters.forget(&claim.id);
        let call = protocol::release(&self.keys, claim);
        let lock = self.keys.lock(&claim.name);
        protocol::read_released(&self.servers.call(&lock, &call).await?)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        match &self.servers {
            Servers::One(client) => inspect::inspect(client, &self.keys, query).await,
            Servers::Cluster(nodes) => {
                inspect::inspect_cluster(&self.servers, nodes, &self.keys, query).await
            }
        }
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let call = protocol::break_lock(&self.keys, name);
        let lock = self.keys.lock(name);
        protocol::read_released(&self.servers.call(&lock, &call).await?)
    }

    async fn findings(&self, ttl: Ttl) -> Vec<Finding> {
        doctor::findings(self, ttl).await
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let (servers, keys) = (self.servers.clone(), self.keys.clone());
        Some(Arc::new(records::Records::on(servers, keys)))
    }
}

impl Redis {
    /// Attempts; and once more after the subscription if the claim could not queue before.
    async fn attempt_and_queue(&self, claim: &Claim) -> Result<Attempt> {
        let subscribed = &self.listener.subscribed;
        if claim.queues && subscribed.initialized() {
            self.open_inbox().await?;
        }
        let mut attempt = self.attempt(claim).await?;
        if matches!(attempt, Attempt::Held(_)) && claim.queues {
            self.servers.keep_watch();
            if !subscribed.initialized() {
                let subscribe = async || {
                    self.open_inbox().await?;
                    self.servers.subscribe(&self.listener.channel).await
                };
                subscribed.get_or_try_init(subscribe).await?;
                attempt = self.attempt(claim).await?;
            }
            // It may have ended before this claim was known as one to be woken by that.
            let opened = self.open_inbox().await;
            if opened.map_err(Error::of_unknown_effect)? {
                self.listener.waiters.wake(&claim.id);
            }
        }
        Ok(attempt)
    }

    /// Returns whether it was not open.
    async fn open_inbox(&self) -> Result<bool> {
        match &self.inbox {
            Some(inbox) => inbox.open(&self.listener).await,
            None => Ok(false),
        }
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let mut route = self.servers.route(&self.keys.lock(&claim.name));
        loop {
            let connection = route.connection().await?;
            match self.attempt_over(&connection, claim).await {
                Err(error) => route.follow(error).await?,
                attempt => return attempt,
            }
        }
    }

    async fn attempt_over(&self, connection: &Connection, claim: &Claim) -> Result<Attempt> {
        let address = self.listener.address(claim);
        let max_ttl = self.config.max_ttl;
        let (mut sent, mut answer) = self.ask(connection, claim, address).await?;
        if let Answer::Blank(blank) = answer
            && blank.may_be_marked(max_ttl)
        {
            let mark = protocol::mark(&self.keys, &claim.name, max_ttl);
            if connection.call::<Reply>(&mark).await?.is("marked") {
                (sent, answer) = self.ask(connection, claim, address).await?;
            }
        }
        match answer {
            Answer::Granted(token) => {
                self.listener.waiters.forget(&claim.id);
                // If this fails, the effect is unknown, and the core releases the claim. Not here: it may hold the lock already, through another process.
                self.replicate(connection).await?;
                let valid_until = sent + claim.ttl.validity();
                Ok(Attempt::Granted(Grant { token, valid_until }))
            }
            Answer::Held {
                left,
                rank,
                holders,
                now,
            } => {
                self.listener.clock.synchronize(sent, now);
                let later = match rank {
                    0 => Duration::from_millis(1),
                    _ => delay_behind_first(address.map_or(0, |address| address.number)),
                };
                Ok(Attempt::Held(Contention {
                    look_again_in: Some(left.unwrap_or(NO_LIMIT) + later),
                    ahead: Some(holders + rank),
                    ..Contention::default()
                }))
            }
            Answer::Blank(blank) => protocol::quarantine(claim, blank.wait(self.config.max_ttl)),
            Answer::Behind(_) => Err(failure::nonsense(&["behind".to_owned()])),
        }
    }

    /// The grant of an offer that can be relied on as long as it lasts.
    fn offered(&self, heard: Vec<Heard>) -> Option<Grant> {
        let offer = heard.into_iter().rev().find_map(|heard| match heard {
            Heard {
                notice: Notice::Offered(offer),
                is_true: true,
                ..
            } => Some(offer),
            _ => None,
        })?;
        let now = Clock::machine().now();
        let valid_until = self.listener.clock.valid_until(&offer, now)?;
        Some(Grant {
            token: offer.token,
            valid_until,
        })
    }

    /// The answer to an attempt, and when it was sent.
    async fn ask(
        &self,
        connection: &Connection,
        claim: &Claim,
        address: Option<Address<'_>>,
    ) -> Result<(Moment, Answer)> {
        let proposal = Proposal {
            token: FencingToken::after(0, connection.least_token())?,
            now: connection.server_time(),
            attempt: None,
        };
        let call = protocol::acquire(&self.keys, claim, address, self.config.max_ttl, proposal);
        let sent = Clock::machine().now();
        let reply = connection.call_and_keep_time(&call).await?;
        Ok((sent, Answer::read(&reply, claim, proposal)?))
    }

    /// Renews claims whose locks one server has, or had.
    async fn renew_together(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let Some(first) = held.first() else {
            return Vec::new();
        };
        let mut route = self.servers.route(&self.keys.lock(&first.claim.name));
        let renewals = match route.connection().await {
            Ok(connection) => self.renew_over(&connection, held).await,
            Err(failure) => return held.iter().map(|_| Err(failure.clone())).collect(),
        };
        let renewals = held.iter().zip(renewals);
        let renewals = renewals.map(async |(renew, renewal)| match renewal {
            Err(failure) => self.renew_elsewhere(*renew, failure).await,
            renewal => renewal,
        });
        join_all(renewals).await
    }

    /// Renews a claim after this failure, if that says that another server has its lock now.
    async fn renew_elsewhere(&self, renew: Renew<'_>, mut failure: Error) -> Result<Renewal> {
        let mut route = self.servers.route(&self.keys.lock(&renew.claim.name));
        loop {
            route.follow(failure).await?;
            let connection = route.connection().await?;
            match self.renew_over(&connection, &[renew]).await.pop() {
                Some(Err(next)) => failure = next,
                Some(renewal) => return renewal,
                None => return Err(failure::nonsense(&[])),
            }
        }
    }

    async fn renew_over(
        &self,
        connection: &Connection,
        held: &[Renew<'_>],
    ) -> Vec<Result<Renewal>> {
        let max_ttl = self.config.max_ttl;
        let batches = Batches::of(&self.keys, held, max_ttl, 0);
        let sent = Clock::machine().now();
        let slowly = |nth: usize| protocol::renew(&self.keys, &held[nth], max_ttl);
        let renewed = batches.renew(connection, held, slowly).await;
        let copied = self.replicate(connection).await;
        let renewals = held.iter().zip(renewed).map(|(renew, renewed)| {
            let valid_until = sent + self.config.validity(renew.claim.ttl);
            match renewed? {
                Renewed::Yes(token) => copied
                    .clone()
                    .map(|()| Renewal::Renewed(Grant { token, valid_until })),
                // That is so, whoever has a copy of it.
                Renewed::Lost => Ok(Renewal::Lost(LossReason::Gone)),
                Renewed::Blank => Err(restarted()),
            }
        });
        renewals.collect()
    }

    /// With `wait_replicas`, what was written over this connection counts only once so many replicas have it. Over another
    /// one the server would not know what to wait for.
    async fn replicate(&self, connection: &Connection) -> Result<()> {
        let wanted = self.config.wait_replicas;
        if wanted == 0 {
            return Ok(());
        }
        let patience = (self.config.timeout / 2).as_millis() as u64;
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(patience);
        let reached = connection.send::<u32>(&wait).await;
        // What it waits for has been carried out.
        let reached = reached.map_err(Error::of_unknown_effect)?;
        if reached >= wanted {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unreachable,
            format!("it reached {reached} of {wanted} replicas, and does not count"),
        )
        .advise("check that the replicas are connected, or lower ?wait_replicas=")
        .of_unknown_effect())
    }
}

/// The server's memory may be that of an earlier time, when the claim had not yet been broken and granted to another.
fn restarted() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the server was restarted, and may have forgotten that the lock has ended: the renewal does not count",
    )
    .advise("acquire the lock again: with max_ttl a restart ends all leases")
    .of_unknown_effect()
}
