//! One request and its answer.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use reqsign_aws_v4::Credential;
use reqsign_core::{Signer, hash};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Semaphore;

use super::config::{Endpoint, Place};
use super::{credentials, failure};
use crate::engine::tls;
use crate::error::Result;
use crate::sync::Mutex;

/// As many requests at a time; the others wait for one to end.
const AT_A_TIME: usize = 64;

/// No answer is longer.
const LONGEST_ANSWER: usize = 64 << 20;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Connections, kept open for a while.
#[derive(Clone)]
pub(super) struct Http(Pool<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Http")
    }
}

impl Http {
    fn new() -> Self {
        tls::install();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(Duration::from_secs(2)));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let mut pool = Pool::builder(TokioExecutor::new());
        pool.pool_idle_timeout(Duration::from_secs(15));
        pool.pool_timer(TokioTimer::new());
        Self(pool.build(connector))
    }

    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Cause> {
        let answer = self.0.request(request.map(Full::new)).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// One service at one endpoint.
pub(crate) struct Client {
    http: Http,
    signer: Mutex<Signer<Credential>>,
    /// Whether the credentials were given, and not found.
    given: bool,
    endpoint: Endpoint,
    timeout: Duration,
    turns: Semaphore,
    requests: AtomicU64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Client({}://{})",
            self.endpoint.scheme, self.endpoint.authority
        )
    }
}

/// What is asked.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// With its query, percent-encoded.
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

/// What was answered, whether it is good news or bad.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    /// At the endpoint that was named, or else at this host of AWS.
    pub(crate) fn new(place: &Place, service: &str, host: &str) -> Result<Self> {
        let endpoint = match &place.endpoint {
            Some(named) => named.clone(),
            None => Endpoint::https(host)?,
        };
        let http = Http::new();
        Ok(Self {
            signer: Mutex::new(credentials::signer(
                http.clone(),
                service,
                &place.region,
                place.keys.as_ref(),
            )),
            given: place.keys.is_some(),
            http,
            endpoint,
            timeout: place.timeout,
            turns: Semaphore::new(AT_A_TIME),
            requests: AtomicU64::new(0),
        })
    }

    /// How many requests were sent.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Sends it once. An error is of unknown effect, unless it is known that nothing was sent.
    pub(crate) async fn send(&self, ask: Ask) -> Result<Answer> {
        let work = async {
            // The semaphore is never closed.
            let _turn = self.turns.acquire().await;
            let request = self.sign(ask).await?;
            self.requests.fetch_add(1, Ordering::Relaxed);
            let answer = self.http.send(request).await;
            answer.map_err(|cause| failure::no_answer(cause, &self.endpoint))
        };
        let answer = match tokio::time::timeout(self.timeout, work).await {
            Ok(answer) => answer?,
            Err(_) => return Err(failure::late(self.timeout, &self.endpoint)),
        };
        let (head, body) = answer.into_parts();
        if head.status.is_client_error() && failure::says_expired(&body) && !self.given {
            // Where they come from there may be newer ones, such as in a file that said nothing of their end.
            let mut signer = self.signer.lock();
            *signer = credentials::anew(signer.clone());
        }
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body,
        })
    }

    async fn sign(&self, ask: Ask) -> Result<Request<Bytes>> {
        let malformed = |cause: http::Error| failure::malformed(cause);
        let uri = Uri::builder()
            .scheme(self.endpoint.scheme.clone())
            .authority(self.endpoint.authority.clone())
            .path_and_query(ask.path)
            .build()
            .map_err(malformed)?;
        let mut request = Request::builder().method(ask.method).uri(uri);
        let digest = hash::hex_sha256(&ask.body);
        request = request.header("x-amz-content-sha256", digest);
        for (name, value) in ask.headers {
            let value = HeaderValue::from_str(&value).map_err(|cause| malformed(cause.into()))?;
            request = request.header(name, value);
        }
        let (mut head, body) = request.body(ask.body).map_err(malformed)?.into_parts();
        let signer = self.signer.lock().clone();
        let signed = signer.sign(&mut head, None).await;
        signed.map_err(|cause| failure::unsigned(&cause))?;
        Ok(Request::from_parts(head, body))
    }
}
