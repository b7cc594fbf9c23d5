//! Who may do what: access tokens, their scopes and prefixes, and requests from where no request should come.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State as Extract};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use leasehold::engine::wire::{self, ClaimMessage, NameMessage};
use leasehold::{Claim, LockName};
use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::request::lock_name;
use crate::state::State;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To list and to read.
    Read,
    /// To acquire, renew, release, ask and write.
    Hold,
    /// To take locks away from their holders.
    Break,
    /// All of these.
    Admin,
}

impl Scope {
    /// All scopes, by name.
    pub const ALL: [(&'static str, Scope); 4] = [
        ("read", Scope::Read),
        ("hold", Scope::Hold),
        ("break", Scope::Break),
        ("admin", Scope::Admin),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(_, scope)| *scope == self)
            .map_or("", |(name, _)| name)
    }
}

/// Whoever sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The name of the access token.
    pub(crate) name: Option<Arc<str>>,
    /// That of the access token, to find it again.
    pub(crate) digest: Option<[u8; 32]>,
    pub(crate) scopes: Arc<[Scope]>,
    /// What the names of its locks begin with.
    pub(crate) prefixes: Arc<[String]>,
    pub(crate) read_only: bool,
}

impl Caller {
    /// Anybody, where there are no tokens.
    pub(crate) fn anybody(read_only: bool) -> Self {
        Self {
            name: None,
            digest: None,
            scopes: Arc::new([Scope::Admin]),
            prefixes: Arc::new([String::new()]),
            read_only,
        }
    }

    pub(crate) fn has(&self, scope: Scope) -> bool {
        let is_allowed = |has: &Scope| *has == scope || *has == Scope::Admin;
        self.scopes.iter().any(is_allowed) && (scope == Scope::Read || !self.read_only)
    }

    pub(crate) fn need(&self, scope: Scope) -> Result<(), Problem> {
        if self.has(scope) {
            return Ok(());
        }
        if self.read_only && scope != Scope::Read {
            return Err(Problem::new("read_only", "this server only shows locks")
                .advise("use a server that was started without --read-only"));
        }
        let needs = scope.name();
        Err(Problem::new(
            "forbidden",
            format!("the access token lacks the scope {needs:?}"),
        )
        .advise("ask for a token that has it: see `leasehold token new`")
        .with("needs", needs))
    }

