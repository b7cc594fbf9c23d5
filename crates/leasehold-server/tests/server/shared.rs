//! Claims that are given up by one request while another one, here or at a second server, relies on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::memory::Memory;
use leasehold::engine::{
    About, Attempt, Engine, LockInfo, Query, Reach, Released, Renew, Renewal, Wake,
};
use leasehold::{Claim, ClaimId, ErrorKind, Grant, LockName, Locks, Result, Ttl};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::engine::{hand_over, message};
use crate::support::{Api, settings, soon, until};

/// One server's way to an engine. What it gives up arrives there late, and so do the answers to its renewals here.
#[derive(Debug)]
struct Slow {
    engine: Arc<Memory>,
    reach: Reach,
    arriving: AtomicUsize,
    arrived: AtomicUsize,
    lets_through: Semaphore,
}

impl Slow {
    fn to(engine: &Arc<Memory>, reach: Reach) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            reach,
            arriving: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            lets_through: Semaphore::new(0),
        })
    }

    async fn late<T>(&self, call: impl Future<Output = T>) -> T {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        self.lets_through.acquire().await.unwrap().forget();
        let done = call.await;
        self.arrived.fetch_add(1, Ordering::SeqCst);
        done
    }
}

#[async_trait::async_trait]
impl Engine for Slow {
    fn about(&self) -> About {
        let mut about = self.engine.about();
        about.capabilities.reach = self.reach;
        about
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.engine.try_acquire(claim);
        // What remembers a run is a lock of another name.
        let records_a_run = claim.name.as_str() != "report";
        let is_late = match self.reach {
            Reach::Network => !claim.queues && !records_a_run,
            _ => !claim.queues && records_a_run,
        };
        match is_late {
            true => self.late(attempt).await,
            false => attempt.await,
        }
    }
    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        self.engine.wait(claim).await
    }
    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let renewed = self.engine.renew(held).await;
        let is_late = held.iter().any(|renew| renew.claim.name.as_str() == "x");
        match is_late {
            true => self.late(async { renewed }).await,
            false => renewed,
        }
    }
    async fn release(&self, claim: &Claim) -> Result<Released> {
        let release = self.engine.release(claim);
        match self.reach == Reach::Network {
            true => self.late(release).await,
            false => release.await,
        }
    }
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.engine.inspect(query).await
    }
    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.engine.force_release(name).await
    }
}

/// One server's way to an engine, on which something goes wrong.
#[derive(Debug)]
struct Faulty {
    engine: Arc<Memory>,
    fault: Fault,
    attempts: AtomicUsize,
    records: AtomicUsize,
}

#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The second attempt arrives late. Waiters look again at once.
    LateAttempt,
    /// Runs cannot be recorded.
    NoRecords,
    /// The first run cannot be recorded at first.
    FirstRecord,
    /// Grants are for a moment, until they are renewed, which fails.
    NoRenewals,
}

impl Faulty {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::new(Memory::default()),
            fault,
            attempts: AtomicUsize::new(0),
            records: AtomicUsize::new(0),
        })
    }

    /// Whether it cannot be recorded just now.
    fn refuses_record(&self) -> bool {
        let nth = self.records.fetch_add(1, Ordering::SeqCst);
        self.fault == Fault::NoRecords || self.fault == Fault::FirstRecord && nth == 0
    }
}

fn fails<T>() -> Result<T> {
    Err(leasehold::Error::new(ErrorKind::Denied, "not now"))
}

