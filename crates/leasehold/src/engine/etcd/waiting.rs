//! How a claim waits for its turn, and how its place in the line is kept meanwhile.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;

use super::Client;
use super::leases::Purpose;
use super::line;
use super::places::{Place, Stands};
use super::proto::RangeRequest;
use super::taking::{GRACE, Taken};
use super::watching::{News, Watch};
use crate::claim::Claim;
use crate::clock::Clock;
use crate::engine::Wake;
use crate::error::Result;

/// After a stream has broken, or a keep-alive has failed.
const A_MOMENT: Duration = Duration::from_millis(50);

/// When to look for the first time whether someone holds up the line, and at last how often.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(10);

impl Client {
    /// Watches the claim before this one, or the few whose end may let it in.
    pub(super) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<Wake> {
        let mut disturbed = self.look_again.subscribe();
        let mut impatience = pin!(self.overtake(claim));
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
                let watch = watch.iter().cloned();
                watches = watch.map(|key| self.watching.watch(key)).collect();
                watched = watches_of(&place);
            }
            if watches.is_empty() {
                return Ok(Wake::Retry);
            }
            let first = select_all(watches.iter_mut().map(|watch| Box::pin(watch.news())));
            let news = tokio::select! {
                (news, _, _) = first => news,
                _ = disturbed.changed() => return Ok(Wake::Retry),
                taken = &mut impatience => return taken,
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
            let sent = Clock::machine().now();
            if !self.is_its_turn(&place, at_least).await? {
                continue;
            }
            if let Some(grant) = self.take_unwritten(&place, sent)? {
                return Ok(Wake::Granted(grant));
            }
            match self.take(place).await? {
                Taken::Granted(grant) => return Ok(Wake::Granted(grant)),
                Taken::Behind(place) => self.places.note(place),
                Taken::Gone => return Ok(Wake::Retry),
            }
        }
    }

    /// Looks how the claim stands. What one member has is enough: once nobody is ahead of a claim, nobody will be.
    async fn is_its_turn(&self, place: &Place, at_least: i64) -> Result<bool> {
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
            Some(Stands::Holds) => Ok(true),
            Some(behind) => {
                let id = &place.claim.id;
                self.places.change(id, |place| place.stands = behind);
                Ok(false)
            }
            None => {
                self.places.forget(&place.claim.id);
                Ok(false)
            }
        }
    }

    /// Looks now and then, ever less often, whether the lock is there for someone who does not take it; returns once it was
    /// taken instead. Only the first of this client's claims on a lock looks.
    async fn overtake(self: &Arc<Self>, claim: &Claim) -> Result<Wake> {
        let mut pause = FIRST_LOOK;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
            let Some(place) = self.places.of(&claim.id) else {
                return Ok(Wake::Retry);
            };
            if place.stands == Stands::Holds || !self.places.is_foremost(&place) {
                continue;
            }
            let Ok(Some(idle)) = self.idle_head(&place).await else {
                continue;
            };
            tokio::time::sleep(GRACE).await;
            let Some(place) = self.places.of(&claim.id) else {
                return Ok(Wake::Retry);
            };
            match self.pass_over(place, &idle).await {
                Ok(Some(Taken::Granted(grant))) => return Ok(Wake::Granted(grant)),
                Ok(Some(Taken::Gone)) => return Ok(Wake::Retry),
                Ok(Some(Taken::Behind(_)) | None) | Err(_) => pause = FIRST_LOOK,
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
            match entry? {
                Some(entry) if entry.lease == lease.id => {
                    let id = &place.claim.id;
                    self.places.moved(id, entry.mod_revision, &lease);
                }
                Some(_) => {}
                None => {
                    self.places.forget(&place.claim.id);
                    lost = true;
                }
            }
        }
        if lost {
            self.look_again.send_modify(|count| *count += 1);
        }
        Ok(lease.ttl / 3)
    }
}

fn watches_of(place: &Place) -> Vec<Vec<u8>> {
    match &place.stands {
        Stands::Behind { watch, .. } => watch.clone(),
        Stands::Holds => Vec::new(),
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
