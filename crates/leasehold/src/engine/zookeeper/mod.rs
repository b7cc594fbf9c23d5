//! `zookeeper://`, `zookeepers://`: ephemeral sequential nodes under the lock's node.
//!
//! | file | what is there |
//! |---|---|
//! | `path.rs` | which node a lock has |
//! | `layout.rs` | how a claim's node is named, and what others' names mean |
//! | `session.rs` | the session that all depends on |
//! | `proof.rs` | how long it is sure to live |
//! | `nodes.rs` | the single steps on nodes |
//! | `places.rs` | which nodes are ours |
//! | `records.rs` | guarded records |
//! | `shown.rs` | what people see |
//! | `settings.rs`, `tls.rs`, `failure.rs` | URLs and errors |

pub(crate) mod failure;
pub(crate) mod layout;
pub(crate) mod nodes;
pub(crate) mod path;
pub(crate) mod places;
pub(crate) mod proof;
#[cfg(feature = "bench")]
pub(crate) mod raw;
pub(crate) mod records;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod shown;
#[cfg(feature = "zookeeper-tls")]
pub(crate) mod tls;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, select_all, try_join_all};
use tokio::sync::oneshot;
use zookeeper_client::{Error as Said, EventType};

use self::nodes::Nodes;
use self::places::{Place, Places, Stands};
use self::records::Records;
use self::session::Sessions;
use self::settings::Settings;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::lineup::{Standing, holders, standing};
use crate::engine::overdue::Overdue;
use crate::engine::{
    Attempt, Capabilities, Contention, Driver, Engine, Expiry, Fairness, Grant, LockInfo,
    LossReason, Query, Reach, Released, Renew, Renewal, Safety, Survives, TokenSource, Wake,
};
use crate::error::{Error, ErrorKind, Result};
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

/// How often an attempt begins anew because a node has gone under it.
const TRIES: usize = 8;

/// How long to wait before a node whose time is over is deleted again, if that has failed.
const A_MOMENT: Duration = Duration::from_millis(100);

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
    overdue: Overdue,
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
        });
        locks.find_root().await?;
        let (in_use, end) = oneshot::channel();
        tokio::spawn(end_what_is_overdue(Arc::clone(&locks), end));
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

