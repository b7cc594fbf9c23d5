//! What the doctor finds in sentinels that are set up wrongly in one way.

use crate::support::findings::until_wrong;
use crate::support::redis_sentinels::{SERVICE, Sentinels};
use crate::support::redis_server::talk;

#[tokio::test]
async fn quorum_and_failover_time_are_judged() {
    let start = || Sentinels::with(&["--appendonly", "yes"], &[]);
    let all = tokio::task::spawn_blocking(start).await.unwrap();
    let url = all.url_with("?wait_replicas=1&timeout=10s");
    until_wrong(&url, &[]).await;
    for (id, breaks, mends) in [
        ("quorum", "quorum 1", "quorum 2"),
        (
            "failover_time",
            "down-after-milliseconds 60000",
            "down-after-milliseconds 500",
        ),
    ] {
        let set = |setting: &str| {
            let line = format!("SENTINEL SET {SERVICE} {setting}");
            assert_eq!(talk(all.sentinels[0].port, &line).unwrap(), "+OK\r\n");
        };
        set(breaks);
        until_wrong(&url, &[id]).await;
        set(mends);
        until_wrong(&url, &[]).await;
    }
}
