//! Five real servers, sixteen clients, and what can go wrong: nobody enters beside another, tokens rise, and work
//! goes on. Each test prints how much was done and how much was broken.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::bent_clock::BentClock;
use crate::support::crowd::{Crowd, a_turn};
use crate::support::deployment::Deployment;
use crate::support::lost_connections;
use crate::support::process::stop_past_leases;
use crate::support::proxy::Link;
use crate::support::redis_server::RedisServer;
use leasehold::clock::{Clock, Moment};
use leasehold::conformance::history::Violation;
use leasehold::engine::{Attempt, Renew, Renewal};
use leasehold::{Claim, ClaimId, Effect, ErrorKind, Lease, LockName, Locks, Ttl};

const TTL: Duration = Duration::from_millis(500);

/// Far more than is needed, unless the machine does other things meanwhile.
const SOON: Duration = ms(20_000);

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
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
    for (nth, pair) in pairs().take(4).enumerate() {
        // Every second pair comes back with an old memory, the others with none.
        if nth % 2 == 1 {
            pair.iter().for_each(|node| nodes.nodes[*node].save());
        }
        crowd.goes_on(20, SOON).await;
        for node in pair {
            nodes.nodes[node].kill();
            faults += 1;
        }
        crowd.goes_on(20, SOON).await;
        for node in pair {
            nodes.nodes[node].revive();
        }
        // Until they vote again, the others must stay.
        tokio::time::sleep(max_ttl + ms(200)).await;
    }
    crowd.goes_on(50, SOON).await;
    crowd.ends_well("two of five killed", faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_are_stopped_for_longer_than_the_ttl() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let mut faults = 0;
    for pair in pairs().take(4) {
        crowd.goes_on(20, SOON).await;
        for node in pair {
            nodes.nodes[node].stop();
            faults += 1;
        }
        tokio::time::sleep(TTL + ms(200)).await;
        crowd.goes_on(20, SOON).await;
        for node in pair {
            nodes.nodes[node].go_on();
        }
        tokio::time::sleep(ms(300)).await;
    }
    crowd.goes_on(50, SOON).await;
    crowd.ends_well("two of five stopped", faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_two_are_cut_off() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let (proxies, url) = nodes.through_proxies().await;
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
        crowd.goes_on(20, SOON).await;
        for node in pair {
            proxies[node].set(link);
            faults += 1;
        }
        tokio::time::sleep(TTL + ms(200)).await;
        crowd.goes_on(20, SOON).await;
        for node in pair {
            proxies[node].set(Link::Open);
        }
        // Until they are found well: with the next two, more would be missing than may be.
        tokio::time::sleep(ms(700)).await;
    }
    crowd.goes_on(50, SOON).await;
    crowd.ends_well("two of five cut off", faults).await;
}

