//! The locks as a table of HTML that the server makes, for browsers without JavaScript and for `lynx`.

use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::{Request, State as Extract};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, StatusCode};
use leasehold::engine::wire::decode_base64;
use leasehold::{Claimant, HolderInfo, LockInfo, Mode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::protect;
use crate::access::{Caller, Scope};
use crate::problem::Problem;
use crate::request::Query;
use crate::routes::visible;
use crate::shapes::ModeShape;
use crate::state::State;

/// How many locks a page has.
const PAGE: usize = 200;

/// What stands around every page.
pub(super) const FRAME: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>leasehold</title>
<link rel="icon" href="dashboard/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="dashboard/style.css">
</head>
<body>
<header>
  <h1><a href="plain"><img src="dashboard/icon.svg" alt="" width="18" height="18">leasehold</a></h1>
  <nav aria-label="Pages"><a href="plain" aria-current="page">Locks</a><a href="dashboard/">Dashboard (with JavaScript)</a></nav>
  <div class="engine">{engine}</div>
</header>
<main>
{main}
</main>
</body>
</html>
"#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlainQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    lock: Option<String>,
}

/// The table, or one lock with its queue.
pub(crate) async fn page(
    Extract(state): Extract<State>,
    caller: Caller,
    Query(query): Query<PlainQuery>,
) -> Response {
    match content(&state, &caller, &query).await {
        Ok(main) => html(StatusCode::OK, state.engine().about().scheme, &main),
        Err(problem) => refusal(&problem),
    }
}

async fn content(state: &State, caller: &Caller, query: &PlainQuery) -> Result<String, Problem> {
    if let Some(name) = &query.lock {
        let name = caller.lock(Scope::Read, name)?;
        return Ok(one_lock(&state.locks().inspect(&name).await?));
    }
    let locks = visible(state, caller, &query.prefix).await?;
    Ok(all_locks(&locks, query))
}

/// Browsers without JavaScript cannot send a bearer token, but ask for a password: it is the access token, whatever the user's name. For reading only.
pub(crate) async fn take_basic(mut request: Request, next: Next) -> Response {
    if request.method() == Method::GET
        && let Some(bearer) = bearer_of(request.headers())
    {
        request.headers_mut().insert(AUTHORIZATION, bearer);
    }
    let response = next.run(request).await;
    if response.status() != StatusCode::UNAUTHORIZED {
        return response;
    }
    let mut asked = html(
        StatusCode::UNAUTHORIZED,
        "",
        "<p class=\"notice\">This server needs an access token. Load the page again, and give the token as the password; the name does not matter.</p>",
    );
    let basic = HeaderValue::from_static("Basic realm=\"leasehold\", charset=\"UTF-8\"");
    asked.headers_mut().insert(WWW_AUTHENTICATE, basic);
    asked
}

