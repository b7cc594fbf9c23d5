//! What is shown: lists, a lock, history, contention, the graph, the engine, health, metrics.

use std::os::unix::fs::PermissionsExt;

use leasehold::Locks;
use serde_json::{Value, json};

use crate::support::{Api, settings, until};

/// A server over a SQLite file to which everybody may write.
pub(crate) async fn badly_set_up() -> (Api, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let locks = Locks::connect(format!("sqlite:{}", file.display())).await;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666)).unwrap();
    (Api::over(locks.unwrap(), settings()), folder)
}

#[tokio::test]
async fn lists_come_in_pages() {
    let api = Api::new().await;
    for nth in 0..7 {
        api.acquire(nth, &format!("p%2F{nth}"), json!({}))
            .await
            .ok();
    }
    api.acquire(9, "other", json!({})).await.ok();
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api
            .get(&format!("/v1/locks?prefix=p/&limit=3{cursor}"))
            .await
            .ok();
        assert_eq!(page["total"], 7);
        let locks = page["locks"].as_array().unwrap();
        names.extend(locks.iter().map(|lock| lock["name"].clone()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let all: Vec<Value> = (0..7).map(|nth| json!(format!("p/{nth}"))).collect();
    assert_eq!(names, all);
    for bad in ["limit=0", "limit=5001", "limit=x", "colour=red"] {
        let refused = api.get(&format!("/v1/locks?{bad}")).await;
        assert_eq!(refused.kind(), "invalid_request", "{bad}");
    }
}

#[tokio::test]
async fn a_lock_is_shown_with_its_queue_events_and_history() {
    let api = Api::new().await;
    let body = json!({"label": "one", "host": "h", "pid": 1, "reason": "why"});
    api.acquire(1, "x", body.clone()).await.ok();
    api.release(1, "x").await;
    api.acquire(2, "x", body).await.ok();
    let waiter = tokio::spawn({
        let api = api.clone();
        async move {
            api.acquire(3, "x", json!({"wait": "50s", "label": "two"}))
                .await
        }
    });
    api.until_waiting("x", 1).await;
    api.post("/v1/locks/x/ask", json!({"reason": "please"}))
        .await
        .ok();
    let shown = api.get("/v1/locks/x").await.ok();
    assert_eq!(shown["holders"][0]["label"], "one");
    assert_eq!(shown["waiters"][0]["label"], "two");
    assert_eq!(shown["asked"]["reason"], "please");
    let history = shown["history"].as_array().unwrap();
    assert_eq!((history.len(), &history[0]["end"]), (1, &json!("released")));
    assert_eq!(history[0]["reason"], "why");
    let events = shown["events"].as_array().unwrap().iter();
    let events: Vec<_> = events
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        events,
        ["asked", "waiting", "acquired", "ended", "acquired"]
    );
    api.post(
        "/v1/locks/x/force-release",
        json!({"confirm": "x", "reason": "stuck"}),
    )
    .await
    .ok();
    waiter.await.unwrap().ok();
    let shown = api.get("/v1/locks/x").await.ok();
    assert_eq!(shown["asked"], json!(null));
    assert_eq!(shown["history"][0]["end"], "broken");
    let free = api.get("/v1/locks/nobody%20has%20it").await.ok();
    assert_eq!(free["holders"], json!([]));
}

#[tokio::test]
async fn history_is_filtered_and_paged() {
    let api = Api::new().await;
    for nth in 0..5 {
        let name = if nth % 2 == 0 { "even" } else { "odd" };
        api.acquire(nth, name, json!({"label": format!("job {nth}")}))
            .await
            .ok();
        api.release(nth, name).await;
    }
    let labels = async |query: &str| -> Vec<String> {
        let found = api.get(&format!("/v1/history?{query}")).await.ok();
        let holds = found["holds"].as_array().unwrap().iter();
        holds
            .map(|hold| hold["label"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(labels("lock=odd").await, ["job 3", "job 1"]);
    assert_eq!(labels("prefix=ev&holder=4").await, ["job 4"]);
    assert_eq!(labels("end=expired").await, [""; 0]);
    let first = api.get("/v1/history?limit=2").await.ok();
    let next = first["next"].as_str().unwrap();
    assert_eq!(
        labels(&format!("limit=2&before={next}")).await,
        ["job 2", "job 1"]
    );
    assert_eq!(first["kept"], "memory");
}

#[tokio::test]
async fn what_others_do_is_seen_by_looking() {
    let api = Api::new().await;
    let ends = async || -> Vec<Value> {
        let found = api.get("/v1/history?lock=x").await.ok();
        let holds = found["holds"].as_array().unwrap().iter();
        holds.map(|hold| hold["end"].clone()).collect()
    };
    let sees = async |event: &str| {
        let shown = api.get("/v1/locks/x").await.ok();
        let events = shown["events"].as_array().unwrap();
        events
            .iter()
            .any(|it| it["event"] == event && it["here"] == false)
    };
    let lease = api.locks.lock("x").acquire().await.unwrap();
    until("it is seen", async || sees("acquired").await).await;
    let other = api.locks.clone();
    let waiter = tokio::spawn(async move { other.lock("x").wait_forever().acquire().await });
    until("the waiter is seen", async || sees("waiting").await).await;
    until("the wait is counted", async || {
        let contention = api.get("/v1/contention").await.ok();
        contention["locks"][0]["waited_ms"].as_u64() > Some(0)
            && contention["locks"][0]["buckets_ms"]
                .as_array()
                .unwrap()
                .len()
                == 60
    })
    .await;
    lease.release().await.unwrap();
    until("its end is seen", async || ends().await == [json!("gone")]).await;
    drop(waiter.await.unwrap().unwrap());
    let brief = api
        .locks
        .lock("y")
        .ttl(std::time::Duration::from_millis(300));
    brief.acquire().await.unwrap().detach();
    until("its expiry is seen", async || {
        let found = api.get("/v1/history?lock=y&end=expired").await.ok();
        found["holds"].as_array().unwrap().len() == 1
    })
    .await;
    let summary = api.get("/v1/summary").await.ok();
    assert_eq!(summary["lost_last_hour"]["expired"], 1);
    assert_eq!(summary["series"]["held"].as_array().unwrap().len(), 60);
}

#[tokio::test]
async fn the_graph_marks_who_waits_in_a_circle() {
    let api = Api::new().await;
    let body = |who: &str| json!({"label": who, "host": "h", "pid": 1, "wait": "50s"});
    api.acquire(1, "a", body("one")).await.ok();
    api.acquire(2, "b", body("two")).await.ok();
    let mut waiters = Vec::new();
    for (nth, lock, who) in [(3, "b", "one"), (4, "a", "two")] {
        let (api, body) = (api.clone(), body(who));
        waiters.push(tokio::spawn(
            async move { api.acquire(nth, lock, body).await },
        ));
    }
    api.until_waiting("a", 1).await;
    api.until_waiting("b", 1).await;
    let graph = api.get("/v1/graph").await.ok();
    assert_eq!(graph["claimants"].as_array().unwrap().len(), 2);
    assert_eq!(graph["edges"].as_array().unwrap().len(), 2);
    let cycle = graph["cycles"][0].as_array().unwrap();
    assert_eq!(cycle.len(), 2);
    api.release(1, "a").await;
    api.release(2, "b").await;
    for waiter in waiters {
        waiter.await.unwrap().ok();
    }
    assert_eq!(api.get("/v1/graph").await.ok()["cycles"], json!([]));
}

#[tokio::test]
async fn the_engine_is_described_in_words_and_sentences() {
    let api = Api::new().await;
    let engine = api.get("/v1/engine").await.ok();
    assert_eq!(engine["scheme"], "memory");
    assert_eq!(engine["capabilities"]["reach"], "process");
    assert_eq!(engine["capabilities"]["survives"], json!(["clock_step"]));
    assert!(engine["plain"].as_array().unwrap().len() >= 6);
}

#[tokio::test]
async fn health_follows_the_server_and_metrics_count() {
    let api = Api::new().await;
    assert_eq!(api.get("/healthz").await.text, "ok\n");
    assert_eq!(api.get("/readyz").await.text, "ready\n");
    api.acquire(1, "secret-name", json!({})).await.ok();
    api.acquire(2, "secret-name", json!({})).await;
    until("the look counts it", async || {
        api.get("/metrics").await.text.contains("leasehold_held 1")
    })
    .await;
    let text = api.get("/metrics").await.text;
    let route = "route=\"/v1/locks/{name}/acquire\"";
    for line in [
        format!("leasehold_requests_total{{{route},status=\"200\"}} 1"),
        format!("leasehold_requests_total{{{route},status=\"409\"}} 1"),
        "leasehold_problems_total{kind=\"held\"} 1".to_owned(),
        "leasehold_wait_seconds_count 1".to_owned(),
    ] {
        assert!(text.contains(&line), "{line} in {text}");
    }
    assert!(!text.contains("secret-name"), "{text}");
    api.state.drain();
    assert_eq!(api.get("/readyz").await.kind(), "draining");
    assert_eq!(api.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems() {
    let api = Api::with(settings()).await;
    for path in [
        "/v1",
        "/v1/locks/a/b",
        "/v1/locks/a/b/acquire",
        "/v2/locks",
        "/v1//locks",
    ] {
        assert_eq!(api.get(path).await.kind(), "not_found", "{path}");
    }
    assert_eq!(
        api.get("/v1/locks/a/acquire").await.kind(),
        "method_not_allowed"
    );
    assert_eq!(
        api.post("/v1/locks", json!({})).await.kind(),
        "method_not_allowed"
    );
    assert!(
        api.get("/v1/locks")
            .await
            .headers
            .contains_key("leasehold-server")
    );
}

#[tokio::test]
async fn hold_that_expires_ends_where_nobody_looks() {
    let mut settings = settings();
    settings.observe = None;
    let api = Api::with(settings).await;
    api.acquire(1, "x", json!({"ttl": "20ms"})).await.ok();
    until("its end is known", async || {
        let ended = api.get("/v1/history?end=expired").await.ok();
        ended["holds"][0]["lock"] == "x"
    })
    .await;
}

#[tokio::test]
async fn report_of_the_doctor_is_shown_and_counted() {
    let (api, folder) = badly_set_up().await;
    let report = api.get("/v1/doctor").await.ok();
    let findings = report["findings"].as_array().unwrap();
    let wrong = findings.iter().find(|it| it["id"] == "permissions");
    let wrong = wrong.unwrap_or_else(|| panic!("{report}"));
    for member in ["seen", "means", "fix"] {
        assert_ne!(wrong[member], "", "{wrong}");
    }
    let metrics = api.get("/metrics").await.text;
    for (name, label, value) in [
        ("leasehold_doctor_findings", "weight", &wrong["weight"]),
        ("leasehold_doctor_verdict", "verdict", &report["verdict"]),
    ] {
        let line = format!("{name}{{{label}={value}}} 1\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    // The engine is not asked again for a while, and no lock is taken.
    let file = folder.path().join("locks.db");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(api.get("/v1/doctor").await.ok(), report);
    let events = api.get("/v1/history").await.ok();
    assert_eq!(events["holds"], json!([]));
}
