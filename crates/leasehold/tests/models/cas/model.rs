//! What can happen next, and what it leads to.

use stateright::{Model, Property};

use super::client::{Client, Document, Holder, Purpose, Write};
use super::rules::Rules;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) document: Document,
    pub(crate) clients: Vec<Client>,
    pub(crate) writes: Vec<Write>,
    /// The greatest token that was granted, and whether one was not greater than those before.
    pub(crate) granted: u8,
    pub(crate) token_fell: bool,
    /// A holder that gave no sign of life was replaced.
    pub(crate) taken_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    RunsAhead {
        client: usize,
    },
    Dies {
        client: usize,
    },
    Reads {
        client: usize,
    },
    Learns {
        client: usize,
    },
    /// To acquire, or to renew if it holds; with this on its wall clock.
    Asks {
        client: usize,
        clock: u8,
    },
    Releases {
        client: usize,
    },
    Arrives {
        write: usize,
    },
    IsAnswered {
        client: usize,
    },
    DoubtsTheAnswer {
        client: usize,
    },
}

pub(crate) struct Cas {
    pub(crate) clients: usize,
    pub(crate) rules: Rules,
}

impl Cas {
    fn token(&self, document: &Document, clock: u8) -> u8 {
        match self.rules.stores_token {
            true => clock.max(document.token + 1),
            false => clock,
        }
    }

    /// What a client would write, from what it knows.
    fn asks(&self, state: &State, client: usize, clock: u8) -> Option<(Document, Purpose)> {
        let me = &state.clients[client];
        let known = me.known.as_ref()?;
        let (id, sign) = (client as u8, state.writes.len() as u8 + 1);
        let mut document = known.clone();
        let before = document.holder;
        if document.holder.is_some_and(|holder| holder.client != id) && me.holder_is_over() {
            // It gave no sign of life: whoever is next has it.
            document.holder = None;
        }
        let next = document.queue.first().copied();
        let is_next = next.is_none_or(|next| next == id);
        match document.holder {
            Some(holder) if holder.client == id => {
                let taken = Holder {
                    sign,
                    offered: false,
                    ..holder
                };
                document.holder = Some(taken);
            }
            None if is_next => {
                document.queue.retain(|waiter| *waiter != id);
                document.token = self.token(known, clock);
                let token = document.token;
                document.holder = Some(Holder {
                    client: id,
                    sign,
                    offered: false,
                    token,
                });
            }
            // The one ahead may be dead: it is offered the lock, and timed as a holder.
            None if before.is_some() => {
                document.queue.remove(0);
                document.token = self.token(known, clock);
                let (client, token) = (next?, document.token);
                document.holder = Some(Holder {
                    client,
                    sign,
                    offered: true,
                    token,
                });
                return Some((document, Purpose::Queue));
            }
            _ if document.queue.contains(&id) => return None,
            _ => {
                document.queue.push(id);
                return Some((document, Purpose::Queue));
            }
        }
        Some((document, Purpose::Hold(sign)))
    }

    /// A release hands the lock to the first in the queue.
    fn releases(&self, state: &State, client: usize) -> Option<Option<Document>> {
        let me = &state.clients[client];
        let known = me.known.as_ref()?;
        let id = client as u8;
        if !known.names(id) {
            let burns = me.in_doubt && self.rules.settles_doubt;
            return Some(burns.then(|| known.clone()));
        }
        let mut document = known.clone();
        document.queue.retain(|waiter| *waiter != id);
        if document.holder.is_some_and(|holder| holder.client == id) {
            document.holder = None;
            if !document.queue.is_empty() {
                let next = document.queue.remove(0);
                document.token = self.token(known, 0);
                let (sign, token) = (state.writes.len() as u8 + 1, document.token);
                document.holder = Some(Holder {
                    client: next,
                    sign,
                    offered: true,
                    token,
                });
            }
        }
        Some(Some(document))
    }

    fn send(&self, state: &mut State, client: usize, mut document: Document, purpose: Purpose) {
        let base = state.clients[client].known.take();
        let base = base.unwrap_or_default();
        document.version = state.writes.len() as u8 + 1;
        state.writes.push(Write {
            client: client as u8,
            base,
            document,
            purpose,
            applied: false,
            refused: false,
        });
        let me = &mut state.clients[client];
        me.waits_for = Some((state.writes.len() as u8 - 1, 0));
        me.in_doubt = false;
    }

    /// The client knows that its write was carried out, so many ticks after it was sent.
    fn succeeds(&self, me: &mut Client, write: &Write, age: u8) {
        match write.purpose {
            Purpose::Hold(_) => {
                let gone = if self.rules.from_before_the_write {
                    age
                } else {
                    0
                };
                me.valid = me.valid.max(self.rules.validity().saturating_sub(gone));
            }
            Purpose::Queue => {}
            Purpose::Release => me.released = true,
        }
        me.waits_for = None;
        me.in_doubt = false;
    }

