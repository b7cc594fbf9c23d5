//! One member of the cluster, and the connection to it: another one is made if nothing comes over it any more.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::clock::{Clock, Moment};
use crate::sync::Mutex;

/// How to reach a member.
#[derive(Debug)]
pub(crate) enum Reach {
    /// It is connected to when it is needed.
    By(Box<Endpoint>),
    /// A channel of the program's own: only that knows how to connect.
    Given(Channel),
}

#[derive(Debug)]
pub(super) struct Member {
    /// How to connect anew.
    endpoint: Option<Box<Endpoint>>,
    /// Held for nanoseconds and never across an await, so a std Mutex.
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    channel: Channel,
    made: Moment,
    /// When the first request left that was not answered, if none was since.
    silent_since: Option<Moment>,
}

impl Connection {
    fn over(channel: Channel) -> Self {
        Self {
            channel,
            made: Clock::machine().now(),
            silent_since: None,
        }
    }
}

impl Member {
    pub(super) fn new(reach: Reach) -> Self {
        let (channel, endpoint) = match reach {
            Reach::By(endpoint) => (endpoint.connect_lazy(), Some(endpoint)),
            Reach::Given(channel) => (channel, None),
        };
        Self {
            endpoint,
            connection: Mutex::new(Connection::over(channel)),
        }
    }

    /// The connection, and when it was made.
    pub(super) fn channel(&self) -> (Channel, Moment) {
        let connection = self.connection.lock();
        (connection.channel.clone(), connection.made)
    }

    /// The connection that was made then takes no more requests: the runtime has ended that it was made on. Another one is made on this runtime, unless
    /// that was done since. Returns whether there is another.
    pub(super) fn was_closed(&self, made: Moment) -> bool {
        let Some(endpoint) = &self.endpoint else {
            return false;
        };
        let mut connection = self.connection.lock();
        if connection.made == made {
            *connection = Connection::over(endpoint.connect_lazy());
        }
        true
    }

    pub(super) fn answered(&self) {
        self.connection.lock().silent_since = None;
    }

    /// A request that left then was not answered. After a while of that the connection may have been lost in silence, as when a firewall
    /// forgets it, and another one is made; returns whether it was so.
    pub(super) fn was_silent(&self, sent: Moment, a_while: Duration) -> bool {
        let Some(endpoint) = &self.endpoint else {
            return false;
        };
        let mut connection = self.connection.lock();
        if sent < connection.made {
            return false;
        }
        let since = *connection.silent_since.get_or_insert(sent);
        let is_lost = Clock::machine().now().since(since) >= a_while;
        if is_lost {
            *connection = Connection::over(endpoint.connect_lazy());
        }
        is_lost
    }
}