/// In a process that lives, a claim that is not renewed ends with its TTL.
async fn end_what_is_overdue(locks: Arc<Locks>, mut end: oneshot::Receiver<()>) {
    let clock = Clock::machine();
    let mut in_use = true;
    while in_use || !locks.overdue.claims().is_empty() {
        tokio::select! {
            claim = locks.overdue.next(&clock) => {
                let locks = Arc::clone(&locks);
                tokio::spawn(async move { locks.end(&claim).await });
            }
            _ = &mut end, if in_use => in_use = false,
        }
    }
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

    /// Its time is over, unless it was renewed in the meantime.
    async fn end(&self, claim: &Claim) {
        let place = {
            let mut places = self.places.lock();
            if self.overdue.knows(&claim.id) {
                return;
            }
            places.remove(&claim.id)
        };
        let first = self.sessions.present();
        let number = place.as_ref().map_or(first.number, |place| place.session);
        loop {
            let session = self.sessions.present();
            if session.number != number || session.has_ended() {
                return;
            }
            let settings = &self.settings;
            let nodes = Nodes { session, settings };
            let gone = match &place {
                Some(place) => nodes.delete(&place.path).await.map(drop),
                None => self.release(&nodes, claim).await.map(drop),
            };
            match gone {
                Err(error) if error.kind() == ErrorKind::Unreachable => {}
                _ => return,
            }
            tokio::time::sleep(A_MOMENT).await;
        }
    }

    async fn attempt(&self, nodes: &Nodes<'_>, claim: &Claim) -> Result<Attempt> {
        let lock = nodes.lock(&claim.name);
        let session = &nodes.session;
        let mut known = self.places.get(&claim.id);
        known = known.filter(|place| place.session == session.number);
        if known.is_none() && !claim.queues {
            // Whoever will not wait writes nothing for a refusal.
            let (_, line) = nodes.look_afresh(&lock).await?;
            let modes = line.modes();
            agree(claim, &modes)?;
            let is_new = line.of_claim(&claim.id).next().is_none();
            if is_new && standing(&modes, claim.mode) != Standing::Holds {
                return Ok(held(modes.len()));
            }
        }
        for _ in 0..TRIES {
            let (place, sent, line) = match known.take() {
                Some(place) => {
                    let (sent, line) = match place.standing {
                        Stands::Woken => nodes.look(&lock).await?,
                        _ => nodes.look_afresh(&lock).await?,
                    };
                    (place, sent, line)
                }
                None => {
                    let note = |place| drop(self.places.lock().insert(claim.id, place));
                    match nodes.join(&lock, claim, note).await? {
                        Some(joined) => joined,
                        None => {
                            nodes.make_lock(&lock).await?;
                            continue;
                        }
                    }
                }
            };
            let at = |path: &str| {
                let node = path.rsplit('/').next();
                line.0.iter().position(|entry| Some(&*entry.node) == node)
            };
            let Some(mine) = at(&place.path) else {
                // Deleted by hand, or by a release that has overtaken this.
                self.places.forget(&claim.id);
                continue;
            };
            let earlier = line.of_claim(&claim.id).next();
            let earlier = earlier.map(|(at, entry)| (at, format!("{lock}/{}", entry.node)));
            if let Some((at, path)) = earlier.filter(|(at, _)| *at < mine)
                && let Some((true, token)) = nodes.made_here(&path).await?
            {
                // A create whose reply was lost.
                nodes.delete(&place.path).await?;
                let place = Place {
                    path,
                    token,
                    ..place
                };
                return self
                    .stand(
                        nodes,
                        claim,
                        place,
                        sent.at,
                        &line.modes()[..at],
                        &lock,
                        &line,
                    )
                    .await;
            }
            let modes = line.modes();
            match self
                .stand(nodes, claim, place, sent.at, &modes[..mine], &lock, &line)
                .await
            {
                Err(error) if failure::is_missing(&error) => self.places.forget(&claim.id),
                answer => return answer,
            }
        }
        Err(Error::new(
            ErrorKind::Unexpected,
            "the lock's nodes go as soon as they are made",
        )
        .advise("see who deletes them")
        .of_unknown_effect())
    }

    /// What a place in line comes to.
    #[allow(clippy::too_many_arguments)]
    async fn stand(
        &self,
        nodes: &Nodes<'_>,
        claim: &Claim,
        mut place: Place,
        sent: Moment,
        ahead: &[crate::claim::Mode],
        lock: &str,
        line: &layout::Line,
    ) -> Result<Attempt> {
        if let Err(disagreement) = agree(claim, ahead) {
            self.give_up(nodes, claim, &place).await?;
            return Err(disagreement);
        }
        let watched = match standing(ahead, claim.mode) {
            Standing::Behind(watched) => watched,
            Standing::Holds => {
                self.prove(nodes, &place.path).await?;
                place.standing = Stands::Holds;
                return Ok(Attempt::Granted(self.granted(nodes, claim, place, sent)));
            }
        };
        if !claim.queues {
            self.give_up(nodes, claim, &place).await?;
            return Ok(held(ahead.len()));
        }
        let paths = watched
            .iter()
            .map(|at| format!("{lock}/{}", line.0[*at].node));
        place.standing = Stands::Waits {
            watched: paths.collect(),
            is_next: watched.len() == ahead.len(),
        };
        self.places.lock().insert(claim.id, place);
        Ok(held(ahead.len()))
    }

    fn granted(&self, nodes: &Nodes<'_>, claim: &Claim, place: Place, sent: Moment) -> Grant {
        let token = place.token;
        let mut places = self.places.lock();
        places.insert(claim.id, place);
        self.overdue.ends_at(claim, sent + claim.ttl.get());
        Grant {
            token,
            valid_until: nodes.session.valid_until().min(sent + claim.ttl.validity()),
        }
    }

    async fn give_up(&self, nodes: &Nodes<'_>, claim: &Claim, place: &Place) -> Result<bool> {
        let was_there = nodes.delete(&place.path).await?;
        self.places.forget(&claim.id);
        self.overdue.forget(&claim.id);
        Ok(was_there)
    }

    /// Sees that the session is sure to live for a while; it mostly is, by the writes of late.
    async fn prove(&self, nodes: &Nodes<'_>, path: &str) -> Result<()> {
        for _ in 0..TRIES {
            if nodes.session.is_proven() {
                return Ok(());
            }
            for there in nodes.check(&[path]).await {
                if !there? {
                    return Err(failure::of_request(Said::NoNode));
                }
            }
            if !nodes.session.is_proven() {
                tokio::time::sleep(nodes.session.a_quarter()).await;
            }
        }
        Err(failure::silent())
    }

    /// A claim that this process has not taken, or has forgotten.
    async fn find(&self, Renew { claim, .. }: &Renew<'_>) -> Result<Renewal> {
        let nodes = self.nodes().await?;
        let lock = nodes.lock(&claim.name);
        let (sent, line) = nodes.look_afresh(&lock).await?;
        let modes = line.modes();
        let found = line.of_claim(&claim.id).next();
        let Some((at, entry)) = found.filter(|(at, _)| *at < holders(&modes)) else {
            return Ok(Renewal::Lost(LossReason::Gone));
        };
        let path = format!("{lock}/{}", entry.node);
        match nodes.made_here(&path).await? {
            None => Ok(Renewal::Lost(LossReason::Gone)),
            Some((false, _)) => Err(Error::new(
                ErrorKind::Unsupported,
                "the lock belongs to another process's session, which alone keeps it",
            )
            .advise("let the process that has acquired it hold it, as `leasehold run` does")),
            Some((true, token)) => {
                debug_assert!(at < line.0.len());
                self.prove(&nodes, &path).await?;
                let place = Place {
                    session: nodes.session.number,
                    path,
                    token,
                    standing: Stands::Holds,
                };
                Ok(Renewal::Renewed(
                    self.granted(&nodes, claim, place, sent.at),
                ))
            }
        }
    }

    async fn renew_here(&self, held: &[(&Claim, Place)]) -> Vec<Result<Renewal>> {
        let session = self.sessions.present();
        let settings = &self.settings;
        let nodes = Nodes { session, settings };
        let paths: Vec<_> = held.iter().map(|(_, place)| &*place.path).collect();
        let sent = Clock::machine().now();
        let there = nodes.check(&paths).await;
        let answers = there.into_iter().zip(held).map(|(there, (claim, place))| {
            let there = match there {
                Err(error) if failure::ended_the_session(&error) => {
                    self.places.forget(&claim.id);
                    self.overdue.forget(&claim.id);
                    return Ok(Renewal::Lost(LossReason::SessionEnded));
                }
                there => there?,
            };
            let mut places = self.places.lock();
            let still = places
                .get(&claim.id)
                .is_some_and(|now| now.path == place.path);
            if !there || !still {
                places.remove(&claim.id);
                self.overdue.forget(&claim.id);
                return Ok(Renewal::Lost(LossReason::Gone));
            }
            self.overdue.ends_at(claim, sent + claim.ttl.get());
            Ok(Renewal::Renewed(Grant {
                token: place.token,
                valid_until: nodes.session.valid_until().min(sent + claim.ttl.validity()),
            }))
        });
        answers.collect()
    }

    async fn release(&self, nodes: &Nodes<'_>, claim: &Claim) -> Result<Released> {
        if let Some(place) = self.places.get(&claim.id) {
            let ours = place.session == nodes.session.number;
            let held = matches!(place.standing, Stands::Holds);
            if ours && self.give_up(nodes, claim, &place).await? && held {
                return Ok(Released::Yes);
            }
            self.places.forget(&claim.id);
            self.overdue.forget(&claim.id);
            if ours {
                return Ok(Released::WasNotHeld);
            }
        }
        // A create whose reply was lost, or another process's.
        let lock = nodes.lock(&claim.name);
        let (_, line) = nodes.look_afresh(&lock).await?;
        let holding = holders(&line.modes());
        let mut released = Released::WasNotHeld;
        for (at, entry) in line.of_claim(&claim.id) {
            let was_there = nodes.delete(&format!("{lock}/{}", entry.node)).await?;
            if was_there && at < holding {
                released = Released::Yes;
            }
        }
        Ok(released)
    }

    async fn break_lock(&self, nodes: &Nodes<'_>, name: &LockName) -> Result<Released> {
        let lock = nodes.lock(name);
        let (_, line) = nodes.look_afresh(&lock).await?;
        let holding = &line.0[..holders(&line.modes())];
        let paths: Vec<_> = holding
            .iter()
            .map(|e| format!("{lock}/{}", e.node))
            .collect();
        let deleted = try_join_all(paths.iter().map(|path| nodes.delete(path))).await?;
        match deleted.contains(&true) {
            true => Ok(Released::Yes),
            false => Ok(Released::WasNotHeld),
        }
    }
}

