//! `zookeeper://`, `zookeepers://`: ephemeral sequential nodes under the lock's node.
//!
//! | file | what is there |
//! |---|---|
//! | `path.rs` | which node a lock has |
//! | `layout.rs` | how a claim's node is named, and what others' names mean |
//! | `client.rs` | the session that all depends on |
//! | `session_validity.rs` | how long it is certain to live |
//! | `nodes.rs` | the single steps on nodes |
//! | `claim.rs` | the states of a claim |
//! | `attempt.rs`, `waiting.rs`, `renewal.rs`, `ending.rs` | how a claim joins the queue, waits, is kept and ends |
//! | `inspect.rs`, `records.rs` | what is shown, and guarded records |
//! | `config.rs`, `tls.rs`, `failure.rs` | configuration and errors |

pub(crate) mod attempt;
#[cfg(feature = "bench")]
pub(crate) mod baseline;
pub(crate) mod claim;
pub(crate) mod client;
pub(crate) mod config;
mod doctor;
pub(crate) mod ending;
pub(crate) mod failure;
pub(crate) mod inspect;
pub(crate) mod layout;
pub(crate) mod nodes;
pub(crate) mod path;
pub(crate) mod records;
pub(crate) mod renewal;
pub(crate) mod session_validity;
#[cfg(feature = "zookeeper-tls")]
pub(crate) mod tls;
pub(crate) mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use self::claim::{Claims, OwnClaim};
use self::client::Sessions;
pub use self::config::ZookeeperConfig;
pub use self::layout::Layout;
// In the version whose types `ZookeeperConfig` takes.
use self::nodes::Nodes;
use self::records::Records;
use crate::claim::{Claim, Ttl};
use crate::clock::Clock;
use crate::engine::background::Background;
use crate::engine::doctor::Finding;
use crate::engine::{
    About, Attempt, Capabilities, Driver, Engine, Expiry, LockInfo, Query, Released, Renew,
    Renewal, Wake, queue_rules,
};
use crate::error::{Effect, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::guard::by_version::ByVersion;
use crate::name::LockName;
use crate::url::EngineUrl;
#[cfg(feature = "zookeeper-tls")]
pub use zookeeper_client;

/// How long a claim may be in doubt: whoever has asked for it asks again or releases it by then, or has died.
const IN_DOUBT: Duration = Duration::from_secs(30);

/// How `zookeeper:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &[
        "zookeeper",
        #[cfg(feature = "zookeeper-tls")]
        "zookeepers",
    ],
    options: config::OPTIONS,
    example: "zookeeper://h1:2181,h2:2181,h3:2181/path",
    connect: |url| Box::pin(async move { ZookeeperConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| {
        Ok(Arc::new(baseline::ZookeeperBaseline::on(
            &ZookeeperConfig::from_url(url)?,
        )))
    }),
};

/// Locks on a ZooKeeper cluster.
#[derive(Debug)]
pub struct ZooKeeper {
    locks: Arc<Locks>,
    found: Vec<Finding>,
    /// Dropped with the engine. The session is closed then, or when the last claim that was left to its TTL is over.
    in_use: watch::Sender<()>,
}

#[derive(Debug)]
struct Locks {
    config: ZookeeperConfig,
    sessions: Sessions,
    claims: Claims,
    /// Ends claims that have expired.
    background: Background,
}

impl ZooKeeper {
    /// Connects, and sees that the node is there under which the locks are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if an option cannot be used; and the
    /// [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        Self::open(ZookeeperConfig::from_url(url)?).await
    }

    async fn open(config: ZookeeperConfig) -> Result<Self> {
        let asked = config.session_timeout;
        let sessions = Sessions::open(config.clone()).await?;
        let got = sessions.present().client.session_timeout();
        let locks = Arc::new(Locks {
            config,
            sessions,
            claims: Claims::default(),
            background: Background::default(),
        });
        locks.find_root().await?;
        let engine = Self {
            locks,
            found: vec![other_timeout(asked, got)],
            in_use: watch::Sender::default(),
        };
        engine.ends_expired();
        Ok(engine)
    }

    /// Sees that claims that expire are ended, on this runtime if the one has ended on which that was done.
    fn ends_expired(&self) -> &Arc<Locks> {
        let locks = &self.locks;
        locks.background.ensure(
            || ending::end_expired(Arc::clone(locks), self.in_use.subscribe()),
            locks.sessions.notifier(),
        );
        locks
    }

    /// Ends the session as if the servers had given it up.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub async fn end_session(&self) {
        let session = self.locks.sessions.present();
        let same = zookeeper_client::Client::connector()
            .with_session_timeout(self.locks.config.session_timeout)
            .with_session(session.client.session().clone());
        // Whoever has joined a session and leaves ends it for all.
        drop(client::reach(&self.locks.config, same).await);
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        if self.locks.claims.any_expires() {
            self.ends_expired();
        }
    }
}

