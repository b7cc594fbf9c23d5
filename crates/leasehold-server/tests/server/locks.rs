//! Acquire, renew, release, ask, force-release; retries and places in the queue.

use std::time::Duration;

use http::Method;
use leasehold::Locks;
use serde_json::json;

use crate::support::{Api, Server, claim, memory, settings, soon, until};

#[tokio::test]
async fn a_lock_is_acquired_renewed_and_released() {
    let api = Api::new().await;
    let granted = api.acquire(1, "a%2Fb", json!({"ttl": "10s"})).await.ok();
    assert_eq!(granted["name"], "a/b");
    assert_eq!(granted["ttl_ms"], 10_000);
    let valid = granted["valid_ms"].as_u64().unwrap();
    assert!(valid > 5_000 && valid < 10_000, "{granted}");
    let renew = api.of_claim(1, "/v1/locks/a%2Fb/renew", json!({"ttl": "60s"}));
    let renewed = renew.await.ok();
    assert_eq!(renewed["token"], granted["token"]);
    assert!(renewed["valid_ms"].as_u64().unwrap() > 50_000, "{renewed}");
    assert_eq!(api.release(1, "a%2Fb").await["released"], true);
    assert_eq!(api.release(1, "a%2Fb").await["released"], false);
    let lost = api.of_claim(1, "/v1/locks/a%2Fb/renew", json!({})).await;
    assert_eq!((lost.status.as_u16(), &*lost.kind()), (410, "lease_lost"));
    let again = api.acquire(1, "a%2Fb", json!({})).await.ok();
    assert!(again["token"].as_u64() > granted["token"].as_u64());
}

#[tokio::test]
async fn a_held_lock_is_a_409_that_tells_who_holds_it() {
    let api = Api::new().await;
    let body = json!({"label": "make", "host": "web-1", "pid": 7, "reason": "release 42"});
    let granted = api.acquire(1, "x", body).await.ok();
    let held = api.acquire(2, "x", json!({"wait": "20ms"})).await;
    assert_eq!((held.status.as_u16(), &*held.kind()), (409, "held"));
    assert!(held.headers.contains_key("retry-after"));
    let held = held.json();
    let holder = &held["holders"][0];
    assert_eq!(holder["label"], "make");
    assert_eq!(holder["host"], "web-1");
    assert_eq!(holder["pid"], 7);
    assert_eq!(holder["reason"], "release 42");
    assert_eq!(holder["token"], granted["token"]);
    assert_eq!(held["ahead"], 1);
    assert_eq!(held["kept_place"], false);
    assert!(held["detail"].as_str().unwrap().contains("make"), "{held}");
    api.until_waiting("x", 0).await;
}

#[tokio::test]
async fn a_repeated_acquire_gets_the_same_grant() {
    let api = Api::new().await;
    let first = api.acquire(1, "x", json!({})).await.ok();
    let again = api.acquire(1, "x", json!({"wait": "1s"})).await.ok();
    assert_eq!(again["token"], first["token"]);
}