/// A claim on its way out. Its node lasts for as long as the session, so a release that fails, or is not waited for, is not
/// the end of it: it is tried until the node is gone.
struct Leaving<'a> {
    locks: &'a Locks,
    claim: Option<&'a Claim>,
}

impl Leaving<'_> {
    fn has_left(mut self) {
        self.claim = None;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim {
            self.locks.overdue.ends_at(claim, Clock::machine().now());
        }
    }
}

/// Only those ahead count: who comes later finds out itself.
fn agree(claim: &Claim, ahead: &[crate::claim::Mode]) -> Result<()> {
    ahead
        .iter()
        .try_for_each(|there| claim.mode.agrees_with(*there))
}

fn held(ahead: usize) -> Attempt {
    Attempt::Held(Contention {
        ahead: Some(ahead),
        ..Contention::default()
    })
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
        let session = self.locks.sessions.present();
        let place = self.locks.places.get(&claim.id);
        let Some(place) = place.filter(|place| place.session == session.number) else {
            return Ok(Wake::Retry);
        };
        let Stands::Waits { watched, is_next } = &place.standing else {
            return Ok(Wake::Retry);
        };
        loop {
            let watch = |path| session.client.get_and_watch_data(path);
            let watches = match try_join_all(watched.iter().map(|path| watch(path))).await {
                Ok(watches) => watches,
                Err(Said::NoNode) => break,
                Err(cause) => return Err(failure::of_request(cause)),
            };
            let changes = watches
                .into_iter()
                .map(|(_, _, watch)| Box::pin(watch.changed()));
            let (event, ..) = select_all(changes).await;
            match event.event_type {
                EventType::NodeDeleted => break,
                // Another program may write into its node: nothing has changed for us.
                EventType::NodeDataChanged => {}
                _ => return Ok(Wake::Retry),
            }
        }
        self.locks.places.wake(&claim.id);
        if !is_next || !session.is_proven() || session.has_ended() {
            return Ok(Wake::Retry);
        }
        let settings = &self.locks.settings;
        let nodes = Nodes { session, settings };
        let place = Place {
            standing: Stands::Holds,
            ..place.clone()
        };
        let now = Clock::machine().now();
        Ok(Wake::Granted(self.locks.granted(&nodes, claim, place, now)))
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let session = self.locks.sessions.present();
        let ended = session.has_ended();
        let mut answers: Vec<Option<Result<Renewal>>> = Vec::new();
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        for (nth, renew) in held.iter().enumerate() {
            answers.push(None);
            match self.locks.places.get(&renew.claim.id) {
                Some(place) if ended || place.session != session.number => {
                    self.locks.places.forget(&renew.claim.id);
                    self.locks.overdue.forget(&renew.claim.id);
                    answers[nth] = Some(Ok(Renewal::Lost(LossReason::SessionEnded)));
                }
                Some(place) if matches!(place.standing, Stands::Holds) => {
                    here.push((nth, (renew.claim, place)));
                }
                _ => elsewhere.push((nth, self.locks.find(renew))),
            }
        }
        let (here_at, here): (Vec<_>, Vec<_>) = here.into_iter().unzip();
        let (elsewhere_at, elsewhere): (Vec<_>, Vec<_>) = elsewhere.into_iter().unzip();
        let (here, elsewhere) = tokio::join!(self.locks.renew_here(&here), join_all(elsewhere));
        let found = here_at.into_iter().zip(here);
        for (nth, answer) in found.chain(elsewhere_at.into_iter().zip(elsewhere)) {
            answers[nth] = Some(answer);
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(failure::silent())))
            .collect()
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let leaving = Leaving {
            locks: &self.locks,
            claim: Some(claim),
        };
        let nodes = self.locks.nodes().await?;
        let released = match self.locks.release(&nodes, claim).await {
            Err(error) if failure::ended_the_session(&error) => {
                let nodes = self.locks.nodes().await?;
                self.locks.release(&nodes, claim).await
            }
            answer => answer,
        };
        released.inspect(|_| leaving.has_left())
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
