//! Hold streams and events.

use std::time::Duration;

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::{Api, Open, Server, memory, settings, soon, until};

async fn hold(server: &Server, name: &str, body: Value) -> Open {
    let head = format!("POST /v1/locks/{name}/hold HTTP/1.1");
    server.begin(&head, &body.to_string()).await
}

#[tokio::test]
async fn a_stream_holds_the_lock_until_it_is_closed() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    let mut stream = hold(&server, "x", json!({"ttl": "3s", "label": "curl"})).await;
    let said = stream.says("event: acquired").await;
    assert!(said.contains("text/event-stream"), "{said}");
    stream.says("\"token\"").await;
    let token = locks.inspect("x").await.unwrap().holders[0].token;
    // The server renews it.
    stream.says("event: ping").await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(locks.inspect("x").await.unwrap().holders[0].token, token);
    let mut next = hold(&server, "x", json!({})).await;
    let waiting = next.says("event: waiting").await + &next.says("\n\n").await;
    assert!(
        waiting.contains("\"ahead\":1") || waiting.contains("curl"),
        "{waiting}"
    );
    drop(stream);
    next.says("event: acquired").await;
    drop(next);
    until("the lock is free", async || {
        locks.inspect("x").await.unwrap().holders.is_empty()
    })
    .await;
}

/// A proxy that restarts closes the connection to the server although the client is still there, and relies on what it was told.
#[tokio::test]
async fn stream_through_a_proxy_that_ends_keeps_the_lock() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    let mut told = settings();
    told.behind_proxy = true;
    let told = Server::start(locks.clone(), told).await;
    let proxied = [
        ("a", "Via: 1.1 proxy"),
        ("b", "Forwarded: for=192.0.2.1"),
        ("c", "X-Forwarded-For: 192.0.2.1"),
        ("d", "Accept: text/event-stream"),
    ];
    let mut streams = Vec::new();
    for (name, header) in proxied {
        let head = format!("POST /v1/locks/{name}/hold HTTP/1.1\r\n{header}");
        let server = if name == "d" { &told } else { &server };
        let mut stream = server.begin(&head, "{\"ttl\": \"5s\"}").await;
        stream.says("event: acquired").await;
        streams.push(stream);
    }
    drop(streams);
    tokio::time::sleep(Duration::from_millis(500)).await;
    for (name, header) in proxied {
        let second = locks.lock(name).try_acquire().await.unwrap();
        assert!(second.is_none(), "{header}: there are two holders");
    }
    for (name, _) in proxied {
        until("the lock is free", async || {
            locks.inspect(name).await.unwrap().holders.is_empty()
        })
        .await;
    }
}

