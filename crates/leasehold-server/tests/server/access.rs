//! Access tokens, read-only servers, other origins, and that no secret is shown.

use std::fs;

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use leasehold_server::{NewToken, Scope, Settings, Tokens};
use serde_json::{Value, json};

use crate::support::{Api, Reply, claim, settings, soon, until};

pub(crate) struct Guarded {
    pub(crate) api: Api,
    pub(crate) tokens: Vec<String>,
    folder: tempfile::TempDir,
}

/// A server with these tokens.
pub(crate) async fn guarded(entries: &[(&str, &[Scope], &[&str])]) -> Guarded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for (name, scopes, prefixes) in entries {
        let prefixes: Vec<_> = prefixes.iter().map(|it| it.to_string()).collect();
        let new = NewToken::new(name, scopes, &prefixes, None).unwrap();
        text.push_str(&new.entry);
        tokens.push(new.token);
    }
    fs::write(&path, text).unwrap();
    let mut settings = settings();
    settings.tokens = Some(Tokens::open(path).unwrap());
    settings.audit = Some(folder.path().join("audit.log"));
    Guarded {
        api: Api::with(settings).await,
        tokens,
        folder,
    }
}

#[tokio::test]
async fn nothing_is_answered_without_a_token() {
    let Guarded { api, .. } = guarded(&[("a", &[Scope::Admin], &[])]).await;
    for path in [
        "/v1/locks",
        "/v1/whoami",
        "/v1/engine",
        "/v1/doctor",
        "/v1/events",
        "/metrics",
    ] {
        let refused = api.get(path).await;
        assert_eq!(refused.kind(), "unauthorized", "{path}");
        assert_eq!(
            refused.headers["www-authenticate"],
            "Bearer realm=\"leasehold\""
        );
    }
    let stranger = api.bearer("lh_0000");
    assert_eq!(stranger.get("/v1/locks").await.kind(), "unauthorized");
    assert_eq!(
        stranger.acquire(1, "x", json!({})).await.kind(),
        "unauthorized"
    );
    for open in ["/healthz", "/readyz"] {
        assert_eq!(api.get(open).await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn a_token_allows_its_scopes_and_no_other() {
    let Guarded { api, tokens, .. } = guarded(&[
        ("reader", &[Scope::Read], &[]),
        ("holder", &[Scope::Hold], &[]),
        ("breaker", &[Scope::Break], &[]),
        ("admin", &[Scope::Admin], &[]),
    ])
    .await;
    for (nth, token) in tokens.iter().enumerate() {
        let api = api.bearer(token);
        let is = |allowed: &[usize]| allowed.contains(&nth);
        let listed = api.get("/v1/locks").await.status == 200;
        assert_eq!(listed, is(&[0, 3]), "list by {nth}");
        let acquired = api.acquire(nth as u8, &format!("x{nth}"), json!({})).await;
        assert_eq!(acquired.status == 200, is(&[1, 3]), "acquire by {nth}");
        let broken = api.post("/v1/locks/y/force-release", json!({"confirm": "y"}));
        assert_eq!(broken.await.status == 200, is(&[2, 3]), "break by {nth}");
        let name = ["reader", "holder", "breaker", "admin"][nth];
        let me = api.get("/v1/whoami").await.ok();
        assert_eq!(me["name"], name);
        assert_eq!(me["may"]["break"], is(&[2, 3]));
    }
    let refused = api.bearer(&tokens[0]).acquire(1, "x", json!({})).await;
    assert_eq!(
        (refused.kind(), &refused.json()["needs"]),
        ("forbidden".into(), &json!("hold"))
    );
    // The name of the token is the label, if none is given.
    let label = api.locks.inspect("x1").await.unwrap().holders[0]
        .claimant
        .label
        .clone();
    assert_eq!(label, "holder");
}

#[tokio::test]
async fn a_token_reaches_its_prefixes_and_no_other() {
    let scopes: &[Scope] = &[Scope::Read, Scope::Hold, Scope::Break];
    let Guarded { api, tokens, .. } = guarded(&[("bot", scopes, &["a/"])]).await;
    let held = api.locks.lock("b/1").acquire().await.unwrap();
    let api = api.bearer(&tokens[0]);
    api.acquire(1, "a%2F1", json!({})).await.ok();
    for path in [
        "acquire",
        "renew",
        "release",
        "force-release",
        "hold",
        "ask",
    ] {
        let body = match path {
            "force-release" => json!({"confirm": "b/1"}),
            "ask" => json!({"reason": "x"}),
            _ => json!({}),
        };
        let refused = api
            .of_claim(1, &format!("/v1/locks/b%2F1/{path}"), body)
            .await;
        assert_eq!(refused.kind(), "forbidden", "{path}");
    }
    assert_eq!(api.get("/v1/locks/b%2F1").await.kind(), "forbidden");
    assert_eq!(api.get("/v1/store/b").await.kind(), "forbidden");
    assert_eq!(api.post("/v1/ids/b", json!({})).await.kind(), "forbidden");
    let body = json!({"claims": [{"name": "b/1", "claim": claim(1)}]});
    let batch = api.post("/v1/renew", body).await.ok();
    assert_eq!(batch["results"][0]["problem"]["kind"], "forbidden");
    let listed = api.get("/v1/locks").await.ok();
    assert_eq!(
        (&listed["total"], &listed["locks"][0]["name"]),
        (&json!(1), &json!("a/1"))
    );
    let summary = api.get("/v1/summary").await.ok();
    assert_eq!(
        (&summary["held"], &summary["series"]),
        (&json!(1), &json!(null))
    );
    let inspected = api
        .post("/v1/engine/inspect", json!({"prefix": ""}))
        .await
        .ok();
    assert_eq!(inspected.as_array().unwrap().len(), 1);
    assert!(held.is_valid());
}

#[tokio::test]
async fn a_read_only_server_changes_nothing() {
    let mut settings = settings();
    settings.read_only = true;
    let api = Api::with(settings).await;
    let held = api.locks.lock("x").acquire().await.unwrap();
    assert_eq!(api.get("/v1/locks").await.ok()["total"], 1);
    for (path, body) in [
        ("/v1/locks/y/acquire", json!({})),
        ("/v1/locks/x/release", json!({})),
        ("/v1/locks/x/hold", json!({})),
        ("/v1/locks/x/ask", json!({"reason": "x"})),
        ("/v1/locks/x/force-release", json!({"confirm": "x"})),
        ("/v1/renew", json!({"claims": []})),
        ("/v1/ids/x", json!({})),
        ("/v1/engine/force-release", json!({"name": "x"})),
    ] {
        let refused = api.of_claim(1, path, body).await;
        assert_eq!(refused.kind(), "read_only", "{path}");
    }
    let put = api.call(Method::PUT, "/v1/store/x", json!({"value": "", "token": 1}));
    assert_eq!(put.await.kind(), "read_only");
    assert!(held.is_valid());
    assert_eq!(api.get("/v1/whoami").await.ok()["may"]["hold"], false);
}

#[tokio::test]
async fn pages_of_other_origins_cannot_act() {
    let mut settings = settings();
    settings.check_host = true;
    let api = Api::with(settings).await;
    let send = async |host: &str, origin: Option<&str>| {
        let request = api.request(Method::POST, "/v1/locks/x/force-release");
        let mut request = request.header("host", host);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let request = request.header("content-type", "application/json");
        let body = Body::from("{\"confirm\": \"x\"}");
        api.send(request.body(body).unwrap()).await.status.as_u16()
    };
    assert_eq!(send("127.0.0.1:7654", None).await, 200);
    assert_eq!(
        send("localhost:7654", Some("http://localhost:7654")).await,
        200
    );
    assert_eq!(send("[::1]:7654", Some("http://[::1]:7654")).await, 200);
    assert_eq!(
        send("127.0.0.1:7654", Some("https://evil.example")).await,
        403
    );
    assert_eq!(send("127.0.0.1:7654", Some("null")).await, 403);
    // A name that was made to lead to this machine.
    assert_eq!(send("evil.example", Some("http://evil.example")).await, 403);
    assert_eq!(send("", None).await, 403);
}

#[tokio::test]
async fn waiters_of_one_token_are_limited() {
    let mut settings = settings();
    settings.limits.waiters = 1;
    let api = Api::with(settings).await;
    api.acquire(1, "x", json!({})).await.ok();
    let waiter = tokio::spawn({
        let api = api.clone();
        async move { api.acquire(2, "x", json!({"wait": "50s"})).await }
    });
    api.until_waiting("x", 1).await;
    let refused = api.acquire(3, "x", json!({"wait": "50s"})).await;
    assert_eq!(
        (refused.status.as_u16(), refused.kind()),
        (429, "too_many".into())
    );
    // Without waiting there is no limit.
    assert_eq!(api.acquire(3, "x", json!({})).await.kind(), "held");
    api.release(1, "x").await;
    waiter.await.unwrap().ok();
}

#[tokio::test]
async fn an_expired_token_is_as_good_as_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml");
    let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(3);
    let new = NewToken::new("bot", &[Scope::Admin], &[], Some(soon)).unwrap();
    fs::write(&path, &new.entry).unwrap();
    let mut settings = settings();
    settings.tokens = Some(Tokens::open(path).unwrap());
    let api = Api::with(settings).await.bearer(&new.token);
    let whoami = async || api.get("/v1/whoami").await;
    if std::time::SystemTime::now() < soon - std::time::Duration::from_secs(2) {
        assert_eq!(whoami().await.status, 200);
    }
    until("it has expired", async || whoami().await.status == 401).await;
    let refused = whoami().await;
    assert_eq!(refused.kind(), "unauthorized");
    assert!(!refused.text.contains(&new.token));
}

#[tokio::test]
async fn kept_places_count_as_waiters() {
    let mut settings = settings();
    settings.limits.waiters = 1;
    let api = Api::with(settings).await;
    api.acquire(1, "x", json!({})).await.ok();
    let keeps = json!({"keep_place": "5m"});
    assert_eq!(api.acquire(2, "x", keeps.clone()).await.kind(), "held");
    // The same place again is no second one.
    assert_eq!(api.acquire(2, "x", keeps.clone()).await.kind(), "held");
    assert_eq!(api.acquire(3, "x", keeps.clone()).await.kind(), "too_many");
    api.release(2, "x").await;
    assert_eq!(api.acquire(3, "x", keeps).await.kind(), "held");
    let too_long = json!({"keep_place": "6m"});
    let refused = api.acquire(3, "x", too_long).await;
    assert_eq!(refused.kind(), "invalid_request");
}

#[tokio::test]
async fn a_claim_id_is_for_one_lock_at_a_time() {
    let api = Api::new().await;
    api.acquire(1, "x", json!({})).await.ok();
    let keeps = json!({"keep_place": true});
    assert_eq!(api.acquire(2, "x", keeps.clone()).await.kind(), "held");
    assert_eq!(
        api.acquire(2, "y", keeps.clone()).await.kind(),
        "invalid_request"
    );
    api.release(2, "x").await;
    api.acquire(2, "y", keeps).await.ok();
}

#[tokio::test]
async fn streams_end_with_their_access_token() {
    let bot: (&str, &[Scope], &[&str]) = ("bot", &[Scope::Read, Scope::Hold], &[]);
    let Guarded {
        api,
        tokens,
        folder,
    } = guarded(&[bot]).await;
    let bot = api.bearer(&tokens[0]);
    let stream = async |method, path: &str| {
        let request = bot.request(method, path).body(Body::empty()).unwrap();
        let response = bot.raw(request).await;
        assert_eq!(response.status(), 200);
        response.into_body()
    };
    let events = stream(Method::GET, "/v1/events").await;
    let held = stream(Method::POST, "/v1/locks/x/hold").await;
    let waits = stream(Method::POST, "/v1/locks/x/hold").await;
    api.until_waiting("x", 1).await;
    fs::write(folder.path().join("tokens.toml"), "").unwrap();
    for body in [events, held, waits] {
        let all = soon("the end of the stream", body.collect()).await.unwrap();
        let all = String::from_utf8(all.to_bytes().into()).unwrap();
        assert!(
            all.contains("event: error") && all.contains("unauthorized"),
            "{all}"
        );
    }
    // As if it could no longer be renewed: it may still be relied on.
    assert_eq!(api.locks.inspect("x").await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn those_who_see_some_locks_learn_nothing_of_the_others() {
    let Guarded { api, tokens, .. } = guarded(&[
        ("admin", &[Scope::Admin], &[]),
        ("bot", &[Scope::Read], &["a/"]),
    ])
    .await;
    let (admin, bot) = (api.bearer(&tokens[0]), api.bearer(&tokens[1]));
    admin.acquire(1, "b%2F1", json!({})).await.ok();
    admin
        .post(
            "/v1/locks/b%2F1/force-release",
            json!({"confirm": "b/1", "reason": "why"}),
        )
        .await
        .ok();
    let all = admin.get("/v1/summary").await.ok();
    assert_eq!(all["lost_last_hour"]["broken"], 1);
    let some = bot.get("/v1/summary").await.ok();
    assert!(some["lost_last_hour"].is_null() && some["series"].is_null());
    let all = admin.get("/metrics").await.text;
    assert!(all.contains("leasehold_breaks_total 1"), "{all}");
    let some = bot.get("/metrics").await;
    assert_eq!((some.status.as_u16(), &*some.text), (200, ""));
    for path in [
        "/v1/locks",
        "/v1/history",
        "/v1/contention",
        "/v1/graph",
        "/v1/locks/b%2F1",
        "/v1/locks/b%252F1",
        "/v1/history?lock=b%2F1",
        "/plain",
        "/plain?lock=b%2F1",
    ] {
        let seen = bot.get(path).await.text;
        assert!(
            !seen.contains("b/1") && !seen.contains("why"),
            "{path}: {seen}"
        );
    }
}

#[tokio::test]
async fn claim_ids_are_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.log");
    let mut settings: Settings = settings();
    settings.audit = Some(audit.clone());
    settings.name_metrics = true;
    let api = Api::with(settings).await;
    api.acquire(1, "x", json!({})).await.ok();
    let waiter = tokio::spawn({
        let api = api.clone();
        async move { api.acquire(2, "x", json!({"wait": "50s"})).await }
    });
    api.until_waiting("x", 1).await;
    let mut seen = String::new();
    for path in [
        "/v1/locks",
        "/v1/locks/x",
        "/v1/summary",
        "/v1/graph",
        "/v1/history",
        "/metrics",
        "/v1/engine",
    ] {
        seen.push_str(&api.get(path).await.text);
    }
    seen.push_str(&api.acquire(3, "x", json!({})).await.text);
    api.post("/v1/locks/x/force-release", json!({"confirm": "x"}))
        .await
        .ok();
    seen.push_str(&waiter.await.unwrap().text);
    seen.push_str(&fs::read_to_string(audit).unwrap());
    assert!(
        seen.contains("\"audit\":\"break\"") && seen.contains("leasehold_lock_held{lock=\"x\"}")
    );
    for nth in 1..4 {
        assert!(!seen.contains(&claim(nth)), "{seen}");
    }
    assert!(!format!("{:?}", api.state).contains(&claim(2)));
}

/// A run that was recorded now, and counts for so many seconds, or was over so long ago.
fn recorded(seconds: i64) -> Value {
    let now = leasehold::wall_clock_micros();
    let until = now.saturating_add_signed(seconds * 1_000_000);
    let text = format!("{now}\n{until}\n42\nweb1\nnightly");
    json!(leasehold::engine::wire::encode_base64(text.as_bytes()))
}

/// Writes a record as the `http:` engine does.
async fn write_record(
    guarded: &Guarded,
    token: &str,
    key: &str,
    value: Value,
    condition: Value,
) -> Reply {
    let content = json!({"value_base64": value, "lifetime_us": 3_000_000_000_u64});
    let mut call = json!({"content": content});
    let how = if condition["token"].is_u64() {
        "fenced"
    } else {
        "if"
    };
    call.as_object_mut()
        .unwrap()
        .extend(condition.as_object().unwrap().clone());
    let call = json!({"key": key, "call": {how: call}});
    let api = guarded.api.bearer(token);
    api.post("/v1/engine/record", call).await
}

/// To replace a run that counts by one that does not is to forget it.
#[tokio::test]
async fn run_that_counts_is_replaced_with_break_only() {
    let entries: &[(&str, &[Scope], &[&str])] = &[
        ("bot", &[Scope::Hold, Scope::Read], &[]),
        ("oncall", &[Scope::Hold, Scope::Break], &[]),
    ];
    let guarded = guarded(entries).await;
    let (bot, oncall) = (&guarded.tokens[0], &guarded.tokens[1]);
    let run = "report\u{1f}once";
    let write = async |token: &str, value: Value, condition: Value| {
        write_record(&guarded, token, run, value, condition).await
    };
    let fenced = |token: u64| json!({"token": token, "lock": "report"});
    let is_written = |value: &Value| value["written"]["version"].is_u64();
    assert!(is_written(&write(bot, recorded(-1), fenced(5)).await.ok()));
    // The period is over.
    assert!(is_written(&write(bot, recorded(60), fenced(6)).await.ok()));
    let there = async || {
        let api = guarded.api.bearer(bot);
        let read = api.post("/v1/engine/record", json!({"key": run, "call": "read"}));
        read.await.ok()["record"].clone()
    };
    let before = there().await;
    for value in [recorded(-1), recorded(3600)] {
        let refused = write(bot, value, fenced(7)).await.ok();
        assert_eq!(refused["refused"]["highest"], 6, "{refused}");
    }
    let version = json!({"version": before["version"]});
    let refused = write(bot, recorded(-1), version.clone()).await;
    assert_eq!(refused.kind(), "forbidden");
    assert_eq!(there().await, before);
    assert!(is_written(&write(oncall, recorded(-1), version).await.ok()));
    // What is no run would keep all others from reading whether there was one.
    let nonsense = write(bot, json!("YQ=="), fenced(8)).await;
    assert_eq!(nonsense.kind(), "invalid_request");
    assert!(is_written(&write(bot, recorded(60), fenced(8)).await.ok()));
    let replaced = write(oncall, recorded(-1), fenced(9)).await.ok();
    assert!(is_written(&replaced), "{replaced}");
}

/// Where locks end with a session, the run is a record beside the lock.
#[tokio::test]
async fn run_kept_as_a_record_is_forgotten_with_break_only() {
    let entries: &[(&str, &[Scope], &[&str])] = &[
        ("bot", &[Scope::Hold], &[]),
        ("oncall", &[Scope::Hold, Scope::Break], &[]),
    ];
    let guarded = guarded(entries).await;
    let audit = || fs::read_to_string(guarded.folder.path().join("audit.log")).unwrap();
    let (bot, oncall) = (&guarded.tokens[0], &guarded.tokens[1]);
    let record = async |token: &str, key: &str, value: Value, condition: Value| {
        write_record(&guarded, token, key, value, condition).await
    };
    let run = "report\u{1f}once";
    let fenced = || json!({"token": 7, "lock": "report"});
    record(bot, run, recorded(60), fenced()).await.ok();
    for condition in [fenced(), json!({"version": 1})] {
        let refused = record(bot, run, Value::Null, condition).await;
        assert_eq!(refused.kind(), "forbidden");
    }
    record(bot, "other", Value::Null, fenced()).await.ok();
    assert_eq!(audit(), "");
    record(oncall, run, Value::Null, fenced()).await.ok();
    let log = audit();
    assert!(
        log.contains("forget run") && log.contains("oncall"),
        "{log}"
    );
    assert!(log.contains("\"report\""), "{log}");
}
