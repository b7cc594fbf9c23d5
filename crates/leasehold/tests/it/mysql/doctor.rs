//! What the doctor finds in a server that is set up wrongly in one way, and that the fix ends it.

use crate::support::bent_clock::BentClock;
use crate::support::findings::until_wrong;
use crate::support::mariadb_server::MariadbServer;

#[tokio::test]
async fn each_setting_is_found_until_it_is_mended() {
    let clock = BentClock::off_by(0);
    let server = MariadbServer::within(&[], &clock.environment());
    let url = server.url();
    until_wrong(&url, &[]).await;
    for (id, setting, bad, good) in [
        ("flush", "innodb_flush_log_at_trx_commit", 0, 1),
        ("idle_timeout", "wait_timeout", 5, 28_800),
        ("connections", "max_connections", 10, 1_000),
    ] {
        server.sql(&format!("SET GLOBAL {setting} = {bad}"));
        let found = until_wrong(&url, &[id]).await;
        assert!(
            !found[0].means.is_empty() && !found[0].fix.is_empty(),
            "{found:?}"
        );
        server.sql(&format!("SET GLOBAL {setting} = {good}"));
        until_wrong(&url, &[]).await;
    }
    clock.step_to(60);
    until_wrong(&url, &["clock"]).await;
    clock.step_to(0);
    until_wrong(&url, &[]).await;
}
