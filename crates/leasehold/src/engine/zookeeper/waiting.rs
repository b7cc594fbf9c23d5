//! How a claim waits: it watches the node before its own, or the few of which one must go first.
//!
//! That one of them has gone is not always enough: it may have given up, and others be ahead of it still, so the claim looks again. But whoever has held
//! the lock alone had nobody before it, and says so when it goes: it writes into its node in the same transaction. Who hears of that holds
//! the lock, without another look.

use futures_util::future::{select_all, try_join_all};
use zookeeper_client::{Error as Said, EventType};

use super::nodes::Nodes;
use super::places::Stands;
use super::{Locks, failure};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::Wake;
use crate::engine::meta::Meta;
use crate::error::Result;

impl Locks {
    pub(super) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let session = self.sessions.present();
        let place = self.places.get(&claim.id);
        let Some(mut place) = place.filter(|place| place.session == session.number) else {
            return Ok(Wake::Retry);
        };
        let Stands::Waits {
            watched,
            is_next,
            hears,
        } = &place.standing
        else {
            return Ok(Wake::Retry);
        };
        let mut its_turn = *is_next;
        loop {
            let watch = |path| {
                session.sending();
                session.client.get_and_watch_data(path)
            };
            let watches = match try_join_all(watched.iter().map(|path| watch(path))).await {
                Ok(watches) => watches,
                Err(Said::NoNode) => break,
                Err(cause) => return Err(failure::of_request(cause)),
            };
            // Other programs write into their nodes for reasons of their own.
            let is_ours = |(data, ..): &(Vec<u8>, _, _)| Meta::read(data).is_some();
            let says_so = *hears && watches.iter().all(is_ours);
            let changes = watches
                .into_iter()
                .map(|(_, _, watch)| Box::pin(watch.changed()));
            let (event, ..) = select_all(changes).await;
            match event.event_type {
                EventType::NodeDeleted => break,
                EventType::NodeDataChanged if says_so => {
                    its_turn = true;
                    break;
                }
                EventType::NodeDataChanged => {}
                _ => return Ok(Wake::Retry),
            }
        }
        self.places.wake(&claim.id);
        if !its_turn || !session.is_proven() || session.has_ended() {
            return Ok(Wake::Retry);
        }
        let settings = &self.settings;
        let nodes = Nodes { session, settings };
        place.standing = Stands::Holds;
        let now = Clock::machine().now();
        Ok(Wake::Granted(self.granted(&nodes, claim, place, now)))
    }
}