fn other_timeout(asked: Duration, got: Duration) -> Finding {
    let (says, said) = (
        humantime::format_duration(got),
        humantime::format_duration(asked),
    );
    match asked == got {
        true => Finding::good("session", format!("a session of {says}, as asked for")),
        false => Finding::warning("session", format!("a session of {says}, not {said}"))
            .means("the servers grant sessions of another length: a dead holder's lock is free after that")
            .fix("change minSessionTimeout or maxSessionTimeout of the servers, or ?session_timeout="),
    }
}

impl Locks {
    /// In the present session, or in a new one if that has ended.
    async fn nodes(&self) -> Result<Nodes<'_>> {
        Ok(Nodes {
            session: self.sessions.living().await?,
            config: &self.config,
        })
    }

    async fn find_root(&self) -> Result<()> {
        let nodes = self.nodes().await?;
        let root = self.config.root.node();
        let stat = nodes.session.read(|client| client.check_stat(root));
        if stat.await?.is_some() || self.config.makes_root {
            return Ok(());
        }
        Err(
            failure::unfit(format!("there is no node {root:?} on the servers"))
                .advise("make it (zkCli.sh create), or name another in the URL"),
        )
    }
}

#[async_trait]
impl Engine for ZooKeeper {
    fn about(&self) -> About {
        let capabilities = Capabilities {
            expiry: Expiry::Session,
            ..queue_rules::CAPABILITIES
        };
        let location = self.locks.config.location();
        About::new("zookeeper", location, capabilities)
            .findings(self.found.iter().cloned())
            .session_events(self.locks.sessions.events())
            .requests(self.locks.sessions.commands_sent())
    }

    async fn findings(&self, _ttl: Ttl) -> Vec<Finding> {
        doctor::findings(self).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let locks = self.ends_expired();
        let nodes = locks.nodes().await?;
        // What an earlier attempt may have made is not deleted while the claim is asked for again.
        let longer = Clock::machine().now() + IN_DOUBT;
        locks.claims.doubt_longer(claim, longer);
        let answer = match locks.attempt(&nodes, claim).await {
            Err(error) if failure::ended_the_session(&error) => {
                let nodes = locks.nodes().await?;
                locks.attempt(&nodes, claim).await
            }
            answer => answer,
        };
        let claims = &locks.claims;
        answer.map_err(|error| {
            let now = Clock::machine().now();
            if error.effect() == Effect::Unknown {
                claims.doubt(claim, now + claim.ttl.get().min(IN_DOUBT));
            }
            let Some(own) = claims.get(claim) else {
                return error;
            };
            if let OwnClaim::Queued { entry, .. } = own
                && !claim.queues
            {
                // Nobody waits for it any more.
                claims.leaves(claim, &entry);
                claims.end_again_at(claim, now);
            }
            // Its node is there, whatever has failed since; but one that holds the lock in another mode is to keep it.
            match error.kind() {
                ErrorKind::InvalidConfig => error,
                _ => error.of_unknown_effect(),
            }
        })
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.ends_expired().wait(claim).await
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.ends_expired().renew(held).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.ends_expired().release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let nodes = self.locks.nodes().await?;
        inspect::inspect(&nodes, query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        let nodes = self.locks.nodes().await?;
        self.locks.force_release(&nodes, name).await
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let records = Records::of(Arc::clone(&self.locks));
        Some(Arc::new(ByVersion(records)))
    }
}