#[async_trait::async_trait]
impl Engine for Faulty {
    fn about(&self) -> About {
        let mut about = self.engine.about();
        about.capabilities.reach = Reach::Network;
        about
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        // What remembers a run is a lock of another name.
        if !["report", "x"].contains(&claim.name.as_str()) && self.refuses_record() {
            return fails();
        }
        let nth = self.attempts.fetch_add(1, Ordering::SeqCst);
        if self.fault == Fault::LateAttempt && nth == 1 {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        let attempt = self.engine.try_acquire(claim).await?;
        Ok(match attempt {
            Attempt::Granted(grant) if self.fault == Fault::NoRenewals => {
                let until = Clock::machine().now() + Duration::from_secs(1);
                Attempt::Granted(Grant::new(grant.token, until))
            }
            attempt => attempt,
        })
    }
    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        match self.fault {
            Fault::LateAttempt => Ok(Wake::Retry),
            _ => self.engine.wait(claim).await,
        }
    }
    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        match self.fault {
            Fault::NoRenewals => held.iter().map(|_| fails()).collect(),
            _ => self.engine.renew(held).await,
        }
    }
    async fn release(&self, claim: &Claim) -> Result<Released> {
        self.engine.release(claim).await
    }
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        self.engine.inspect(query).await
    }
    async fn force_release(&self, name: &LockName) -> Result<Released> {
        self.engine.force_release(name).await
    }
}

/// Nobody would release it: the client was told that others hold it.
#[tokio::test]
async fn attempt_under_way_at_the_deadline_is_answered() {
    for (path, body) in [
        ("/v1/locks/x/acquire", json!({"wait": "1s"})),
        (
            "/v1/locks/x/once-per",
            json!({"wait": "1s", "period": "50m"}),
        ),
    ] {
        let faulty = Faulty::new(Fault::LateAttempt);
        let api = Api::over(Locks::new(Arc::clone(&faulty) as _), settings());
        let other = Locks::new(Arc::clone(&faulty.engine) as _);
        let held = other.lock("x").acquire().await.unwrap();
        let waits = tokio::spawn({
            let api = api.clone();
            async move { api.of_claim(1, path, body).await }
        });
        until("the second attempt", async || {
            faulty.attempts.load(Ordering::SeqCst) > 1
        })
        .await;
        held.release().await.unwrap();
        let granted = soon("the answer", waits).await.unwrap().ok();
        let holders = other.inspect("x").await.unwrap().holders;
        assert_eq!(granted["token"], holders[0].token.get(), "{path}");
    }
}

/// The attempt of one that waits may be under way.
#[tokio::test]
async fn waiters_of_a_server_that_ends_are_in_doubt() {
    let api = Api::new().await;
    api.acquire(1, "x", json!({})).await.ok();
    let mut waits = Vec::new();
    for (nth, path, body) in [
        (2, "/v1/locks/x/acquire", json!({"wait": "1m"})),
        (
            3,
            "/v1/locks/x/once-per",
            json!({"wait": "1m", "period": "50m"}),
        ),
    ] {
        let api = api.clone();
        let waiter = async move { api.of_claim(nth, path, body).await };
        waits.push(tokio::spawn(waiter));
    }
    api.until_waiting("x", 2).await;
    api.state.drain();
    for waiter in waits {
        let told = soon("the answer", waiter).await.unwrap();
        assert_eq!(told.kind(), "draining");
        assert_eq!(told.json()["effect"], "unknown");
    }
}

#[tokio::test]
async fn error_after_the_grant_is_of_unknown_effect() {
    for (fault, path, body) in [
        (
            Fault::NoRecords,
            "/v1/locks/report/once-per",
            json!({"period": "50m"}),
        ),
        (
            Fault::NoRenewals,
            "/v1/locks/report/acquire",
            json!({"ttl": "30s"}),
        ),
    ] {
        let faulty = Faulty::new(fault);
        let api = Api::over(Locks::new(faulty as _), settings());
        let told = api.of_claim(1, path, body).await;
        assert_eq!(told.kind(), "engine_denied");
        assert_eq!(told.json()["effect"], "unknown", "{path}");
    }
}

