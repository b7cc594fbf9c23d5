//! The routes, and what happens to every request.

mod engine;
mod health;
mod hold;
mod locks;
mod recipes;
mod show;
mod store;
mod stream;

use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State as Extract};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use crate::access;
use crate::dashboard;
use crate::openapi;
use crate::problem::{Kind, Problem};
use crate::state::State;

pub(crate) use show::visible;

/// What a route answers.
pub(crate) type Answer<T> = Result<axum::Json<T>, Problem>;

/// The routes of a server, to be served or nested in a router of another service. There it is not known who has ended a hold stream: its lock stays until the
/// time that the client was told is over.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::Locks;
/// use leasehold_server::{Settings, State, app};
///
/// let locks = Locks::connect("memory:").await?;
/// let state = State::new(locks, Settings::default())?;
/// let router: axum::Router = axum::Router::new().nest("/locks", app(state));
/// # let _ = router;
/// # Ok(())
/// # }
/// ```
pub fn app(state: State) -> Router {
    let api = Router::new()
        .route("/v1/whoami", get(show::whoami))
        .route("/v1/locks", get(show::list))
        .route("/v1/locks/{name}", get(show::show))
        .route("/v1/locks/{name}/acquire", post(locks::acquire))
        .route("/v1/locks/{name}/renew", post(locks::renew))
        .route("/v1/locks/{name}/release", post(locks::release))
        .route("/v1/locks/{name}/hold", post(hold::hold))
        .route("/v1/locks/{name}/ask", post(locks::ask))
        .route("/v1/locks/{name}/force-release", post(locks::force_release))
        .route(
            "/v1/locks/{name}/once-per",
            post(recipes::once_per).delete(recipes::forget_run),
        )
        .route(
            "/v1/locks/{name}/once-per/succeeded",
            post(recipes::succeeded),
        )
        .route("/v1/renew", post(locks::renew_batch))
        .route("/v1/ids/{pool}", post(recipes::ids))
        .route(
            "/v1/store/{key}",
            get(store::read)
                .put(store::write)
                .merge(delete(store::delete)),
        )
        .route("/v1/events", get(show::events))
        .route("/v1/history", get(show::history))
        .route("/v1/contention", get(show::contention))
        .route("/v1/summary", get(show::summary))
        .route("/v1/graph", get(show::graph))
        .route("/v1/engine", get(show::engine))
        .route("/v1/doctor", get(show::doctor))
        .route("/v1/engine/attempt", post(engine::attempt))
        .route("/v1/engine/wait", post(engine::wait))
        .route("/v1/engine/renew", post(engine::renew))
        .route("/v1/engine/release", post(engine::release))
        .route("/v1/engine/inspect", post(engine::inspect))
        .route("/v1/engine/force-release", post(engine::force_release))
        .route("/v1/engine/record", post(engine::record))
        .route("/v1/engine/findings", post(engine::findings))
        .route("/metrics", get(health::metrics))
        .layer(middleware::from_fn_with_state(state.clone(), access::check));
    Router::new()
        .merge(api)
        .merge(dashboard::routes(&state))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(openapi::page))
        .fallback(not_found)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(state.clone(), every_request))
        .with_state(state)
}

async fn not_found() -> Problem {
    Problem::new("not_found", "there is no such route")
        .advise("see docs/http.md; a / within a name is written as %2F")
}

async fn no_such_method() -> Problem {
    Problem::new("method_not_allowed", "the route has no such method")
        .advise("see docs/http.md for the method")
}

