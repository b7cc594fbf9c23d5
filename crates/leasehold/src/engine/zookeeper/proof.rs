//! How long a session is sure to live: pure arithmetic on moments of our own clock.
//!
//! Any server answers a read, also one that has lost its leader while the others end our session. What proves that the
//! session was there is a write that a quorum has carried out. But even that does not say until when it will be:
//! the server that we are connected to passes on to the leader only every half tick which sessions it has heard of. So
//! when the leader carries out a write, it has surely heard of what this session has sent half a tick before, and maybe not of
//! the write itself. Servers allow no session shorter than two ticks, so half a tick is a quarter of the session's time at most.
//!
//! Hence: a write counts from when it was sent, if something was answered that was sent no more than a quarter before it
//! (the session is kept busy, so it was); else only from a quarter after that. The leader then ends the session no sooner
//! than a half after it.

use std::time::Duration;

use crate::clock::Moment;

/// What is known of one session.
#[derive(Debug)]
pub(crate) struct Proof {
    timeout: Duration,
    /// When the latest request that was answered was sent.
    heard: Moment,
    /// From when the last write counts.
    proven: Moment,
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Moment,
    /// What had been answered by then.
    heard: Moment,
}

impl Proof {
    /// A session that was asked for at `asked` is new to the leader, and lives for this long if nothing is heard of it.
    pub(crate) fn new(timeout: Duration, asked: Moment) -> Self {
        Self {
            timeout,
            heard: asked,
            proven: asked,
        }
    }

    pub(crate) fn sending(&self, now: Moment) -> Sent {
        Sent {
            at: now,
            heard: self.heard,
        }
    }

    /// Some server has answered.
    pub(crate) fn answered(&mut self, sent: Sent) {
        self.heard = self.heard.max(sent.at);
    }

    /// A quorum has carried out a write.
    pub(crate) fn committed(&mut self, sent: Sent) {
        let counts_from = sent.at.min(sent.heard + self.timeout / 4);
        self.proven = self.proven.max(counts_from);
        self.answered(sent);
    }

    /// Until when the session is sure to live.
    pub(crate) fn valid_until(&self) -> Moment {
        self.proven + (self.timeout / 2 - self.timeout / 100)
    }

    /// Whether enough of that is left to work with.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.valid_until().since(now) >= self.timeout / 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(8_000);
    const HALF: Duration = Duration::from_millis(4_000 - 80);

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(1_000_000 + millis))
    }

    #[test]
    fn a_write_counts_from_when_it_was_sent() {
        let mut proof = Proof::new(TIMEOUT, at(0));
        assert_eq!(proof.valid_until(), at(0) + HALF);
        let write = proof.sending(at(1_500));
        // The answer's own time is of no account.
        proof.committed(write);
        assert_eq!(proof.valid_until(), at(1_500) + HALF);
    }

    #[test]
    fn a_read_proves_nothing() {
        let mut proof = Proof::new(TIMEOUT, at(0));
        let read = proof.sending(at(1_500));
        proof.answered(read);
        assert_eq!(proof.valid_until(), at(0) + HALF);
    }

    #[test]
    fn a_write_after_silence_counts_for_less() {
        let mut proof = Proof::new(TIMEOUT, at(0));
        // As after a stop: the leader may be about to end the session.
        let first = proof.sending(at(7_900));
        proof.committed(first);
        assert_eq!(proof.valid_until(), at(2_000) + HALF);
        assert!(!proof.is_fresh(at(7_900)));
        let second = proof.sending(at(9_900));
        proof.committed(second);
        assert_eq!(proof.valid_until(), at(9_900) + HALF);
        assert!(proof.is_fresh(at(9_900)));
    }

    #[test]
    fn answers_that_overtake_each_other_take_nothing_back() {
        let mut proof = Proof::new(TIMEOUT, at(0));
        let (first, second) = (proof.sending(at(1_000)), proof.sending(at(1_100)));
        proof.committed(second);
        proof.committed(first);
        assert_eq!(proof.valid_until(), at(1_100) + HALF);
    }
}
