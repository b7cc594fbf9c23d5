//! The `http:` engine against real servers: failing over, TLS, tokens, what it says when it cannot connect.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::engine::wire::ClaimMessage;
use leasehold::{Claim, ClaimId, Effect, ErrorKind, LockName, Locks, Ttl};
use leasehold_server::{NewToken, Scope, Tls, Tokens};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::access::{Guarded, guarded};
use crate::support::{Api, Server, memory, settings, soon, until};

/// The nth claim of a lock, as the http engine sends it.
pub(crate) fn message(nth: u8, name: &str) -> Value {
    let name = LockName::new(name).unwrap();
    let mut claim = Claim::new(name, ClaimId::from_bytes([nth; 16]));
    claim.queues = true;
    serde_json::to_value(ClaimMessage::from(&claim)).unwrap()
}

/// Hands the lock `x` over from one claim to the next, and returns what that is told.
pub(crate) async fn hand_over(api: &Api) -> Value {
    let attempt = async |nth| api.post("/v1/engine/attempt", message(nth, "x")).await.ok();
    assert!(attempt(1).await["granted"].is_object());
    assert!(attempt(2).await["held"].is_object());
    let waiter = tokio::spawn({
        let api = api.clone();
        async move { api.post("/v1/engine/wait", message(2, "x")).await.ok() }
    });
    tokio::task::yield_now().await;
    api.post("/v1/engine/release", message(1, "x")).await.ok();
    waiter.await.unwrap()
}

#[tokio::test]
async fn lock_handed_to_a_waiter_that_says_nothing_goes_on() {
    let api = Api::new().await;
    let told = hand_over(&api).await;
    let valid = told["granted"]["valid_us"].as_u64().unwrap();
    assert!(
        valid < 1_000_000,
        "relied on for longer than it is kept: {told}"
    );
    let next = api.acquire(3, "x", json!({"wait": "50s"}));
    soon("the next one, long before the TTL of the dead", next)
        .await
        .ok();
}

#[tokio::test]
async fn lock_handed_to_a_waiter_that_renews_stays() {
    let api = Api::new().await;
    hand_over(&api).await;
    let renew = json!({"claims": [{"claim": message(2, "x"), "token": null, "shorten": false}]});
    let renewed = api.post("/v1/engine/renew", renew).await.ok();
    let valid = renewed["results"][0]["renewed"]["valid_us"].as_u64();
    assert!(valid.unwrap() > 20_000_000, "{renewed}");
    let refused = api.acquire(3, "x", json!({"wait": "3s"})).await;
    assert_eq!(refused.kind(), "held");
}

/// A server whose client has died leaves the queue of the server behind it with an attempt that does not queue.
#[tokio::test]
async fn lock_handed_to_a_server_that_leaves_the_queue_goes_on() {
    let api = Api::new().await;
    let attempt = async |message| api.post("/v1/engine/attempt", message).await.ok();
    assert!(attempt(message(1, "x")).await["granted"].is_object());
    assert!(attempt(message(2, "x")).await["held"].is_object());
    api.post("/v1/engine/release", message(1, "x")).await.ok();
    let mut leaves = message(2, "x");
    leaves["queues"] = json!(false);
    let told = attempt(leaves).await;
    let valid = told["granted"]["valid_us"].as_u64().unwrap();
    assert!(valid < 1_000_000, "{told}");
    let next = api.acquire(3, "x", json!({"wait": "20s"}));
    soon("the next one, long before the TTL", next).await.ok();
}

