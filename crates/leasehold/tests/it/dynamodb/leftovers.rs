//! What stays in the table of locks that nobody uses any more.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Claim, ClaimId, LockName, Locks, Ttl};
use serde_json::Value;

use crate::support::aws_server::AwsServer;
use crate::support::times::secs;

const DAY: Duration = secs(24 * 60 * 60);

/// When the table may delete the item of a lock, counted from now.
fn expires_in(server: &AwsServer, name: &str) -> Duration {
    let key = format!(r#"{{"TableName":"locks","Key":{{"key":{{"S":"lock:{name}"}}}}}}"#);
    let said: Value = serde_json::from_str(&server.dynamo("GetItem", &key)).unwrap();
    let expires = said["Item"]["expires"]["N"].as_str().expect("it expires");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Duration::from_secs(expires.parse().unwrap()) - now
}

#[tokio::test]
async fn item_of_a_dead_holder_expires_long_after_its_ttl() {
    let server = AwsServer::ministack();
    let locks = Locks::connect(server.dynamodb("")).await.unwrap();
    let lease = locks.lock("dead").ttl(secs(3600)).acquire().await.unwrap();
    lease.detach();
    let days = 30 * DAY;
    let mut sticky = Claim::new(LockName::new("sticky").unwrap(), ClaimId::random().unwrap());
    sticky.ttl = Ttl::sticky(days).unwrap();
    locks.engine().try_acquire(&sticky).await.unwrap();
    drop(locks);
    for (name, ttl) in [("dead", secs(3600)), ("sticky", days)] {
        let left = expires_in(&server, name);
        assert!(left > ttl + 6 * DAY && left < ttl + 8 * DAY, "{left:?}");
    }
}
