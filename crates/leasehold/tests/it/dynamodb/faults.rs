//! Servers that are stopped and killed, answers that are cut off, throttling, clients that stop past their leases, clocks that step: nobody enters
//! beside another, and it goes on afterwards.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::aws_server::AwsServer;
use crate::support::bent_clock::BentClock;
use crate::support::crowd::{Crowd, a_turn};
use crate::support::http_faults::{Fate, HttpFaults};
use crate::support::process::{Process, stop_past_leases};
use crate::support::times::{ms, secs};

const TTL: Duration = ms(3000);
const OPTIONS: &str = "&poll=40ms&waiter_ttl=3s&timeout=10s";
/// For servers that stand still: time enough for a busy one, and not enough for one that is stopped.
const IMPATIENT: &str = "&poll=40ms&waiter_ttl=3s&timeout=2s";
const SOON: Duration = secs(60);
const CLIENTS: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn server_that_is_killed_loses_no_lock() {
    let _turn = a_turn().await;
    let server = AwsServer::dynalite();
    let crowd = Crowd::of(CLIENTS, &server.dynamodb(OPTIONS), TTL).await;
    for _ in 0..3 {
        crowd.goes_on(10, SOON).await;
        server.kill_and_revive();
    }
    crowd.goes_on(10, SOON).await;
    crowd.ends_well("dynamodb, server killed", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_stands_still_loses_no_lock() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    let crowd = Crowd::of(CLIENTS, &server.dynamodb(IMPATIENT), TTL).await;
    for _ in 0..2 {
        crowd.goes_on(10, SOON).await;
        server.0.signal(Signal::SIGSTOP);
        tokio::time::sleep(TTL + ms(500)).await;
        server.0.signal(Signal::SIGCONT);
    }
    crowd.goes_on(10, SOON).await;
    crowd.ends_well("dynamodb, server stopped", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_cut_off_after_the_write_lose_no_lock() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("dynamodb", "locks", faults.port, OPTIONS);
    let crowd = Crowd::of(CLIENTS, &url, TTL).await;
    faults.set(|asked| match asked.writes() && fastrand::u8(..5) == 0 {
        true => Fate::IsCutAfterwards,
        false => Fate::Passes,
    });
    crowd.goes_on(60, SOON).await;
    faults.pass();
    crowd.goes_on(10, SOON).await;
    crowd.ends_well("dynamodb, answers cut off", 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn throttling_delays_and_loses_no_lock() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("dynamodb", "locks", faults.port, OPTIONS);
    let crowd = Crowd::of(CLIENTS, &url, TTL).await;
    let told = [
        (400, "ProvisionedThroughputExceededException"),
        (400, "ThrottlingException"),
        (429, "TooManyRequests"),
        (503, "ServiceUnavailable"),
    ];
    faults.set(move |_| match fastrand::usize(..20) {
        nth if nth < told.len() => {
            let (status, code) = told[nth];
            Fate::IsTold(
                status,
                format!("{{\"__type\":\"x#{code}\",\"message\":\"slow down\"}}"),
            )
        }
        _ => Fate::Passes,
    });
    crowd.goes_on(60, SOON).await;
    faults.pass();
    crowd.goes_on(10, SOON).await;
    crowd.ends_well("dynamodb, throttled", 12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_stopped_past_their_leases_let_nobody_in_beside() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    stop_past_leases(&server.dynamodb(OPTIONS), ms(2000), ms(800), SOON).await;
}

/// One's clock is an hour behind, and one's an hour ahead; nobody compares them.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_an_hour_apart_let_nobody_in_beside() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    let url = server.dynamodb(OPTIONS);
    let crowd = Crowd::of(3, &url, TTL).await;
    let clocks = [BentClock::off_by(-3600), BentClock::off_by(3600)];
    let processes = clocks
        .each_ref()
        .map(|clock| Process::within(&url, TTL, &clock.environment()));
    for process in &processes {
        process.until_inside(SOON).await;
    }
    crowd.goes_on(20, SOON).await;
    for (clock, step) in clocks.iter().zip([3600, -3600]) {
        clock.step_to(step);
    }
    crowd.goes_on(20, SOON).await;
    let mut events = Vec::new();
    for process in processes {
        let (more, _) = process.end();
        assert!(
            !more.is_empty(),
            "a process with another clock never entered"
        );
        events.extend(more);
    }
    let violations = crowd.end("dynamodb, clocks an hour apart", 2, events).await;
    assert!(violations.is_empty(), "{}", violations[0]);
}

/// Some seconds apart, and all trust clocks that are at most ten apart.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_within_the_trusted_skew_let_nobody_in_beside() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    let url = server.dynamodb(&format!("{OPTIONS}&max_clock_skew=10s"));
    let crowd = Crowd::of(2, &url, TTL).await;
    let clocks = [BentClock::off_by(-4), BentClock::off_by(4)];
    let processes = clocks
        .each_ref()
        .map(|clock| Process::within(&url, TTL, &clock.environment()));
    for process in &processes {
        process.until_inside(SOON).await;
    }
    crowd.goes_on(40, SOON).await;
    for (clock, step) in clocks.iter().zip([4, -4]) {
        clock.step_to(step);
    }
    crowd.goes_on(40, SOON).await;
    let mut events = Vec::new();
    for process in processes {
        let (more, _) = process.end();
        assert!(
            !more.is_empty(),
            "a process with another clock never entered"
        );
        events.extend(more);
    }
    let violations = crowd.end("dynamodb, trusted clocks", 2, events).await;
    assert!(violations.is_empty(), "{}", violations[0]);
}

/// By something in between that repeats requests whose answers are late.
#[tokio::test(flavor = "multi_thread")]
async fn writes_sent_twice_on_the_way_lose_no_lock() {
    let _turn = a_turn().await;
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("dynamodb", "locks", faults.port, OPTIONS);
    let crowd = Crowd::of(CLIENTS, &url, TTL).await;
    faults.set(|asked| match asked.writes() && fastrand::u8(..3) == 0 {
        true => Fate::IsSentTwice,
        false => Fate::Passes,
    });
    crowd.goes_on(60, SOON).await;
    crowd.ends_well("dynamodb, writes sent twice", 20).await;
}
