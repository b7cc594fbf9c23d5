//! A lock handed over by message: what is said, and for how long it may be relied on, counted on our clock without
//! another round trip.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::claim::ClaimId;
use crate::claim::Ttl;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::clock::Clock;
use crate::clock::Moment;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::engine::waiters::Waiters;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::engine::{Grant, Wake};
use crate::token::FencingToken;

/// What a server says to a waiter.
#[derive(Debug)]
pub(crate) enum Heard {
    Granted(HandedOver),
    LookAfter(Duration),
}

/// The lock was granted by whoever released it, for a moment, at a time that the server tells.
#[derive(Debug, Clone)]
pub(crate) struct HandedOver {
    pub(crate) token: FencingToken,
    pub(crate) offer: Duration,
    /// Microseconds by the server's clock.
    pub(crate) granted_at: u64,
    #[cfg(feature = "postgres")]
    pub(crate) heirs: Option<Heirs>,
}

/// Who comes after a new holder, as long as they wait in the same process: those that it may pass the lock on to.
#[cfg(feature = "postgres")]
#[derive(Debug, Clone)]
pub(crate) struct Heirs {
    pub(crate) numbers: Vec<u64>,
    /// Of the first; the others have those that follow.
    pub(crate) first_token: FencingToken,
    pub(crate) offer: Duration,
}

impl Heard {
    /// For which waiter, and what: `granted:number:token:offer:at`, with `:token:offer:number,number` if there are heirs, or
    /// `look:number:after`.
    pub(crate) fn read(message: &str) -> Option<(u64, Self)> {
        let words: Vec<_> = message.split(':').collect();
        let (number, what) = match words.as_slice() {
            ["granted", number, token, offer, at, _heirs @ ..] => {
                let handed_over = HandedOver {
                    token: FencingToken::new(token.parse().ok()?)?,
                    offer: Duration::from_millis(offer.parse().ok()?),
                    granted_at: at.parse().ok()?,
                    #[cfg(feature = "postgres")]
                    heirs: Heirs::read(_heirs),
                };
                (number, Heard::Granted(handed_over))
            }
            ["look", number, after] => {
                let after = Duration::from_millis(after.parse().ok()?);
                (number, Heard::LookAfter(after))
            }
            _ => return None,
        };
        Some((number.parse().ok()?, what))
    }
}

#[cfg(feature = "postgres")]
impl Heirs {
    fn read(words: &[&str]) -> Option<Self> {
        let [token, offer, numbers] = words else {
            return None;
        };
        let numbers = numbers.split(',').map(str::parse);
        Some(Self {
            numbers: numbers.collect::<Result<_, _>>().ok()?,
            first_token: FencingToken::new(token.parse().ok()?)?,
            offer: Duration::from_millis(offer.parse().ok()?),
        })
    }
}

/// How much longer than a server says to wait before looking: for the message that makes it unnecessary.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const A_MOMENT: Duration = Duration::from_millis(5);

/// Waits until a waiter is told something that it can act on, and what that is. A hand-over that is not relied on is taken by
/// another attempt.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) async fn wake(
    waiters: &Waiters<Heard>,
    clock: &ServerClock,
    id: &ClaimId,
    relies: impl Fn() -> bool,
) -> (Wake, Option<HandedOver>) {
    const RETRY: (Wake, Option<HandedOver>) = (Wake::Retry, None);
    let Some((_, bell)) = waiters.waiter(id) else {
        return RETRY;
    };
    let mut news = bell.heard().await;
    loop {
        #[cfg(feature = "postgres")]
        if let Some(grant) = bell.passed_on() {
            waiters.forget(id);
            return (Wake::Granted(grant), None);
        }
        match news.pop() {
            Some(Heard::Granted(_)) if !relies() => return RETRY,
            Some(Heard::Granted(handed_over)) => {
                let now = Clock::machine().now();
                let valid_until = clock.valid_until(&handed_over, now, Ttl::validity);
                let Some(valid_until) = valid_until.filter(|until| *until > now) else {
                    return RETRY;
                };
                waiters.forget(id);
                let token = handed_over.token;
                let granted = Wake::Granted(Grant { token, valid_until });
                return (granted, Some(handed_over));
            }
            Some(Heard::LookAfter(time)) => {
                match tokio::time::timeout(time + A_MOMENT, bell.heard()).await {
                    Ok(more) => news = more,
                    Err(_) => return RETRY,
                }
            }
            None => return RETRY,
        }
    }
}

