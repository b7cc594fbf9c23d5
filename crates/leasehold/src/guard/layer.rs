//! A fence in front of an HTTP service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use percent_encoding::percent_decode_str;
use tower_layer::Layer;
use tower_service::Service;

use super::fence::{Admission, Fencing};
use crate::name::LockName;
use crate::token::FencingToken;

/// The header that carries the token.
const TOKEN: &str = "fencing-token";
/// The header that names the lock, percent-encoded if it is not plain ASCII.
const LOCK: &str = "fencing-lock";

/// Refuses requests of holders that slept past their lease.
///
/// A request that may change something must carry `Fencing-Token`, and `Fencing-Lock` unless [the lock is
/// fixed](Self::for_lock). A token lower than one seen before is answered with 409, a missing one with 428, nonsense with 400,
/// each with a problem document (RFC 9457). GET, HEAD, OPTIONS and TRACE pass without.
///
/// ```
/// use std::sync::Arc;
///
/// use leasehold::LockName;
/// use leasehold::guard::{Fence, FenceLayer};
/// use tower_layer::Layer;
///
/// # fn main() -> leasehold::Result<()> {
/// # let service = ();
/// let fence = Arc::new(Fence::new()); // a StoredFence remembers over restarts
/// let fenced = FenceLayer::new(fence).for_lock(LockName::new("orders")?);
/// let service = fenced.layer(service); // with axum: Router::new().route(…).layer(fenced)
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FenceLayer {
    fence: Arc<dyn Fencing>,
    lock: Option<LockName>,
}

impl FenceLayer {
    /// Asks this fence.
    pub fn new(fence: Arc<dyn Fencing>) -> Self {
        Self { fence, lock: None }
    }

    /// All tokens are of this lock, and requests need not name one.
    #[must_use]
    pub fn for_lock(mut self, lock: LockName) -> Self {
        self.lock = Some(lock);
        self
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceService {
            inner,
            layer: self.clone(),
        }
    }
}

/// What [`FenceLayer`] makes of a service.
#[derive(Debug, Clone)]
pub struct FenceService<S> {
    inner: S,
    layer: FenceLayer,
}

impl<S, Q, A> Service<Request<Q>> for FenceService<S>
where
    S: Service<Request<Q>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    Q: Send + 'static,
    A: From<String> + Send,
{
    type Response = Response<A>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        // The one that was found ready answers; its clone is for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        Box::pin(async move {
            match layer.admit(request.method(), request.headers()).await {
                Ok(()) => inner.call(request).await,
                Err(problem) => Ok(problem.into_response()),
            }
        })
    }
}

/// Why a request is refused.
struct Problem {
    status: StatusCode,
    title: &'static str,
    detail: String,
    highest: Option<FencingToken>,
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            title,
            detail: detail.into(),
            highest: None,
        }
    }

    fn into_response<A: From<String>>(self) -> Response<A> {
        let highest = self
            .highest
            .map_or(String::new(), |token| format!(",\"highest\":{token}"));
        let body = format!(
            "{{\"type\":\"about:blank\",\"title\":\"{}\",\"status\":{},\"detail\":\"{}\"{highest}}}",
            self.title,
            self.status.as_u16(),
            self.detail,
        );
        let mut response = Response::new(A::from(body));
        *response.status_mut() = self.status;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}

impl FenceLayer {
    async fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        if headers.get(TOKEN).is_none() && method.is_safe() {
            return Ok(());
        }
        let token = token(headers)?;
        let lock = match &self.lock {
            Some(lock) => lock.clone(),
            None => lock(headers)?,
        };
        match self.fence.check(&lock, token).await {
            Ok(Admission::Admitted) => Ok(()),
            Ok(Admission::Refused { highest }) => Err(Problem {
                highest: Some(highest),
                ..Problem::new(
                    StatusCode::CONFLICT,
                    "stale fencing token",
                    format!(
                        "a later holder of the lock was here with {highest}; this lease was lost"
                    ),
                )
            }),
            // What went wrong is for the log of the fence, not for whoever asks.
            Err(_) => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the fence does not answer",
                "the token could not be checked, so nothing was done",
            )),
        }
    }
}

