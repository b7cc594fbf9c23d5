//! Messages on Redis and Redlock that are forged or late: they grant nothing and take nothing back. Waiters do not ask again and
//! again.

#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::common::{LONG, beside, claim, ms, until, until_waiting};
use crate::support::deployment::Deployment;
use crate::support::redis_server::RedisServer;
use leasehold::engine::Attempt;
use leasehold::{ClaimId, FencingToken, Locks};

/// What anyone can find out who may read: where a waiter listens, under which number, and what it has proposed.
fn waiter_on(server: &RedisServer) -> (String, u64, u64) {
    let deadline = Instant::now() + ms(5000);
    let note = loop {
        // Not there for a moment while the waiter proposes anew.
        let notes = server.command(&format!("HVALS {}", beside("waiters")));
        match notes.lines().nth(2) {
            Some(note) => break note.to_owned(),
            None => assert!(Instant::now() < deadline, "nobody waits: {notes}"),
        }
    };
    let (length, rest) = note.split_once(':').unwrap();
    let (channel, rest) = rest.split_at(length.parse().unwrap());
    let words: Vec<_> = rest.splitn(7, ':').collect();
    (
        channel.replace('\u{1}', r"\x01"),
        words[0].parse().unwrap(),
        words[4].parse().unwrap(),
    )
}

/// Tells a waiter that it has been granted the lock.
fn forge(server: &RedisServer, token: impl Fn(u64) -> u64) {
    let (channel, number, proposed) = waiter_on(server);
    let token = token(proposed);
    let told = server.command(&format!(
        r#"PUBLISH "{channel}" "granted:{number}:{token}:500:1""#
    ));
    assert_eq!(told, ":1\r\n", "somebody listens");
}

async fn does_not_enter_when_told(locks: &Locks, others: &Locks, tell: impl Fn()) {
    let holder = locks.lock("x").ttl(ms(10_000)).acquire().await.unwrap();
    let waiting = tokio::spawn(others.lock("x").ttl(ms(10_000)).wait(LONG).acquire());
    until_waiting(locks, "x", 1).await;
    for _ in 0..10 {
        tell();
        tokio::time::sleep(ms(50)).await;
        assert!(!waiting.is_finished(), "two hold the lock");
    }
    let token = holder.token();
    holder.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token && next.token() < FencingToken::MAX);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_message_grants_nothing() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let others = Locks::connect(server.url()).await.unwrap();
    let tell = || forge(&server, |_| FencingToken::MAX.get());
    does_not_enter_when_told(&locks, &others, tell).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_votes_grant_nothing() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let others = Locks::connect(nodes.url()).await.unwrap();
    for token in [|_| FencingToken::MAX.get(), |proposed| proposed] {
        let tell = || nodes.nodes.iter().for_each(|node| forge(node, token));
        does_not_enter_when_told(&locks, &others, tell).await;
    }
}

