//! What the doctor finds in a server that is set up wrongly in one way, and that the fix ends it.

use leasehold::engine::doctor::{Verdict, Weight};
use leasehold::{Locks, Ttl};

use super::common::until;
use crate::support::bent_clock::BentClock;
use crate::support::findings::{findings, until_wrong, weight, wrong};
use crate::support::redis_server::RedisServer;

#[tokio::test]
async fn each_setting_is_found_until_it_is_mended() {
    let server = RedisServer::with(&["--appendonly", "yes"]);
    let url = server.url();
    assert_eq!(wrong(&url).await, [""; 0], "all is well");
    let table = [
        (
            "eviction",
            &["maxmemory 100mb", "maxmemory-policy allkeys-lru"][..],
            &["maxmemory-policy noeviction"][..],
        ),
        ("memory", &["maxmemory 1"], &["maxmemory 100mb"]),
        ("idle_timeout", &["timeout 5"], &["timeout 0"]),
        (
            "output_buffer",
            &["client-output-buffer-limit \"pubsub 65536 0 0\""],
            &["client-output-buffer-limit \"pubsub 33554432 8388608 60\""],
        ),
        ("restart", &["appendonly no"], &["appendonly yes"]),
        ("restart", &["appendfsync no"], &["appendfsync everysec"]),
    ];
    for (id, breaks, fixes) in table {
        let set = |lines: &[&str]| {
            for line in lines {
                let said = server.command(&format!("CONFIG SET {line}"));
                assert_eq!(said, "+OK\r\n", "{line}");
            }
        };
        set(breaks);
        let found = until_wrong(&url, &[id]).await;
        assert!(
            !found[0].means.is_empty() && !found[0].fix.is_empty(),
            "{found:?}"
        );
        set(fixes);
        until_wrong(&url, &[]).await;
    }
    // Without the file, but with a time that no lock outlives.
    server.command("CONFIG SET appendonly no");
    assert_eq!(wrong(&format!("{url}?max_ttl=30s")).await, [""; 0]);
}

#[tokio::test]
async fn a_whole_report_leaves_nothing_behind() {
    let server = RedisServer::with(&["--appendonly", "yes"]);
    let locks = Locks::connect(server.url()).await.unwrap();
    let report = locks.doctor(Ttl::DEFAULT).await;
    assert_eq!(report.verdict, Verdict::Efficiency);
    assert!(!report.warns(), "{:?}", report.findings);
    for id in ["exclusion", "expiry", "round_trip"] {
        let found = report.findings.iter().find(|finding| finding.id == id);
        assert_eq!(found.unwrap().weight, Weight::Good, "{found:?}");
    }
    assert_eq!(locks.list("").await.unwrap(), []);
}

#[tokio::test]
async fn what_is_accepted_is_no_warning_but_is_told() {
    let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let url = format!("{}?accept=eviction,restart", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    assert_eq!(locks.warnings(), [""; 0]);
    let report = locks.doctor(Ttl::DEFAULT).await;
    assert!(!report.warns(), "{:?}", report.findings);
    let accepted = report.findings.iter().filter(|finding| finding.accepted);
    let mut accepted: Vec<_> = accepted.map(|finding| finding.id).collect();
    accepted.sort_unstable();
    assert_eq!(accepted, ["eviction", "restart"]);
}

#[tokio::test]
async fn replicas_matter_unless_grants_wait_for_them() {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0", "--appendonly", "yes"]);
    let of = format!("127.0.0.1 {}", primary.port);
    let _replica = RedisServer::with(&["--replicaof", &of]);
    until("it follows", || {
        primary.command("INFO replication").contains("state=online")
    })
    .await;
    until_wrong(&primary.url(), &["replicas"]).await;
    let waits = format!("{}?wait_replicas=1&timeout=10s", primary.url());
    assert_eq!(wrong(&waits).await, [""; 0]);
}

#[tokio::test]
async fn rights_that_are_missing_are_named_with_the_command_that_gives_them() {
    let server = RedisServer::with(&["--appendonly", "yes"]);
    let user = "on >s3cret-word ~leasehold:* &leasehold:* +@all";
    server.command(&format!("ACL SETUSER app {user} -publish -hget"));
    let url = format!("redis://app:s3cret-word@127.0.0.1:{}", server.port);
    let found = until_wrong(&url, &["rights"]).await;
    assert!(found[0].seen.contains("HGET, PUBLISH"), "{}", found[0]);
    server.command(&found[0].fix);
    assert_eq!(wrong(&url).await, [""; 0]);

    // Managed services refuse such questions: that is no alarm.
    server.command(&format!("ACL SETUSER app {user} -config -acl"));
    assert_eq!(wrong(&url).await, [""; 0]);
    for id in ["rights", "idle_timeout", "output_buffer"] {
        assert_eq!(weight(&url, id).await, Weight::Unknown, "{id}");
    }
    for finding in findings(&url).await {
        assert!(
            !format!("{finding:?}").contains("s3cret-word"),
            "{finding:?}"
        );
    }
}

#[tokio::test]
async fn a_clock_that_is_off_is_noticed() {
    let (server, clock) = BentClock::server();
    server.command("CONFIG SET appendonly yes");
    until_wrong(&server.url(), &[]).await;
    for seconds in [-60, 60] {
        clock.step_to(seconds);
        until_wrong(&server.url(), &["clock"]).await;
    }
    clock.step_to(0);
    until_wrong(&server.url(), &[]).await;
}
