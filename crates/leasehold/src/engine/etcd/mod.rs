//! `etcd://`, `etcds://`: an etcd cluster.
//!
//! | file | what is there |
//! |---|---|
//! | `config.rs`, `failure.rs` | URLs and errors |
//! | `proto.rs`, `rpc.rs` | etcd's messages and calls |
//! | `client.rs` | the members of the cluster: who is asked, and who next |
//! | `keys.rs`, `value.rs` | which key a claim has, and what is written in it |
//! | `protocol.rs` | the requests on the queue of a lock's claims, and how answers are read |
//! | `leases.rs`, `session.rs` | etcd's leases, shared by many claims, and how their ends are noticed |
//! | `claim.rs` | the states of a claim |
//! | `attempt.rs`, `waiting.rs`, `taking.rs`, `renewal.rs`, `ending.rs` | how a claim joins the queue, waits, takes the lock, is kept and ends |
//! | `listener.rs` | one stream for all that is watched |
//! | `inspect.rs`, `records.rs` | what is shown, and guarded records |

mod attempt;
#[cfg(feature = "bench")]
mod baseline;
mod claim;
mod client;
mod config;
mod doctor;
mod ending;
mod failure;
mod inspect;
mod keys;
mod leases;
mod listener;
mod member;
mod proto;
mod protocol;
mod records;
mod renewal;
mod rpc;
mod session;
mod taking;
mod value;
mod waiting;

pub use self::config::EtcdConfig;
// In the version whose types `EtcdConfig` takes.
pub use tonic;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};

use self::claim::Claims;
use self::client::Client;
use self::keys::Keys;
use self::leases::Leases;
use self::listener::Listener;
use self::member::Reach;
use self::records::{Lifetimes, Records};
use crate::claim::{Claim, Ttl};
use crate::engine::background::Background;
use crate::engine::doctor::Finding;
use crate::engine::{
    About, Attempt, Driver, Engine, LockInfo, Query, Released, Renew, Renewal, Wake, queue_rules,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::guard::by_version::ByVersion;
use crate::name::LockName;

/// How `etcd:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["etcd", "etcds"],
    options: config::OPTIONS,
    example: "etcd://127.0.0.1:2379",
    connect: |url| Box::pin(async move { EtcdConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| Ok(Arc::new(baseline::EtcdBaseline(EtcdConfig::from_url(url)?)))),
};

/// Locks on an etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    shared: Arc<Shared>,
    found: Vec<Finding>,
}

/// What requests and background tasks share.
#[derive(Debug)]
struct Shared {
    config: EtcdConfig,
    client: Arc<Client>,
    keys: Keys,
    leases: Leases,
    lifetimes: Arc<Lifetimes>,
    claims: Claims,
    listener: Listener,
    /// Someone has begun to wait.
    waits: Notify,
    /// Counts how often all who wait had to look again.
    look_again: watch::Sender<u64>,
    /// Counts what may have ended locks all at once.
    session_events: watch::Sender<u64>,
    /// Keep the entries of those who wait, and end claims that have expired. Both end with the engine.
    keeps_waiting: Background,
    ends_expired: Background,
}

impl Etcd {
    /// Connects, and sees whether the cluster can be used.
    async fn connect(config: EtcdConfig, members: Vec<Reach>) -> Result<Self> {
        let client = Arc::new(Client::new(&config, members));
        let mut found = Vec::new();
        if !client.log_in().await.map_err(failure::of_greeting)? {
            found.push(
                Finding::warning("authentication", "off")
                    .means(
                        "the cluster does not ask for passwords: the user in the URL means nothing",
                    )
                    .fix("etcdctl auth enable"),
            );
        }
        let status = client.status().await.map_err(failure::of_greeting)?;
        let version = &status.message.version;
        let version = Version::read(version).ok_or_else(|| too_old(version))?;
        if version.has_leases_revoked_by_old_leaders() && client.has_many_members() {
            found.push(
                Finding::efficiency("old_leader", format!("etcd {}", status.message.version))
                    .means("a leader that stood still and was replaced may revoke leases that are kept alive, and so free locks that are held: etcd-io/etcd#15247")
                    .fix("use etcd 3.4.31, 3.5.13 or newer"),
            );
        }
        let keys = Keys::under(config.prefix.clone());
        let shared = Arc::new(Shared {
            leases: Leases::on(Arc::clone(&client), keys.session(0)),
            keys,
            lifetimes: Arc::default(),
            claims: Claims::default(),
            listener: Listener::on(Arc::clone(&client)),
            waits: Notify::new(),
            look_again: watch::Sender::new(0),
            session_events: watch::Sender::new(0),
            keeps_waiting: Background::default(),
            ends_expired: Background::default(),
            config,
            client,
        });
        Ok(Self { shared, found })
    }

