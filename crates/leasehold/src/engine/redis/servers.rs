//! Who is asked for a lock: one server, or the node of a cluster that has the lock's slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::FromRedisValue;

use super::client::Client;
use super::cluster::nodes::Nodes;
use super::cluster::route;
use super::connection::Connection;
use super::keys::slot;
use super::protocol::Call;
use crate::error::{Error, Result};

#[derive(Debug, Clone)]
pub(crate) enum Servers {
    One(Arc<Client>),
    Cluster(Arc<Nodes>),
}

/// The way to the server that has a key, for one request.
pub(crate) enum Route<'a> {
    One(&'a Client),
    Cluster(route::Route<'a>),
}

impl Route<'_> {
    /// To the server that is next to be asked.
    pub(crate) async fn connection(&mut self) -> Result<Arc<Connection>> {
        match self {
            Route::One(client) => client.connection().await,
            Route::Cluster(route) => route.connection().await,
        }
    }

    /// Returns if a request that has failed so was not carried out, and is to be sent again: over the next `connection`.
    pub(crate) async fn follow(&mut self, error: Error) -> Result<()> {
        match self {
            Route::One(_) => Err(error),
            Route::Cluster(route) => route.follow(error).await,
        }
    }
}

impl Servers {
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        match self {
            Servers::One(client) => Route::One(client),
            Servers::Cluster(nodes) => Route::Cluster(nodes.route(slot(key))),
        }
    }

    /// Calls a script on this key and others of its slot.
    pub(crate) async fn call<T: FromRedisValue>(&self, key: &str, call: &Call) -> Result<T> {
        let mut route = self.route(key);
        loop {
            let connection = route.connection().await?;
            match connection.call(call).await {
                Err(error) => route.follow(error).await?,
                answer => return answer,
            }
        }
    }

    /// Sends a command on this key.
    pub(crate) async fn send<T: FromRedisValue>(
        &self,
        key: &str,
        command: &redis::Cmd,
    ) -> Result<T> {
        let mut route = self.route(key);
        loop {
            let connection = route.connection().await?;
            match connection.send(command).await {
                Err(error) => route.follow(error).await?,
                answer => return answer,
            }
        }
    }

    /// The numbers of these keys, those together that one server has.
    pub(crate) fn groups(&self, keys: impl Iterator<Item = String>) -> Vec<Vec<usize>> {
        let nodes = match self {
            Servers::One(_) => return vec![(0..keys.count()).collect()],
            Servers::Cluster(nodes) => nodes,
        };
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (nth, key) in keys.enumerate() {
            let owner = nodes.owner(slot(&key));
            let owner = owner.map(|server| (server.host, server.port));
            groups.entry(owner).or_default().push(nth);
        }
        groups.into_values().collect()
    }

    /// Subscribes to a channel at every server: now, and over each connection to come.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<()> {
        match self {
            Servers::One(client) => client.subscribe(channel).await,
            Servers::Cluster(nodes) => nodes.subscribe().await,
        }
    }

    /// Called with every claim that queues.
    pub(crate) fn keep_watch(&self) {
        if let Servers::Cluster(nodes) = self {
            nodes.keep_watch();
        }
    }

    pub(crate) fn commands_sent(&self) -> u64 {
        match self {
            Servers::One(client) => client.commands_sent(),
            Servers::Cluster(nodes) => nodes.commands_sent(),
        }
    }
}
