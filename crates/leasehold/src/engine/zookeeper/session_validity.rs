//! How long a session is sure to live: pure arithmetic on moments of our own clock.
//!
//! The leader counts a session's time from when it last heard of it. If it is another server that we are connected to,
//! the leader hears of the session in that server's answers to its pings, which it sends every half tick, and in no other way: not
//! by a write, which it carries out for any session that it has not ended yet. What shows when it has heard of us last?
//!
//! 1. Everything between two servers arrives in order. When our server has passed on an answer of the leader's own (to a `sync`, or a write), it
//!    has got all pings that the leader had sent before: one of them at most half a tick before that request. The leader may have stood still while
//!    the request was on its way, so what counts is the request before: one that was answered when this one was sent.
//! 2. Whatever we had sent and got answered by then is in our server's answer to that ping, or in an earlier one.
//! 3. A write that we send after that, and which is carried out, comes to the leader behind that answer.
//!
//! Servers allow no session shorter than two ticks, so half a tick is a quarter of the session's time at most. Hence: when a write is
//! carried out, the leader has heard of all that was answered a quarter before the last request but one was sent. It ends the session no sooner than
//! its whole time after that. A new leader gives every session its whole time anew, and a server that we come to anew
//! asks the leader at once: both only make it longer.
//!
//! A read shows nothing: any server answers it, also one that has lost its leader.
//!
//! How long a session's time is, the server says that it is connected to, at each connection anew. Until that is known of a new
//! connection, nothing extends what was known before.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// How finely answers are told apart, in parts of a session's time.
const FINELY: u32 = 32;

/// What is known of one session.
#[derive(Debug)]
pub(crate) struct SessionValidity {
    timeout: Duration,
    /// When something was sent, and by when it was answered. The oldest first.
    answered: VecDeque<(Moment, Moment)>,
    /// The leader ran at that time, and all that it had sent before has come to our server.
    led: Moment,
    /// When the latest request was sent that the leader has answered.
    latest: Moment,
    /// The leader has heard of the session then, or later.
    heard_of: Moment,
    /// How often the connection has changed, and for which of these connections the session's time is known.
    connection: u64,
    known_for: u64,
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Moment,
    /// The latest before that had been answered.
    before: Moment,
    /// What the leader has certainly heard of once this is carried out.
    heard_of: Moment,
}

impl SessionValidity {
    /// A session that was asked for at `asked` is new to the leader, and lives for this long if nothing is heard of it.
    pub(crate) fn new(timeout: Duration, asked: Moment) -> Self {
        Self {
            timeout,
            answered: VecDeque::from([(asked, asked)]),
            led: asked,
            latest: asked,
            heard_of: asked,
            connection: 0,
            known_for: 0,
        }
    }

    /// The session has lost its connection, or has another one.
    pub(crate) fn reconnected(&mut self) {
        self.connection += 1;
    }

    /// The present connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }

    /// The session has its whole time on this connection as well.
    pub(crate) fn has_its_time_on(&mut self, connection: u64) {
        self.known_for = self.known_for.max(connection);
    }

    fn has_its_time(&self) -> bool {
        self.known_for == self.connection
    }

    pub(crate) fn sending(&self, now: Moment) -> Sent {
        let by = |answered: &Moment| *answered + self.timeout / 4 <= self.led;
        let known = self
            .answered
            .iter()
            .rev()
            .find(|(_, answered)| by(answered));
        Sent {
            at: now,
            before: self.latest,
            heard_of: known.map_or(self.heard_of, |(sent, _)| *sent),
        }
    }

    /// The leader has answered, by way of our server.
    pub(crate) fn answered(&mut self, sent: Sent, now: Moment) {
        self.led = self.led.max(sent.before);
        self.latest = self.latest.max(sent.at);
        let last = self.answered.back().map_or(sent.at, |(_, last)| *last);
        if now.since(last) < self.timeout / FINELY {
            return;
        }
        self.answered.push_back((sent.at, now));
        while self.answered.len() > 2 * FINELY as usize {
            self.answered.pop_front();
        }
    }

    /// A quorum has carried out a write.
    pub(crate) fn committed(&mut self, sent: Sent, now: Moment) {
        if self.has_its_time() {
            self.heard_of = self.heard_of.max(sent.heard_of);
        }
        self.answered(sent, now);
    }

