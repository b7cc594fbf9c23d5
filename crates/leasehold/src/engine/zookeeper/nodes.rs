//! The single steps on a lock's nodes, each one request or a few at once.

use std::sync::Arc;

use futures_util::future::{OptionFuture, join_all};
use zookeeper_client::{Acls, CreateMode};

use super::failure;
use super::layout::Line;
use super::places::{Place, Stands};
use super::proof::Sent;
use super::session::Session;
use super::settings::Settings;
use crate::claim::Claim;
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
    pub(crate) settings: &'a Settings,
}

impl Nodes<'_> {
    /// Who logs in keeps others out.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.settings.login {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }

    pub(crate) fn lock(&self, name: &LockName) -> String {
        self.settings.root.lock(name)
    }

    /// Who stands in line, by what this session's server knows; nobody where there is no such node.
    pub(crate) async fn look(&self, lock: &str) -> Result<(Sent, Line)> {
        let sent = self.session.sending();
        let list = self.session.client.list_children(lock);
        let children = failure::unless_missing(self.session.read(sent, list).await)?;
        Ok((sent, Line::of(&children.unwrap_or_default())))
    }

    /// The same, by what any server knew when this was asked: a server may lag behind what others have been told already.
    pub(crate) async fn look_afresh(&self, lock: &str) -> Result<(Sent, Line)> {
        let (synced, looked) = tokio::join!(self.catch_up(), self.look(lock));
        synced?;
        looked
    }

    /// This session's server learns all that was done before; requests made later are answered later.
    pub(crate) fn catch_up(&self) -> impl Future<Output = Result<()>> + '_ {
        let sent = self.session.sending();
        let sync = self.session.client.sync(self.settings.root.node());
        self.session.sync(sent, sync)
    }

    /// Takes a place in line, and looks if asked to: both requests travel together. `None` if the lock has no node yet.
    pub(crate) async fn join(
        &self,
        lock: &str,
        claim: &Claim,
        looks: bool,
        note: impl FnOnce(Place),
    ) -> Result<Option<(Place, Sent, Option<Line>)>> {
        let meta = Meta::of(claim).with_ttl(claim.ttl);
        let prefix = format!("{lock}/{}", self.settings.layout.name(claim));
        let options = CreateMode::EphemeralSequential.with_acls(self.acls());
        let client = &self.session.client;
        let sent = self.session.sending();
        let create = client.create(&prefix, meta.to_json().as_bytes(), &options);
        let create = self.session.write(sent, create);
        let look = looks.then(|| {
            let looking = self.session.sending();
            self.session.read(looking, client.list_children(lock))
        });
        let made = async {
            let Some((stat, sequence)) = failure::unless_missing(create.await)? else {
                return Ok(None);
            };
            let path = format!("{prefix}{sequence}");
            let Some(token) = token(stat.czxid) else {
                self.delete(&path).await?;
                return Err(too_high(stat.czxid));
            };
            let place = Place {
                session: self.session.number,
                path,
                sequence: sequence.into_i64(),
                token,
                standing: Stands::Woken,
                has_waited: false,
            };
            note(place.clone());
            Ok(Some(place))
        };
        let (place, children) = tokio::join!(made, OptionFuture::from(look));
        let Some(place) = place? else {
            return Ok(None);
        };
        let line = children.transpose()?.map(|children| Line::of(&children));
        Ok(Some((place, sent, line)))
    }

    /// Makes a lock's node. The server removes it by itself when it has been empty for a while.
    pub(crate) async fn make_lock(&self, lock: &str) -> Result<()> {
        match self.make(lock, CreateMode::Container).await {
            Err(error) if failure::is_missing(&error) && self.settings.makes_root => {
                let root = self.settings.root.node();
                self.make(root, CreateMode::Persistent).await?;
                self.make(lock, CreateMode::Container).await
            }
            made => made,
        }
    }

    async fn make(&self, path: &str, mode: CreateMode) -> Result<()> {
        let options = mode.with_acls(self.acls());
        let sent = self.session.sending();
        let create = self.session.client.create(path, b"", &options);
        match self.session.write(sent, create).await {
            Err(error) if failure::is_there(&error) => Ok(()),
            made => made.map(|_| ()),
        }
    }

    /// Makes the node of all guarded records.
    pub(crate) async fn make_records(&self) -> Result<()> {
        let records = self.settings.root.records();
        match self.make(&records, CreateMode::Persistent).await {
            Err(error) if failure::is_missing(&error) && self.settings.makes_root => {
                let root = self.settings.root.node();
                self.make(root, CreateMode::Persistent).await?;
                self.make(&records, CreateMode::Persistent).await
            }
            made => made,
        }
    }

    /// Returns whether it was there.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool> {
        let sent = self.session.sending();
        let delete = self.session.client.delete(path, None);
        let deleted = failure::unless_missing(self.session.write(sent, delete).await)?;
        Ok(deleted.is_some())
    }

    /// The same, for whoever held the lock alone: whoever watches the node hears that it was written, and not only that it has
    /// gone. It is in both cases told of one event.
    pub(crate) async fn hand_over(&self, path: &str) -> Result<bool> {
        let sent = self.session.sending();
        let mut request = self.session.client.new_multi_writer();
        let written = request.add_set_data(path, b"", None);
        written.map_err(failure::of_request)?;
        let deleted = request.add_delete(path, None);
        deleted.map_err(failure::of_request)?;
        let done = self.session.write(sent, request.commit()).await;
        Ok(failure::unless_missing(done)?.is_some())
    }

    /// Whether this session has made the node, and by which token; `None` if it is gone.
    pub(crate) async fn made_here(&self, path: &str) -> Result<Option<(bool, FencingToken)>> {
        let sent = self.session.sending();
        let stat = self.session.client.check_stat(path);
        let Some(stat) = self.session.read(sent, stat).await? else {
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
                // At least one is gone; which ones, each by itself tells.
                Ok(false) => {
                    let alone = part.iter().map(std::slice::from_ref);
                    join_all(alone.map(|path| self.check_at_once(path))).await
                }
                Err(error) => same_for_all(error, part.len()),
            }
        });
        join_all(parts).await.into_iter().flatten().collect()
    }

    async fn check_at_once(&self, paths: &[&str]) -> Result<bool> {
        let sent = self.session.sending();
        let mut request = self.session.client.new_multi_writer();
        for path in paths {
            let any_version = -1;
            let added = request.add_check_version(path, any_version);
            added.map_err(failure::of_request)?;
        }
        let done = self.session.write(sent, request.commit()).await;
        Ok(failure::unless_missing(done)?.is_some())
    }
}

/// The answer to each of several, where one went wrong for all.
fn same_for_all<T>(error: Error, count: usize) -> Vec<Result<T>> {
    let copy = || {
        let copy = Error::new(error.kind(), error.what());
        let copy = match error.advice() {
            Some(advice) => copy.advise(advice),
            None => copy,
        };
        copy.of_unknown_effect()
    };
    let mut answers: Vec<_> = (1..count).map(|_| Err(copy())).collect();
    answers.push(Err(error));
    answers
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
