//! The dashboard: static files that are part of the binary, and a table that needs no JavaScript.
//!
//! The page is one ES module, so that it never mixes two versions when several servers stand behind one address. Its parts are in `script/`, each of
//! them one idea, and are joined here in an order in which what is used stands before what uses it.

mod plain;

use axum::Router;
use axum::extract::OriginalUri;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, LOCATION, REFERRER_POLICY, X_FRAME_OPTIONS,
};
use http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};

use crate::access;
use crate::state::State;

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const ICON: &str = include_str!("page/icon.svg");
const SCRIPT: &str = concat!(
    include_str!("script/dom.js"),
    include_str!("script/format.js"),
    include_str!("script/api.js"),
    include_str!("script/live.js"),
    include_str!("script/left.js"),
    include_str!("script/locks.js"),
    include_str!("script/lock.js"),
    include_str!("script/contention.js"),
    include_str!("script/graph-layout.js"),
    include_str!("script/graph.js"),
    include_str!("script/history.js"),
    include_str!("script/engine.js"),
    include_str!("script/main.js"),
);

/// Nothing but what this server itself serves, and no text that becomes markup.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
);

/// The routes of the dashboard. The files need no access token; the plain table does.
pub(crate) fn routes(state: &State) -> Router<State> {
    let plain = Router::new()
        .route("/plain", get(plain::page))
        .layer(middleware::from_fn_with_state(state.clone(), access::check))
        .layer(middleware::from_fn(plain::take_basic));
    Router::new()
        .route("/", get(root))
        .route("/dashboard", get(root))
        .route("/dashboard/", file("text/html; charset=utf-8", PAGE))
        .route(
            "/dashboard/app.js",
            file("text/javascript; charset=utf-8", SCRIPT),
        )
        .route(
            "/dashboard/style.css",
            file("text/css; charset=utf-8", STYLE),
        )
        .route("/dashboard/icon.svg", file("image/svg+xml", ICON))
        .merge(plain)
}

/// To the page. It is not at the root itself, since its links are relative: where the routes are nested in another service, the root has no slash at
/// its end.
async fn root(OriginalUri(uri): OriginalUri) -> Response {
    let last = uri.path().rsplit('/').next().unwrap_or_default();
    let place = match last {
        "" | "dashboard" => "./dashboard/".to_owned(),
        nested => format!("./{nested}/dashboard/"),
    };
    match HeaderValue::try_from(place) {
        Ok(place) => (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, place)]).into_response(),
        Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}

fn file(kind: &'static str, content: &'static str) -> MethodRouter<State> {
    let tag = etag(content);
    get(async move |headers: HeaderMap| served(&headers, kind, content, &tag))
}

/// A browser asks each time whether it has the current version, and gets it only if not.
fn served(headers: &HeaderMap, kind: &'static str, content: &'static str, tag: &str) -> Response {
    let known = headers.get(IF_NONE_MATCH).and_then(|it| it.to_str().ok());
    let is_known = known.is_some_and(|it| it.split(',').any(|one| one.trim() == tag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, kind)], content).into_response(),
    };
    let all = response.headers_mut();
    all.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        all.insert(ETAG, tag);
    }
    protect(all);
    response
}

fn etag(content: &str) -> String {
    let digest = Sha256::digest(content.as_bytes());
    let hex: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("\"{hex}\"")
}

/// What keeps other pages from using this one, and this one from using others.
fn protect(headers: &mut HeaderMap) {
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_no_script_or_style_in_its_text() {
        for text in [PAGE, plain::FRAME] {
            let lower = text.to_ascii_lowercase();
            for forbidden in [
                "<style",
                " style=",
                "javascript:",
                "http://",
                "https://",
                " onclick",
                " onload",
            ] {
                assert!(!lower.contains(forbidden), "{forbidden}");
            }
            assert_eq!(
                lower.matches("<script").count(),
                lower.matches("<script type=\"module\" src=").count()
            );
        }
    }

    #[test]
    fn the_script_makes_no_markup_of_text() {
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "setAttribute(\"style\"",
        ] {
            assert!(!SCRIPT.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn links_of_the_page_are_relative() {
        let mut quoted = PAGE.split('"');
        let absolute = quoted.find(|part| part.starts_with('/'));
        assert_eq!(absolute, None, "leaves the path that the page is under");
    }
}
