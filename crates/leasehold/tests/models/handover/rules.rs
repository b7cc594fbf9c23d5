//! The switches: what the world may do, within which bounds, and which safeguards are on.

use super::properties::Asked;

/// How a waiter learns that the lock was offered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learns {
    /// Redis in a cluster, a node of Redlock: a notice makes it send another attempt, whose answer grants the lock. Two waiters are
    /// told to look when the offer ends.
    Attempt,
    /// Redis: its inbox tells of the offer. The waiter relies on the offer, and a renewal confirms it. Two waiters are told
    /// to look when the offer ends.
    Inbox,
    /// PostgreSQL, MySQL: its listener asks the server, which tells of the offer. The waiter relies on the offer, and
    /// a renewal confirms it. Listeners also pass on an offer that has ended.
    Listener,
}

/// What becomes of a notice that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The waiter looks before the next tick all the same: its listener asks by itself, or sees that the connection
    /// is gone.
    Noticed,
    /// The waiter does not know.
    Silent,
}

/// What a notice says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// To look.
    Look,
    /// That the lock is granted.
    Grant,
}

/// When a client receives what the server has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// As soon as it is given, when a grant does most harm. An answer that is lost is a request that arrives after its
    /// client has stopped waiting for it.
    AtOnce,
    /// At any time later, or never.
    Travel,
}

/// From when on a client counts the validity of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountsFrom {
    /// Before the request left; for an offer, when it was made.
    Before,
    /// When the answer arrives.
    Answer,
}

/// Which waiters are told to look when an offer ends, where no listener passes it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successors {
    /// The last in the queue.
    Last,
    /// That one, and the one before it.
    LastTwo,
}

#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) asked: Vec<Asked>,

    pub(crate) learns: Learns,
    pub(crate) loss: Loss,
    pub(crate) answers: Answers,
    /// Whether requests arrive after their client has stopped waiting for them.
    pub(crate) requests_are_late: bool,
    /// Whether the server may take a living waiter for dead, and pass it over.
    pub(crate) living_are_passed_over: bool,
    /// Whether each client's clock may lose one tick against the server's.
    pub(crate) clocks_drift: bool,
    pub(crate) force_releases: u8,
    /// Takes states that differ only in the names of claims for one. Paths get hard to follow, as the names change on
    /// the way.
    pub(crate) symmetry: bool,

    /// Times, in ticks.
    pub(crate) ttl: u8,
    pub(crate) offer: u8,
    /// By how much less than the server a client counts.
    pub(crate) margin: u8,
    /// For how long at most the lock is free, or offered in vain, while the observed claim waits.
    pub(crate) patience: u8,

    pub(crate) content: Content,
    pub(crate) grant_counts_from: CountsFrom,
    pub(crate) offer_counts_from: CountsFrom,
    pub(crate) offers_end: bool,
    pub(crate) offers_raise_the_token: bool,
    pub(crate) release_checks_claim: bool,
    pub(crate) renewal_checks_claim: bool,
    pub(crate) newcomers_queue: bool,
    /// Whether a waiter that is woken sends an attempt, which finds its queue entry or makes a new one.
    pub(crate) woken_ask_again: bool,
    pub(crate) passed_over_are_told: bool,
    /// Whether a waiter looks by itself when the time is over that the server has named.
    pub(crate) look_again: bool,
    pub(crate) listeners_pass_on: bool,
    pub(crate) successors: Successors,
}

impl Rules {
    /// All safeguards on, and a network and processes that are as slow as they like.
    pub(crate) fn new(learns: Learns, asked: &[Asked]) -> Self {
        let (ttl, offer) = (4, 2);
        Self {
            asked: asked.to_vec(),
            learns,
            loss: Loss::Noticed,
            answers: Answers::AtOnce,
            requests_are_late: false,
            living_are_passed_over: false,
            clocks_drift: false,
            force_releases: 0,
            symmetry: true,
            ttl,
            offer,
            margin: 1,
            // Without listeners that pass on, a waiter that is not next looks a tick after the offer has ended.
            patience: match learns {
                Learns::Attempt | Learns::Inbox => offer + 1,
                Learns::Listener => offer,
            },
            content: Content::Look,
            grant_counts_from: CountsFrom::Before,
            offer_counts_from: CountsFrom::Before,
            offers_end: true,
            offers_raise_the_token: true,
            release_checks_claim: true,
            renewal_checks_claim: true,
            newcomers_queue: true,
            woken_ask_again: true,
            passed_over_are_told: true,
            look_again: true,
            listeners_pass_on: true,
            successors: Successors::LastTwo,
        }
    }

    pub(crate) fn relies_on_offers(&self) -> bool {
        self.learns != Learns::Attempt
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.learns == Learns::Listener
    }

    /// Whether a waiter that a notice is meant for looks before the next tick.
    pub(crate) fn notices_count(&self) -> bool {
        self.loss == Loss::Noticed
    }

    /// For how much longer a client relies on a grant, `age` ticks after its request left; `None` if not at all.
    pub(crate) fn grant_validity(&self, age: u8) -> Option<u8> {
        self.validity(self.ttl, age, self.grant_counts_from)
    }

    /// For how much longer a client relies on an offer that was made `age` ticks ago.
    pub(crate) fn offer_validity(&self, age: u8) -> Option<u8> {
        self.validity(self.offer, age, self.offer_counts_from)
    }

    fn validity(&self, granted: u8, age: u8, from: CountsFrom) -> Option<u8> {
        let age = match from {
            CountsFrom::Before => age,
            CountsFrom::Answer => 0,
        };
        let left = (granted - self.margin).checked_sub(age);
        left.filter(|left| *left > 0)
    }
}
