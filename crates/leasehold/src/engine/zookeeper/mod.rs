//! `zookeeper://`, `zookeepers://`: ephemeral sequential nodes under the lock's node.
//!
//! | file | what is there |
//! |---|---|
//! | `path.rs` | which node a lock has |
//! | `layout.rs` | how a claim's node is named, and what others' names mean |
//! | `session.rs` | the session that all depends on |
//! | `proof.rs` | how long it is sure to live |
//! | `nodes.rs` | the single steps on nodes |
//! | `places.rs` | which nodes are ours, and how each stands |
//! | `emptied.rs` | which lines are known to be empty |
//! | `attempt.rs`, `waiting.rs`, `renewal.rs`, `ending.rs` | how a claim joins the line, waits, is kept and ends |
//! | `records.rs` | guarded records |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `tls.rs`, `failure.rs` | URLs and errors |

pub(crate) mod attempt;
pub(crate) mod emptied;
pub(crate) mod ending;
pub(crate) mod failure;
pub(crate) mod layout;
pub(crate) mod nodes;
pub(crate) mod path;
pub(crate) mod places;
pub(crate) mod proof;
#[cfg(feature = "bench")]
pub(crate) mod raw;
pub(crate) mod records;
pub(crate) mod renewal;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod shown;
#[cfg(feature = "zookeeper-tls")]
pub(crate) mod tls;
pub(crate) mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::emptied::Emptied;
use self::nodes::Nodes;
use self::places::Places;
use self::records::Records;
use self::session::Sessions;
use self::settings::Settings;
use crate::claim::Claim;
use crate::engine::overdue::Overdue;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, LockInfo, Query, Reach,
    Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::Result;
use crate::guard::GuardedStore;
use crate::guard::by_version::ByVersion;
use crate::name::LockName;
use crate::url::EngineUrl;

/// How `zookeeper:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &[
        "zookeeper",
        #[cfg(feature = "zookeeper-tls")]
        "zookeepers",
    ],
    options: settings::OPTIONS,
    example: "zookeeper://h1:2181,h2:2181,h3:2181/path",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match ZooKeeper::connect(&url).await {
                Ok(zookeeper) => Ok(Arc::new(zookeeper) as Arc<dyn Engine>),
                Err(error) => Err(error.during("connect", location)),
            }
        })
    },
};

/// Locks on a ZooKeeper cluster.
#[derive(Debug)]
pub struct ZooKeeper {
    locks: Arc<Locks>,
    warnings: Vec<String>,
    /// Dropped with the engine. The session is closed then, or when the last claim that was left to its TTL is over.
    _in_use: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Locks {
    settings: Settings,
    sessions: Sessions,
    places: Places,
    /// Claims that end with their TTL unless they are renewed: their session lives on for others.
    overdue: Overdue,
    emptied: Emptied,
}

impl ZooKeeper {
    /// Connects, and sees that the node is there under which the locks are.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        let asked = settings.session_timeout;
        let sessions = Sessions::open(settings.clone()).await?;
        let got = sessions.present().client.session_timeout();
        let locks = Arc::new(Locks {
            settings,
            sessions,
            places: Places::default(),
            overdue: Overdue::default(),
            emptied: Emptied::default(),
        });
        locks.find_root().await?;
        let (in_use, end) = oneshot::channel();
        tokio::spawn(ending::end_what_is_overdue(Arc::clone(&locks), end));
        Ok(Self {
            locks,
            warnings: other_timeout(asked, got).into_iter().collect(),
            _in_use: in_use,
        })
    }

    /// Ends the session as if the servers had given it up.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub async fn end_session(&self) {
        let session = self.locks.sessions.present();
        let same = zookeeper_client::Client::connector()
            .with_session_timeout(self.locks.settings.session_timeout)
            .with_session(session.client.session().clone());
        // Whoever has joined a session and leaves ends it for all.
        drop(session::reach(&self.locks.settings, same).await);
    }
}

fn other_timeout(asked: Duration, got: Duration) -> Option<String> {
    let (says, said) = (
        humantime::format_duration(got),
        humantime::format_duration(asked),
    );
    (asked != got).then(|| {
        format!("the servers grant a session of {says}, not {said}: a dead holder's lock is free after that")
    })
}

impl Locks {
    /// In the present session, or in a new one if that has ended.
    async fn nodes(&self) -> Result<Nodes<'_>> {
        Ok(Nodes {
            session: self.sessions.living().await?,
            settings: &self.settings,
        })
    }

    async fn find_root(&self) -> Result<()> {
        let nodes = self.nodes().await?;
        let root = self.settings.root.node();
        let sent = nodes.session.sending();
        let stat = nodes.session.client.check_stat(root);
        let there = nodes.session.read(sent, stat).await?.is_some();
        if there || self.settings.makes_root {
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
    fn scheme(&self) -> &'static str {
        "zookeeper"
    }

    fn location(&self) -> String {
        self.locks.settings.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::StoreRevision,
            expiry: Expiry::Session,
            reach: Reach::Network,
            safety: Safety::Correctness,
            store: true,
            survives: &[
                Survives::ClientKilled,
                Survives::EngineRestart,
                Survives::PowerLoss,
                Survives::NodeLoss,
                Survives::ClockStep,
            ],
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let nodes = self.locks.nodes().await?;
        match self.locks.attempt(&nodes, claim).await {
            Err(error) if failure::ended_the_session(&error) => {
                let nodes = self.locks.nodes().await?;
                self.locks.attempt(&nodes, claim).await
            }
            answer => answer,
        }
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        self.locks.wait(claim).await
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.locks.renew(held).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.locks.release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let nodes = self.locks.nodes().await?;
        shown::inspect(&nodes, query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let nodes = self.locks.nodes().await?;
        self.locks.break_lock(&nodes, name).await
    }

    async fn disturbed(&self, seen: u64) -> u64 {
        self.locks.sessions.ended(seen).await
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let records = Records::of(Arc::clone(&self.locks));
        Some(Arc::new(ByVersion(records)))
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.locks.sessions.commands_sent())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(&self.locks.settings)))
    }
}