/// Counts it, and sets the headers that every answer has.
async fn every_request(
    Extract(state): Extract<State>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let mut response = next.run(request).await;
    let kind = response
        .extensions_mut()
        .remove::<Kind>()
        .map(|Kind(it)| it);
    let route = path.as_ref().map_or("none", MatchedPath::as_str);
    let status = response.status();
    if status.is_server_error() && kind.is_none() {
        // An extractor of the framework, or a panic that was caught: never its text.
        response = Problem::new("unexpected", "an internal error").into_response();
    }
    state
        .metrics()
        .answered(route, status.as_u16(), kind, began.elapsed());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    if let Ok(instance) = HeaderValue::from_str(state.instance()) {
        headers.insert(HeaderName::from_static("leasehold-server"), instance);
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    /// The fields that serde reads, by what it says to one that it does not know: the `?` in a text.
    fn read<T: DeserializeOwned>(text: &str) -> BTreeSet<String> {
        let Err(cause) = serde_json::from_str::<T>(text) else {
            panic!("unknown fields are taken");
        };
        let said = cause.to_string();
        let (_, known) = said.split_once("expected").unwrap();
        let known = known.split('`').skip(1).step_by(2);
        known.map(str::to_owned).collect()
    }

    fn form<T: DeserializeOwned>() -> BTreeSet<String> {
        read::<T>("{\"?\": 0}")
    }

    fn names(schema: &Value) -> BTreeSet<String> {
        let properties = schema["properties"].as_object();
        properties
            .into_iter()
            .flatten()
            .map(|it| it.0.clone())
            .collect()
    }

    #[test]
    fn described_bodies_and_queries_are_those_that_are_read() {
        let document: Value = serde_json::from_str(openapi::DOCUMENT).unwrap();
        let body = |method: &str, path: &str| {
            let schema = &document["paths"][path][method]["requestBody"]["content"]["application/json"]
                ["schema"];
            openapi::resolved(&document, schema).clone()
        };
        let lock = |action: &str| body("post", &format!("/v1/locks/{{name}}/{action}"));
        let bodies = [
            (lock("acquire"), form::<locks::AcquireForm>()),
            (lock("renew"), form::<locks::RenewForm>()),
            (lock("release"), form::<locks::ReleaseForm>()),
            (lock("hold"), form::<hold::HoldForm>()),
            (lock("ask"), form::<locks::AskForm>()),
            (lock("force-release"), form::<locks::BreakForm>()),
            (lock("once-per"), form::<recipes::OncePerForm>()),
            (lock("once-per/succeeded"), form::<recipes::SucceededForm>()),
            (body("post", "/v1/renew"), form::<locks::BatchForm>()),
            (
                body("post", "/v1/renew")["properties"]["claims"]["items"].clone(),
                read::<locks::BatchForm>("{\"claims\": [{\"?\": 0}]}"),
            ),
            (body("post", "/v1/ids/{pool}"), form::<recipes::IdsForm>()),
            (body("put", "/v1/store/{key}"), form::<store::WriteForm>()),
        ];
        let described = document["paths"].as_object().unwrap().values();
        let with_body = described
            .flat_map(|methods| methods.as_object().unwrap().values())
            .filter(|route| route["requestBody"].is_object());
        // One is a part of another, and DELETE of a record has the fields of PUT.
        assert_eq!(with_body.count(), bodies.len());
        for (schema, read) in bodies {
            assert_eq!(names(&schema), read, "{schema}");
            assert_eq!(schema["additionalProperties"], false, "{schema}");
        }
        let queries = [
            ("/v1/locks", form::<show::ListQuery>()),
            ("/v1/events", form::<show::EventsQuery>()),
            ("/v1/history", form::<show::HistoryQuery>()),
            ("/v1/contention", form::<show::ContentionQuery>()),
            ("/v1/summary", form::<show::PrefixQuery>()),
            ("/v1/graph", form::<show::PrefixQuery>()),
        ];
        for (path, read) in queries {
            let parameters = document["paths"][path]["get"]["parameters"].as_array();
            let in_query = parameters.unwrap().iter().filter(|it| it["in"] == "query");
            let described = in_query.map(|it| it["name"].as_str().unwrap().to_owned());
            assert_eq!(described.collect::<BTreeSet<_>>(), read, "{path}");
        }
    }
}