    /// Until when the session is sure to live.
    pub(crate) fn valid_until(&self) -> Moment {
        self.heard_of + (self.timeout - self.timeout / 100)
    }

    /// Whether enough of that is left to work with.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.has_its_time() && self.valid_until().since(now) >= self.timeout / 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(8_000);
    const WHOLE: Duration = Duration::from_millis(8_000 - 80);

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(1_000_000 + millis))
    }

    /// Kept busy from when it was asked for until then, as the session does; each answer takes 10 ms.
    fn busy_until(end: u64) -> SessionValidity {
        let mut validity = SessionValidity::new(TIMEOUT, at(0));
        for now in (500..=end).step_by(500) {
            let sync = validity.sending(at(now));
            validity.answered(sync, at(now + 10));
        }
        validity
    }

    fn writes(validity: &mut SessionValidity, now: u64) {
        let write = validity.sending(at(now));
        validity.committed(write, at(now + 10));
    }

    #[test]
    fn write_shows_what_the_leader_has_heard() {
        let mut validity = busy_until(10_000);
        assert_eq!(validity.valid_until(), at(0) + WHOLE);
        writes(&mut validity, 10_100);
        // The last request but one was sent at 9,500; by a quarter before that, the one of 7,000 was answered.
        assert_eq!(validity.valid_until(), at(7_000) + WHOLE);
        assert!(validity.valid_until() >= at(10_100) + TIMEOUT / 2);
        assert!(validity.is_fresh(at(10_100)));
    }

    #[test]
    fn answers_alone_show_nothing() {
        assert_eq!(busy_until(10_000).valid_until(), at(0) + WHOLE);
    }

    /// Reads are answered meanwhile by our server, and count for nothing.
    #[test]
    fn write_without_a_leader_heard_counts_for_less() {
        let mut validity = busy_until(10_000);
        writes(&mut validity, 16_000);
        assert_eq!(validity.valid_until(), at(7_000) + WHOLE);
        assert!(!validity.is_fresh(at(16_000)));
    }

    #[test]
    fn requests_to_a_stopped_leader_do_not_count() {
        let mut validity = busy_until(10_000);
        let during = [10_500, 12_500, 14_000].map(|now| validity.sending(at(now)));
        for sync in during {
            validity.answered(sync, at(14_010));
        }
        writes(&mut validity, 14_020);
        // It may have sent its last ping half a tick before it answered the request of 10,000.
        assert_eq!(validity.valid_until(), at(7_500) + WHOLE);
    }

    #[test]
    fn write_after_a_stop_counts_in_full_later() {
        let mut validity = busy_until(10_000);
        for now in (17_000..=20_500).step_by(500) {
            let sync = validity.sending(at(now));
            validity.answered(sync, at(now + 10));
        }
        writes(&mut validity, 20_520);
        assert_eq!(validity.valid_until(), at(17_500) + WHOLE);
        assert!(validity.is_fresh(at(20_520)));
    }

    #[test]
    fn new_connection_extends_nothing_until_its_time_is_known() {
        let mut validity = busy_until(10_000);
        validity.reconnected();
        let lost = validity.connection();
        validity.reconnected();
        writes(&mut validity, 10_100);
        assert_eq!(validity.valid_until(), at(0) + WHOLE);
        validity.has_its_time_on(lost);
        writes(&mut validity, 10_200);
        assert_eq!(validity.valid_until(), at(0) + WHOLE);
        assert!(!validity.is_fresh(at(1_000)));
        validity.has_its_time_on(validity.connection());
        writes(&mut validity, 10_300);
        assert!(validity.valid_until() >= at(7_000) + WHOLE);
        assert!(validity.is_fresh(at(10_300)));
    }

    #[test]
    fn answers_out_of_order_take_nothing_back() {
        let mut validity = busy_until(10_000);
        let (first, second) = (validity.sending(at(10_100)), validity.sending(at(10_600)));
        validity.committed(second, at(10_700));
        let known = validity.valid_until();
        validity.committed(first, at(10_710));
        assert_eq!(validity.valid_until(), known);
    }
}