/// A claim that fails is given up later at the nodes that did not answer: while claims keep failing, there is always
/// another one to give up.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_recovers_while_claims_keep_failing() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    for proxy in &proxies[..3] {
        proxy.set(Link::Hang);
    }
    let entered = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..32 {
        let (locks, entered) = (locks.clone(), Arc::clone(&entered));
        clients.spawn(async move {
            let name = format!("lock {client}");
            loop {
                match locks.lock(&name).ttl(TTL).try_acquire().await {
                    Ok(lease) => {
                        entered.fetch_add(usize::from(lease.is_some()), Ordering::SeqCst);
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
                }
                tokio::time::sleep(ms(fastrand::u64(5..=20))).await;
            }
        });
    }
    tokio::time::sleep(TTL).await;
    assert_eq!(entered.load(Ordering::SeqCst), 0);
    // Slow enough for more claims to fail while its scripts are looked at.
    proxies[1].set(Link::Slow(ms(10)));
    let deadline = Instant::now() + SOON;
    while entered.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "a quorum is back, nobody enters");
        tokio::time::sleep(ms(10)).await;
    }
    clients.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_quorum_is_a_clear_error_until_it_returns() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    let crowd = Crowd::start(&nodes.url(), TTL).await;
    let bystander = Locks::connect(nodes.url()).await.unwrap();
    crowd.goes_on(50, SOON).await;
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
        assert!(took < wait + ms(5000), "{took:?}");
        for gone in 0..3 {
            assert!(text.contains(&nodes.address(gone)), "{text}");
        }
    }
    nodes.nodes[1].go_on();
    crowd.goes_on(50, SOON).await;
    let again = patiently(&bystander, "z").await;
    again.release().await.unwrap();
    for node in [0, 2] {
        nodes.nodes[node].go_on();
    }
    crowd.goes_on(50, SOON).await;
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
    crowd.goes_on(50, SOON).await;
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
async fn patiently(locks: &Locks, name: &str) -> Lease {
    let deadline = Instant::now() + SOON;
    loop {
        let request = locks.lock(name).ttl(TTL).wait(ms(5000));
        match request.acquire().await {
            Ok(lease) => return lease,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(ms(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_that_forgot_a_lock_does_not_grant_it_again() {
    does_not_grant_what_it_forgot("a quorum lost its memory", |_| {}).await;
}

/// Mark, register and all, from before the lock was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_with_an_old_memory_does_not_grant_a_lock_again() {
    does_not_grant_what_it_forgot("a quorum had an old memory", RedisServer::save).await;
}

async fn does_not_grant_what_it_forgot(what: &str, before: impl Fn(&RedisServer)) {
    let _turn = a_turn().await;
    let max_ttl = ms(2000);
    let nodes = Deployment::brittle(max_ttl, "");
    let (holder, other) = (connected(&nodes).await, connected(&nodes).await);
    // So that there is something to remember.
    patiently(&holder, "x").await.release().await.unwrap();
    nodes.nodes.iter().for_each(before);
    let (token, valid_until) = held_without_renewal(&holder, ms(1900)).await;
    for node in &nodes.nodes[..3] {
        node.kill();
        node.revive();
    }
    let revived = Instant::now();
    let early = other.lock("x").ttl(TTL).try_acquire().await;
    assert!(!matches!(early, Ok(Some(_))), "{early:?}");
    let lease = patiently(&other, "x").await;
    assert!(Clock::machine().now() > valid_until);
    assert!(revived.elapsed() >= max_ttl, "{:?}", revived.elapsed());
    assert!(lease.token().get() > token);
    println!(
        "{what}: voted again by itself after {:?}",
        revived.elapsed()
    );
    lease.release().await.unwrap();
}

/// What the test above would see if such nodes voted at once.
#[tokio::test(flavor = "multi_thread")]
async fn without_quarantine_a_forgotten_lock_is_granted_again() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(20_000), "");
    let (holder, other) = (connected(&nodes).await, connected(&nodes).await);
    let (token, valid_until) = held_without_renewal(&holder, ms(19_000)).await;
    for node in &nodes.nodes[..3] {
        node.kill();
        node.revive();
        nodes.mark(node);
    }
    let lease = patiently(&other, "x").await;
    assert!(
        Clock::machine().now() < valid_until,
        "the overlap was to be shown"
    );
    assert!(lease.token().get() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_stopped_past_their_leases() {
    let _turn = a_turn().await;
    let nodes = Deployment::brittle(ms(2000), "");
    stop_past_leases(&nodes.url(), TTL, ms(300), SOON).await;
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
            crowd.goes_on(20, SOON).await;
            for node in stepped {
                clocks[*node].step_to(seconds);
                assert!(is_off_by(&nodes.nodes[*node], seconds), "by {seconds} s");
                faults += 1;
            }
            tokio::time::sleep(ms(250)).await;
        }
    }
    crowd.goes_on(50, SOON).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn connections_lost_in_silence_are_replaced() {
    // Patient, since the host may be slow.
    let nodes = Deployment::with(5, ms(60_000), "node_timeout=1s");
    nodes.has_stood_a_while();
    let (links, through) = nodes.through_proxies().await;
    lost_connections::are_replaced(&links, &through, &nodes.url()).await;
}

fn take(node: &RedisServer, name: &str) {
    node.command(&format!("SET leasehold:{name} stranger PX 60000"));
}

fn is_free(node: &RedisServer, name: &str) -> bool {
    let exists = format!("EXISTS leasehold:{name}");
    node.command(&exists).contains(":0")
}

/// Nodes that take longer than the short TTL of one claim, and no longer than they may.
#[tokio::test(flavor = "multi_thread")]
async fn short_ttl_leaves_out_no_healthy_node() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=5s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    for proxy in &proxies {
        proxy.set(Link::Slow(ms(40)));
    }
    let id = ClaimId::random().unwrap();
    let claim = Claim::new(LockName::new("x").unwrap(), id);
    locks.broker().leave_queue(&claim).await.unwrap_err();
    let lease = locks.lock("y").try_acquire().await.unwrap();
    assert!(lease.is_some());
    // A renewal that waits no longer than the shortest TTL.
    let mut short = claim;
    short.ttl = Ttl::MIN;
    let renewed = locks.engine().renew(&[Renew::new(&short)]).await;
    renewed.into_iter().next().unwrap().unwrap_err();
    let lease = locks.lock("z").try_acquire().await.unwrap();
    assert!(lease.is_some());
}

/// The connection to one node breaks after it has granted, and is back before another node has answered.
#[tokio::test(flavor = "multi_thread")]
async fn vote_whose_answer_was_lost_is_given_back() {
    let nodes = Deployment::with(5, ms(60_000), "node_timeout=1900ms");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    nodes.nodes[..3].iter().for_each(|node| take(node, "x"));
    proxies[3].set(Link::HangBack);
    proxies[4].set(Link::HangBack);
    let attempt = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("x").ttl(ms(60_000)).try_acquire().await }
    });
    eventually("it has granted", || !is_free(&nodes.nodes[3], "x")).await;
    let recoveries = || nodes.nodes[3].calls("script|exists");
    let before = recoveries();
    // The answer is lost, and then the connection.
    proxies[3].set(Link::Swallow);
    tokio::time::sleep(ms(50)).await;
    proxies[3].set(Link::Open);
    eventually("it has recovered", || recoveries() > before).await;
    tokio::time::sleep(ms(100)).await;
    proxies[4].set(Link::Open);
    assert!(attempt.await.unwrap().unwrap().is_none());
    for node in &nodes.nodes[3..] {
        eventually("the vote is given back", || is_free(node, "x")).await;
    }
}

