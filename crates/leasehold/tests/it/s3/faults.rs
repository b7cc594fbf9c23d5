//! Servers that are stopped, answers that are cut off, throttling, clients that stop past their leases: nobody enters beside another, and it goes on
//! afterwards. And how many requests a cycle takes.

use std::time::Duration;

use leasehold::Locks;
use nix::sys::signal::Signal;

use crate::support::aws_server::AwsServer;
use crate::support::crowd::{Crowd, a_turn};
use crate::support::http_faults::{Fate, HttpFaults};
use crate::support::process::stop_past_leases;
use crate::support::times::{ms, secs};

const TTL: Duration = ms(3000);
const OPTIONS: &str = "&poll=40ms&waiter_ttl=3s&timeout=10s";
/// For servers that stand still: time enough for a busy one, and not enough for one that is stopped.
const IMPATIENT: &str = "&poll=40ms&waiter_ttl=3s&timeout=2s";
const SOON: Duration = secs(60);
const CLIENTS: usize = 6;

fn server() -> AwsServer {
    let server = AwsServer::ministack();
    server.make_bucket();
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_stops_and_starts_loses_no_lock() {
    let _turn = a_turn().await;
    let server = server();
    let crowd = Crowd::of(CLIENTS, &server.s3(IMPATIENT), TTL).await;
    crowd.goes_on(10, SOON).await;
    server.restart();
    crowd.goes_on(10, SOON).await;
    server.0.signal(Signal::SIGSTOP);
    tokio::time::sleep(TTL + ms(500)).await;
    server.0.signal(Signal::SIGCONT);
    crowd.goes_on(10, SOON).await;
    crowd.ends_well("s3, server stopped", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_cut_off_and_throttling_lose_no_lock() {
    let _turn = a_turn().await;
    let server = server();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("s3", "locks-of-tests/app", faults.port, OPTIONS);
    let crowd = Crowd::of(CLIENTS, &url, TTL).await;
    faults.set(|asked| match fastrand::u8(..20) {
        0..3 if asked.writes() => Fate::IsCutAfterwards,
        5..8 if asked.writes() => Fate::IsSentTwice,
        3 => Fate::IsTold(503, "<Error><Code>SlowDown</Code></Error>".to_owned()),
        4 => Fate::IsTold(
            409,
            "<Error><Code>ConditionalRequestConflict</Code></Error>".to_owned(),
        ),
        _ => Fate::Passes,
    });
    crowd.goes_on(60, SOON).await;
    faults.pass();
    crowd.goes_on(10, SOON).await;
    crowd
        .ends_well("s3, answers cut off and throttled", 15)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_stopped_past_their_leases_let_nobody_in_beside() {
    let _turn = a_turn().await;
    let server = server();
    stop_past_leases(&server.s3(OPTIONS), ms(2000), ms(800), SOON).await;
}

#[tokio::test]
async fn uncontended_cycle_takes_two_requests_after_the_first() {
    let server = server();
    let locks = Locks::connect(server.s3("")).await.unwrap();
    let mut last = locks.engine().about().requests.unwrap();
    for _ in 0..4 {
        let lease = locks.lock("x").acquire().await.unwrap();
        lease.release().await.unwrap();
        let now = locks.engine().about().requests.unwrap();
        assert_eq!(now - last, 2);
        last = now;
    }
    // For one who comes to a lock that others have used: a write that is refused, and a read.
    let other = Locks::connect(server.s3("")).await.unwrap();
    let before = other.engine().about().requests.unwrap();
    let lease = other.lock("x").acquire().await.unwrap();
    assert_eq!(other.engine().about().requests.unwrap() - before, 3);
    lease.release().await.unwrap();
}
