//! The document, and what a client knows and believes.

use super::rules::{Rules, TTL};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) client: u8,
    pub(crate) sign: u8,
    pub(crate) offered: bool,
    pub(crate) token: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Document {
    pub(crate) version: u8,
    pub(crate) token: u8,
    pub(crate) holder: Option<Holder>,
    pub(crate) queue: Vec<u8>,
}

impl Document {
    pub(crate) fn names(&self, client: u8) -> bool {
        self.holder.is_some_and(|holder| holder.client == client) || self.queue.contains(&client)
    }

    /// Whether it is the state that a write depends on.
    pub(crate) fn is(&self, base: &Self, rules: &Rules) -> bool {
        match (rules.conditions, rules.own_version) {
            (false, _) => true,
            (true, true) => self.version == base.version,
            (true, false) => {
                (self.token, self.holder, &self.queue) == (base.token, base.holder, &base.queue)
            }
        }
    }
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// To hold the lock, by this sign of life.
    Hold(u8),
    Queue,
    Release,
}

/// A write that was sent. The network keeps it for ever.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Write {
    pub(crate) client: u8,
    pub(crate) base: Document,
    pub(crate) document: Document,
    pub(crate) purpose: Purpose,
    pub(crate) applied: bool,
    pub(crate) refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Client {
    pub(crate) dead: bool,
    /// For how many ticks a read has been under way.
    pub(crate) reading: Option<u8>,
    pub(crate) known: Option<Document>,
    /// What is timed, for how many ticks already, and whether the clock has run ahead.
    pub(crate) timed: Option<(u8, u8, bool)>,
    /// The write that it waits for, by its number, and for how many ticks already.
    pub(crate) waits_for: Option<(u8, u8)>,
    /// The answer to that did not come: it looks.
    pub(crate) in_doubt: bool,
    /// For how many more ticks it relies on the lock.
    pub(crate) valid: u8,
    /// Its release was answered.
    pub(crate) released: bool,
}

impl Client {
    /// What was read is known from now on.
    pub(crate) fn learn(&mut self, document: Document, rules: &Rules) {
        let under_way = self.reading.take().unwrap_or(0);
        let age = if rules.from_after_the_read {
            0
        } else {
            under_way
        };
        let sign = document.holder.map(|holder| match rules.times_signs {
            true => holder.sign,
            false => holder.client + 100,
        });
        self.timed = match (sign, self.timed) {
            (None, _) => None,
            (Some(sign), Some(timed)) if timed.0 == sign => Some(timed),
            (Some(sign), _) => Some((sign, age, false)),
        };
        self.known = Some(document);
    }

    pub(crate) fn holder_is_over(&self) -> bool {
        self.timed.is_some_and(|(_, age, _)| age >= TTL)
    }

    pub(crate) fn tick(&mut self) {
        let later = |age: &mut u8| *age = (*age + 1).min(TTL);
        self.valid = self.valid.saturating_sub(1);
        if let Some(age) = &mut self.reading {
            later(age);
        }
        if let Some((_, age, _)) = &mut self.timed {
            later(age);
        }
        if let Some((_, age)) = &mut self.waits_for {
            later(age);
        }
    }
}
