//! Bad input: the right status, nothing leaked, and the server lives.

use std::time::Duration;

use axum::body::Body;
use http::Method;
use leasehold::LockName;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Api, Server, claim, memory, settings};

#[tokio::test]
async fn bad_bodies_are_refused() {
    let api = Api::new().await;
    let table = [
        json!({"colour": "red"}),
        json!({"ttl": 0}),
        json!({"ttl": "0s"}),
        json!({"ttl": "25h"}),
        json!({"ttl": -1}),
        json!({"ttl": "soon"}),
        json!({"ttl": null, "wait": "forever"}),
        json!({"wait": "6m"}),
        json!({"wait": "1000000y"}),
        json!({"keep_place": "6m"}),
        json!({"keep_place": "soon"}),
        json!({"mode": "upside down"}),
        json!({"mode": "permit"}),
        json!({"mode": "shared", "permits": 2}),
        json!({"permits": 0}),
        json!({"permits": -1}),
        json!({"label": ""}),
        json!({"label": "a\u{1b}[31m"}),
        json!({"label": "x".repeat(256)}),
        json!({"host": ""}),
        json!({"reason": "x".repeat(1025)}),
        json!({"pid": 4_294_967_296_u64}),
        json!([]),
        json!(null),
        json!("x"),
    ];
    for body in table {
        let refused = api.acquire(1, "x", body.clone()).await;
        assert_eq!(refused.kind(), "invalid_request", "{body}");
        assert_eq!(refused.status, 400, "{body}");
    }
    for text in [
        "{",
        "{\"ttl\": \"1s\",}",
        "\u{0}",
        "{\"ttl\": \"1s\"} x",
        "[[[[",
    ] {
        let request = api.request(Method::POST, "/v1/locks/x/acquire");
        let request = request.header("leasehold-claim", claim(1));
        let request = request.header("content-type", "application/json");
        let refused = api.send(request.body(Body::from(text)).unwrap()).await;
        assert_eq!(refused.kind(), "invalid_request", "{text}");
    }
    let deep = "[".repeat(30_000);
    let request = api.request(Method::POST, "/v1/locks/x/ask");
    let request = request.header("content-type", "application/json");
    let refused = api.send(request.body(Body::from(deep)).unwrap()).await;
    assert_eq!(refused.kind(), "invalid_request");
    assert_eq!(api.get("/v1/locks").await.ok()["total"], 0);
}

#[tokio::test]
async fn bad_claim_ids_are_refused_and_not_repeated() {
    let api = Api::new().await;
    let send = async |ids: &[&str]| {
        let mut request = api.request(Method::POST, "/v1/locks/x/acquire");
        for id in ids {
            request = request.header("leasehold-claim", *id);
        }
        api.send(request.body(Body::empty()).unwrap()).await
    };
    let (good, long) = (claim(1), "ab".repeat(20));
    let table: [&[&str]; 6] = [
        &[],
        &[""],
        &["xyz"],
        &[&long],
        &[&good[1..]],
        &[&good, &good],
    ];
    for ids in table {
        let refused = send(ids).await;
        assert_eq!(refused.kind(), "invalid_request", "{ids:?}");
        assert!(!refused.text.contains(&good[1..]) && !refused.text.contains("abab"));
    }
    assert_eq!(send(&[&good]).await.status, 200);
}

#[tokio::test]
async fn names_are_data() {
    let api = Api::new().await;
    for (nth, name) in [
        "..",
        ".",
        "a/../b",
        "%2F",
        "a%00b?",
        "\u{1f512}",
        "a b",
        "+",
        "&x=1",
        "{name}",
    ]
    .iter()
    .enumerate()
    {
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let granted = api.acquire(nth as u8, &encoded, json!({})).await.ok();
        assert_eq!(granted["name"], *name);
        let shown = api.get(&format!("/v1/locks/{encoded}")).await.ok();
        assert_eq!(shown["holders"].as_array().unwrap().len(), 1, "{name}");
    }
    for (bad, kind) in [
        ("%00", "invalid_name"),
        ("a%0Ab", "invalid_name"),
        ("a%1Fonce", "invalid_name"),
        ("%FF", "invalid_name"),
        (&"x".repeat(256), "invalid_name"),
        ("", "invalid_name"),
    ] {
        let refused = api.acquire(99, bad, json!({})).await;
        assert_eq!(refused.kind(), kind, "{bad}");
    }
}

