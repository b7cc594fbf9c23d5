//! Guarded records.

use http::Method;
use serde_json::{Value, json};

use crate::support::{Api, Reply};

async fn put(api: &Api, body: Value) -> Reply {
    api.call(Method::PUT, "/v1/store/a%2F1", body).await
}

#[tokio::test]
async fn fenced_writes_refuse_older_tokens() {
    let api = Api::new().await;
    assert_eq!(api.get("/v1/store/a%2F1").await.kind(), "no_record");
    let write = |token: u64| json!({"value": "v", "token": token, "lock": "a"});
    let first = put(&api, write(7)).await.ok();
    let read = api.get("/v1/store/a%2F1").await.ok();
    assert_eq!(read["value"], "v");
    assert_eq!((&read["token"], &read["lock"]), (&json!(7), &json!("a")));
    assert_eq!(read["version"], first["version"]);
    let stale = put(&api, write(6)).await;
    assert_eq!(
        (stale.kind(), &stale.json()["highest"]),
        ("stale".into(), &json!(7))
    );
    let other = put(&api, json!({"value": "v", "token": 8, "lock": "b"})).await;
    assert_eq!(other.kind(), "invalid_request");
    let delete = |body| api.call(Method::DELETE, "/v1/store/a%2F1", body);
    delete(json!({"token": 9})).await.ok();
    assert_eq!(api.get("/v1/store/a%2F1").await.kind(), "no_record");
    assert_eq!(put(&api, write(8)).await.kind(), "stale");
}

#[tokio::test]
async fn optimistic_writes_refuse_other_versions() {
    let api = Api::new().await;
    let first = put(&api, json!({"value": "1", "version": null})).await.ok();
    let version = first["version"].clone();
    let again = put(&api, json!({"value": "1", "version": null})).await;
    assert_eq!(again.kind(), "changed");
    assert_eq!(again.json()["version"], version);
    let second = json!({"value_base64": "/w==", "version": version});
    let second = put(&api, second).await.ok();
    let read = api.get("/v1/store/a%2F1").await.ok();
    assert_eq!(read["value_base64"], "/w==");
    assert!(read.get("value").is_none());
    let delete = |body| api.call(Method::DELETE, "/v1/store/a%2F1", body);
    assert_eq!(delete(json!({"version": version})).await.kind(), "changed");
    delete(json!({"version": second["version"]})).await.ok();
}

#[tokio::test]
async fn writes_without_a_condition_are_refused() {
    let api = Api::new().await;
    let table = [
        json!({}),
        json!({"value": "v"}),
        json!({"token": 1}),
        json!({"value": "v", "value_base64": "", "token": 1}),
        json!({"value": "v", "token": 1, "version": 1}),
        json!({"value": "v", "version": 1, "lock": "a"}),
        json!({"value_base64": "?", "token": 1}),
        json!({"value": "v", "token": 9_007_199_254_740_992_u64}),
        json!({"value": "v", "token": -1}),
        json!({"value": "v", "token": 1, "colour": "red"}),
    ];
    for body in table {
        let refused = put(&api, body.clone()).await;
        assert_eq!(refused.kind(), "invalid_request", "{body}");
    }
    let large = "x".repeat(1_000_001);
    let refused = put(&api, json!({"value": large, "token": 1})).await;
    assert_eq!(refused.kind(), "invalid_request");
    let largest = "x".repeat(1_000_000);
    put(&api, json!({"value": largest, "token": 1})).await.ok();
}
