//! A client's side: one claim, from its proposal until it is over.

/// A claim goes through rounds: the acquire is round 0, each renewal one more. A round's validity
/// counts from before it was sent, so rounds end in the order in which they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Claim {
    /// 0 until it is proposed.
    pub(crate) token: u8,
    pub(crate) sent: u8,
    pub(crate) ended: u8,
    /// Whether a quorum of nodes has ever granted it while it was open.
    pub(crate) granted: bool,
}

impl Claim {
    pub(crate) fn is_proposed(&self) -> bool {
        self.token > 0
    }

    /// Some round's validity still runs.
    pub(crate) fn is_open(&self) -> bool {
        self.ended < self.sent
    }

    /// Given up, released or lost. Its messages are still about. For nodes its validity counts as
    /// ended: that lets them drop it, and end a quarantine, sooner than time would.
    pub(crate) fn is_over(&self) -> bool {
        self.is_proposed() && !self.is_open()
    }

    pub(crate) fn running(&self) -> std::ops::Range<u8> {
        self.ended..self.sent
    }

    pub(crate) fn propose(&mut self, token: u8) {
        self.token = token;
        self.sent = 1;
    }

    /// Of the renewals of a claim that is over, one stands for all.
    pub(crate) fn finish(&mut self) {
        self.sent = self.sent.min(2);
        self.ended = self.sent;
    }
}