/// As of a client whose connection was lost in silence, and which has come back over another one.
#[tokio::test]
async fn an_older_wait_does_not_swallow_a_hand_over() {
    let api = Api::new().await;
    let attempt = async |nth| api.post("/v1/engine/attempt", message(nth, "x")).await.ok();
    assert!(attempt(1).await["granted"].is_object());
    let mut waits = Vec::new();
    for _ in 0..2 {
        assert!(attempt(2).await["held"].is_object());
        waits.push(tokio::spawn({
            let api = api.clone();
            async move { api.post("/v1/engine/wait", message(2, "x")).await.ok() }
        }));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (new, old) = (waits.pop().unwrap(), waits.pop().unwrap());
    api.post("/v1/engine/release", message(1, "x")).await.ok();
    let told = soon("the newer wait", new).await.unwrap();
    assert!(told["granted"].is_object(), "{told}");
    assert_eq!(soon("the older wait", old).await.unwrap(), json!("retry"));
}

#[tokio::test]
async fn one_claim_that_may_not_be_renewed_costs_the_others_nothing() {
    let Guarded { api, tokens, .. } = guarded(&[("bot", &[Scope::Hold], &["a/"])]).await;
    let bot = api.bearer(&tokens[0]);
    let mine = message(1, "a/1");
    bot.post("/v1/engine/attempt", mine.clone()).await.ok();
    let one = |claim: Value| json!({"claim": claim, "token": null, "shorten": false});
    let claims = json!({"claims": [one(message(2, "b/1")), one(mine)]});
    let renewed = bot.post("/v1/engine/renew", claims).await.ok();
    assert_eq!(renewed["results"][0]["failed"]["kind"], "forbidden");
    assert!(renewed["results"][1]["renewed"].is_object(), "{renewed}");
}

#[tokio::test]
async fn locks_work_through_a_server() {
    let server = Server::start(memory().await, settings()).await;
    let locks = Locks::connect(&server.url).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    let other = Locks::connect(&server.url).await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    let store = locks.store().unwrap();
    store.write_fenced("k", "v", &lease).await.unwrap();
    assert_eq!(store.read("k").await.unwrap().unwrap().value, b"v");
    let waiter = tokio::spawn(async move { other.lock("x").wait_forever().acquire().await });
    until("it waits", async || {
        locks.inspect("x").await.unwrap().waiters.len() == 1
    })
    .await;
    lease.release().await.unwrap();
    let lease = soon("the waiter", waiter).await.unwrap().unwrap();
    assert_eq!(locks.location(), server.url);
    drop(lease);
}

#[tokio::test]
async fn findings_are_those_of_the_engine_behind() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let behind = Locks::connect(format!("sqlite:{}", file.display())).await;
    let server = Server::start(behind.unwrap(), settings()).await;
    let locks = Locks::connect(&server.url).await.unwrap();
    let report = locks.doctor(Ttl::DEFAULT).await;
    assert!(!report.warns(), "{:?}", report.findings);
    let names = ["file_system", "exclusion", "expiry"];
    let is_there = |name: &&str| report.findings.iter().any(|found| found.id == *name);
    assert!(names.iter().all(is_there), "{:?}", report.findings);

    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&file, open).unwrap();
    let findings = locks.engine().findings(Ttl::DEFAULT).await;
    let wrong: Vec<_> = findings.iter().filter(|found| found.is_bad()).collect();
    assert!(
        matches!(wrong[..], [only] if only.id == "permissions"),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn another_server_takes_over() {
    let engine = memory().await;
    let mut one = Server::start(engine.clone(), settings()).await;
    let two = Server::start(engine.clone(), settings()).await;
    let url = format!("http://{},{}", one.address, two.address);
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("x").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("x").wait_forever().acquire().await }
    });
    let waits = async || engine.inspect("x").await.unwrap().waiters.len() == 1;
    until("it waits", waits).await;
    one.end();
    soon("the end", one.ended.take().unwrap()).await.unwrap();
    held.renew().await.unwrap();
    let token = held.token();
    held.release().await.unwrap();
    let lease = soon("the waiter", waiter).await.unwrap().unwrap();
    assert!(lease.token() > token);
    lease.release().await.unwrap();
}

/// A way to a server that can lose answers, and ends for a moment when it is told to.
struct Relay {
    address: SocketAddr,
    loses_answers: Arc<AtomicBool>,
    ends: Arc<Notify>,
}