#[tokio::test]
async fn other_media_types_are_refused() {
    let api = Api::new().await;
    for (media, status) in [
        (None, 415),
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("application/json"), 200),
        (Some("application/JSON; charset=utf-8"), 200),
    ] {
        let mut request = api.request(Method::POST, "/v1/locks/x/ask");
        if let Some(media) = media {
            request = request.header("content-type", media);
        }
        let body = Body::from("{\"reason\": \"x\"}");
        let reply = api.send(request.body(body).unwrap()).await;
        assert_eq!(reply.status, status, "{media:?}");
    }
}

#[tokio::test]
async fn large_bodies_are_refused() {
    let api = Api::new().await;
    let large = json!({"reason": "x".repeat(10_000_000)});
    let refused = api.post("/v1/locks/x/ask", large.clone()).await;
    assert_eq!(
        (refused.status.as_u16(), refused.kind()),
        (413, "body_too_large".into())
    );
    let refused = api.call(Method::PUT, "/v1/store/x", large).await;
    assert_eq!(refused.kind(), "body_too_large");
}

/// What a raw exchange over HTTP/1 comes to: the status lines.
fn statuses(answer: &str) -> Vec<&str> {
    let lines = answer.lines().filter(|line| line.starts_with("HTTP/1"));
    lines.map(|line| line.split(' ').nth(1).unwrap()).collect()
}

#[tokio::test]
async fn malformed_requests_end_their_connection_only() {
    let server = Server::start(memory().await, settings()).await;
    let get = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    let post =
        "POST /v1/locks/x/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n";
    let after = "GET /v1/locks/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let many: String = (0..200).map(|nth| format!("X-{nth}: y\r\n")).collect();
    let table = [
        (
            "HTTP/1.0".to_owned(),
            "GET /healthz HTTP/1.0\r\n\r\n".to_owned(),
            vec!["200"],
        ),
        (
            "no version".to_owned(),
            "GET /healthz\r\n\r\n".to_owned(),
            vec!["400"],
        ),
        (
            "garbage".to_owned(),
            "\0\u{1}\u{2}hello\r\n\r\n".to_owned(),
            vec!["400"],
        ),
        (
            "large header".to_owned(),
            format!("{get}X: {}\r\n\r\n", "y".repeat(40_000)),
            vec!["431"],
        ),
        (
            "many headers".to_owned(),
            format!("{get}{many}\r\n"),
            vec!["431"],
        ),
        (
            "two lengths".to_owned(),
            format!("{post}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}{after}"),
            vec!["400"],
        ),
        (
            "bad length".to_owned(),
            format!("{post}Content-Length: -1\r\n\r\n{after}"),
            vec!["400"],
        ),
        (
            "bad chunk".to_owned(),
            format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n{after}"),
            vec!["400"],
        ),
        (
            "space before the colon".to_owned(),
            format!("{post}Content-Length : 2\r\n\r\n{{}}{after}"),
            vec!["400"],
        ),
        (
            "a length with a sign".to_owned(),
            format!("{post}Content-Length: +2\r\n\r\n{{}}{after}"),
            vec!["400"],
        ),
        (
            "a list of lengths".to_owned(),
            format!("{post}Content-Length: 2, 3\r\n\r\n{{}}{after}"),
            vec!["400"],
        ),
        (
            "a line that goes on".to_owned(),
            format!("{post}X: a\r\n Content-Length: 2\r\n\r\n{after}"),
            vec!["400"],
        ),
        (
            "chunked, but not last".to_owned(),
            format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{after}"),
            vec!["400"],
        ),
        (
            "a chunk too large to count".to_owned(),
            format!("{post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{after}"),
            vec!["400"],
        ),
        (
            "chunks in HTTP/1.0".to_owned(),
            format!(
                "{}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{after}",
                post.replace("HTTP/1.1", "HTTP/1.0")
            ),
            vec!["400"],
        ),
        (
            "a NUL in a header".to_owned(),
            format!("{get}X: a\0b\r\n\r\n{after}"),
            vec!["400"],
        ),
        (
            "unknown coding".to_owned(),
            format!("{post}Transfer-Encoding: gzip\r\n\r\n{after}"),
            vec!["400"],
        ),
    ];
    for (what, request, expected) in table {
        let answer = server.exchange(request.as_bytes()).await;
        assert_eq!(statuses(&answer), expected, "{what}: {answer}");
    }
    // Both a length and chunks: chunks count, and what follows them is the next request, not a part of this one.
    let both = format!(
        "{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nE\r\n{{\"reason\":\"x\"}}\r\n0\r\n\r\n{after}"
    );
    let answer = server.exchange(both.as_bytes()).await;
    let got = statuses(&answer);
    assert!(
        got == ["200", "200"] || got == ["200"] || got == ["400"],
        "{answer}"
    );
    assert_eq!(statuses(&server.exchange(after.as_bytes()).await), ["200"]);
}

