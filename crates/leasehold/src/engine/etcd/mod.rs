//! `etcd://`, `etcds://`: an etcd cluster.
//!
//! | file | what is there |
//! |---|---|
//! | `proto.rs`, `rpc.rs` | etcd's messages and calls |
//! | `cluster.rs` | the members: who is asked, and who next |
//! | `keys.rs`, `entry.rs` | which key a claim has, and what is written in it |
//! | `line.rs` | what is asked of the claims on a lock, which stand in one line |
//! | `leases.rs` | etcd's leases, shared by many claims |
//! | `places.rs` | what is known of this client's claims |
//! | `attempt.rs`, `waiting.rs`, `taking.rs`, `renewal.rs`, `ending.rs` | how a claim joins the line, waits, takes the lock, is kept and ends |
//! | `watching.rs` | one stream for all that is watched |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `failure.rs` | URLs and errors |

mod attempt;
mod cluster;
mod ending;
mod entry;
mod failure;
mod keys;
mod leases;
mod line;
mod places;
mod proto;
#[cfg(feature = "bench")]
mod raw;
mod records;
mod renewal;
mod rpc;
mod settings;
mod shown;
mod taking;
mod to_the_end;
mod waiting;
mod watching;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use self::cluster::{Cluster, Refused};
use self::keys::Keys;
use self::leases::Leases;
use self::places::Places;
use self::records::Records;
use self::settings::Settings;
use self::to_the_end::to_the_end;
use self::watching::Watching;
use crate::claim::Claim;
use crate::engine::overdue::Overdue;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, LockInfo, Query, Reach,
    Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::guard::by_version::ByVersion;
use crate::name::LockName;
use crate::url::EngineUrl;

/// How `etcd:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["etcd", "etcds"],
    options: settings::OPTIONS,
    example: "etcd://127.0.0.1:2379",
    connect: |url| {
        Box::pin(async move {
            let location = url.to_string();
            match Etcd::connect(&url).await {
                Ok(etcd) => Ok(Arc::new(etcd) as Arc<dyn Engine>),
                Err(error) => Err(error.during("connect", location)),
            }
        })
    },
};

/// Locks on an etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    client: Arc<Client>,
    warnings: Vec<String>,
    /// What goes on in the background, and ends with this.
    tasks: Vec<AbortHandle>,
}

/// What requests and background tasks share.
#[derive(Debug)]
struct Client {
    settings: Settings,
    cluster: Arc<Cluster>,
    keys: Keys,
    leases: Leases,
    places: Places,
    /// Claims of this client that nobody renews: their lease may live on for others.
    overdue: Overdue,
    watching: Watching,
    /// Someone has begun to wait.
    waits: Notify,
    /// Counts how often all who wait had to look again.
    look_again: watch::Sender<u64>,
    /// Counts what may have ended locks all at once.
    disturbances: watch::Sender<u64>,
}

impl Etcd {
    /// Connects, and sees whether the cluster can be used.
    pub async fn connect(url: &EngineUrl) -> Result<Self> {
        let settings = Settings::from_url(url)?;
        let cluster = Arc::new(Cluster::new(&settings));
        let mut warnings = Vec::new();
        match cluster.log_in().await {
            Err(Refused::Answer(said)) if said.message().contains("not enabled") => warnings.push(
                "the cluster does not ask for passwords: the user in the URL means nothing (etcdctl auth enable)".to_owned(),
            ),
            answer => answer?,
        }
        check_version(&cluster.status().await?.message.version)?;
        let (watching, watch) = Watching::on(Arc::clone(&cluster));
        let keys = Keys::under(settings.prefix.clone());
        let client = Arc::new(Client {
            leases: Leases::on(Arc::clone(&cluster), keys.session(0)),
            keys,
            places: Places::default(),
            overdue: Overdue::default(),
            watching,
            waits: Notify::new(),
            look_again: watch::Sender::new(0),
            disturbances: watch::Sender::new(0),
            settings,
            cluster,
        });
        let tasks = vec![
            tokio::spawn(watch).abort_handle(),
            tokio::spawn(waiting::keep_places(Arc::clone(&client))).abort_handle(),
            tokio::spawn(ending::end_overdue(Arc::clone(&client))).abort_handle(),
        ];
        Ok(Self {
            client,
            warnings,
            tasks,
        })
    }
}

fn check_version(version: &str) -> Result<()> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (3, 4) => Ok(()),
        _ => Err(Error::new(
            ErrorKind::EngineUnfit,
            format!("the server is etcd {version}"),
        )
        .advise("use 3.4 or newer")),
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

#[async_trait]
impl Engine for Etcd {
    fn scheme(&self) -> &'static str {
        "etcd"
    }

    fn location(&self) -> String {
        self.client.settings.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            shared: true,
            permits: true,
            fairness: Fairness::Fifo,
            tokens: TokenSource::StoreRevision,
            expiry: Expiry::Ttl,
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

    /// It is carried out to its end, whoever drops this. So a release that comes after it knows what it has to take back.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let (client, claim) = (Arc::clone(&self.client), claim.clone());
        to_the_end(async move { client.attempt(&claim).await }).await
    }

    async fn wait(&self, claim: &Claim, _seen: &Contention) -> Result<Wake> {
        self.client.wait(claim).await
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.client.renew(held).await
    }

    /// The same: who waits for it no longer would leave a place behind that lives as long as others of this client wait.
    async fn release(&self, claim: &Claim) -> Result<Released> {
        let (client, claim) = (Arc::clone(&self.client), claim.clone());
        to_the_end(async move { client.release(&claim).await }).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.client.inspect(query).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Released> {
        self.client.break_lock(name).await
    }

    async fn disturbed(&self, seen: u64) -> u64 {
        let mut disturbances = self.client.disturbances.subscribe();
        let changed = disturbances.wait_for(|count| *count != seen).await;
        changed.map_or(seen, |count| *count)
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let Client { cluster, keys, .. } = &*self.client;
        let records = Records::on(Arc::clone(cluster), keys.clone());
        Some(Arc::new(ByVersion(records)))
    }

    fn commands_sent(&self) -> Option<u64> {
        Some(self.client.cluster.commands_sent())
    }

    #[cfg(feature = "bench")]
    fn raw_limit(&self) -> Option<Arc<dyn crate::engine::raw::RawLimit>> {
        Some(Arc::new(raw::Raw::on(&self.client.settings)))
    }
}
