//! What the doctor finds in a server that is set up wrongly in one way, and that the fix ends it.

use leasehold::engine::doctor::Weight;

use crate::support::bent_clock::BentClock;
use crate::support::findings::{until_wrong, weight};
use crate::support::postgres_server::PostgresServer;

#[tokio::test]
async fn each_setting_is_found_until_it_is_mended() {
    let server = PostgresServer::with(&["fsync=on"]);
    let url = server.url();
    until_wrong(&url, &[]).await;
    for (id, setting, value) in [
        ("full_page_writes", "full_page_writes", "off"),
        ("idle_timeout", "idle_session_timeout", "5s"),
        ("statement_timeout", "statement_timeout", "100ms"),
        ("synchronous_standbys", "synchronous_standby_names", "*"),
    ] {
        server.sql(&format!("ALTER SYSTEM SET {setting} = '{value}'"));
        server.sql("SELECT pg_reload_conf()");
        let found = until_wrong(&url, &[id]).await;
        assert!(
            !found[0].means.is_empty() && !found[0].fix.is_empty(),
            "{found:?}"
        );
        server.sql(&format!("ALTER SYSTEM RESET {setting}"));
        server.sql("SELECT pg_reload_conf()");
        until_wrong(&url, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_count_if_grants_wait_for_them() {
    let server = PostgresServer::with(&["fsync=on"]);
    let url = server.url();
    until_wrong(&url, &[]).await;
    let standby = tokio::task::block_in_place(|| server.standby());
    until_wrong(&url, &["standbys"]).await;
    let set = |setting: &str| {
        server.sql(&format!("ALTER SYSTEM {setting}"));
        server.sql("SELECT pg_reload_conf()");
    };
    set("SET synchronous_standby_names = '*'");
    until_wrong(&url, &[]).await;
    set("SET synchronous_commit = 'local'");
    until_wrong(&url, &["synchronous_commit"]).await;
    set("RESET synchronous_commit");
    until_wrong(&url, &[]).await;

    // Not everybody may see what the standbys do.
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let app = server.url_of("app", "x", "postgres");
    let app = format!("{app}?schema=locks_of_app");
    assert_eq!(weight(&app, "synchronous_standbys").await, Weight::Unknown);
    drop(standby);
}

#[tokio::test]
async fn a_crowded_server_with_a_wrong_clock_that_does_not_flush() {
    let clock = BentClock::off_by(60);
    let server = PostgresServer::within(&["max_connections=12"], &clock.environment());
    let url = server.url();
    until_wrong(&url, &["clock", "connections", "fsync"]).await;
    clock.step_to(0);
    until_wrong(&url, &["connections", "fsync"]).await;
}
