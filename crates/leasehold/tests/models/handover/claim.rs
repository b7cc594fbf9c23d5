//! One claim: what its client knows, and what the server keeps of it. A process that tries again makes another claim.

/// A timer that never ends.
pub(crate) const NEVER: u8 = u8::MAX;

/// What the client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Not begun.
    Idle,
    /// An attempt left so many ticks ago. If it was granted, the answer with the token is on its way.
    Asking { age: u8, granted: Option<u8> },
    /// It was refused, and looks again when the timer ends.
    Waiting { look_in: u8, told: Option<Told> },
    /// It relies on the lock for as long as the grant is valid.
    Holding {
        token: u8,
        valid: u8,
        renewal: Option<Renewal>,
    },
    /// Released, given up, lost or dead. Its requests may still be under way.
    Gone,
}

/// An offer, as the server has told a listener, and how long ago it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Told {
    pub(crate) token: u8,
    pub(crate) age: u8,
}

/// A renewal that left so many ticks ago, and whether the answer that grants it is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Renewal {
    pub(crate) age: u8,
    pub(crate) granted: bool,
}

/// A request that nobody waits for any more, and that may still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Attempt,
    Renewal,
    Release,
}

impl Request {
    pub(crate) const ALL: [Self; 3] = [Self::Attempt, Self::Renewal, Self::Release];

    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The server's record of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Record {
    pub(crate) token: u8,
    pub(crate) left: u8,
    /// Until it is confirmed.
    pub(crate) offered: bool,
}

impl Record {
    pub(crate) fn confirm(&mut self, ttl: u8) {
        self.left = ttl.max(self.left);
        self.offered = false;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) phase: Phase,
    /// Its position in the queue, from 1 on; 0 if it is not in the queue.
    pub(crate) position: u8,
    pub(crate) record: Option<Record>,
    /// The [`Request`]s that may arrive late.
    pub(crate) late: u8,
    /// It looks before the next tick, unless its process is slow.
    pub(crate) notified: bool,
    /// Its clock has lost a tick.
    pub(crate) lagged: bool,
    /// The token of its grant that was taken away by a forced release; 0 if none was.
    pub(crate) forced_out: u8,
    /// It came when the observed claim was in the queue, which that has not left since.
    pub(crate) behind: bool,
}

impl Claim {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            position: 0,
            record: None,
            late: 0,
            notified: false,
            lagged: false,
            forced_out: 0,
            behind: false,
        }
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    pub(crate) fn relies(&self) -> bool {
        matches!(self.phase, Phase::Holding { .. })
    }

    /// Whether it relies on a grant that was taken away by force.
    pub(crate) fn is_forced_out(&self) -> bool {
        matches!(self.phase, Phase::Holding { token, .. } if token == self.forced_out)
    }

    pub(crate) fn is_offered(&self) -> bool {
        self.record.is_some_and(|record| record.offered)
    }

    /// The client waits no longer for an answer. What has not arrived yet may do so later.
    pub(crate) fn stop_waiting_for_answers(&mut self) {
        self.late |= match &mut self.phase {
            Phase::Asking { granted: None, .. } => Request::Attempt.bit(),
            Phase::Holding { renewal, .. } => match renewal.take() {
                Some(Renewal { granted: false, .. }) => Request::Renewal.bit(),
                _ => 0,
            },
            _ => 0,
        };
    }
}
