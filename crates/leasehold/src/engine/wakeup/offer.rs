//! A lock that was offered to a waiter by whoever released it: what notices the waiter gets, and for how long it may rely on the offer, counted on
//! this process's clock without another round trip.

use std::time::Duration;

use crate::claim::Ttl;
use crate::clock::Moment;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// A notice of a server to a waiter.
#[derive(Debug)]
pub(crate) enum Notice {
    /// It has the lock.
    Offered(Offer),
    /// The lock may be free after this time.
    LookAfter(Duration),
}

/// A lock that was granted for a moment, until its holder renews it.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) token: FencingToken,
    pub(crate) lasts: Duration,
    /// Microseconds by the server's clock.
    pub(crate) granted_at: u64,
}

impl Notice {
    /// For which waiter, and what: `granted:number:token:lasts:at` or `look:number:after`.
    pub(crate) fn read(message: &str) -> Option<(u64, Self)> {
        let words: Vec<_> = message.split(':').collect();
        let (number, what) = match words.as_slice() {
            ["granted", number, token, lasts, at] => {
                let offer = Offer {
                    token: FencingToken::new(token.parse().ok()?)?,
                    lasts: Duration::from_millis(lasts.parse().ok()?),
                    granted_at: at.parse().ok()?,
                };
                (number, Notice::Offered(offer))
            }
            ["look", number, after] => {
                let after = Duration::from_millis(after.parse().ok()?);
                (number, Notice::LookAfter(after))
            }
            _ => return None,
        };
        Some((number.parse().ok()?, what))
    }

    /// For how long a waiter with these notices waits for more. `None`: it acts at once, as on an offer, whatever the other notices are.
    pub(crate) fn delay<'a>(notices: impl Iterator<Item = &'a Self>) -> Option<Duration> {
        let delays = notices.map(|notice| match notice {
            Notice::LookAfter(delay) => Some(*delay),
            Notice::Offered(_) => None,
        });
        delays.min().flatten()
    }
}

/// What one server's clock said, and when: it shows how old an offer is.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// Moments on our clock, and what the server's clock said later than that; the latest last, and a few before it,
    /// since an offer may arrive after an answer that was given later.
    known: Mutex<Vec<(Moment, u64)>>,
}

impl ServerClock {
    const KEPT: usize = 4;
    const APART: Duration = Duration::from_millis(250);

    /// A request that left at `sent` was answered when the server's clock said `now`.
    pub(crate) fn synchronize(&self, sent: Moment, now: u64) {
        let mut known = self.known.lock();
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

    /// Until when an offer that arrives `now` may be relied on. The server's clock shows how much later than an earlier answer the offer was
    /// made, and that answer was made after its request had left: so the offer is no older than that. `None` if no such answer is
    /// known: a later one shows nothing, since a process that was stopped may ask before it has listened. The offer was made
    /// before `now`, whatever a clock that was stepped says.
    pub(crate) fn valid_until(&self, offer: &Offer, now: Moment) -> Option<Moment> {
        let known = self.known.lock();
        let earlier = known.iter().rfind(|(_, then)| *then <= offer.granted_at);
        let (sent, then) = *earlier?;
        let between = Duration::from_micros(offer.granted_at - then);
        // Two clocks drift apart by less than a thousandth.
        let granted = (sent + (between - between / 1000)).min(now);
        Some(granted + Ttl::new(offer.lasts).ok()?.validity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_counts_from_before_the_offer() {
        let clock = ServerClock::default();
        let sent = Moment::from_origin(Duration::from_secs(100));
        let offer = Offer {
            token: FencingToken::new(1).unwrap(),
            lasts: Duration::from_millis(500),
            granted_at: 10_000_000,
        };
        let now = sent + Duration::from_secs(7);
        assert!(clock.valid_until(&offer, now).is_none());
        clock.synchronize(sent, 4_000_000);
        let valid_until = clock.valid_until(&offer, now).unwrap();
        assert!(valid_until < sent + Duration::from_millis(6_500));
        assert!(valid_until > sent + Duration::from_millis(6_480));
        // A later answer changes nothing, and alone shows nothing.
        clock.synchronize(sent + Duration::from_secs(9), 13_000_000);
        assert_eq!(clock.valid_until(&offer, now), Some(valid_until));
        let clock = ServerClock::default();
        clock.synchronize(sent, 11_000_000);
        assert!(clock.valid_until(&offer, now).is_none());
    }

    #[test]
    fn a_clock_set_forward_makes_no_offer_last_longer() {
        let clock = ServerClock::default();
        let sent = Moment::from_origin(Duration::from_secs(100));
        clock.synchronize(sent, 4_000_000);
        let offer = Offer {
            token: FencingToken::new(1).unwrap(),
            lasts: Duration::from_millis(500),
            granted_at: 64_000_000,
        };
        let now = sent + Duration::from_millis(10);
        let valid_until = clock.valid_until(&offer, now).unwrap();
        assert!(valid_until < now + Duration::from_millis(500));
    }
}