/// Whoever serves the routes does not tell who has ended a stream.
#[tokio::test]
async fn stream_of_nested_routes_that_ends_keeps_the_lock() {
    let api = Api::new().await;
    let request = api.request(Method::POST, "/v1/locks/x/hold");
    let request = request.header("content-type", "application/json");
    let body = Body::from(json!({"ttl": "5s"}).to_string());
    let mut stream = api.raw(request.body(body).unwrap()).await.into_body();
    let first = soon("an event", stream.frame()).await.unwrap().unwrap();
    let first = String::from_utf8_lossy(first.data_ref().unwrap()).into_owned();
    assert!(first.contains("event: acquired"), "{first}");
    drop(stream);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = api.locks.lock("x").try_acquire().await.unwrap();
    assert!(second.is_none(), "there are two holders");
    until("the lock is free", async || {
        api.locks.inspect("x").await.unwrap().holders.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_waits_leaves_the_queue_when_closed() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    let _held = locks.lock("x").acquire().await.unwrap();
    let mut stream = hold(&server, "x", json!({})).await;
    stream.says("event: waiting").await;
    drop(stream);
    until("it has left", async || {
        locks.inspect("x").await.unwrap().waiters.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_stream_tells_of_time_out_loss_and_requests() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    let mut late = hold(&server, "x", json!({"wait": "20ms"})).await;
    let said = late.says("event: timed-out").await + &late.says("\n\n").await;
    assert!(said.contains("\"kind\":\"held\""), "{said}");
    held.release().await.unwrap();
    let mut stream = hold(&server, "x", json!({"ttl": "3s"})).await;
    stream.says("event: acquired").await;
    locks.request_revoke("x", "a fix").await.unwrap();
    let asked = stream.says("revoke-requested").await + &stream.says("a fix").await;
    assert!(!asked.contains("lost"), "{asked}");
    locks.force_release("x").await.unwrap();
    let lost = stream.says("event: lost").await + &stream.says("\n\n").await;
    assert!(lost.contains("\"kind\":\"gone\""), "{lost}");
    let brief = json!({"ttl": "30s", "max_hold": "100ms"});
    let mut brief = hold(&server, "y", brief).await;
    brief.says("\"kind\":\"max_hold\"").await;
}

#[tokio::test]
async fn a_server_that_ends_says_goodbye_and_leaves_locks_held() {
    let locks = memory().await;
    let mut server = Server::start(locks.clone(), settings()).await;
    let mut holds = hold(&server, "x", json!({"ttl": "60s"})).await;
    holds.says("event: acquired").await;
    let mut waits = hold(&server, "x", json!({})).await;
    waits.says("event: waiting").await;
    let claim = crate::support::claim;
    let head = |nth| {
        format!(
            "POST /v1/locks/x/acquire HTTP/1.1\r\nLeasehold-Claim: {}",
            claim(nth)
        )
    };
    let mut keeps = server
        .begin(&head(1), "{\"wait\": \"50s\", \"keep_place\": true}")
        .await;
    let mut leaves = server.begin(&head(2), "{\"wait\": \"50s\"}").await;
    let waiters = async || locks.inspect("x").await.unwrap().waiters.len();
    until("all wait", async || waiters().await == 3).await;
    server.end();
    holds.says("event: goodbye").await;
    waits.says("event: goodbye").await;
    for stream in [&mut keeps, &mut leaves] {
        let answer = stream.says("\"draining\"").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after"),
            "{answer}"
        );
    }
    soon("the end", server.ended.take().unwrap()).await.unwrap();
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
    until("one has kept its place", async || waiters().await == 1).await;
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn events_are_told_and_replayed() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    let events = async |query: &str, more: &str| {
        let head = format!("GET /v1/events{query} HTTP/1.1{more}");
        server.begin(&head, "").await
    };
    let mut live = events("?prefix=a/", "").await;
    live.says("text/event-stream").await;
    for name in ["b/1", "a/1"] {
        let lease = locks.lock(name).acquire().await.unwrap();
        let encoded = name.replace('/', "%2F");
        let mut own = hold(&server, &encoded, json!({})).await;
        own.says("event: waiting").await;
        drop(own);
        until("it has left", async || {
            locks.inspect(name).await.unwrap().waiters.is_empty()
        })
        .await;
        lease.release().await.unwrap();
    }
    let said = live.says("event: waiting").await;
    let said = said + &live.says("event: left").await;
    assert!(!said.contains("b/1"), "{said}");
    let id = said
        .lines()
        .find_map(|line| line.strip_prefix("id: "))
        .unwrap();
    let mut again = events("", &format!("\r\nLast-Event-ID: {id}")).await;
    let replayed = again.says("event: left").await;
    assert!(!replayed.contains(&format!("id: {id}\n")), "{replayed}");
    let mut last = events("?replay=1", "").await;
    last.says("\nid: ").await;
    for unknown in ["00000000-1", "x", "-"] {
        let mut other = events(&format!("?after={unknown}"), "").await;
        other.says("event: reset").await;
    }
}

#[tokio::test]
async fn bad_holds_are_refused_before_they_stream() {
    let api = Api::new().await;
    for body in [
        json!({"ttl": 0}),
        json!({"max_hold": "1ms"}),
        json!({"hold_at_least": "25h"}),
        json!({"keep_place": true}),
        json!({"label": "a\nb"}),
    ] {
        let refused = api.post("/v1/locks/x/hold", body.clone()).await;
        assert_eq!(refused.kind(), "invalid_request", "{body}");
    }
}