#[tokio::test]
async fn a_waiter_is_granted_when_the_holder_releases() {
    let api = Api::new().await;
    api.acquire(1, "x", json!({})).await.ok();
    let waiter = tokio::spawn({
        let api = api.clone();
        async move { api.acquire(2, "x", json!({"wait": "50s"})).await.ok() }
    });
    api.until_waiting("x", 1).await;
    api.release(1, "x").await;
    let granted = soon("the waiter", waiter).await.unwrap();
    assert!(granted["took_ms"].as_u64().is_some());
    assert_eq!(api.locks.inspect("x").await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn a_kept_place_is_found_by_the_next_request() {
    let api = Api::new().await;
    api.acquire(1, "x", json!({})).await.ok();
    let keep = json!({"wait": "10ms", "keep_place": true});
    let held = api.acquire(2, "x", keep).await.json();
    assert_eq!(held["kept_place"], true);
    let later = json!({"wait": "10ms", "keep_place": "20s"});
    assert_eq!(api.acquire(3, "x", later).await.json()["ahead"], 2);
    assert_eq!(api.waiters("x").await, 2);
    api.release(1, "x").await;
    // The second is not first in the queue, however soon it asks.
    let early = api.acquire(3, "x", json!({"keep_place": true})).await;
    assert_eq!(early.status, 409);
    api.acquire(2, "x", json!({"keep_place": true})).await.ok();
    api.release(2, "x").await;
    api.acquire(3, "x", json!({})).await.ok();
}

#[tokio::test]
async fn a_kept_place_ends_with_its_time() {
    let api = Api::new().await;
    api.acquire(1, "x", json!({})).await.ok();
    let keep = json!({"wait": "10ms", "keep_place": "50ms"});
    api.acquire(2, "x", keep).await;
    api.until_waiting("x", 0).await;
}

#[tokio::test]
async fn a_broken_connection_gives_up_its_place() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    let waiters = async || locks.inspect("x").await.unwrap().waiters.len();
    let head = |nth| {
        format!(
            "POST /v1/locks/x/acquire HTTP/1.1\r\nLeasehold-Claim: {}",
            claim(nth)
        )
    };
    let leaves = server.begin(&head(1), "{\"wait\": \"50s\"}").await;
    let keeps = "{\"wait\": \"50s\", \"keep_place\": \"50s\"}";
    let keeps = server.begin(&head(2), keeps).await;
    until("both wait", async || waiters().await == 2).await;
    drop(keeps);
    drop(leaves);
    until("one has left", async || waiters().await == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(waiters().await, 1);
    held.release().await.unwrap();
    // It comes back, and finds the lock.
    let mut back = server.begin(&head(2), "{\"wait\": \"50s\"}").await;
    back.says("\"token\"").await;
}

#[tokio::test]
async fn a_retry_is_not_undone_by_the_request_before_it() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    for nth in 0..20 {
        let held = locks.lock("x").acquire().await.unwrap();
        let head = format!(
            "POST /v1/locks/x/acquire HTTP/1.1\r\nLeasehold-Claim: {}",
            claim(nth)
        );
        let first = server.begin(&head, "{\"wait\": \"50s\"}").await;
        let waits = async || locks.inspect("x").await.unwrap().waiters.len() == 1;
        until("it waits", waits).await;
        drop(first);
        let mut second = server.begin(&head, "{\"wait\": \"50s\"}").await;
        held.release().await.unwrap();
        second.says("\"token\"").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let holders = locks.inspect("x").await.unwrap().holders;
        assert_eq!(holders.len(), 1, "the first request took it away");
        locks.force_release("x").await.unwrap();
    }
}

#[tokio::test]
async fn a_retry_that_does_not_wait_is_not_undone_either() {
    let locks = memory().await;
    let server = Server::start(locks.clone(), settings()).await;
    for nth in 0..50 {
        let held = locks.lock("x").acquire().await.unwrap();
        let head = format!(
            "POST /v1/locks/x/acquire HTTP/1.1\r\nLeasehold-Claim: {}",
            claim(nth)
        );
        let first = server.begin(&head, "{\"wait\": \"50s\"}").await;
        let waits = async || locks.inspect("x").await.unwrap().waiters.len() == 1;
        until("it waits", waits).await;
        held.release().await.unwrap();
        drop(first);
        let mut second = server.begin(&head, "{}").await;
        let answer = second.says("\r\n\r\n").await;
        if answer.contains("200 OK") {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let holders = locks.inspect("x").await.unwrap().holders;
            assert_eq!(holders.len(), 1, "the first request took it away");
        }
        locks.force_release("x").await.unwrap();
    }
}

#[tokio::test]
async fn a_kept_place_is_given_up_by_a_request_that_does_not_queue() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let api = Api::over(Locks::connect(&file).await.unwrap(), settings());
    api.acquire(1, "x", json!({})).await.ok();
    let keeps = json!({"keep_place": "5m"});
    assert_eq!(api.acquire(2, "x", keeps).await.kind(), "held");
    assert_eq!(api.waiters("x").await, 1);
    assert_eq!(api.acquire(2, "x", json!({})).await.kind(), "held");
    api.until_waiting("x", 0).await;
}

