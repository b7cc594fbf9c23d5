//! The single steps on a lock's nodes, each one request or a few at once.

use std::sync::Arc;

use futures_util::future::join_all;
use zookeeper_client::{Acls, Client, CreateMode, Stat};

use super::claim::QueueEntry;
use super::client::Session;
use super::config::ZookeeperConfig;
use super::failure;
use super::layout::Queue;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::meta::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// How many nodes one request asks about: servers take requests of up to a megabyte.
const AT_A_TIME: usize = 200;

/// Works on nodes, in one session.
#[derive(Debug, Clone)]
pub(crate) struct Nodes<'a> {
    pub(crate) session: Arc<Session>,
    pub(crate) config: &'a ZookeeperConfig,
}

impl Nodes<'_> {
    /// Who logs in keeps others out.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.config.login {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }

    pub(crate) fn lock(&self, name: &LockName) -> String {
        self.config.root.lock(name)
    }

    /// Who is in the queue, by what this session's server knows; nobody where there is no such node.
    pub(crate) async fn look(&self, lock: &str) -> Result<(Moment, Queue)> {
        let sent = Clock::machine().now();
        Ok((sent, Queue::of(&self.children(lock).await?)))
    }

    /// The names of a node's children, by what this session's server knows; none where there is no such node.
    pub(crate) async fn children(&self, path: &str) -> Result<Vec<String>> {
        let list = self.session.read(|client| client.list_children(path));
        Ok(failure::unless_missing(list.await)?.unwrap_or_default())
    }

    pub(crate) async fn data(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        let data = self.session.read(|client| client.get_data(path));
        failure::unless_missing(data.await)
    }

    /// The same, by what any server knew when this was asked: a server may lag behind what others have been answered already.
    pub(crate) async fn look_afresh(&self, lock: &str) -> Result<(Moment, Queue)> {
        let (synced, looked) = tokio::join!(self.catch_up(), self.look(lock));
        synced?;
        looked
    }

    /// This session's server learns all that was done before; requests made later are answered later.
    pub(crate) fn catch_up(&self) -> impl Future<Output = Result<()>> + '_ {
        self.session.sync(self.config.root.node())
    }

    /// Joins the queue, and looks: both requests travel together. `None` if the lock has no node yet.
    pub(crate) async fn join(
        &self,
        lock: &str,
        claim: &Claim,
        note: impl FnOnce(QueueEntry),
    ) -> Result<Option<(QueueEntry, Moment, Queue)>> {
        let meta = Meta::of(claim).with_ttl(claim.ttl);
        let prefix = format!("{lock}/{}", self.config.layout.name(claim));
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        let meta = meta.to_json();
        let sent = Clock::machine().now();
        let create = |client| Client::create(client, &prefix, meta.as_bytes(), &options);
        let create = self.session.write(create);
        let look = self.session.read(|client| client.list_children(lock));
        let made = async {
            let Some((stat, sequence)) = failure::unless_missing(create.await)? else {
                return Ok(None);
            };
            let path = format!("{prefix}{sequence}");
            let Some(token) = token(stat.czxid) else {
                self.delete(&path).await?;
                return Err(too_high(stat.czxid));
            };
            let entry = QueueEntry {
                session: self.session.number,
                path,
                token,
            };
            note(entry.clone());
            Ok(Some(entry))
        };
        let (entry, children) = tokio::join!(made, look);
        let Some(entry) = entry? else {
            return Ok(None);
        };
        Ok(Some((entry, sent, Queue::of(&children?))))
    }

    /// Makes a lock's node. The server removes it by itself when it has been empty for a while.
    pub(crate) async fn make_lock(&self, lock: &str) -> Result<()> {
        self.make(lock, CreateMode::Container).await
    }

    /// Makes a node that is none of a lock's, such as that of all guarded records.
    pub(crate) async fn make_own(&self, path: &str) -> Result<()> {
        self.make(path, CreateMode::Persistent).await
    }

    /// And the root, if that is ours to make.
    async fn make(&self, path: &str, mode: CreateMode) -> Result<()> {
        match self.make_alone(path, mode).await {
            Err(error) if failure::is_missing(&error) && self.config.makes_root => {
                let root = self.config.root.node();
                self.make_alone(root, CreateMode::Persistent).await?;
                self.make_alone(path, mode).await
            }
            made => made,
        }
    }

    async fn make_alone(&self, path: &str, mode: CreateMode) -> Result<()> {
        let options = mode.with_acls(self.acls());
        let create = |client| Client::create(client, path, b"", &options);
        match self.session.write(create).await {
            Err(error) if failure::is_there(&error) => Ok(()),
            made => made.map(|_| ()),
        }
    }

    /// Returns whether it was there.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool> {
        let delete = self.session.write(|client| client.delete(path, None));
        Ok(failure::unless_missing(delete.await)?.is_some())
    }

    /// Whether this session has made the node, and by which token; `None` if it is gone.
    pub(crate) async fn made_here(&self, path: &str) -> Result<Option<(bool, FencingToken)>> {
        let stat = self.session.read(|client| client.check_stat(path));
        let Some(stat) = stat.await? else {
            return Ok(None);
        };
        let token = token(stat.czxid).ok_or_else(|| too_high(stat.czxid))?;
        let ours = stat.ephemeral_owner == self.session.client.session_id().0;
        Ok(Some((ours, token)))
    }

    /// Which of these nodes are there: a request that changes nothing, but which a quorum carries out like a write.
    pub(crate) async fn check(&self, paths: &[&str]) -> Vec<Result<bool>> {
        let parts = paths.chunks(AT_A_TIME).map(|part| async move {
            match self.check_at_once(part).await {
                Ok(true) => part.iter().map(|_| Ok(true)).collect(),
                // At least one is gone; which ones, each delete shows by itself.
                Ok(false) => {
                    let alone = part.iter().map(std::slice::from_ref);
                    join_all(alone.map(|path| self.check_at_once(path))).await
                }
                Err(error) => vec![Err(error.of_unknown_effect()); part.len()],
            }
        });
        join_all(parts).await.into_iter().flatten().collect()
    }

    async fn check_at_once(&self, paths: &[&str]) -> Result<bool> {
        let mut request = self.session.client.new_multi_writer();
        for path in paths {
            let any_version = -1;
            let added = request.add_check_version(path, any_version);
            added.map_err(failure::of_request)?;
        }
        let done = self.session.write(|_| request.commit()).await;
        Ok(failure::unless_missing(done)?.is_some())
    }
}

fn token(czxid: i64) -> Option<FencingToken> {
    FencingToken::new(u64::try_from(czxid).ok()?)
}

fn too_high(czxid: i64) -> Error {
    Error::new(
        ErrorKind::EngineUnfit,
        format!(
            "the server's transaction id {czxid:#x} is past 2^53, too high for a fencing token"
        ),
    )
    .advise("after more than two million elections, use a new cluster")
}