    /// Whether it may see or touch what has this name.
    pub(crate) fn reaches(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    pub(crate) fn is_limited(&self) -> bool {
        !self.reaches("")
    }

    fn need_prefix(&self, name: &str) -> Result<(), Problem> {
        match self.reaches(name) {
            true => Ok(()),
            false => Err(
                Problem::new("forbidden", "the access token is not for this name")
                    .advise("ask for a token whose prefixes include it"),
            ),
        }
    }

    /// The lock that a user names in a path, if the caller has the scope for it.
    pub(crate) fn lock(&self, scope: Scope, name: &str) -> Result<LockName, Problem> {
        self.need(scope)?;
        let name = lock_name(name)?;
        self.need_prefix(name.as_str())?;
        Ok(name)
    }

    /// A record's key or the name of an id pool, if the caller has the scope for it.
    pub(crate) fn key(&self, scope: Scope, key: &str) -> Result<(), Problem> {
        self.need(scope)?;
        self.need_prefix(key)
    }

    /// The claim of another process, if the caller has the scope for it.
    pub(crate) fn claim(&self, message: ClaimMessage) -> Result<Claim, Problem> {
        self.need(Scope::Hold)?;
        let claim = message.into_claim()?;
        self.need_prefix(claim.name.as_str())?;
        Ok(claim)
    }

    /// The lock that another process names, if the caller has the scope for it.
    pub(crate) fn sent_name(&self, scope: Scope, name: NameMessage) -> Result<LockName, Problem> {
        self.need(scope)?;
        let name = name.into_name()?;
        self.need_prefix(name.as_str())?;
        Ok(name)
    }

    /// What to show of locks whose names begin with `prefix`.
    pub(crate) fn may_list(&self) -> Result<(), Problem> {
        self.need(Scope::Read)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Set by `check` below; without it nobody may do anything.
        parts
            .extensions
            .get::<Caller>()
            .cloned()
            .ok_or_else(|| Problem::new("unauthorized", "nobody has asked for your access token"))
    }
}

/// Finds out who sends a request, before any route sees it.
pub(crate) async fn check(
    Extract(state): Extract<State>,
    mut request: Request,
    next: Next,
) -> Response {
    let checked = check_host(&state, request.headers(), request.uri())
        .and_then(|()| check_origin(request.method(), request.headers(), request.uri()))
        .and_then(|()| identify(&state, request.headers()));
    match checked {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

fn identify(state: &State, headers: &HeaderMap) -> Result<Caller, Problem> {
    let Some(tokens) = state.tokens() else {
        return Ok(Caller::anybody(state.read_only()));
    };
    let mut given = headers.get_all(AUTHORIZATION).into_iter();
    let (first, second) = (given.next(), given.next());
    let bearer = first.filter(|_| second.is_none()).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        let token = token.trim();
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    let Some(token) = bearer else {
        return Err(
            Problem::new("unauthorized", "the request has no access token")
                .advise("send it as Authorization: Bearer TOKEN"),
        );
    };
    let found = tokens.find(token, state.read_only());
    found.ok_or_else(unknown_token)
}

fn unknown_token() -> Problem {
    Problem::new("unauthorized", "the access token is unknown or has expired")
        .advise("check it, or make another one: `leasehold token new`")
}

/// How often a stream looks whether its access token is still what it was.
pub(crate) const RECHECK: Duration = Duration::from_secs(2);

/// What a caller may do by now: its token may have expired, or have been removed or changed, since its stream began.
pub(crate) fn identify_again(state: &State, caller: &Caller) -> Result<Caller, Problem> {
    let (Some(tokens), Some(digest)) = (state.tokens(), caller.digest) else {
        return Ok(caller.clone());
    };
    let found = tokens.find_digest(digest, state.read_only());
    found.ok_or_else(unknown_token)
}

/// The host and port that a request is for.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    host.or_else(|| uri.authority().map(|it| it.as_str()))
}

/// A page of another origin must not act for its reader: browsers say where a request that changes something comes from.
fn check_origin(method: &Method, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    if method == Method::GET || method == Method::HEAD {
        return Ok(());
    }
    let fetched_across = headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site");
    let foreign = headers.get(ORIGIN).is_some_and(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let named = origin.split_once("://").map(|(_, host)| host);
        named.is_none() || named != host(headers, uri)
    });
    match fetched_across || foreign {
        false => Ok(()),
        true => Err(
            Problem::new("foreign_origin", "a page of another origin sent this")
                .advise("open the page of this server itself"),
        ),
    }
}

/// Where everybody may do everything, a page must not get at the server by a name of its own that leads to it.
fn check_host(state: &State, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    if !state.checks_host() {
        return Ok(());
    }
    let host = host(headers, uri).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    match name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() {
        true => Ok(()),
        false => Err(
            Problem::new("foreign_origin", "this server is known by its address only")
                .advise("use the address, or localhost; or give the server a tokens file"),
        ),
    }
}

/// The scope that a call of the engine protocol needs.
pub(crate) fn record_scope(call: &wire::RecordMessage) -> Scope {
    match call.call {
        wire::RecordCall::Read => Scope::Read,
        _ if call.forgets_run_of().is_some() => Scope::Break,
        _ => Scope::Hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(scopes: &[Scope], prefixes: &[&str], read_only: bool) -> Caller {
        Caller {
            name: None,
            digest: None,
            scopes: scopes.into(),
            prefixes: prefixes.iter().map(|it| it.to_string()).collect(),
            read_only,
        }
    }

    #[test]
    fn scopes_and_prefixes_limit_what_is_allowed() {
        let admin = Caller::anybody(false);
        let bot = caller(&[Scope::Hold], &["a/", "b/"], false);
        for scope in [Scope::Read, Scope::Hold, Scope::Break] {
            assert!(admin.lock(scope, "x").is_ok());
            assert_eq!(bot.lock(scope, "a/1").is_ok(), scope == Scope::Hold);
            assert_eq!(bot.lock(scope, "c/1").unwrap_err().kind(), "forbidden");
        }
        assert!(bot.is_limited() && !admin.is_limited());
        assert!(!caller(&[Scope::Admin], &["a/", ""], false).is_limited());
    }

    #[test]
    fn read_only_leaves_reading() {
        let admin = Caller::anybody(true);
        assert!(admin.need(Scope::Read).is_ok());
        for scope in [Scope::Hold, Scope::Break] {
            assert_eq!(admin.need(scope).unwrap_err().kind(), "read_only");
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let uri = Uri::from_static("/v1/renew");
        let check = |origin: &str, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, origin.parse().unwrap());
            headers.insert(HOST, host.parse().unwrap());
            check_origin(&Method::POST, &headers, &uri).is_ok()
        };
        assert!(check("http://127.0.0.1:7654", "127.0.0.1:7654"));
        assert!(check("https://locks.example", "locks.example"));
        assert!(!check("https://evil.example", "127.0.0.1:7654"));
        assert!(!check("http://127.0.0.1:8080", "127.0.0.1:7654"));
        assert!(!check("null", "127.0.0.1:7654"));
    }
}