    /// What requests need to go on in the background: on this runtime, if the one has ended on which it did.
    fn running(&self) -> &Arc<Shared> {
        let shared = &self.shared;
        let look_again = || {
            let shared = Arc::downgrade(shared);
            move || {
                let shared = shared.upgrade().into_iter();
                shared.for_each(|shared| shared.look_again.send_modify(|count| *count += 1));
            }
        };
        let keep_waiting = || waiting::keep_waiting(Arc::clone(shared));
        shared.keeps_waiting.ensure(keep_waiting, look_again());
        let end_expired = || ending::end_expired(Arc::clone(shared));
        shared.ends_expired.ensure(end_expired, look_again());
        shared
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// `None` if it is none that can be used.
    fn read(text: &str) -> Option<Self> {
        let text = text.split(['-', '+']).next()?;
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version = Self(
            numbers.next()??,
            numbers.next()??,
            numbers.next().flatten()?,
        );
        (version >= Self(3, 4, 0)).then_some(version)
    }

    fn has_leases_revoked_by_old_leaders(self) -> bool {
        match self {
            Self(3, 4, patch) => patch < 31,
            Self(3, 5, patch) => patch < 13,
            _ => false,
        }
    }
}

fn too_old(version: &str) -> Error {
    let what = format!("the server is etcd {version}");
    Error::new(ErrorKind::EngineUnfit, what).advise("use 3.4 or newer")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let Shared {
            listener,
            keeps_waiting,
            ends_expired,
            ..
        } = &*self.shared;
        listener.end();
        keeps_waiting.end();
        ends_expired.end();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let shared = Arc::clone(&self.shared);
            runtime.spawn(async move { shared.leases.revoke_unused().await });
        }
    }
}

#[async_trait]
impl Engine for Etcd {
    fn about(&self) -> About {
        let location = self.shared.config.location();
        About::new("etcd", location, queue_rules::CAPABILITIES)
            .findings(self.found.iter().cloned())
            .session_events(self.shared.session_events.subscribe())
            .requests(self.shared.client.commands_sent())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.running().attempt(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.running().wait(claim).await
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        self.running().renew(held).await
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.running().release(claim).await
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.shared.inspect(query).await
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.shared.force_release(name).await
    }

    async fn findings(&self, _ttl: Ttl) -> Vec<Finding> {
        doctor::findings(self).await
    }

    async fn close(&self) {
        self.shared.leases.revoke_unused().await;
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let Shared {
            client,
            keys,
            lifetimes,
            ..
        } = &*self.shared;
        let records = Records::on(Arc::clone(client), keys.clone(), Arc::clone(lifetimes));
        Some(Arc::new(ByVersion(records)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_their_known_faults() {
        for old in ["3.4.23", "3.4.30", "3.5.0", "3.5.12"] {
            let version = Version::read(old).unwrap();
            assert!(version.has_leases_revoked_by_old_leaders(), "{old}");
        }
        for fine in ["3.4.31", "3.5.13", "3.6.0-rc.1", "4.0.0"] {
            let version = Version::read(fine).unwrap();
            assert!(!version.has_leases_revoked_by_old_leaders(), "{fine}");
        }
        for unfit in ["3.3.27", "2.3.8", "", "new"] {
            assert_eq!(Version::read(unfit), None, "{unfit}");
        }
    }
}