fn token(headers: &HeaderMap) -> Result<FencingToken, Problem> {
    let Some(text) = headers.get(TOKEN) else {
        return Err(Problem::new(
            StatusCode::PRECONDITION_REQUIRED,
            "no fencing token",
            "send the token of your lease as Fencing-Token",
        ));
    };
    let number = text.to_str().ok().and_then(|text| text.parse().ok());
    number.and_then(FencingToken::new).ok_or_else(|| {
        Problem::new(
            StatusCode::BAD_REQUEST,
            "bad fencing token",
            "Fencing-Token is a number below 2^53",
        )
    })
}

fn lock(headers: &HeaderMap) -> Result<LockName, Problem> {
    let bad = |detail| Problem::new(StatusCode::BAD_REQUEST, "bad lock name", detail);
    let text = headers
        .get(LOCK)
        .ok_or_else(|| bad("send the name of the lock as Fencing-Lock, percent-encoded"))?;
    let text = text.to_str().ok().map(percent_decode_str);
    let name = text.and_then(|text| text.decode_utf8().ok());
    let name = name.and_then(|name| LockName::new(name).ok());
    name.ok_or_else(|| bad("Fencing-Lock is no lock name in percent-encoded UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Fence;
    use std::convert::Infallible;

    #[derive(Clone)]
    struct Says;

    impl Service<Request<()>> for Says {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<String>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            std::future::ready(Ok(Response::new("done".to_owned())))
        }
    }

    async fn ask(
        service: &mut FenceService<Says>,
        method: Method,
        headers: &[(&str, &str)],
    ) -> (u16, String) {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = service.call(request.body(()).unwrap()).await.unwrap();
        (answer.status().as_u16(), answer.into_body())
    }

    #[tokio::test]
    async fn stale_tokens_are_refused_with_a_problem_document() {
        let layer = FenceLayer::new(Arc::new(Fence::new()));
        let service = &mut layer.layer(Says);
        let with = |token| [("Fencing-Token", token), ("Fencing-Lock", "caf%C3%A9")];
        assert_eq!(ask(service, Method::PUT, &with("7")).await.0, 200);
        assert_eq!(ask(service, Method::PUT, &with("7")).await.0, 200);
        assert_eq!(ask(service, Method::PUT, &with("9")).await.0, 200);
        let (status, body) = ask(service, Method::PUT, &with("8")).await;
        assert_eq!(status, 409);
        assert!(body.contains("\"highest\":9"), "{body}");
        let other = [("Fencing-Token", "1"), ("Fencing-Lock", "other")];
        assert_eq!(ask(service, Method::POST, &other).await.0, 200);
        assert_eq!(ask(service, Method::GET, &[]).await.0, 200);
        assert_eq!(ask(service, Method::GET, &with("3")).await.0, 409);
    }

    #[tokio::test]
    async fn what_is_missing_or_nonsense_is_said() {
        let layer = FenceLayer::new(Arc::new(Fence::new()));
        let service = &mut layer.layer(Says);
        assert_eq!(ask(service, Method::PUT, &[]).await.0, 428);
        let unnamed = [("Fencing-Token", "7")];
        assert_eq!(ask(service, Method::PUT, &unnamed).await.0, 400);
        for nonsense in ["", "-1", "x", "9007199254740992", "1.5"] {
            let headers = [("Fencing-Token", nonsense), ("Fencing-Lock", "x")];
            assert_eq!(
                ask(service, Method::PUT, &headers).await.0,
                400,
                "{nonsense}"
            );
        }
        let bad_name = [("Fencing-Token", "7"), ("Fencing-Lock", "%FF")];
        assert_eq!(ask(service, Method::PUT, &bad_name).await.0, 400);
        let fixed = layer.clone().for_lock(LockName::new("x").unwrap());
        assert_eq!(
            ask(&mut fixed.layer(Says), Method::PUT, &unnamed).await.0,
            200
        );
    }
}