/// A waiter that is told to look soon does so, although it is told of a later time after that.
#[tokio::test(flavor = "multi_thread")]
async fn redlock_notice_does_not_put_off_an_earlier_one() {
    let nodes = Deployment::with(3, ms(60_000), "node_timeout=1s");
    nodes.has_stood_a_while();
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let _holder = locks.lock("x").ttl(ms(60_000)).acquire().await.unwrap();
    let waiter = claim("x", ms(60_000), true);
    let queued = locks.engine().try_acquire(&waiter).await.unwrap();
    assert!(matches!(queued, Attempt::Held(_)), "{queued:?}");
    let woken = tokio::spawn({
        let (locks, waiter) = (locks.clone(), waiter.clone());
        async move { locks.engine().wait(&waiter).await }
    });
    let (channel, number, _) = waiter_on(&nodes.nodes[0]);
    for after in [1000, 50_000] {
        let notice = format!(r#"PUBLISH "{channel}" "look:{number}:{after}""#);
        assert_eq!(nodes.nodes[0].command(&notice), ":1\r\n");
        tokio::time::sleep(ms(200)).await;
    }
    let woken = tokio::time::timeout(ms(10_000), woken).await;
    woken.expect("it was put off").unwrap().unwrap();
}

/// Hears every command that a server carries out.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn of(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(ms(5000))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The calls of scripts so far that name a claim, as they could be sent again.
    fn calls_that_name(mut self, server: &RedisServer, claim: &ClaimId) -> Vec<String> {
        server.command("ECHO that-is-all");
        let mut calls = Vec::new();
        loop {
            let line = self.line();
            if line.contains("that-is-all") {
                return calls;
            }
            // Not what the scripts do themselves.
            let by_script = line.contains("] \"evalsha\"") || line.contains("] \"EVALSHA\"");
            if by_script && line.contains(&claim.reveal()) {
                let (_, call) = line.split_once("] ").unwrap();
                calls.push(call.to_owned());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_message_releases_nothing_twice() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    let [first, others @ ..] = nodes.nodes.as_slice() else {
        panic!("three nodes");
    };
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let votes = |id: &ClaimId| first.command("GET leasehold:x").contains(&id.reveal());
    let deadline = Instant::now() + ms(30_000);
    loop {
        assert!(
            Instant::now() < deadline,
            "the first node never voted in the end"
        );
        let monitor = Monitor::of(first);
        for (node, time) in others.iter().zip([1500, 6000]) {
            node.command(&format!("SET leasehold:x stranger PX {time}"));
        }
        // The first node grants it, the others do not: it is given back there, more than once.
        let acquiring = locks.lock("x").ttl(ms(10_000)).wait(LONG).acquire();
        let lease = acquiring.await.unwrap();
        let calls = monitor.calls_that_name(first, &lease.claim_id());
        let attempt = calls[0].split(' ').nth(1).unwrap().to_owned();
        let given_back: Vec<_> = calls
            .iter()
            .filter(|call| !call.contains(&attempt))
            .collect();
        assert!(given_back.len() >= 2, "it was given back: {calls:?}");
        let voted = votes(&lease.claim_id());
        for call in given_back.iter().filter(|_| voted) {
            first.command(call);
            let votes = votes(&lease.claim_id());
            assert!(votes, "a late message took the vote back: {call}");
        }
        lease.release().await.unwrap();
        println!(
            "{} calls, {} given back, voted: {voted}",
            calls.len(),
            given_back.len()
        );
        if voted {
            return;
        }
    }
}

/// The id of the connection on which a process waits for hand-overs.
fn inbox_connection(server: &RedisServer) -> Option<String> {
    let clients = server.command("CLIENT LIST");
    let popping = clients.lines().find(|line| line.contains("cmd=blpop"))?;
    let id = popping.split(' ').find_map(|word| word.strip_prefix("id="));
    id.map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_inbox_connection_strands_nobody() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let others = Locks::connect(server.url()).await.unwrap();
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(others.lock("x").ttl(LONG).wait(LONG).acquire());
    until_waiting(&locks, "x", 1).await;
    until("it pops its inbox", || inbox_connection(&server).is_some()).await;
    let lost = inbox_connection(&server).unwrap();
    assert_eq!(server.command(&format!("CLIENT KILL ID {lost}")), ":1\r\n");
    let began = Instant::now();
    holder.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    // Well before the holder's TTL would have ended.
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    until("it pops again", || {
        inbox_connection(&server).is_some_and(|id| id != lost)
    })
    .await;
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_handed_over_is_kept_past_its_offer() {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let others = Locks::connect(server.url()).await.unwrap();
    let holder = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(others.lock("x").ttl(LONG).wait(LONG).acquire());
    until_waiting(&locks, "x", 1).await;
    holder.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let left = || {
        let told = server.command("PTTL leasehold:x");
        told.trim_start_matches(':').trim_end().parse::<u64>()
    };
    until("it is confirmed", || left().is_ok_and(|left| left > 1000)).await;
    assert!(next.is_valid());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_with_too_few_votes_does_not_spin() {
    let nodes = Deployment::with(3, LONG, "node_timeout=1s");
    nodes.has_stood_a_while();
    for node in &nodes.nodes[1..] {
        node.command("SET leasehold:x stranger PX 1500");
    }
    let locks = Locks::connect(nodes.url()).await.unwrap();
    let before = nodes.nodes[0].calls("evalsha");
    let began = Instant::now();
    let lease = locks.lock("x").ttl(ms(1000)).wait(LONG).acquire().await;
    let (asked, took) = (nodes.nodes[0].calls("evalsha") - before, began.elapsed());
    println!("asked {asked} times in {took:?}");
    // Ten looks a second, since another program holds it, of a few calls each.
    assert!(asked < 150, "{asked} times");
    lease.unwrap().release().await.unwrap();
}