#[tokio::test]
async fn a_lock_is_held_no_longer_than_was_said() {
    let api = Api::new().await;
    let most = json!({"ttl": "1h", "max_hold": "4s"});
    let granted = api.acquire(1, "x", most.clone()).await.ok();
    assert_eq!(granted["ttl_ms"], 4000);
    let renew = async || api.of_claim(1, "/v1/locks/x/renew", most.clone()).await;
    let renewed = renew().await.ok();
    assert!(renewed["ttl_ms"].as_u64().unwrap() <= 4000, "{renewed}");
    until("it is over", async || renew().await.status == 410).await;
    api.acquire(2, "x", json!({"wait": "20s"})).await.ok();
    let shared = json!({"mode": "shared"});
    let token = api.acquire(3, "y", shared.clone()).await.ok()["token"].clone();
    api.acquire(4, "y", shared).await.ok();
    let renew = async |body| api.of_claim(3, "/v1/locks/y/renew", body).await;
    let unclear = renew(json!({"max_hold": "1h"})).await;
    assert_eq!(unclear.kind(), "invalid_request");
    renew(json!({"max_hold": "1h", "token": token})).await.ok();
    let short = renew(json!({"max_hold": "1ms"})).await;
    assert_eq!(short.kind(), "invalid_request");
}

#[tokio::test]
async fn modes_are_those_of_the_engine() {
    let api = Api::new().await;
    let shared = json!({"mode": "shared"});
    api.acquire(1, "r", shared.clone()).await.ok();
    api.acquire(2, "r", shared).await.ok();
    assert_eq!(api.acquire(3, "r", json!({})).await.status, 409);
    let permit = json!({"mode": "permit", "permits": 2});
    api.acquire(1, "p", permit.clone()).await.ok();
    api.acquire(2, "p", json!({"permits": 2})).await.ok();
    assert_eq!(api.acquire(3, "p", permit).await.status, 409);
    let other = api.acquire(3, "p", json!({"permits": 3})).await;
    assert_eq!(other.kind(), "invalid_request");
}

#[tokio::test]
async fn a_batch_of_renewals_is_answered_one_by_one() {
    let api = Api::new().await;
    let granted = api.acquire(1, "a", json!({})).await.ok();
    let body = json!({"claims": [
        {"name": "a", "claim": claim(1), "ttl": "20s"},
        {"name": "b", "claim": claim(1)},
        {"name": "", "claim": claim(1)},
        {"name": "a", "claim": "x"},
    ]});
    let answer = api.post("/v1/renew", body).await.ok();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results[0]["token"], granted["token"]);
    assert!(results[0]["valid_ms"].as_u64().unwrap() > 10_000);
    assert_eq!(results[1]["problem"]["kind"], "lease_lost");
    assert_eq!(results[2]["problem"]["kind"], "invalid_name");
    assert_eq!(results[3]["problem"]["kind"], "invalid_request");
    assert!(!answer.to_string().contains(&claim(1)));
}

#[tokio::test]
async fn a_released_lock_can_stay_taken_for_a_while() {
    let api = Api::new().await;
    api.acquire(1, "x", json!({"ttl": "60s"})).await.ok();
    let path = "/v1/locks/x/release";
    let kept = api.of_claim(1, path, json!({"keep_for": "300ms"})).await;
    assert_eq!(kept.ok()["released"], true);
    assert_eq!(api.acquire(2, "x", json!({})).await.status, 409);
    api.acquire(2, "x", json!({"wait": "50s"})).await.ok();
}

