//! The engines that the recipes are tried on: a line for each.

use std::any::Any;
use std::time::Duration;

use super::place::Place;
use super::support::deployment::Deployment;
use super::support::redis_server::RedisServer;

/// A folder, the engine's URL, and whether it keeps guarded records.
pub(crate) struct On {
    pub(crate) place: Place,
    pub(crate) url: String,
    pub(crate) store: bool,
    _server: Box<dyn Any>,
}

/// Does the same on each engine.
pub(crate) fn on_each(work: impl Fn(&On)) {
    let sqlite = Place::new();
    let url = sqlite.url();
    work(&On {
        place: sqlite,
        url,
        store: true,
        _server: Box::new(()),
    });
    let redis = RedisServer::start();
    work(&On {
        place: Place::new(),
        url: redis.url(),
        store: true,
        _server: Box::new(redis),
    });
    let redlock = Deployment::with(5, Duration::from_secs(24 * 60 * 60), "node_timeout=1s");
    redlock.has_stood_a_while();
    work(&On {
        place: Place::new(),
        url: redlock.url(),
        store: false,
        _server: Box::new(redlock),
    });
}
