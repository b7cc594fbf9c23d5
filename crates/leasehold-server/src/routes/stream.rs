//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

/// A client that reads nothing for so long is taken for gone.
const SLOWEST: Duration = Duration::from_secs(30);

/// Why nothing more can be told to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The stream was closed, by the client or on the way.
    Closed,
    /// The client is connected, but reads nothing.
    ReadsNothing,
}

/// The writing end of a stream.
pub(crate) struct Sender {
    events: mpsc::Sender<Event>,
    pub(super) slowest: Duration,
}

impl Sender {
    pub(crate) fn new(events: mpsc::Sender<Event>) -> Self {
        Self {
            events,
            slowest: SLOWEST,
        }
    }

    pub(crate) async fn send(&self, event: &'static str, data: Value) -> Result<(), Gone> {
        self.send_event(Event::default().event(event).data(data.to_string()))
            .await
    }

    pub(crate) async fn send_event(&self, event: Event) -> Result<(), Gone> {
        let sent = self.events.send_timeout(event, self.slowest).await;
        sent.map_err(|error| match error {
            SendTimeoutError::Closed(_) => Gone::Closed,
            SendTimeoutError::Timeout(_) => Gone::ReadsNothing,
        })
    }

    /// Returns when the client has closed the stream.
    pub(crate) async fn closed(&self) {
        self.events.closed().await;
    }
}

/// The stream that a client reads.
pub(crate) fn of(
    events: mpsc::Receiver<Event>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(futures_util::stream::unfold(
        events,
        |mut events| async move {
            let event = events.recv().await?;
            Some((Ok(event), events))
        },
    ))
}
