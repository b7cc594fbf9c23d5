//! How a claim waits: it watches the node before its own, or the few of which one must go first.
//!
//! That one of them has gone is not enough to hold the lock. It may have given up, and others be ahead of it still; and the claim's own
//! node may have been deleted with it. So a claim that is woken looks at the queue again: its server answers by what it knew
//! when it reported the node, or by later.

use std::sync::Arc;

use futures_util::future::{select_all, try_join_all};
use tokio::task::JoinSet;
use zookeeper_client::{Error as Said, EventType};

use super::claim::OwnClaim;
use super::client::Session;
use super::{Locks, failure};
use crate::claim::Claim;
use crate::engine::Wake;
use crate::error::Result;

impl Locks {
    pub(super) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        // A session that is given up lasts, with all nodes in it, until nobody uses it any more.
        let mut endings = self.sessions.events();
        tokio::select! {
            woken = self.watch(claim) => woken,
            _ = endings.changed() => Ok(Wake::Retry),
        }
    }

    async fn watch(&self, claim: &Claim) -> Result<Wake> {
        let session = self.sessions.present();
        let Some(OwnClaim::Queued {
            entry,
            ahead: Some(watched),
        }) = self.claims.get(claim)
        else {
            return Ok(Wake::Retry);
        };
        if entry.session != session.number || session.has_ended() {
            return Ok(Wake::Retry);
        }
        let one_goes = until_one_goes(Arc::clone(&session), watched);
        let gone = match session.other_runtime() {
            None => one_goes.await,
            // With the runtime its client ends, and a watch of that must not be polled any more: the library would panic.
            Some(runtime) => {
                let mut there = JoinSet::new();
                there.spawn_on(one_goes, runtime);
                match there.join_next().await {
                    Some(Ok(gone)) => gone,
                    _ => return Ok(Wake::Retry),
                }
            }
        };
        if !gone.map_err(failure::of_request)? {
            return Ok(Wake::Retry);
        }
        self.claims.change(claim, &entry, |own| {
            if let OwnClaim::Queued { ahead, .. } = own {
                *ahead = None;
            }
        });
        Ok(Wake::Retry)
    }
}

/// Returns whether one of these nodes has gone; false if that is not known.
async fn until_one_goes(session: Arc<Session>, watched: Vec<String>) -> Result<bool, Said> {
    loop {
        let watches = watched.iter().map(|path| session.watch(path));
        let watches = match try_join_all(watches).await {
            Ok(watches) => watches,
            Err(Said::NoNode) => return Ok(true),
            Err(cause) => return Err(cause),
        };
        let changes = watches.into_iter().map(|watch| Box::pin(watch.changed()));
        let (event, ..) = select_all(changes).await;
        match event.event_type {
            EventType::NodeDeleted => return Ok(true),
            // Other programs write into their nodes for reasons of their own.
            EventType::NodeDataChanged => {}
            _ => return Ok(false),
        }
    }
}
