//! How a waiter hears of a hand-over: messages on one channel for the whole process, over the same
//! connection as everything else.

use std::sync::Arc;

use redis::{PushInfo, PushKind, Value};

use crate::engine::handover::Heard;
use crate::engine::waiters::Waiters;

/// What a server says to a waiter.
#[derive(Debug)]
pub(crate) struct News {
    /// Which of several servers.
    pub(crate) server: usize,
    pub(crate) what: Heard,
}

#[derive(Debug)]
pub(crate) struct Ears {
    channel: String,
    pub(crate) waiters: Waiters<News>,
}

impl Ears {
    pub(crate) fn new(channel: String) -> Self {
        Self {
            channel,
            waiters: Waiters::default(),
        }
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// What to do with whatever a server sends by itself. Called by the connection: never blocks.
    pub(crate) fn listener(
        self: &Arc<Self>,
        server: usize,
    ) -> impl Fn(PushInfo) + Send + Sync + 'static {
        let ears = Arc::downgrade(self);
        move |push| {
            let Some(ears) = ears.upgrade() else { return };
            match (push.kind, push.data.as_slice()) {
                (PushKind::Message, [_, Value::BulkString(message)]) => {
                    ears.hear(server, message);
                }
                // Messages may be missed until the connection is back.
                (PushKind::Disconnection, _) => ears.waiters.ring_all(),
                _ => {}
            }
        }
    }

    fn hear(&self, server: usize, message: &[u8]) -> Option<()> {
        let (number, what) = Heard::read(std::str::from_utf8(message).ok()?)?;
        let bell = self.waiters.bell(number)?;
        bell.ring(News { server, what });
        Some(())
    }
}
