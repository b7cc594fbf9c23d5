//! How much of a server one client can use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::problem::Problem;

/// How much of a server one client can use.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Requests of one access token that wait at the same time, or of all who have none.
    pub waiters: usize,
    /// Streams of one access token at the same time, or of all who have none.
    pub streams: usize,
    /// Connections in all.
    pub connections: usize,
    /// The longest wait of one request.
    pub longest_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiters: 20_000,
            streams: 10_000,
            connections: 20_000,
            longest_wait: Duration::from_secs(300),
        }
    }
}

type Who = (&'static str, Option<Arc<str>>);

/// What is in use just now.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<HashMap<Who, usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    who: Who,
}

impl Slots {
    pub(crate) fn take(
        slots: &Arc<Self>,
        what: &'static str,
        name: Option<Arc<str>>,
        limit: usize,
    ) -> Result<Slot, Problem> {
        let who = (what, name);
        let mut used = slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = used.entry(who.clone()).or_default();
        if *count >= limit {
            return Err(Problem::new(
                "too_many",
                format!("there are {limit} {what} of this client already"),
            )
            .advise("end some of them, or raise the limit of the server")
            .retry_after(Duration::from_secs(1)));
        }
        *count += 1;
        Ok(Slot {
            slots: Arc::clone(slots),
            who,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut used = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = used.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                used.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_limit() {
        let slots = Arc::default();
        let take = |name: &str| Slots::take(&slots, "waiters", Some(name.into()), 2);
        let (one, _two) = (take("a").unwrap(), take("a").unwrap());
        assert_eq!(take("a").unwrap_err().kind(), "too_many");
        assert!(take("b").is_ok());
        drop(one);
        assert!(take("a").is_ok());
    }
}
