//! Whether the server that a connection leads to is still the primary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::PushInfo;

use super::sentinels::Sentinels;
use crate::engine::redis::connector::messages_were_missed;
use crate::url::Server;

/// How often it is asked whether the server is still the primary. A server that was cut off from the others does not know that
/// itself.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Ends a connection once the sentinels name another primary.
pub(in crate::engine::redis) struct Watch {
    pub(in crate::engine::redis) sentinels: Arc<Sentinels>,
    pub(in crate::engine::redis) primary: Server,
    /// That of the connection, gone with it.
    pub(in crate::engine::redis) ended: Weak<AtomicBool>,
    pub(in crate::engine::redis) on_push: Arc<dyn Fn(PushInfo) + Send + Sync>,
}

impl Watch {
    pub(in crate::engine::redis) async fn until_another_is_named(self) {
        while self.goes_on() {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let named = self.sentinels.primary().await;
            if named.is_ok_and(|named| named != self.primary) {
                break;
            }
        }
        // Also if a request has found the connection to be of no use: those who wait do not know that.
        if let Some(ended) = self.ended.upgrade() {
            ended.store(true, Ordering::Release);
            (self.on_push)(messages_were_missed());
        }
    }

    fn goes_on(&self) -> bool {
        let ended = self.ended.upgrade();
        ended.is_some_and(|ended| !ended.load(Ordering::Acquire))
    }
}