/// The connection to one node breaks after its answer has come, and before it can be told that the attempt has come to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn vote_of_a_node_that_is_lost_is_given_back() {
    let nodes = Deployment::with(5, ms(60_000), "node_timeout=1900ms");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    nodes.nodes[..3].iter().for_each(|node| take(node, "x"));
    proxies[4].set(Link::HangBack);
    let attempt = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("x").ttl(ms(60_000)).try_acquire().await }
    });
    eventually("it has granted", || !is_free(&nodes.nodes[3], "x")).await;
    // Its answer comes.
    tokio::time::sleep(ms(300)).await;
    proxies[3].set(Link::Refuse);
    proxies[4].set(Link::Open);
    assert!(attempt.await.unwrap().unwrap().is_none());
    assert!(!is_free(&nodes.nodes[3], "x"), "it was told");
    proxies[3].set(Link::Open);
    for node in &nodes.nodes[3..] {
        eventually("the vote is given back", || is_free(node, "x")).await;
    }
}

/// As above, while the votes of other nodes say again and again that the token is too low.
#[tokio::test(flavor = "multi_thread")]
async fn vote_lost_while_others_are_ahead_is_given_back() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=500ms");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    // A claim of two processes: votes for two tokens, which both know of.
    let claim = Claim::new(LockName::new("x").unwrap(), ClaimId::random().unwrap());
    let (id, renewed) = (claim.id.reveal(), (1_u64 << 53) - 1);
    let now = leasehold::wall_clock_micros();
    for (node, token) in [(0, now), (1, now + 1)] {
        let value = format!("{id}={renewed}:60000:{token}:{now}:10:{{}}");
        nodes.nodes[node].command(&format!("SET leasehold:x {value} PX 60000"));
    }
    proxies[2].set(Link::HangBack);
    let attempt = tokio::spawn({
        let (locks, claim) = (locks.clone(), claim.clone());
        async move { locks.broker().try_acquire(&claim).await }
    });
    eventually("it has granted", || !is_free(&nodes.nodes[2], "x")).await;
    let attempt = attempt.await.unwrap().unwrap();
    assert!(matches!(attempt, Attempt::Held(_)), "{attempt:?}");
    proxies[2].set(Link::Open);
    eventually("the vote is given back", || is_free(&nodes.nodes[2], "x")).await;
}

