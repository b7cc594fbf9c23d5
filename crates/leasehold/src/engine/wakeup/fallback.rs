//! Whether the server's messages reach this process. Where they do not, because a pooler drops them or because another user may not send
//! them, the listener polls instead.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::engine::doctor::Finding;

/// After so many missed messages in a row the listener polls: one may have been lost by accident.
const MISSED: u8 = 2;

#[derive(Debug)]
pub(crate) struct Fallback {
    polls: AtomicBool,
    missed: AtomicU8,
    is_excused: AtomicBool,
    /// The warning to users once it polls.
    warning: &'static str,
}

impl Fallback {
    pub(crate) fn new(polls: bool, warning: &'static str) -> Self {
        Self {
            polls: AtomicBool::new(polls),
            missed: AtomicU8::new(0),
            is_excused: AtomicBool::new(false),
            warning,
        }
    }

    pub(crate) fn polls(&self) -> bool {
        self.polls.load(Ordering::Relaxed)
    }

    pub(crate) fn finding(&self) -> Option<Finding> {
        self.polls()
            .then(|| Finding::warning("messages", self.warning))
    }

    /// It is known that no message can come.
    pub(crate) fn poll(&self) {
        self.polls.store(true, Ordering::Relaxed);
    }

    /// A message came in time.
    pub(crate) fn message_came(&self) {
        self.missed.store(0, Ordering::Relaxed);
    }

    /// An offer was found whose message should have come.
    pub(crate) fn message_missed(&self) {
        if self.missed.fetch_add(1, Ordering::Relaxed) + 1 >= MISSED
            && !self.polls.swap(true, Ordering::Relaxed)
        {
            #[cfg(feature = "tracing")]
            tracing::warn!("{}", self.warning);
        }
    }

    /// An answer was lost, which may have contained an offer to a waiter of this process. No message is sent of such an offer, so it must not count as missed.
    pub(crate) fn excuse(&self) {
        self.is_excused.store(true, Ordering::Relaxed);
    }

    /// Whether that has happened since the last time.
    pub(crate) fn take_excuse(&self) -> bool {
        self.is_excused.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_after_two_missed_messages_in_a_row() {
        let fallback = Fallback::new(false, "it polls");
        for _ in 0..5 {
            fallback.message_missed();
            fallback.message_came();
        }
        assert_eq!(fallback.finding(), None);
        fallback.message_missed();
        assert!(!fallback.polls());
        fallback.message_missed();
        assert_eq!(fallback.finding().unwrap().to_string(), "it polls");
    }
}
