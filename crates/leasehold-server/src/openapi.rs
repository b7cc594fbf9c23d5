//! The description of the API, for programs and for people. Tests compare it with the routes, with what they read, and with what they answer.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::response::{Html, IntoResponse, Response};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;

/// OpenAPI 3.1.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

pub(crate) async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

pub(crate) async fn page() -> Response {
    static PAGE: LazyLock<String> = LazyLock::new(|| {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
        to_html(&document)
    });
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
    ([(CONTENT_SECURITY_POLICY, policy)], Html(PAGE.as_str())).into_response()
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}\
    code{font:13px ui-monospace,monospace}h2{font-size:1rem;border-top:1px solid #8884;padding-top:1rem}\
    td,th{text-align:left;vertical-align:top;padding:.1rem .8rem .1rem 0}th{font-weight:500}";

/// A page without scripts: every route with its parameters and the fields of its body.
fn to_html(document: &Value) -> String {
    let about = text(&document["info"]["description"]);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>leasehold: API</title><style>{STYLE}</style><h1>Locks over HTTP</h1><p>{about} \
         <a href=\"openapi.json\">OpenAPI document</a></p>"
    );
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, route) in methods.as_object().into_iter().flatten() {
            let method = method.to_uppercase();
            let (summary, scope) = (text(&route["summary"]), text(&route["description"]));
            let _ = write!(
                page,
                "<h2><code>{method} {}</code></h2><p>{summary}. {scope}</p><table>",
                escape(path)
            );
            for parameter in route["parameters"].as_array().into_iter().flatten() {
                let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
                let meaning = text(&parameter["description"]);
                let _ = write!(page, "<tr><th><code>{name}</code><td>{place}<td>{meaning}");
            }
            let body = &route["requestBody"]["content"]["application/json"]["schema"];
            for (name, field) in fields(document, body) {
                let meaning = text(&resolved(document, field)["description"]);
                let name = escape(name);
                let _ = write!(page, "<tr><th><code>{name}</code><td>body<td>{meaning}");
            }
            page.push_str("</table>");
        }
    }
    page
}

fn fields<'a>(
    document: &'a Value,
    schema: &'a Value,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let properties = resolved(document, schema)["properties"].as_object();
    properties.into_iter().flatten()
}

pub(crate) fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema["$ref"].as_str().and_then(|it| it.rsplit('/').next());
    match name {
        Some(name) => &document["components"]["schemas"][name],
        None => schema,
    }
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Every route is described, but for the engine protocol, and nothing else is.
    #[test]
    fn the_document_has_all_routes() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        let described: BTreeSet<_> = document["paths"].as_object().unwrap().keys().collect();
        let code = include_str!("routes.rs");
        let routes = code.split(".route(").skip(1);
        let routes = routes.map(|rest| rest.split('"').nth(1).unwrap().to_owned());
        let routes: BTreeSet<_> = routes
            .filter(|path| !path.starts_with("/v1/engine/"))
            .collect();
        assert_eq!(described, routes.iter().collect());
    }

    #[test]
    fn all_references_lead_somewhere() {
        let document: Value = serde_json::from_str(DOCUMENT).unwrap();
        for part in DOCUMENT.split("\"$ref\": \"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }

    #[test]
    fn the_page_shows_routes_and_fields() {
        let page = to_html(&serde_json::from_str(DOCUMENT).unwrap());
        for shown in [
            "POST /v1/locks/{name}/acquire",
            "keep_place",
            "Leasehold-Claim",
        ] {
            assert!(page.contains(shown), "{shown}");
        }
        assert!(!page.contains("<script"));
    }
}
