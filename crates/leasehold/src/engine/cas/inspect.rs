//! What is shown of locks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::document::{Document, Holder};
use super::engine::{Shared, nonsense};
use super::rules::{Outcome, Request};
use super::sightings::Sightings;
use super::store::CasStore;
use crate::clock::Moment;
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::Result;
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

impl<S: CasStore> Shared<S> {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let found = match query {
            Query::Name(name) => match self.lock(name).serve(Request::Look).await? {
                Outcome::Looked(document) => vec![(name.clone(), *document)],
                other => return Err(nonsense(&other)),
            },
            Query::Prefix(prefix) => {
                let found = self.store.list(prefix).await?;
                let now = self.clock.now();
                for (_, document) in &found {
                    self.listed.note(document, None, now);
                }
                found
            }
        };
        let asked = found.into_iter().filter(|(name, _)| query.asks_for(name));
        let mut locks = BTreeMap::new();
        for (name, document) in asked {
            let info = self.describe(name.clone(), document);
            if !info.holders.is_empty() || !info.waiters.is_empty() {
                locks.insert(name, info);
            }
        }
        Ok(locks.into_values().collect())
    }

    fn describe(&self, name: LockName, document: Document) -> LockInfo {
        let (now, wall) = (self.clock.now(), wall_clock_micros());
        let ago = |then: u64| Duration::from_millis((wall / 1000).saturating_sub(then));
        let mut info = LockInfo::new(name);
        for holder in document.holders {
            let Some(time_left) = self.time_left(&holder, now, wall) else {
                continue;
            };
            let mode = holder.mode();
            let (claimant, reason) = holder.who.split();
            info.holders.push(HolderInfo {
                claimant,
                reason,
                mode,
                held_for: ago(holder.since),
                time_left,
                token: FencingToken::new(holder.token).unwrap_or(FencingToken::NONE),
            });
        }
        for waiter in document.queue {
            // As a waiter of this process has timed it, or a list before.
            let timed = [&*self.sightings, &self.listed];
            let has_left = |by: &&Sightings| by.left(&waiter.life, waiter.ttl, now, wall).is_none();
            if timed.iter().any(has_left) {
                continue;
            }
            let mode = waiter.mode();
            let (claimant, reason) = waiter.who.split();
            info.waiters.push(WaiterInfo {
                claimant,
                reason,
                mode,
                waited_for: ago(waiter.since),
            });
        }
        info
    }

    /// As this process has timed it, or less by the clock of whoever wrote it, if that is of any use.
    fn time_left(&self, holder: &Holder, now: Moment, wall: u64) -> Option<Duration> {
        let left = self.sightings.left_of(holder, now, wall)?;
        let left = left.min(self.listed.left_of(holder, now, wall)?);
        let end = holder.life.at.saturating_add(holder.ttl);
        match end.checked_sub(wall / 1000) {
            Some(by_wall_clock) => Some(left.min(Duration::from_millis(by_wall_clock))),
            None => Some(left),
        }
    }
}
