//! The way to the node that has a slot, and where to go on from an answer that it has not.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ErrorKind as Redis, RedisError, ServerErrorKind};

use super::nodes::Nodes;
use super::slots::read_address;
use crate::engine::redis::connection::Connection;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::url::Server;

const FIRST_DELAY: Duration = Duration::from_millis(2);
const LONGEST_DELAY: Duration = Duration::from_millis(50);

/// The way of one request: repeated for as long as a request may take, since a slot that moves or a failover takes a moment.
pub(crate) struct Route<'a> {
    nodes: &'a Nodes,
    slot: usize,
    /// The node that was asked last.
    asked: Option<Server>,
    /// Where the slot is moving to: only for the next try.
    ask: Option<Server>,
    until: Instant,
    /// It was found elsewhere when the time was over.
    has_more_time: bool,
    delay: Duration,
    readings: u64,
}

impl<'a> Route<'a> {
    pub(super) fn to(nodes: &'a Nodes, slot: usize) -> Self {
        Self {
            nodes,
            slot,
            asked: nodes.owner(slot),
            ask: None,
            until: Instant::now() + nodes.config.timeout,
            has_more_time: false,
            delay: FIRST_DELAY,
            readings: nodes.readings(),
        }
    }

    /// To the node that is next to be asked.
    pub(crate) async fn connection(&mut self) -> Result<Arc<Connection>> {
        loop {
            self.readings = self.nodes.readings();
            match self.connect().await {
                Ok(connection) => return Ok(connection),
                Err(error) => self.follow(error).await?,
            }
        }
    }

    async fn connect(&mut self) -> Result<Arc<Connection>> {
        let ask = self.ask.take();
        let asking = ask.is_some();
        let server = ask.or_else(|| self.nodes.owner(self.slot));
        let server = server.ok_or_else(|| not_served(self.slot))?;
        self.asked = Some(server.clone());
        let connection = self.nodes.client(&server)?.connection().await;
        let connection = connection.map_err(|error| error.with_context(&server))?;
        Ok(match asking {
            true => Arc::new(connection.asking()),
            false => connection,
        })
    }

    /// Where to go on after this error: returns if the request can be repeated, since it was not carried out.
    pub(crate) async fn follow(&mut self, error: Error) -> Result<()> {
        let Some(next) = Next::after(&error, self.asked.as_ref()) else {
            return Err(error);
        };
        let before = self.nodes.owner(self.slot);
        match next {
            Next::Ask(server) => self.ask = Some(server),
            Next::Moved(server) => {
                // If the map cannot be read, this is known all the same.
                let _ = self
                    .nodes
                    .read_map(Some(&server), None, self.readings)
                    .await;
                self.nodes.assign(self.slot, server);
            }
            Next::Later => {}
            Next::Elsewhere => {
                let asked = self.asked.as_ref();
                let _ = self.nodes.read_map(None, asked, self.readings).await;
            }
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if !left.is_zero() && self.ask.is_some() {
            return Ok(());
        }
        if left.is_zero() {
            // Finding out that a node does not answer may have taken all the time.
            if self.has_more_time || self.nodes.owner(self.slot) == before {
                return Err(gives_up(self.slot, error));
            }
            self.has_more_time = true;
            self.until = Instant::now() + self.nodes.config.timeout;
            return Ok(());
        }
        tokio::time::sleep(self.delay.min(left)).await;
        self.delay = (self.delay * 2).min(LONGEST_DELAY);
        Ok(())
    }
}

/// What an error says of the way.
#[derive(Debug, PartialEq)]
enum Next {
    /// The slot has moved there.
    Moved(Server),
    /// It is moving there, and this key has.
    Ask(Server),
    /// Some of the keys have, or a node is about to take it over.
    Later,
    /// The node cannot be reached, or is no longer a primary.
    Elsewhere,
}

impl Next {
    /// `None`: the error says nothing of the way, or the request may have been carried out.
    fn after(error: &Error, asked: Option<&Server>) -> Option<Self> {
        if error.effect() == Effect::Unknown {
            return None;
        }
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<RedisError>());
        let Some(cause) = cause else {
            return (error.kind() == ErrorKind::Unreachable).then_some(Next::Elsewhere);
        };
        let redirected = || {
            let (address, _) = cause.redirect_node()?;
            read_address(address, asked?)
        };
        match cause.kind() {
            Redis::Server(ServerErrorKind::Moved) => redirected().map(Next::Moved),
            Redis::Server(ServerErrorKind::Ask) => redirected().map(Next::Ask),
            Redis::Server(ServerErrorKind::TryAgain) => Some(Next::Later),
            Redis::Server(ServerErrorKind::ClusterDown | ServerErrorKind::ReadOnly) => {
                Some(Next::Elsewhere)
            }
            // It is there, and says why it does not serve.
            Redis::Server(_) | Redis::Extension => None,
            _ if error.is_busy() || error.kind() != ErrorKind::Unreachable => None,
            _ => Some(Next::Elsewhere),
        }
    }
}

fn not_served(slot: usize) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("no node of the cluster has the lock's slot, {slot}"),
    )
}

/// It has lasted for too long.
fn gives_up(slot: usize, error: Error) -> Error {
    let what = format!(
        "the cluster does not serve the lock's slot, {slot}: {}",
        error.what()
    );
    Error::new(ErrorKind::Unreachable, what)
        .advise("wait, if the slot is being moved or a failover is under way; if not, see redis-cli --cluster check")
        .because_busy()
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::failure;

    fn server(port: u16) -> Server {
        Server {
            host: "h".to_owned(),
            port,
        }
    }

    fn after(kind: ServerErrorKind, detail: &str) -> Option<Next> {
        let said = RedisError::from((Redis::Server(kind), "said", detail.to_owned()));
        Next::after(&failure::of_request(said), Some(&server(1)))
    }

    #[test]
    fn answers_of_nodes_say_where_to_go_on() {
        let moved = after(ServerErrorKind::Moved, "3999 i:7");
        assert!(matches!(moved, Some(Next::Moved(Server { port: 7, .. }))));
        let ask = after(ServerErrorKind::Ask, "3999 :7");
        assert_eq!(ask, Some(Next::Ask(server(7))));
        assert_eq!(after(ServerErrorKind::TryAgain, ""), Some(Next::Later));
        let down = after(ServerErrorKind::ClusterDown, "");
        assert_eq!(down, Some(Next::Elsewhere));
        for other in [ServerErrorKind::NoPerm, ServerErrorKind::BusyLoading] {
            assert_eq!(after(other, ""), None);
        }
        assert_eq!(after(ServerErrorKind::Moved, "nonsense"), None);
    }

    #[test]
    fn request_that_may_have_been_carried_out_is_not_repeated() {
        let cut = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let asked = Some(server(1));
        let midway = failure::of_request(cut());
        assert_eq!(Next::after(&midway, asked.as_ref()), None);
        let before = failure::of_connect(cut());
        assert_eq!(Next::after(&before, asked.as_ref()), Some(Next::Elsewhere));
        let within = RedisError::from((
            Redis::Extension,
            "said",
            "Script attempted to access a non local key in a cluster node".to_owned(),
        ));
        assert_eq!(
            Next::after(&failure::of_request(within), asked.as_ref()),
            None
        );
    }
}
