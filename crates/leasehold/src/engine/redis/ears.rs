//! How a waiter hears of a hand-over: messages on one channel for the whole process, over the same
//! connection as everything else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};

use crate::claim::{ClaimId, Ttl};
use crate::clock::Moment;
use crate::engine::waiters::Waiters;
use crate::token::FencingToken;

/// What a message says to a waiter.
#[derive(Debug)]
pub(super) enum Heard {
    Granted(HandedOver),
    LookAfter(Duration),
}

/// The lock was granted by whoever released it, for a moment, at a time that the server tells.
#[derive(Debug)]
pub(super) struct HandedOver {
    pub(super) token: FencingToken,
    offer: Duration,
    granted_at: u64,
}

#[derive(Debug)]
pub(super) struct Ears {
    channel: String,
    pub(super) waiters: Waiters<Heard>,
    open: AtomicBool,
    last_number: AtomicU64,
    /// A moment on our clock, and what the server's clock said later than that.
    server_time: Mutex<Option<(Moment, u64)>>,
}

impl Ears {
    pub(super) fn new(channel: String) -> Self {
        Self {
            channel,
            waiters: Waiters::default(),
            open: AtomicBool::new(false),
            last_number: AtomicU64::new(0),
            server_time: Mutex::new(None),
        }
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    pub(super) fn are_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(super) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Listens for a waiter, from before its request leaves: a message may overtake the answer.
    pub(super) fn expect(&self, id: ClaimId) -> u64 {
        if let Some((number, _)) = self.waiters.waiter(&id) {
            return number;
        }
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiters.expect(id, number);
        number
    }

    /// What to do with whatever the server sends by itself. Called by the connection: never blocks.
    pub(super) fn listener(self: &Arc<Self>) -> impl Fn(PushInfo) + Send + Sync + 'static {
        let ears = Arc::downgrade(self);
        move |push| {
            let Some(ears) = ears.upgrade() else { return };
            match (push.kind, push.data.as_slice()) {
                (PushKind::Message, [_, Value::BulkString(message)]) => {
                    ears.hear(message);
                }
                // Messages may be missed until the connection is back.
                (PushKind::Disconnection, _) => ears.waiters.ring_all(),
                _ => {}
            }
        }
    }

    fn hear(&self, message: &[u8]) -> Option<()> {
        let message = std::str::from_utf8(message).ok()?;
        let words: Vec<_> = message.split(':').collect();
        let (number, heard) = match words.as_slice() {
            ["granted", number, token, offer, at] => {
                let handed_over = HandedOver {
                    token: FencingToken::new(token.parse().ok()?)?,
                    offer: Duration::from_millis(offer.parse().ok()?),
                    granted_at: at.parse().ok()?,
                };
                (number, Heard::Granted(handed_over))
            }
            ["look", number, after] => {
                let after = Duration::from_millis(after.parse().ok()?);
                (number, Heard::LookAfter(after))
            }
            _ => return None,
        };
        self.waiters.bell(number.parse().ok()?)?.ring(Some(heard));
        Some(())
    }

    /// A request that left at `sent` was answered when the server's clock said `now`.
    pub(super) fn synchronize(&self, sent: Moment, now: &str) {
        if let Ok(now) = now.parse() {
            let mut known = self
                .server_time
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *known = Some((sent, now));
        }
    }

    /// Until when a lock that was handed over may be relied on. The server's clock tells how much later than
    /// an earlier answer the grant was made, and that answer was made after its request had left: so the
    /// grant is no older than that. `None` if it is too old.
    pub(super) fn valid_until(&self, handed_over: &HandedOver) -> Option<Moment> {
        let known = *self
            .server_time
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (sent, then) = known?;
        let between = Duration::from_micros(handed_over.granted_at.saturating_sub(then));
        // Two clocks drift apart by less than a thousandth.
        let granted = sent + (between - between / 1000);
        Some(granted + Ttl::new(handed_over.offer).ok()?.validity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_counts_from_before_the_hand_over() {
        let ears = Ears::new("c".to_owned());
        let sent = Moment::from_origin(Duration::from_secs(100));
        let handed_over = HandedOver {
            token: FencingToken::new(1).unwrap(),
            offer: Duration::from_millis(500),
            granted_at: 10_000_000,
        };
        assert!(ears.valid_until(&handed_over).is_none());
        ears.synchronize(sent, "4000000");
        let valid_until = ears.valid_until(&handed_over).unwrap();
        assert!(valid_until < sent + Duration::from_millis(6_500));
        assert!(valid_until > sent + Duration::from_millis(6_480));
        // A clock that went back tells nothing: count from the request itself.
        ears.synchronize(sent, "11000000");
        assert!(ears.valid_until(&handed_over).unwrap() < sent + Duration::from_millis(500));
    }
}
