//! How a claim waits for its turn, and how its place in the line is kept meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;

use super::Client;
use super::leases::Purpose;
use super::line;
use super::places::{Place, Stands};
use super::proto::RangeRequest;
use super::watching::{News, Watch};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::Wake;
use crate::error::Result;
use crate::token::wall_clock_micros;

/// After a stream has broken, or a keep-alive has failed.
const A_MOMENT: Duration = Duration::from_millis(50);

impl Client {
    /// Watches the claim before this one, or the few whose end may let it in.
    pub(super) async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let mut disturbed = self.look_again.subscribe();
        let mut watches: Vec<Watch> = Vec::new();
        let mut watched: Vec<Vec<u8>> = Vec::new();
        loop {
            let Some(place) = self.places.of(&claim.id) else {
                return Ok(Wake::Retry);
            };
            let Stands::Behind { watch, revision } = &place.stands else {
                return Ok(Wake::Retry);
            };
            if *watch != watched {
                watches = watch
                    .iter()
                    .cloned()
                    .map(|k| self.watching.watch(k))
                    .collect();
                watched = watch.clone();
            }
            if watches.is_empty() {
                return Ok(Wake::Retry);
            }
            let first = select_all(watches.iter_mut().map(|watch| Box::pin(watch.news())));
            let news = tokio::select! {
                (news, _, _) = first => news,
                _ = disturbed.changed() => return Ok(Wake::Retry),
            };
            let at_least = match news {
                // Nothing has happened since we looked.
                News::Stands { revision: now } if now <= *revision => continue,
                News::Stands { revision: now } => now,
                News::Gone => *revision,
                News::Blind => {
                    tokio::time::sleep(A_MOMENT).await;
                    return Ok(Wake::Retry);
                }
            };
            match self.whose_turn(place, at_least).await? {
                Some(wake) => return Ok(wake),
                None => continue,
            }
        }
    }

    /// Looks whether it is our turn. What one member has is enough: once nobody is ahead of a claim, nobody will be.
    async fn whose_turn(&self, mut place: Place, at_least: i64) -> Result<Option<Wake>> {
        let sent = Clock::machine().now();
        let (mode, created) = (place.claim.mode, place.created);
        let span = self.keys.line(&place.claim.name);
        let look = line::up_to(&span, mode, created);
        let here = RangeRequest {
            serializable: true,
            ..look.clone()
        };
        let mut seen = self.cluster.range(here).await?.message;
        if line::revision(&seen.header) < at_least.max(created) {
            seen = self.cluster.range(look).await?.message;
        }
        let key = self.keys.claim(&place.claim);
        match line::stands(mode, &key, created, &seen) {
            None => {
                self.places.forget(&place.claim.id);
                Ok(Some(Wake::Retry))
            }
            Some(Stands::Holds) => {
                let left = place.lease.promised_until().since(sent);
                if left < place.lease.ttl / 4 {
                    return Ok(Some(Wake::Retry));
                }
                place.stands = Stands::Holds;
                place.since = wall_clock_micros();
                let grant = self.grant_until(&place, sent)?;
                self.granted(place, sent)?;
                Ok(Some(Wake::Granted(grant)))
            }
            Some(behind) => {
                self.places
                    .change(&place.claim.id, |place| place.stands = behind);
                Ok(None)
            }
        }
    }

    /// Keeps the lease of all who wait alive, and moves those to it who are under one that has been given up.
    async fn keep_waiting(&self) -> Result<Duration> {
        let lease = self.leases.renewed(Purpose::Wait).await?;
        let strays: Vec<_> = self.places.waiting();
        let strays: Vec<_> = strays
            .into_iter()
            .filter(|place| place.lease.id != lease.id)
            .map(|place| (place, Arc::clone(&lease)))
            .collect();
        let mut lost = false;
        for (place, entry) in self.settle_on(&strays).await {
            if entry?.is_none() {
                self.places.forget(&place.claim.id);
                lost = true;
            }
        }
        if lost {
            self.look_again.send_modify(|count| *count += 1);
        }
        Ok(lease.ttl / 3)
    }
}

/// While anyone waits. Ends with the client.
pub(super) async fn keep_places(client: Arc<Client>) {
    loop {
        if !client.places.anyone_waits() {
            client.waits.notified().await;
            continue;
        }
        let now = Clock::machine().now();
        let pause = match client.leases.current(Purpose::Wait) {
            Some(lease) if now < lease.due() && !client.places.anyone_waits_outside(lease.id) => {
                lease.due().since(now)
            }
            _ => client.keep_waiting().await.unwrap_or(A_MOMENT),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = client.waits.notified() => {}
        }
    }
}
