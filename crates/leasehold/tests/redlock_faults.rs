//! Five real servers, sixteen clients, and what can go wrong: nobody enters beside another, tokens rise, and work
//! goes on. Each test prints how much was done and how much was broken.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::clock::{Clock, Moment};
use leasehold::conformance::history::Violation;
use leasehold::{ErrorKind, Lease, Locks};
use nix::sys::signal::Signal;
use support::bent_clock::BentClock;
use support::crowd::Crowd;
use support::deployment::Deployment;
use support::process::{Process, come_and_go_if_asked};
use support::proxy::{Link, Proxy};
use support::redis_server::RedisServer;
use tokio::sync::{Semaphore, SemaphorePermit};

const TTL: Duration = Duration::from_millis(500);

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// More crowds than this at once would only wait for each other.
async fn a_turn() -> SemaphorePermit<'static> {
    static TURNS: Semaphore = Semaphore::const_new(2);
    TURNS.acquire().await.unwrap()
}

/// Different pairs of five, all in their turn.
fn pairs() -> impl Iterator<Item = [usize; 2]> {
    let all = (0..5).flat_map(|one| (one + 1..5).map(move |other| [one, other]));
    let mut all: Vec<_> = all.collect();
    fastrand::shuffle(&mut all);
    all.into_iter().cycle()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_are_killed() {
    let _turn = a_turn().await;
    let max_ttl = ms(1000);
    let nodes = Deployment::brittle(max_ttl, "");
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let mut faults = 0;
    for pair in pairs().take(4) {
        crowd.goes_on(20, ms(5000)).await;
        for node in pair {
            nodes.nodes[node].kill();
            faults += 1;
        }
        crowd.goes_on(20, ms(5000)).await;
        for node in pair {
            nodes.nodes[node].revive();
        }
        // Until they vote again, the others must stay.
        tokio::time::sleep(max_ttl + ms(200)).await;
    }
    crowd.goes_on(50, ms(5000)).await;
    crowd.ends_well("two of five killed", faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_are_stopped_for_longer_than_the_ttl() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let mut faults = 0;
    for pair in pairs().take(4) {
        crowd.goes_on(20, ms(5000)).await;
        for node in pair {
            nodes.nodes[node].stop();
            faults += 1;
        }
        tokio::time::sleep(TTL + ms(200)).await;
        crowd.goes_on(20, ms(5000)).await;
        for node in pair {
            nodes.nodes[node].go_on();
        }
        tokio::time::sleep(ms(300)).await;
    }
    crowd.goes_on(50, ms(5000)).await;
    crowd.ends_well("two of five stopped", faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_are_cut_off() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let mut proxies = Vec::new();
    for node in &nodes.nodes {
        proxies.push(Proxy::to(node.port).await);
    }
    let url = nodes.url_through(proxies.iter().map(|proxy| proxy.port));
    let crowd = Crowd::start(&url, TTL).await;
    let mut faults = 0;
    let links = [
        Link::Hang,
        Link::Slow(ms(20)),
        Link::Refuse,
        Link::Swallow,
        Link::Slow(ms(120)),
    ];
    for (pair, link) in pairs().zip(links) {
        crowd.goes_on(20, ms(5000)).await;
        for node in pair {
            proxies[node].set(link);
            faults += 1;
        }
        tokio::time::sleep(TTL + ms(200)).await;
        crowd.goes_on(20, ms(5000)).await;
        for node in pair {
            proxies[node].set(Link::Open);
        }
        // Until they are found well: with the next two, more would be missing than may be.
        tokio::time::sleep(ms(700)).await;
    }
    crowd.goes_on(50, ms(5000)).await;
    crowd.ends_well("two of five cut off", faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_errors_are_clear_and_work_goes_on_when_one_returns() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let bystander = Locks::connect(nodes.url()).await.unwrap();
    crowd.goes_on(50, ms(5000)).await;
    for node in &nodes.nodes[..3] {
        node.stop();
    }
    tokio::time::sleep(TTL).await;
    for wait in [ms(0), ms(700)] {
        let began = Instant::now();
        let request = bystander.lock("x").ttl(TTL).wait(wait);
        let error = request.acquire().await.unwrap_err();
        let (took, text) = (began.elapsed(), error.to_string());
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{text}");
        assert!(took < wait + ms(1000), "{took:?}");
        for gone in 0..3 {
            assert!(text.contains(&nodes.address(gone)), "{text}");
        }
    }
    nodes.nodes[1].go_on();
    crowd.goes_on(50, ms(4000)).await;
    let again = bystander.lock("z").ttl(TTL).wait(ms(1000)).acquire().await;
    again.unwrap().release().await.unwrap();
    for node in [0, 2] {
        nodes.nodes[node].go_on();
    }
    crowd.goes_on(50, ms(5000)).await;
    crowd.ends_well("three of five gone, one returned", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_is_restarted_empty_again_and_again() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let end = Instant::now() + ms(5000);
    let mut faults = 0;
    while Instant::now() < end {
        let node = &nodes.nodes[2];
        node.kill();
        node.revive();
        faults += 1;
        tokio::time::sleep(ms(300)).await;
    }
    crowd.goes_on(50, ms(5000)).await;
    crowd.ends_well("one restarted empty", faults).await;
}

/// Held, and then not renewed any more: as by a client that is cut off itself.
async fn held_without_renewal(locks: &Locks, ttl: Duration) -> (u64, Moment) {
    let lease = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    let known = (lease.token().get(), lease.valid_until());
    lease.detach();
    known
}

/// Asks again while the nodes that were found gone are not yet found well.
async fn patiently(locks: &Locks) -> Lease {
    let deadline = Instant::now() + ms(8000);
    loop {
        let request = locks.lock("x").ttl(TTL).wait(ms(5000));
        match request.acquire().await {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(ms(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_that_forgot_a_lock_does_not_grant_it_again() {
    let _turn = a_turn().await;
    let max_ttl = ms(2000);
    let nodes = Deployment::brittle(max_ttl, "");
    let (holder, other) = (connected(&nodes).await, connected(&nodes).await);
    let (token, valid_until) = held_without_renewal(&holder, ms(1900)).await;
    for node in &nodes.nodes[..3] {
        node.kill();
        node.revive();
    }
    let revived = Instant::now();
    let early = other.lock("x").ttl(TTL).try_acquire().await;
    assert!(!matches!(early, Ok(Some(_))), "{early:?}");
    let lease = patiently(&other).await;
    assert!(Clock::machine().now() > valid_until);
    assert!(revived.elapsed() >= max_ttl, "{:?}", revived.elapsed());
    assert!(lease.token().get() > token);
    println!(
        "a quorum lost its memory: voted again by itself after {:?}",
        revived.elapsed()
    );
    lease.release().await.unwrap();
}

/// What the test above would see if such nodes voted at once.
#[tokio::test(flavor = "multi_thread")]
async fn without_quarantine_a_forgotten_lock_is_granted_again() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let (holder, other) = (connected(&nodes).await, connected(&nodes).await);
    let (token, valid_until) = held_without_renewal(&holder, ms(1900)).await;
    for node in &nodes.nodes[..3] {
        node.kill();
        node.revive();
        nodes.mark(node);
    }
    let lease = patiently(&other).await;
    assert!(
        Clock::machine().now() < valid_until,
        "the overlap was to be shown"
    );
    assert!(lease.token().get() > token);
}

/// What a process does that the next test starts.
#[tokio::test(flavor = "multi_thread")]
async fn as_a_process_of_its_own() {
    come_and_go_if_asked(TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_stopped_past_their_leases() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let crowd = Crowd::of(13, &nodes.url(), TTL).await;
    let processes: Vec<_> = (0..3).map(|_| Process::start(&nodes.url())).collect();
    crowd.goes_on(50, ms(5000)).await;
    let mut faults = 0;
    for process in processes.iter().cycle().take(7) {
        process.signal(Signal::SIGSTOP);
        faults += 1;
        tokio::time::sleep(TTL + ms(fastrand::u64(100..300))).await;
        process.signal(Signal::SIGCONT);
    }
    crowd.goes_on(50, ms(5000)).await;
    let (mut events, mut lost) = (Vec::new(), 0);
    for process in processes {
        let (more, more_lost) = process.end();
        events.extend(more);
        lost += more_lost;
    }
    let what = format!("clients stopped past their leases ({lost} inside)");
    let violations = crowd.end(&what, faults, events).await;
    assert!(violations.is_empty(), "{}", violations[0]);
}

async fn connected(nodes: &Deployment) -> Locks {
    Locks::connect(nodes.url()).await.unwrap()
}

fn is_overlap(violation: &Violation) -> bool {
    matches!(violation, Violation::Overlap { .. })
}

fn is_off_by(server: &RedisServer, seconds: i64) -> bool {
    let told = server.command("TIME");
    let told: i64 = told.lines().nth(2).unwrap().parse().unwrap();
    let now = leasehold::wall_clock_micros() as i64 / 1_000_000;
    (told - now - seconds).abs() <= 2
}

/// Steps clocks of one node, then of two, by a minute either way; returns what went wrong.
async fn step_clocks(what: &str, options: &str) -> Vec<Violation> {
    let (servers, clocks): (Vec<_>, Vec<_>) = (0..5).map(|_| BentClock::server()).unzip();
    let nodes = Deployment::of(servers, ms(2000), &format!("node_timeout=100ms&{options}"));
    nodes.has_stood_a_while();
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let mut faults = 0;
    for stepped in [&[1][..], &[1, 3], &[0, 4]] {
        for seconds in [60, -60, 0] {
            crowd.goes_on(20, ms(5000)).await;
            for node in stepped {
                clocks[*node].step_to(seconds);
                assert!(is_off_by(&nodes.nodes[*node], seconds), "by {seconds} s");
                faults += 1;
            }
            tokio::time::sleep(ms(250)).await;
        }
    }
    crowd.goes_on(50, ms(5000)).await;
    crowd.end(what, faults, Vec::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_step_do_not_let_tokens_fall() {
    let _turn = a_turn().await;
    let violations = step_clocks("clocks stepped, quorum 3", "").await;
    let fell = violations.iter().find(|violation| !is_overlap(violation));
    assert!(fell.is_none(), "{}", fell.unwrap());
}

/// Any two quorums of four share three nodes: two may step.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_greater_quorum_two_clocks_that_step_do_no_harm() {
    let _turn = a_turn().await;
    let violations = step_clocks("clocks stepped, quorum 4", "quorum=majority%2B1").await;
    assert!(violations.is_empty(), "{}", violations[0]);
}
