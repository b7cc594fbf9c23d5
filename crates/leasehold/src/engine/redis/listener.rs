//! How waiters learn that their turn has come: from messages on one channel for the whole process, and on one server from a list, the inbox.
//!
//! Messages come over the connection that carries the requests, so the thread of `engine/wakeup/listener.rs` is not needed: a server then
//! takes exactly those waiters for alive whose process can still ask it for the lock. A message says only when to ask again: anyone who
//! may publish can send one, so it grants nothing. A waiter that hears of an offer in this way has the lock with the answer to its
//! next attempt.
//!
//! What is in the inbox is written by the scripts: whoever else could write there could as well write to the lock itself. A waiter that hears of an
//! offer in this way relies on it, and confirms it by its first renewal.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::OnceCell;

use super::keys::Keys;
use super::protocol::Address;
use crate::claim::{Claim, ClaimId};
use crate::engine::wakeup::local_waiters::LocalWaiters;
use crate::engine::wakeup::offer::{Notice, ServerClock};
use crate::error::Result;

/// How long after one of its tasks the last one of a runtime that ends has ended. Whoever asks before may meet a connection that breaks.
const RUNTIME_ENDS: Duration = Duration::from_millis(200);

/// The channel of this process, and its waiters.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Also the name of its inbox, if it has one.
    pub(crate) channel: String,
    /// Set once the servers know that this process listens. They skip waiters that nobody listens for, so no claim queues
    /// before.
    pub(crate) subscribed: OnceCell<()>,
    pub(crate) waiters: LocalWaiters<Heard>,
    /// Tells how old an offer is.
    pub(crate) clock: ServerClock,
}

/// What a waiter was told.
#[derive(Debug)]
pub(crate) struct Heard {
    /// The number of the server that it is from.
    pub(crate) server: usize,
    pub(crate) notice: Notice,
    /// Whether it can be relied on.
    pub(crate) is_true: bool,
}

/// What a connection says that ends with its runtime.
pub(super) fn runtime_ended() -> PushInfo {
    PushInfo {
        kind: PushKind::Disconnection,
        data: vec![Value::Nil],
    }
}

impl Listener {
    pub(crate) fn new(keys: &Keys) -> Result<Arc<Self>> {
        Ok(Self::on(keys.channel(&ClaimId::random()?.reveal())))
    }

    /// One that has an inbox.
    pub(crate) fn with_inbox(keys: &Keys) -> Result<Arc<Self>> {
        Ok(Self::on(keys.inbox(&ClaimId::random()?.reveal())))
    }

    fn on(channel: String) -> Arc<Self> {
        Arc::new(Self {
            channel,
            subscribed: OnceCell::new(),
            waiters: LocalWaiters::default(),
            clock: ServerClock::default(),
        })
    }

    /// Where a claim is notified that may queue.
    pub(crate) fn address(&self, claim: &Claim) -> Option<Address<'_>> {
        let queues = claim.queues && self.subscribed.initialized();
        queues.then(|| Address {
            channel: &self.channel,
            number: self.waiters.expect_next(claim.id),
        })
    }

    /// What to do with whatever a server sends by itself. Called by the connection: never blocks.
    pub(crate) fn on_push(
        self: &Arc<Self>,
        server: usize,
    ) -> impl Fn(PushInfo) + Send + Sync + 'static {
        let listener = Arc::downgrade(self);
        move |push| {
            let Some(listener) = listener.upgrade() else {
                return;
            };
            match (push.kind, push.data.as_slice()) {
                (PushKind::Message, [_, Value::BulkString(message)]) => {
                    listener.hear(server, message, false);
                }
                (PushKind::Disconnection, [Value::Nil]) => listener.runtime_ended(),
                // Messages may be missed until the connection is back.
                (PushKind::Disconnection, _) => listener.waiters.wake_all(),
                _ => {}
            }
        }
    }

    /// A task that listens has ended with its runtime: those who wait on another one attempt.
    pub(super) fn runtime_ended(&self) {
        self.waiters.post_all(|| Heard {
            server: 0,
            notice: Notice::LookAfter(RUNTIME_ENDS),
            is_true: false,
        });
    }

    pub(super) fn hear(&self, server: usize, message: &[u8], is_true: bool) {
        let message = std::str::from_utf8(message);
        if let Some((number, notice)) = message.ok().and_then(Notice::read)
            && let Some(mailbox) = self.waiters.mailbox(number)
        {
            mailbox.post(Heard {
                server,
                notice,
                is_true,
            });
        }
    }
}
