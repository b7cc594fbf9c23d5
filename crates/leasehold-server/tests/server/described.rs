//! What the server answers is what the OpenAPI document describes: every field, and no other.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use crate::support::{Api, Reply, until};

/// Compares answers with the document, and notes which of the described fields were seen.
struct Described {
    document: Value,
    seen: BTreeSet<String>,
}

impl Described {
    async fn of(api: &Api) -> Self {
        Self {
            document: api.get("/openapi.json").await.ok(),
            seen: BTreeSet::new(),
        }
    }

    fn ok(&mut self, method: &str, path: &str, reply: Reply) -> Value {
        let escaped = path.replace('/', "~1");
        let at =
            format!("/paths/{escaped}/{method}/responses/200/content/application~1json/schema");
        let answer = reply.ok();
        self.compare(&at, &answer);
        answer
    }

    fn problem(&mut self, reply: &Reply) {
        reply.kind();
        self.compare("/components/schemas/Problem", &reply.json());
    }

    fn compare(&mut self, at: &str, value: &Value) {
        let schema = self.document.pointer(at);
        let schema = schema
            .unwrap_or_else(|| panic!("nothing describes {at}"))
            .clone();
        if let Some(place) = schema["$ref"].as_str() {
            return self.compare(place.strip_prefix('#').unwrap(), value);
        }
        if schema["anyOf"].is_array() {
            if !value.is_null() {
                self.compare(&format!("{at}/anyOf/0"), value);
            }
            return;
        }
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let at = format!("{at}/properties/{name}");
                    assert!(self.document.pointer(&at).is_some(), "not described: {at}");
                    self.seen.insert(at.clone());
                    self.compare(&at, member);
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.compare(&format!("{at}/items"), item);
                }
            }
            other => {
                let kind = match other {
                    Value::String(_) => "string",
                    Value::Bool(_) => "boolean",
                    _ => "integer",
                };
                assert_eq!(schema["type"], kind, "{at}: {other}");
            }
        }
    }

    /// Whatever is described was seen.
    fn is_complete(&self) {
        let mut missing = Vec::new();
        self.fields("", &self.document, &mut missing);
        assert_eq!(missing, [""; 0], "described, and never answered");
    }

    fn fields(&self, at: &str, part: &Value, missing: &mut Vec<String>) {
        match part {
            Value::Object(members) => {
                for (name, member) in members {
                    let at = format!("{at}/{}", name.replace('/', "~1"));
                    // What is sent, not what is answered.
                    let is_sent = name == "requestBody"
                        || ["/components/schemas/Acquire", "/components/schemas/Hold"]
                            .contains(&at.as_str());
                    if is_sent {
                        continue;
                    }
                    if at.rsplit('/').nth(1) == Some("properties") && !self.seen.contains(&at) {
                        missing.push(at.clone());
                    }
                    self.fields(&at, member, missing);
                }
            }
            Value::Array(items) => {
                for (nth, item) in items.iter().enumerate() {
                    self.fields(&format!("{at}/{nth}"), item, missing);
                }
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn answers_are_as_described() {
    let api = Api::new().await;
    let mut it = Described::of(&api).await;
    let named = |action: &str| format!("/v1/locks/{{name}}/{action}");
    let acquired = api.acquire(1, "x", json!({"reason": "why"})).await;
    it.ok("post", &named("acquire"), acquired);
    let renewed = api.of_claim(1, "/v1/locks/x/renew", json!({})).await;
    it.ok("post", &named("renew"), renewed);
    let claims = json!({"claims": [
        {"name": "x", "claim": crate::support::claim(1)},
        {"name": "none", "claim": crate::support::claim(9)},
    ]});
    let batch = api.post("/v1/renew", claims).await;
    it.ok("post", "/v1/renew", batch);
    it.problem(&api.acquire(2, "x", json!({})).await);
    let waiter = tokio::spawn({
        let api = api.clone();
        let reason = json!({"wait": "50s", "reason": "because"});
        async move { api.acquire(3, "x", reason).await }
    });
    api.until_waiting("x", 1).await;
    let asked = api
        .post("/v1/locks/x/ask", json!({"reason": "please"}))
        .await;
    it.ok("post", &named("ask"), asked);
    until("it is observed", async || {
        api.get("/v1/summary").await.ok()["series"]["waiting"][59] == 1
    })
    .await;
    for (path, described) in [
        ("/v1/whoami", "/v1/whoami"),
        ("/v1/locks", "/v1/locks"),
        ("/v1/locks/x", "/v1/locks/{name}"),
        ("/v1/summary", "/v1/summary"),
        ("/v1/graph", "/v1/graph"),
        ("/v1/contention", "/v1/contention"),
        ("/v1/engine", "/v1/engine"),
    ] {
        it.ok("get", described, api.get(path).await);
    }
    let (set_up, _folder) = crate::shown::badly_set_up().await;
    let report = set_up.get("/v1/doctor").await;
    it.ok("get", "/v1/doctor", report);
    let confirm = json!({"confirm": "x", "reason": "stuck"});
    let broken = api.post("/v1/locks/x/force-release", confirm).await;
    it.ok("post", &named("force-release"), broken);
    waiter.await.unwrap().ok();
    let released = api.of_claim(3, "/v1/locks/x/release", json!({})).await;
    it.ok("post", &named("release"), released);
    // Events of every kind by now, but for one that stops waiting.
    let leaves = api.clone();
    api.acquire(1, "x", json!({})).await.ok();
    it.problem(&leaves.acquire(2, "x", json!({"wait": "10ms"})).await);
    it.ok("get", "/v1/locks/{name}", api.get("/v1/locks/x").await);
    it.ok("get", "/v1/history", api.get("/v1/history").await);

    let period = json!({"period": "1h", "retry_failed": true});
    for _ in 0..2 {
        let turn = api
            .of_claim(4, "/v1/locks/job/once-per", period.clone())
            .await;
        it.ok("post", &named("once-per"), turn);
    }
    let path = "/v1/locks/job/once-per/succeeded";
    let done = api.of_claim(4, path, json!({"period": "1h"})).await;
    it.ok("post", &named("once-per/succeeded"), done);
    let again = api.of_claim(4, path, json!({"period": "1h"})).await;
    it.problem(&again);
    let turn = api.of_claim(5, "/v1/locks/job/once-per", period).await;
    assert_eq!(it.ok("post", &named("once-per"), turn)["turn"], "taken");
    let forgotten = api
        .call(Method::DELETE, "/v1/locks/job/once-per", json!({}))
        .await;
    it.ok("delete", &named("once-per"), forgotten);

    let ids = api.post("/v1/ids/orders", json!({})).await;
    it.ok("post", "/v1/ids/{pool}", ids);
    let put = async |body: Value| api.call(Method::PUT, "/v1/store/k", body).await;
    let key = "/v1/store/{key}";
    it.ok(
        "put",
        key,
        put(json!({"value": "v", "token": 7, "lock": "x"})).await,
    );
    it.ok("get", key, api.get("/v1/store/k").await);
    it.problem(&put(json!({"value": "v", "token": 6, "lock": "x"})).await);
    it.problem(&put(json!({"value": "v", "version": null})).await);
    it.ok(
        "put",
        key,
        put(json!({"value_base64": "/w==", "token": 8})).await,
    );
    it.ok("get", key, api.get("/v1/store/k").await);
    let delete = api.call(Method::DELETE, "/v1/store/k", json!({"token": 9}));
    it.ok("delete", key, delete.await);
    let forbidden = crate::access::guarded(&[("a", &[leasehold_server::Scope::Read], &[])]).await;
    let reader = forbidden.api.bearer(&forbidden.tokens[0]);
    it.problem(&reader.acquire(1, "x", json!({})).await);
    it.is_complete();
}