async fn eventually(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(10)).await;
    }
}

/// The lock is held on one node that the operator reaches, and on one that he does not; a third has never granted it.
#[tokio::test(flavor = "multi_thread")]
async fn break_that_the_holder_may_survive_is_no_success() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=1s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let (holder, operator) = (connected(&nodes).await, Locks::connect(url).await.unwrap());
    take(&nodes.nodes[1], "x");
    let claim = Claim::new(LockName::new("x").unwrap(), ClaimId::random().unwrap());
    let grant = match holder.broker().try_acquire(&claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        held => panic!("{held:?}"),
    };
    nodes.nodes[1].command("DEL leasehold:x");
    proxies[2].set(Link::Refuse);
    let broken = operator.force_release("x").await;
    let mut renew = Renew::new(&claim);
    renew.token = Some(grant.token);
    let renewed = holder.engine().renew(&[renew]).await;
    assert!(
        matches!(renewed[..], [Ok(Renewal::Renewed(_))]),
        "{renewed:?}"
    );
    let error = broken.expect_err("the holder goes on");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

/// The connection to one node is being made while a lock is taken, by the others, and released.
#[tokio::test(flavor = "multi_thread")]
async fn release_comes_after_the_attempt_on_a_new_connection() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=5s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    for nth in 0..20 {
        let name = format!("x{nth}");
        let before = nodes.nodes[2].calls("evalsha");
        proxies[2].set(Link::Refuse);
        tokio::time::sleep(ms(20)).await;
        proxies[2].set(Link::Slow(ms(10)));
        let lease = locks.lock(&name).ttl(ms(60_000)).acquire().await.unwrap();
        lease.release().await.unwrap();
        eventually("it is asked and told", || {
            nodes.nodes[2].calls("evalsha") >= before + 2
        })
        .await;
        assert!(is_free(&nodes.nodes[2], &name), "told before it was asked");
    }
}

/// A node without the claim is asked to renew it, does not know it, and is about to be asked to take it, when the lock is released.
#[tokio::test(flavor = "multi_thread")]
async fn renewal_under_way_plants_nothing_after_the_release() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=10s");
    nodes.has_stood_a_while();
    let (proxies, url) = nodes.through_proxies().await;
    let locks = Locks::connect(url).await.unwrap();
    take(&nodes.nodes[2], "x");
    let claim = Claim::new(LockName::new("x").unwrap(), ClaimId::random().unwrap());
    let grant = match locks.broker().try_acquire(&claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        held => panic!("{held:?}"),
    };
    nodes.nodes[2].command("DEL leasehold:x");
    let before = nodes.nodes[2].calls("evalsha");
    proxies[2].set(Link::HangBack);
    let renewing = tokio::spawn({
        let (locks, claim) = (locks.clone(), claim.clone());
        async move {
            let mut renew = Renew::new(&claim);
            renew.token = Some(grant.token);
            locks.broker().renew(&[renew]).await
        }
    });
    eventually("it is asked", || nodes.nodes[2].calls("evalsha") > before).await;
    let broker = locks.broker();
    let mut releasing = Box::pin(broker.release(&claim));
    // The other nodes are a quorum: nothing but the renewal keeps it waiting.
    let _ = tokio::time::timeout(ms(300), &mut releasing).await;
    proxies[2].set(Link::Open);
    let renewed = renewing.await.unwrap();
    assert!(renewed.iter().all(Result::is_ok), "{renewed:?}");
    drop(releasing);
    eventually("it is released", || is_free(&nodes.nodes[2], "x")).await;
}