impl Relay {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            loses_answers: Arc::default(),
            ends: Arc::default(),
        };
        let (address, ends) = (relay.address, Arc::clone(&relay.ends));
        let loses_answers = Arc::clone(&relay.loses_answers);
        tokio::spawn(async move {
            let mut listener = Some(listener);
            loop {
                let listening = match listener.take() {
                    Some(listener) => listener,
                    None => TcpListener::bind(address).await.unwrap(),
                };
                let (mut client, _) = listening.accept().await.unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                let (mut requests, mut to_client) = client.split();
                let (mut answers, mut to_server) = server.split();
                let back = async {
                    let mut answer = [0; 4096];
                    while let Ok(count @ 1..) = answers.read(&mut answer).await {
                        if !loses_answers.load(Ordering::SeqCst) {
                            to_client.write_all(&answer[..count]).await.unwrap();
                        }
                    }
                };
                tokio::select! {
                    _ = tokio::io::copy(&mut requests, &mut to_server) => {}
                    () = back => {}
                    () = ends.notified() => {}
                }
                drop((listening, client, server));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        relay
    }
}

/// The second try finds nobody, which says nothing about the first.
#[tokio::test]
async fn grant_whose_answer_was_lost_is_given_up() {
    let engine = memory().await;
    let server = Server::start(engine.clone(), settings()).await;
    let relay = Relay::to(server.address).await;
    let url = format!("http://{}", relay.address);
    let locks = Locks::connect(&url).await.unwrap();
    relay.loses_answers.store(true, Ordering::SeqCst);
    let acquiring = tokio::spawn({
        let request = locks.lock("x").ttl(Duration::from_secs(600));
        async move { request.acquire().await }
    });
    let is_held = async || !engine.inspect("x").await.unwrap().holders.is_empty();
    until("it is granted", is_held).await;
    relay.ends.notify_one();
    let error = soon("the error", acquiring).await.unwrap().unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    relay.loses_answers.store(false, Ordering::SeqCst);
    until("it is given up", async || !is_held().await).await;
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_told_why() {
    let refused = Locks::connect("http://127.0.0.1:1").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    assert!(refused.to_string().contains("leasehold serve"), "{refused}");
    let server = Server::start(memory().await, settings()).await;
    let elsewhere = Locks::connect(format!("{}/elsewhere", server.url)).await;
    assert_eq!(elsewhere.unwrap_err().kind(), ErrorKind::Unexpected);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let new = NewToken::new("bot", &[Scope::Read, Scope::Hold], &["a/".to_owned()], None).unwrap();
    std::fs::write(&file, &new.entry).unwrap();
    let mut guarded = settings();
    guarded.tokens = Some(Tokens::open(&file).unwrap());
    let server = Server::start(memory().await, guarded).await;
    let denied = Locks::connect(&server.url).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    let url = format!("http://:{}@{}", new.token, server.address);
    let locks = Locks::connect(&url).await.unwrap();
    assert!(!format!("{locks:?}").contains(&new.token));
    let lease = locks.lock("a/1").acquire().await.unwrap();
    let error = locks.lock("b/1").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains(&new.token));
    let error = locks.force_release("a/1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    lease.release().await.unwrap();
}

struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for ca in ["ca", "other"] {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer =
                CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            std::fs::write(folder.path().join(format!("{ca}.pem")), issuer.pem()).unwrap();
            for (leaf, name) in [("server", "127.0.0.1"), ("client", "client.example")] {
                let key = KeyPair::generate().unwrap();
                let params = CertificateParams::new([name.to_owned()]).unwrap();
                let signed = params.signed_by(&key, &issuer).unwrap();
                let at = |what: &str| folder.path().join(format!("{ca}-{leaf}-{what}.pem"));
                std::fs::write(at("cert"), signed.pem()).unwrap();
                std::fs::write(at("key"), key.serialize_pem()).unwrap();
            }
        }
        Self { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.pem"))
    }
}

#[tokio::test]
async fn tls_and_client_certificates() {
    let files = Certificates::make();
    let (cert, key) = (files.file("ca-server-cert"), files.file("ca-server-key"));
    let ca = files.file("ca");
    let tls = Tls::from_files(&cert, &key, Some(&ca)).unwrap();
    let server = Server::start_with(memory().await, settings(), Some(tls)).await;
    assert!(server.url.starts_with("https://"));
    let url = |ca: &str, client: Option<&str>| {
        let mut url = format!("{}?ca={}", server.url, files.file(ca).display());
        if let Some(client) = client {
            let file = |what| files.file(&format!("{client}-client-{what}"));
            url += &format!(
                "&cert={}&key={}",
                file("cert").display(),
                file("key").display()
            );
        }
        url
    };
    let locks = Locks::connect(url("ca", Some("ca"))).await.unwrap();
    locks
        .lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let mistrusted = Locks::connect(url("other", Some("ca"))).await.unwrap_err();
    assert_eq!(mistrusted.kind(), ErrorKind::Denied, "{mistrusted}");
    for client in [None, Some("other")] {
        let refused = Locks::connect(url("ca", client)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
    }
    let plain = format!("http://{}", server.address);
    assert!(Locks::connect(plain).await.is_err());
    for (cert, key) in [(&key, &cert), (&ca, &key)] {
        assert!(Tls::from_files(cert, key, None).is_err());
    }
}

#[tokio::test]
async fn thousands_of_waiters_share_one_connection() {
    let engine = memory().await;
    let server = Server::start(engine.clone(), settings()).await;
    let locks = Locks::connect(&server.url).await.unwrap();
    let held = locks.lock("x").acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let request = locks.lock("x").ttl(Duration::from_secs(60)).wait_forever();
        waiters.spawn(async move { request.acquire().await.unwrap().release().await });
    }
    let wait = async || engine.inspect("x").await.unwrap().waiters.len() == 1_000;
    until("all wait", wait).await;
    held.release().await.unwrap();
    soon("all enter", waiters.join_all()).await;
}