/// What one server's clock said, and when: to tell how old a hand-over is.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// Moments on our clock, and what the server's clock said later than that; the latest last, and a few before it,
    /// since a hand-over may be heard of after an answer that was given later.
    known: Mutex<Vec<(Moment, u64)>>,
}

impl ServerClock {
    const KEPT: usize = 4;
    const APART: Duration = Duration::from_millis(250);

    /// A request that left at `sent` was answered when the server's clock said `now`.
    pub(crate) fn synchronize(&self, sent: Moment, now: u64) {
        let mut known = self.known();
        if known.last().is_some_and(|(_, then)| *then > now) {
            // It went back, or this answer was overtaken.
            known.clear();
        }
        if let [.., (before, _), (latest, _)] = known[..]
            && latest.since(before) < Self::APART
        {
            known.pop();
        }
        known.push((sent, now));
        if known.len() > Self::KEPT {
            known.remove(0);
        }
    }

    /// Until when a lock that was handed over may be relied on. The server's clock tells how much later than
    /// an earlier answer the grant was made, and that answer was made after its request had left: so the
    /// grant is no older than that. `None` if no such answer is known: a later one tells nothing, since whoever was
    /// stopped may ask before it has listened. A grant that is heard of `now` was made before, whatever a clock that
    /// was stepped says.
    pub(crate) fn valid_until(
        &self,
        handed_over: &HandedOver,
        now: Moment,
        validity: impl Fn(Ttl) -> Duration,
    ) -> Option<Moment> {
        let known = self.known();
        let earlier = known
            .iter()
            .rfind(|(_, then)| *then <= handed_over.granted_at);
        let (sent, then) = *earlier?;
        let between = Duration::from_micros(handed_over.granted_at - then);
        // Two clocks drift apart by less than a thousandth.
        let granted = (sent + (between - between / 1000)).min(now);
        Some(granted + validity(Ttl::new(handed_over.offer).ok()?))
    }

    fn known(&self) -> MutexGuard<'_, Vec<(Moment, u64)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_counts_from_before_the_hand_over() {
        let clock = ServerClock::default();
        let sent = Moment::from_origin(Duration::from_secs(100));
        let handed_over = HandedOver {
            token: FencingToken::new(1).unwrap(),
            offer: Duration::from_millis(500),
            granted_at: 10_000_000,
            #[cfg(feature = "postgres")]
            heirs: None,
        };
        let now = sent + Duration::from_secs(7);
        assert!(
            clock
                .valid_until(&handed_over, now, Ttl::validity)
                .is_none()
        );
        clock.synchronize(sent, 4_000_000);
        let valid_until = clock.valid_until(&handed_over, now, Ttl::validity).unwrap();
        assert!(valid_until < sent + Duration::from_millis(6_500));
        assert!(valid_until > sent + Duration::from_millis(6_480));
        // A later answer changes nothing, and alone tells nothing.
        clock.synchronize(sent + Duration::from_secs(9), 13_000_000);
        assert_eq!(
            clock.valid_until(&handed_over, now, Ttl::validity),
            Some(valid_until)
        );
        let clock = ServerClock::default();
        clock.synchronize(sent, 11_000_000);
        assert!(
            clock
                .valid_until(&handed_over, now, Ttl::validity)
                .is_none()
        );
    }

    #[test]
    fn a_clock_that_was_set_forward_makes_no_hand_over_last_longer() {
        let clock = ServerClock::default();
        let sent = Moment::from_origin(Duration::from_secs(100));
        clock.synchronize(sent, 4_000_000);
        let handed_over = HandedOver {
            token: FencingToken::new(1).unwrap(),
            offer: Duration::from_millis(500),
            granted_at: 64_000_000,
            #[cfg(feature = "postgres")]
            heirs: None,
        };
        let now = sent + Duration::from_millis(10);
        let valid_until = clock.valid_until(&handed_over, now, Ttl::validity).unwrap();
        assert!(valid_until < now + Duration::from_millis(500));
    }
}