/// As of a client whose connection was lost in silence, and which has come back over another one.
#[tokio::test]
async fn older_request_does_not_swallow_a_hand_over() {
    for (path, body) in [
        ("/v1/locks/x/acquire", json!({"wait": "5m", "ttl": "60s"})),
        (
            "/v1/locks/x/once-per",
            json!({"wait": "5m", "ttl": "60s", "period": "50m"}),
        ),
    ] {
        let api = Api::new().await;
        api.acquire(1, "x", json!({"ttl": "10m"})).await.ok();
        let mut waits = Vec::new();
        for _ in 0..2 {
            let (api, body) = (api.clone(), body.clone());
            let waiter = async move { api.of_claim(2, path, body).await };
            waits.push(tokio::spawn(waiter));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let (new, old) = (waits.pop().unwrap(), waits.pop().unwrap());
        api.release(1, "x").await;
        let told = tokio::time::timeout(Duration::from_secs(20), new).await;
        let told = told.unwrap_or_else(|_| panic!("{path}: the newer request waits"));
        assert!(told.unwrap().ok()["token"].is_u64(), "{path}");
        let old = soon("the older request", old).await.unwrap();
        assert_eq!(old.kind(), "invalid_request", "{path}");
        // Its attempt may be under way, or granted.
        assert_eq!(old.json()["effect"], "unknown", "{path}");
    }
}

/// As of a client that has given up, and the end of whose connection was lost: the lock would be taken for nobody.
#[tokio::test]
async fn release_ends_what_still_waits_for_its_claim() {
    for (path, body) in [
        ("/v1/locks/x/acquire", json!({"wait": "5m", "ttl": "1h"})),
        (
            "/v1/locks/x/acquire",
            json!({"wait": "5m", "ttl": "1h", "keep_place": "4m"}),
        ),
        (
            "/v1/locks/x/once-per",
            json!({"wait": "5m", "ttl": "1h", "period": "50m"}),
        ),
    ] {
        for is_alone in [true, false] {
            let api = match is_alone {
                true => Api::new().await,
                false => Api::over(Locks::new(Faulty::new(Fault::NoRecords) as _), settings()),
            };
            api.acquire(1, "x", json!({"ttl": "10m"})).await.ok();
            let waits = tokio::spawn({
                let (api, body) = (api.clone(), body.clone());
                async move { api.of_claim(2, path, body).await }
            });
            api.until_waiting("x", 1).await;
            api.release(2, "x").await;
            let told = tokio::time::timeout(Duration::from_secs(20), waits).await;
            let told = told.unwrap_or_else(|_| panic!("{path}: it waits on"));
            assert_eq!(told.unwrap().kind(), "invalid_request", "{path}");
            api.until_waiting("x", 0).await;
            api.release(1, "x").await;
            let next = api.acquire(3, "x", json!({})).await;
            assert_eq!(next.status, 200, "{path}: {}", next.text);
        }
    }
}

/// The client relies on its lock until it is told otherwise, and tells again.
#[tokio::test]
async fn success_that_is_not_recorded_keeps_the_lock() {
    let faulty = Faulty::new(Fault::FirstRecord);
    let api = Api::over(Locks::new(faulty as _), settings());
    let begin = "/v1/locks/report/once-per";
    let body = json!({"period": "50m", "retry_failed": true, "ttl": "10m"});
    let ours = api.of_claim(1, begin, body.clone()).await.ok();
    let told = json!({"period": "50m", "began_ms_ago": 1, "token": ours["token"]});
    let end = async || {
        let path = "/v1/locks/report/once-per/succeeded";
        api.of_claim(1, path, told.clone()).await
    };
    assert_eq!(end().await.kind(), "engine_denied");
    // For what would be given up in the background.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let renewed = api.of_claim(1, "/v1/locks/report/renew", json!({})).await;
    assert_eq!(renewed.ok()["token"], ours["token"]);
    assert_eq!(end().await.ok(), json!({"recorded": true}));
    assert!(
        api.locks
            .inspect("report")
            .await
            .unwrap()
            .holders
            .is_empty()
    );
    assert_eq!(api.of_claim(2, begin, body).await.ok()["turn"], "taken");
}

#[tokio::test]
async fn success_that_is_told_twice_is_recorded_once() {
    let api = Api::new().await;
    let (begin, end) = (
        "/v1/locks/report/once-per",
        "/v1/locks/report/once-per/succeeded",
    );
    let body = json!({"period": "50m", "retry_failed": true});
    let ours = api.of_claim(1, begin, body.clone()).await.ok();
    let told = json!({"period": "50m", "began_ms_ago": 1, "token": ours["token"]});
    for _ in 0..2 {
        let recorded = api.of_claim(1, end, told.clone()).await.ok();
        assert_eq!(recorded, json!({"recorded": true}));
    }
    assert_eq!(api.of_claim(2, begin, body).await.ok()["turn"], "taken");
    let others = json!({"period": "50m", "token": 1});
    assert_eq!(api.of_claim(1, end, others).await.kind(), "lease_lost");
}

#[tokio::test]
async fn success_of_a_client_that_has_left_is_recorded() {
    let slow = Slow::to(&Arc::new(Memory::default()), Reach::Process);
    let api = Api::over(Locks::new(Arc::clone(&slow) as _), settings());
    let begin = "/v1/locks/report/once-per";
    let body = json!({"period": "50m", "retry_failed": true});
    assert_eq!(
        api.of_claim(1, begin, body.clone()).await.ok()["turn"],
        "ours"
    );
    let told = tokio::spawn({
        let (api, path) = (api.clone(), "/v1/locks/report/once-per/succeeded");
        async move { api.of_claim(1, path, json!({"period": "50m"})).await }
    });
    until("the run is being recorded", async || {
        slow.arriving.load(Ordering::SeqCst) > 0
    })
    .await;
    told.abort();
    assert!(told.await.is_err());
    // For whatever is given up then.
    tokio::time::sleep(Duration::from_millis(100)).await;
    slow.lets_through.add_permits(100);
    until("the lock is free", async || {
        let lock = api.locks.inspect("report").await.unwrap();
        lock.holders.is_empty() && slow.arrived.load(Ordering::SeqCst) > 0
    })
    .await;
    // For what would be given up in the background.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let next = api.of_claim(2, begin, body).await.ok();
    assert_eq!(next["turn"], "taken", "{next}");
}

#[tokio::test]
async fn a_run_repeated_through_another_server_is_not_undone() {
    let engine = Arc::new(Memory::default());
    let slow = Slow::to(&engine, Reach::Network);
    let one = Api::over(Locks::new(Arc::clone(&slow) as _), settings());
    let two = Api::over(Locks::new(engine), settings());
    let path = "/v1/locks/report/once-per";
    let body = json!({"period": "50m", "wait": "5m"});
    two.acquire(2, "report", json!({})).await.ok();

    let waits = tokio::spawn({
        let (one, body) = (one.clone(), body.clone());
        async move { one.of_claim(1, path, body).await }
    });
    two.until_waiting("report", 1).await;
    // Its connection breaks.
    waits.abort();
    until("the first server gives up", async || {
        slow.arriving.load(Ordering::SeqCst) > 0
    })
    .await;
    two.release(2, "report").await;
    let ours = two.of_claim(1, path, body).await.ok();
    assert_eq!(ours["turn"], "ours");

    slow.lets_through.add_permits(100);
    until("that has arrived", async || {
        slow.arrived.load(Ordering::SeqCst) > 0
    })
    .await;
    let renewed = two.of_claim(1, "/v1/locks/report/renew", json!({})).await;
    assert_eq!(renewed.ok()["token"], ours["token"]);
}

/// The first server has the lock for the claim, and its client is gone before the run was begun.
#[tokio::test]
async fn a_run_that_was_not_begun_is_begun_by_the_repeated_request() {
    let api = Api::new().await;
    let path = "/v1/locks/report/once-per";
    let body = json!({"period": "50m"});
    api.acquire(1, "report", json!({})).await.ok();
    let ours = api.of_claim(1, path, body.clone()).await.ok();
    assert_eq!(ours["turn"], "ours");
    api.release(1, "report").await;
    let taken = api.of_claim(2, path, body.clone()).await.ok();
    assert_eq!(taken["turn"], "taken", "the run was not recorded");
    // Nor is the work of another done again by a claim that happens to hold the lock.
    api.acquire(3, "report", json!({})).await.ok();
    let taken = api.of_claim(3, path, body).await.ok();
    assert_eq!(taken["turn"], "taken");
}

#[tokio::test]
async fn a_run_that_was_recorded_for_a_client_that_left_is_still_its_own() {
    let slow = Slow::to(&Arc::new(Memory::default()), Reach::Process);
    let api = Api::over(Locks::new(Arc::clone(&slow) as _), settings());
    let path = "/v1/locks/report/once-per";
    let body = json!({"period": "50m", "wait": "1m"});
    let first = tokio::spawn({
        let (api, body) = (api.clone(), body.clone());
        async move { api.of_claim(1, path, body).await }
    });
    until("the run is being recorded", async || {
        slow.arriving.load(Ordering::SeqCst) > 0
    })
    .await;
    first.abort();
    assert!(first.await.is_err());
    // For whatever is given up then.
    tokio::time::sleep(Duration::from_millis(100)).await;
    slow.lets_through.add_permits(100);
    until("it is recorded", async || {
        slow.arrived.load(Ordering::SeqCst) > 0
    })
    .await;
    let ours = api.of_claim(1, path, body).await.ok();
    assert_eq!(ours["turn"], "ours", "{ours}");
}

/// A lock that was handed over is released unless it is renewed within a second; here the renewal is under way when that second ends.
#[tokio::test]
async fn lock_that_is_being_renewed_is_not_given_up() {
    let slow = Slow::to(&Arc::new(Memory::default()), Reach::Process);
    let api = Api::over(Locks::new(Arc::clone(&slow) as _), settings());
    hand_over(&api).await;
    let renewal = tokio::spawn({
        let api = api.clone();
        let renew =
            json!({"claims": [{"claim": message(2, "x"), "token": null, "shorten": false}]});
        async move { api.post("/v1/engine/renew", renew).await.ok() }
    });
    until("the renewal is made", async || {
        slow.arriving.load(Ordering::SeqCst) > 0
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    slow.lets_through.add_permits(100);
    let renewed = soon("the answer", renewal).await.unwrap();
    assert!(renewed["results"][0]["renewed"].is_object(), "{renewed}");
    let refused = api.acquire(3, "x", json!({"wait": "2s"})).await;
    assert_eq!(refused.kind(), "held");
}

/// As of a client whose first connection stood still, and which has got the lock over another one before what it had sent there arrived.
#[tokio::test]
async fn wait_that_arrives_after_the_grant_takes_no_lock_away() {
    let api = Api::new().await;
    let granted = api.post("/v1/engine/attempt", message(1, "x")).await.ok();
    assert!(granted["granted"].is_object(), "{granted}");
    let late = tokio::spawn({
        let api = api.clone();
        async move { api.post("/v1/engine/wait", message(1, "x")).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    late.abort();
    let refused = api.acquire(2, "x", json!({"wait": "2s"})).await;
    assert_eq!(refused.kind(), "held");
}

/// As after a restart of the server, which has granted the lock and does not know so any more.
#[tokio::test(start_paused = true)]
async fn wait_of_an_unknown_claim_takes_no_lock_away() {
    let api = Api::new().await;
    let mut claim = Claim::new(LockName::new("x").unwrap(), ClaimId::from_bytes([1; 16]));
    claim.ttl = Ttl::new(Duration::from_secs(600)).unwrap();
    let granted = api.locks.broker().try_acquire(&claim).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
    let late = api.post("/v1/engine/wait", message(1, "x")).await.ok();
    assert_eq!(late, json!("retry"));
    // It is broken off as well.
    let path = "/v1/engine/wait";
    let broken_off = api.post(path, message(1, "x"));
    let _ = tokio::time::timeout(Duration::from_millis(20), broken_off).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(api.locks.inspect("x").await.unwrap().holders.len(), 1);
}
