//! The files of the dashboard, and the plain table. What the page does is tested in a browser: `tests/browser`.

use axum::Router;
use axum::body::Body;
use http::{Method, Request};
use leasehold::engine::wire::encode_base64;
use leasehold_server::{Scope, State, app};
use tower::ServiceExt;

use crate::access::{Guarded, guarded};
use crate::support::{Api, memory, settings};

const EVIL: &str = "<script>alert(1)</script>&\"'";

#[tokio::test]
async fn files_are_strict_and_need_no_token() {
    let Guarded { api, .. } = guarded(&[("a", &[Scope::Read], &[])]).await;
    let files = [
        ("/dashboard/", "text/html; charset=utf-8"),
        ("/dashboard/app.js", "text/javascript; charset=utf-8"),
        ("/dashboard/style.css", "text/css; charset=utf-8"),
        ("/dashboard/icon.svg", "image/svg+xml"),
    ];
    for (path, kind) in files {
        let got = api.get(path).await;
        assert_eq!(got.status, 200, "{path}");
        assert_eq!(got.headers["content-type"], kind, "{path}");
        assert_eq!(got.headers["cache-control"], "no-cache", "{path}");
        assert_eq!(got.headers["x-frame-options"], "DENY", "{path}");
        let policy = got.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        let tag = got.headers["etag"].clone();
        let again = api.request(Method::GET, path).header("if-none-match", tag);
        let again = api.send(again.body(Body::empty()).unwrap()).await;
        assert_eq!(
            (again.status.as_u16(), again.text.len()),
            (304, 0),
            "{path}"
        );
    }
    assert_eq!(api.get("/dashboard/other.js").await.kind(), "not_found");
}

#[tokio::test]
async fn a_nested_page_is_found() {
    let state = State::new(memory().await, settings()).unwrap();
    let nested = Router::new().nest("/tools/locks", app(state));
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        nested.clone().oneshot(request).await.unwrap()
    };
    let moved = get("/tools/locks").await;
    assert_eq!(moved.status(), 307);
    assert_eq!(moved.headers()["location"], "./locks/dashboard/");
    for file in ["dashboard/", "dashboard/app.js", "plain"] {
        let path = format!("/tools/locks/{file}");
        assert_eq!(get(&path).await.status(), 200, "{path}");
    }
}

#[tokio::test]
async fn the_root_leads_to_the_page() {
    let Guarded { api, .. } = guarded(&[("a", &[Scope::Read], &[])]).await;
    for path in ["/", "/dashboard"] {
        let moved = api.get(path).await;
        assert_eq!(moved.status, 307, "{path}");
        assert_eq!(moved.headers["location"], "./dashboard/", "{path}");
    }
}

#[tokio::test]
async fn the_plain_table_shows_names_as_text() {
    let api = Api::new().await;
    let _held = api.locks.lock(EVIL).reason(EVIL).acquire().await.unwrap();
    let _other = api.locks.lock("other").acquire().await.unwrap();
    let table = api.get("/plain").await;
    assert_eq!(table.headers["content-type"], "text/html; charset=utf-8");
    let escaped = "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;";
    assert_eq!(table.text.matches(escaped).count(), 2);
    assert!(!table.text.contains("<script"));
    let one = "/plain?lock=%3Cscript%3Ealert%281%29%3C%2Fscript%3E%26%22%27";
    assert!(table.text.contains(&one[1..]));
    let page = api.get(one).await;
    assert_eq!(
        (page.status.as_u16(), page.text.contains("<script")),
        (200, false)
    );
    let some = api.get("/plain?prefix=oth").await.text;
    assert!(some.contains("other") && !some.contains(escaped));
}

#[tokio::test]
async fn the_plain_table_has_pages() {
    let api = Api::new().await;
    let mut held = Vec::new();
    for nth in 0..205 {
        held.push(
            api.locks
                .lock(format!("n&{nth:03}"))
                .acquire()
                .await
                .unwrap(),
        );
    }
    let first = api.get("/plain?prefix=n").await.text;
    assert!(
        first.contains("n&amp;199") && !first.contains("n&amp;200") && first.contains("205 locks")
    );
    let (_, link) = first.split_once("<p class=\"acts\"><a href=\"").unwrap();
    let (link, _) = link.split_once('"').unwrap();
    let next = api
        .get(&format!("/{}", link.replace("&amp;", "&")))
        .await
        .text;
    assert!(
        next.contains("n&amp;204") && !next.contains("n&amp;199") && !next.contains("Next page")
    );
}

#[tokio::test]
async fn the_plain_table_takes_a_token_as_password() {
    let entries: &[(&str, &[Scope], &[&str])] = &[
        ("a", &[Scope::Read], &["mine/"]),
        ("b", &[Scope::Hold], &[]),
    ];
    let Guarded { api, tokens, .. } = guarded(entries).await;
    let _held = api.locks.lock("mine/1").acquire().await.unwrap();
    let _hidden = api.locks.lock("yours/1").acquire().await.unwrap();
    let get = async |path: &str, method: Method, password: &str| {
        let basic = format!(
            "Basic {}",
            encode_base64(format!("x:{password}").as_bytes())
        );
        let request = api.request(method, path).header("authorization", basic);
        api.send(request.body(Body::empty()).unwrap()).await
    };
    let shown = get("/plain", Method::GET, &tokens[0]).await;
    assert_eq!(shown.status, 200);
    assert!(shown.text.contains("mine/1") && !shown.text.contains("yours/1"));
    let hidden = get("/plain?lock=yours%2F1", Method::GET, &tokens[0]).await;
    assert_eq!(hidden.status, 403);
    let without = get("/plain", Method::GET, &tokens[1]).await;
    assert_eq!(
        (without.status.as_u16(), without.text.contains("read")),
        (403, true)
    );
    for refused in [
        get("/plain", Method::GET, "wrong").await,
        api.get("/plain").await,
    ] {
        assert_eq!(refused.status, 401);
        let asks = refused.headers["www-authenticate"].to_str().unwrap();
        assert!(asks.starts_with("Basic "), "{asks}");
    }
    // Nowhere else, and for nothing that changes.
    assert_eq!(
        get("/v1/locks", Method::GET, &tokens[0]).await.kind(),
        "unauthorized"
    );
    assert_ne!(get("/plain", Method::POST, &tokens[0]).await.status, 200);
}

#[tokio::test]
async fn bad_queries_of_the_plain_table_are_refused() {
    let api = Api::new().await;
    assert_eq!(api.get("/plain?unknown=1").await.status, 400);
    for path in ["/plain?lock=", "/plain?lock=a%00b"] {
        let refused = api.get(path).await;
        assert_eq!(refused.status, 400, "{path}");
        assert_eq!(
            refused.headers["content-type"], "text/html; charset=utf-8",
            "{path}"
        );
    }
}