    fn learns(&self, state: &mut State, client: usize) {
        let document = state.document.clone();
        let me = &mut state.clients[client];
        me.learn(document.clone(), &self.rules);
        if let Some((nth, age)) = me.waits_for {
            let write = &state.writes[usize::from(nth)];
            if document.version == write.document.version {
                self.succeeds(me, write, age);
            } else if !document.is(&write.base, &self.rules) {
                // It cannot be carried out any more; what it did, if it did, others have seen.
                if matches!(write.purpose, Purpose::Release) && !document.names(client as u8) {
                    me.released = true;
                }
                me.waits_for = None;
                me.in_doubt = false;
            }
        }
        // An offer that is believed in without a write.
        let offered = document
            .holder
            .filter(|holder| holder.client == client as u8 && holder.offered);
        if offered.is_some() && !self.rules.takes_offers && !me.released {
            me.valid = self.rules.validity();
        }
    }

    fn arrives(&self, state: &mut State, nth: usize) {
        let write = state.writes[nth].clone();
        if !state.document.is(&write.base, &self.rules)
            || (write.applied && self.rules.conditions && self.rules.own_version)
        {
            state.writes[nth].refused = !write.applied;
            return;
        }
        state.writes[nth].applied = true;
        let (before, after) = (state.document.holder, write.document.holder);
        if let Some(after) = after
            && before
                .is_none_or(|before| before.client != after.client || before.token != after.token)
        {
            state.token_fell |= after.token <= state.granted;
            state.granted = state.granted.max(after.token);
            state.taken_over |=
                before.is_some() && before.is_some_and(|before| before.client != write.client);
        }
        state.document = write.document;
    }
}

impl Model for Cas {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut document = Document::default();
        if self.rules.begins_offered {
            document.token = 1;
            let (client, token) = (0, document.token);
            document.holder = Some(Holder {
                client,
                sign: 0,
                offered: true,
                token,
            });
        }
        vec![State {
            granted: document.token,
            document,
            clients: vec![Client::default(); self.clients],
            writes: Vec::new(),
            token_fell: false,
            taken_over: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        let room = state.writes.len() < usize::from(self.rules.writes);
        for (client, me) in state.clients.iter().enumerate() {
            if me.dead {
                continue;
            }
            if self.rules.deaths {
                actions.push(Action::Dies { client });
            }
            if self.rules.drift && me.timed.is_some_and(|(_, _, ahead)| !ahead) {
                actions.push(Action::RunsAhead { client });
            }
            let may_read = (me.waits_for.is_none() || me.in_doubt) && !me.released;
            if me.reading.is_some() || (may_read && self.rules.from_after_the_read) {
                // When it was sent does not matter.
                actions.push(Action::Learns { client });
            } else if may_read {
                actions.push(Action::Reads { client });
            }
            if let Some((nth, _)) = me.waits_for
                && !me.in_doubt
            {
                let write = &state.writes[usize::from(nth)];
                if write.applied || write.refused {
                    actions.push(Action::IsAnswered { client });
                }
                actions.push(Action::DoubtsTheAnswer { client });
            }
            if me.released || me.known.is_none() || !room {
                continue;
            }
            if me.waits_for.is_none() {
                for clock in 0..=self.rules.clock {
                    actions.push(Action::Asks { client, clock });
                }
            }
            actions.push(Action::Releases { client });
        }
        for write in 0..state.writes.len() {
            actions.push(Action::Arrives { write });
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Tick => next.clients.iter_mut().for_each(Client::tick),
            Action::RunsAhead { client } => {
                let (_, age, ahead) = next.clients[client].timed.as_mut()?;
                *age += 1;
                *ahead = true;
            }
            Action::Dies { client } => {
                let me = &mut next.clients[client];
                *me = Client {
                    dead: true,
                    released: me.released,
                    ..Client::default()
                };
            }
            Action::Reads { client } => next.clients[client].reading = Some(0),
            Action::Learns { client } => self.learns(&mut next, client),
            Action::Asks { client, clock } => {
                let (document, purpose) = self.asks(last, client, clock)?;
                self.send(&mut next, client, document, purpose);
            }
            Action::Releases { client } => {
                let document = self.releases(last, client)?;
                // From then on it relies on nothing.
                next.clients[client].valid = 0;
                match document {
                    Some(document) => self.send(&mut next, client, document, Purpose::Release),
                    None => next.clients[client].released = true,
                }
            }
            Action::Arrives { write } => self.arrives(&mut next, write),
            Action::IsAnswered { client } => {
                let (nth, age) = next.clients[client].waits_for?;
                let write = last.writes[usize::from(nth)].clone();
                let me = &mut next.clients[client];
                match write.applied {
                    true => self.succeeds(me, &write, age),
                    false => me.waits_for = None,
                }
            }
            Action::DoubtsTheAnswer { client } => next.clients[client].in_doubt = true,
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| {
                let valid = state.clients.iter().filter(|client| client.valid > 0);
                valid.count() <= 1
            }),
            Property::always(TOKENS, |_, state: &State| !state.token_fell),
            Property::always(NO_GHOST, |_, state: &State| {
                let mut clients = state.clients.iter().enumerate();
                clients.all(|(client, me)| !me.released || !state.document.names(client as u8))
            }),
            Property::sometimes(TAKEN_OVER, |_, state: &State| state.taken_over),
        ]
    }
}

pub(crate) const EXCLUSION: &str = "no two rely on the lock at once";
pub(crate) const TOKENS: &str = "tokens rise";
pub(crate) const NO_GHOST: &str = "what is released stays released";
pub(crate) const TAKEN_OVER: &str = "a dead holder is replaced";