#[tokio::test]
async fn slow_clients_hold_nobody_up() {
    let server = Server::start(memory().await, settings()).await;
    let mut slow_head = server.open().await;
    slow_head.write("GET /healthz HT").await;
    let head = "POST /v1/locks/x/ask HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let mut slow_body = server.open().await;
    slow_body.write(head).await;
    let mut others = Vec::new();
    for _ in 0..500 {
        others.push(server.open().await);
    }
    let mut next = server.begin("GET /healthz HTTP/1.1", "").await;
    next.says("ok").await;
    let answer = slow_body.says("slow_body").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn clients_that_say_nothing_are_let_go() {
    let mut settings = settings();
    settings.limits.connections = 3;
    let server = Server::start(memory().await, settings).await;
    let mut silent = Vec::new();
    // Nothing; the beginning of HTTP/2, or of POST; the whole beginning of HTTP/2 and no more.
    for start in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut open = server.open().await;
        open.write(start).await;
        silent.push(open);
    }
    // There is room again although none of them has closed its connection.
    let mut next = server.begin("GET /healthz HTTP/1.1", "").await;
    next.says("ok").await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_their_turn() {
    let mut settings = settings();
    settings.limits.connections = 2;
    let server = Server::start(memory().await, settings).await;
    let mut first = server.begin("GET /healthz HTTP/1.1", "").await;
    first.says("ok").await;
    let second = server.open().await;
    let mut third = server.begin("GET /healthz HTTP/1.1", "").await;
    let silent = third.is_silent(Duration::from_millis(100)).await;
    assert!(silent, "answered beyond the limit");
    drop(second);
    third.says("ok").await;
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[0-9]{1,6}(ms|s|m|h|y)".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let key = "(ttl|wait|mode|permits|label|host|pid|reason|keep_place|claims|name|claim|token|value|version|period|count|[a-z]{1,5})";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map(key, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const FUZZED: &[&str] = &[
    "/v1/locks/x/acquire",
    "/v1/locks/x/renew",
    "/v1/locks/x/release",
    "/v1/locks/x/ask",
    "/v1/locks/x/force-release",
    "/v1/locks/x/once-per",
    "/v1/locks/x/once-per/succeeded",
    "/v1/renew",
    "/v1/ids/x",
    "/v1/engine/attempt",
    "/v1/engine/renew",
    "/v1/engine/release",
    "/v1/engine/inspect",
    "/v1/engine/force-release",
    "/v1/engine/record",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_json_makes_the_server_fail(body in any_json(), route in 0..FUZZED.len()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = Api::new().await;
            // Nobody waits here for as long as the body may say.
            let call = api.of_claim(1, FUZZED[route], body.clone());
            if let Ok(reply) = tokio::time::timeout(Duration::from_secs(20), call).await {
                assert!(reply.status.as_u16() < 500, "{body}: {}", reply.text);
                assert!(!reply.text.contains(&claim(1)), "{}", reply.text);
            }
            assert_eq!(api.get("/healthz").await.status, 200);
        });
    }

    #[test]
    fn no_bytes_make_the_server_fail(
        body in prop::collection::vec(any::<u8>(), 0..200),
        id in "\\PC{0,40}",
        authorization in "\\PC{0,40}",
        route in 0..FUZZED.len(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = Api::new().await;
            let request = api.request(Method::POST, FUZZED[route])
                .header("content-type", "application/json")
                .header("leasehold-claim", id.as_bytes())
                .header("authorization", authorization.as_bytes())
                .header("origin", authorization.as_bytes())
                .header("last-event-id", id.as_bytes());
            let Ok(request) = request.body(Body::from(body)) else { return };
            let reply = api.send(request).await;
            assert!(reply.status.as_u16() < 500, "{}", reply.text);
        });
    }

    #[test]
    fn names_in_paths_are_read_back(name in "\\PC{1,40}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let api = Api::new().await;
            let encoded: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let shown = api.get(&format!("/v1/locks/{encoded}")).await;
            match LockName::new(&name) {
                Ok(name) => assert_eq!(shown.ok()["name"], name.as_str()),
                Err(_) => assert_eq!(shown.kind(), "invalid_name"),
            }
        });
    }
}
