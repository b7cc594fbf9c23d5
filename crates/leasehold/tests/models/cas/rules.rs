//! The switches: what the world may do, within which bounds, and which safeguards are on.

/// For how long others keep a holder that gives no sign of life, in ticks.
pub(crate) const TTL: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) writes: u8,
    /// Whether a client's clock may run ahead by a tick while it times a sign of life.
    pub(crate) drift: bool,
    /// Whether clients die.
    pub(crate) deaths: bool,
    /// Whether the first client has been offered the lock when it begins.
    pub(crate) begins_offered: bool,
    /// What a client's wall clock may say when it makes a token: anything up to this.
    pub(crate) clock: u8,

    /// Whether validity is a tick shorter than the TTL.
    pub(crate) margin: bool,
    /// Whether validity counts from before the write was sent, and not from its answer.
    pub(crate) from_before_the_write: bool,
    /// Whether a sign of life is timed from after the read that showed it, and not from before.
    pub(crate) from_after_the_read: bool,
    /// Whether it is the sign of life that is timed, and not the holder.
    pub(crate) times_signs: bool,
    /// Whether a write needs the version that its client has read.
    pub(crate) conditions: bool,
    /// Whether each write has a version of its own, and not the hash of its content.
    pub(crate) own_version: bool,
    /// Whether a release writes if an earlier write may still be carried out.
    pub(crate) settles_doubt: bool,
    /// Whether a waiter that was offered the lock writes before it relies on it.
    pub(crate) takes_offers: bool,
    /// Whether the greatest token is stored.
    pub(crate) stores_token: bool,
}

impl Rules {
    /// All safeguards on.
    pub(crate) const fn new(writes: u8, drift: bool) -> Self {
        Self {
            writes,
            drift,
            deaths: drift,
            begins_offered: false,
            clock: 0,
            margin: true,
            from_before_the_write: true,
            from_after_the_read: true,
            times_signs: true,
            conditions: true,
            own_version: true,
            settles_doubt: true,
            takes_offers: true,
            stores_token: true,
        }
    }

    pub(crate) const fn validity(&self) -> u8 {
        match self.margin {
            true => TTL - 1,
            false => TTL,
        }
    }
}