fn bearer_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let (scheme, coded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(decode_base64(coded.trim()).ok()?).ok()?;
    let (_, token) = decoded.split_once(':')?;
    let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

fn html(status: StatusCode, engine: &str, main: &str) -> Response {
    let text = FRAME
        .replace("{engine}", &escape(engine))
        .replacen("{main}", main, 1);
    let mut response = (status, text).into_response();
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    protect(headers);
    response
}

fn refusal(problem: &Problem) -> Response {
    let document = problem.to_json();
    let detail = document["detail"].as_str().unwrap_or_default();
    let advice = document["advice"].as_str().unwrap_or_default();
    let text = format!(
        "<p class=\"notice bad\">{}. {}</p>",
        escape(detail),
        escape(advice)
    );
    html(problem.status(), "", &text)
}

fn all_locks(locks: &[LockInfo], query: &PlainQuery) -> String {
    let rest: Vec<_> = locks
        .iter()
        .filter(|lock| {
            query
                .after
                .as_deref()
                .is_none_or(|after| lock.name.as_str() > after)
        })
        .collect();
    let mut out = format!(
        "<h2>Locks</h2>\n<form class=\"bar\" method=\"get\" action=\"plain\"><label>Names that begin with <input name=\"prefix\" value=\"{}\"></label>\
         <button>Show</button><span class=\"count\">{} locks</span></form>\n",
        escape(&query.prefix),
        locks.len(),
    );
    if rest.is_empty() {
        out.push_str(
            "<div class=\"scroll\"><p class=\"empty\">No lock is held or waited for.</p></div>",
        );
        return out;
    }
    out.push_str(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Lock</th><th scope=\"col\">Holder</th><th scope=\"col\">Held for</th>\
         <th scope=\"col\">Time left</th><th scope=\"col\" class=\"num\">Waiting</th><th scope=\"col\">Oldest wait</th><th scope=\"col\">Token</th></tr></thead><tbody>\n",
    );
    for lock in rest.iter().take(PAGE) {
        row(&mut out, lock);
    }
    out.push_str("</tbody></table></div>\n");
    if rest.len() > PAGE {
        let last = rest[PAGE - 1].name.as_str();
        let (prefix, after) = (percent(&query.prefix), percent(last));
        let _ = writeln!(
            out,
            "<p class=\"acts\"><a href=\"plain?prefix={prefix}&amp;after={after}\">Next page</a></p>"
        );
    }
    out
}

fn row(out: &mut String, lock: &LockInfo) {
    let name = lock.name.as_str();
    let first = lock.holders.first();
    let reason = first
        .and_then(|holder| holder.reason.as_deref())
        .unwrap_or_default();
    let holder = match (first, lock.holders.len()) {
        (None, _) => "<i class=\"tag g\">free</i>".to_owned(),
        (Some(first), 1) => person(&first.claimant),
        (Some(first), all) => format!("{} +{}", person(&first.claimant), all - 1),
    };
    let oldest = lock.waiters.iter().map(|waiter| waiter.waited_for).max();
    let _ = writeln!(
        out,
        "<tr><td class=\"name\"><a href=\"plain?lock={}\">{}</a><small>{}</small></td><td>{holder}</td><td>{}</td><td>{}</td><td class=\"num\">{}</td><td>{}</td><td class=\"tok\">{}</td></tr>",
        percent(name),
        escape(name),
        escape(reason),
        time(first.map(|it| it.held_for)),
        time(first.map(|it| it.time_left)),
        lock.waiters.len(),
        time(oldest),
        first.map_or("–".to_owned(), |it| it.token.to_string()),
    );
}

fn one_lock(lock: &LockInfo) -> String {
    let mut out = format!(
        "<p class=\"crumb\"><a href=\"plain\">← All locks</a></p>\n<h2>{}</h2>\n<section class=\"card\"><h3>{} holders</h3>\
         <div class=\"scroll\"><table><thead><tr><th scope=\"col\">Who</th><th scope=\"col\">Pid</th><th scope=\"col\">Mode</th><th scope=\"col\">Held for</th>\
         <th scope=\"col\">Time left</th><th scope=\"col\">Token</th><th scope=\"col\">Reason</th></tr></thead><tbody>\n",
        escape(lock.name.as_str()),
        lock.holders.len(),
    );
    for holder in &lock.holders {
        holder_row(&mut out, holder);
    }
    let _ = writeln!(
        out,
        "</tbody></table></div></section>\n<section class=\"card\"><h3>Queue <small>{} waiters, in order</small></h3><ol class=\"queue\">",
        lock.waiters.len(),
    );
    for waiter in &lock.waiters {
        let _ = writeln!(
            out,
            "<li><span>{} {}</span><span class=\"time\">{}</span></li>",
            person(&waiter.claimant),
            escape(waiter.reason.as_deref().unwrap_or_default()),
            time(Some(waiter.waited_for)),
        );
    }
    out.push_str("</ol></section>\n");
    out
}

fn holder_row(out: &mut String, holder: &HolderInfo) {
    let mode = match holder.mode {
        Mode::Permit { of } => format!("1 of {of} permits"),
        other => ModeShape::from(other).mode.to_owned(),
    };
    let _ = writeln!(
        out,
        "<tr><td class=\"name\">{}</td><td>{}</td><td>{mode}</td><td>{}</td><td>{}</td><td class=\"tok\">{}</td><td>{}</td></tr>",
        person(&holder.claimant),
        holder.claimant.pid,
        time(Some(holder.held_for)),
        time(Some(holder.time_left)),
        holder.token,
        escape(holder.reason.as_deref().unwrap_or("–")),
    );
}

fn person(who: &Claimant) -> String {
    format!(
        "{} <i class=\"tag\">{}</i>",
        escape(&who.label),
        escape(&who.host)
    )
}

fn time(time: Option<Duration>) -> String {
    let Some(time) = time else {
        return "–".to_owned();
    };
    let seconds = time.as_secs();
    match seconds {
        0 => format!("0.{} s", time.subsec_millis() / 100),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} m", seconds / 3600, seconds / 60 % 60),
    }
}

/// Text within an element or a quoted attribute.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn percent(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_becomes_markup() {
        assert_eq!(escape("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
        assert_eq!(percent("a/b &\"<"), "a%2Fb%20%26%22%3C");
    }

    #[test]
    fn times_are_short() {
        let table = [
            (0.45, "0.4 s"),
            (59.9, "59 s"),
            (192.0, "3 m 12 s"),
            (7620.0, "2 h 07 m"),
        ];
        for (seconds, expected) in table {
            assert_eq!(time(Some(Duration::from_secs_f64(seconds))), expected);
        }
        assert_eq!(time(None), "–");
    }

    #[test]
    fn the_password_is_the_access_token() {
        let basic = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            bearer_of(&headers)
        };
        // "anyone:a:b"
        assert_eq!(basic("Basic YW55b25lOmE6Yg==").unwrap(), "Bearer a:b");
        assert_eq!(basic("basic OnRva2Vu").unwrap(), "Bearer token");
        for wrong in ["Bearer x", "Basic !", "Basic", "Basic YWJj", "Basic YQph"] {
            assert!(basic(wrong).is_none(), "{wrong}");
        }
    }
}