#[tokio::test]
async fn a_holder_is_asked_and_a_lock_is_broken() {
    let api = Api::new().await;
    let nobody = json!({"reason": "please"});
    let asked = api.post("/v1/locks/x/ask", nobody.clone()).await.ok();
    assert_eq!(asked["asked"], json!([]));
    let lease = api.locks.lock("x").acquire().await.unwrap();
    let asked = api.post("/v1/locks/x/ask", nobody).await.ok();
    assert_eq!(asked["asked"][0]["token"], lease.token().get());
    let request = soon("the request", lease.revoke_requested()).await.unwrap();
    assert_eq!(request.reason, "please");
    let path = "/v1/locks/x/force-release";
    for unconfirmed in [json!({}), json!({"confirm": "y"})] {
        let refused = api.post(path, unconfirmed).await;
        assert_eq!(refused.kind(), "invalid_request");
    }
    let broken = api
        .post(path, json!({"confirm": "x", "reason": "stuck"}))
        .await;
    assert_eq!(broken.ok()["released"], true);
    let broken = api.post(path, json!({"confirm": "x"})).await;
    assert_eq!(broken.ok()["released"], false);
    api.acquire(1, "x", json!({})).await.ok();
}

#[tokio::test]
async fn the_work_of_a_period_is_done_once() {
    let api = Api::new().await;
    let path = "/v1/locks/report/once-per";
    let body = json!({"period": "50m", "label": "one"});
    let ours = api.of_claim(1, path, body.clone()).await.ok();
    assert_eq!(ours["turn"], "ours");
    let again = api.of_claim(1, path, body.clone()).await.ok();
    assert_eq!(
        (&again["turn"], &again["token"]),
        (&ours["turn"], &ours["token"])
    );
    api.release(1, "report").await;
    let taken = api.of_claim(2, path, body.clone()).await.ok();
    assert_eq!(
        (&taken["turn"], &taken["by"]["label"]),
        (&json!("taken"), &json!("one"))
    );
    assert!(taken["next_in_ms"].as_u64().unwrap() > 2_000_000);
    let forgotten = api.call(Method::DELETE, path, json!({})).await.ok();
    assert_eq!(forgotten["forgotten"], true);
    let ours = api.of_claim(2, path, body).await.ok();
    assert_eq!(ours["turn"], "ours");
}

#[tokio::test]
async fn a_failed_run_counts_only_if_asked() {
    let api = Api::new().await;
    let path = "/v1/locks/report/once-per";
    let body = json!({"period": "50m", "retry_failed": true});
    for nth in 1..3 {
        let ours = api.of_claim(nth, path, body.clone()).await.ok();
        assert_eq!(ours["turn"], "ours");
        if nth == 2 {
            let done = format!("{path}/succeeded");
            let period = json!({"period": "50m", "began_ms_ago": 10});
            api.of_claim(nth, &done, period.clone()).await.ok();
            let late = api.of_claim(nth, &done, period).await;
            assert_eq!(late.kind(), "lease_lost");
        }
        api.release(nth, "report").await;
    }
    let taken = api.of_claim(3, path, body).await.ok();
    assert_eq!(taken["turn"], "taken");
}

#[tokio::test]
async fn ids_are_unique() {
    let api = Api::new().await;
    let mut all = std::collections::HashSet::new();
    for _ in 0..3 {
        let answer = api.post("/v1/ids/orders", json!({"count": 100})).await.ok();
        let ids = answer["ids"].as_array().unwrap().clone();
        assert_eq!(ids.len(), 100);
        all.extend(ids.iter().map(|id| id.as_str().unwrap().to_owned()));
    }
    assert_eq!(all.len(), 300);
    let one = api.post("/v1/ids/orders", json!({})).await.ok();
    assert_eq!(one["ids"].as_array().unwrap().len(), 1);
}
