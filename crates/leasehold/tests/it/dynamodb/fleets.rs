//! The lock clients for Java and Go on the same table, at the same time: exclusion holds both ways, and nobody is stranded. They are played by a
//! program of the tests that was written from their rules (`fleets/dynamodb_fleet.py`).

use std::time::{Duration, Instant};

use crate::fleets::other::{NAME, OUR_TTL, Other, each_side_is_refused, nothing_is_lost_in};
use crate::fleets::script;
use crate::support::aws_server::AwsServer;
use crate::support::times::{ms, secs};
use leasehold::conformance::unless_stalled;
use leasehold::{ErrorKind, Locks};

/// Of four clients, so many times each.
const ROUNDS: usize = 250;
const THEIR_LEASE: u64 = 1500;

struct Fleet {
    server: AwsServer,
    dialect: &'static str,
    locks: Locks,
}

impl Fleet {
    async fn start(dialect: &'static str) -> Self {
        let server = AwsServer::ministack();
        // Their client makes the table.
        let made = server.dynamo(
            "CreateTable",
            r#"{"TableName":"locks","BillingMode":"PAY_PER_REQUEST","AttributeDefinitions":[{"AttributeName":"key","AttributeType":"S"}],"KeySchema":[{"AttributeName":"key","KeyType":"HASH"}]}"#,
        );
        assert!(made.contains("TableDescription"), "{made}");
        let url = server.dynamodb(&format!("&dialect={dialect}&poll=15ms&timeout=20s"));
        let locks = Locks::connect(&url).await.unwrap();
        Self {
            server,
            dialect,
            locks,
        }
    }

    async fn other(&self) -> Other {
        let mut program = script::python("dynamodb_fleet.py");
        program.args([&self.server.port().to_string(), self.dialect, NAME]);
        program.arg(THEIR_LEASE.to_string());
        let mut other = Other::process(program);
        assert!(other.ask("ping").await);
        other
    }

    async fn ours(&self, ttl: Duration) -> leasehold::Lease {
        let request = self.locks.lock(NAME).ttl(ttl).wait(secs(60));
        request.acquire().await.unwrap()
    }

    async fn each_side_lets_the_other_in(&self) {
        let mut other = self.other().await;
        for release in ["release", "keep"] {
            assert!(other.ask("try").await);
            let waiting = tokio::spawn(self.locks.lock(NAME).ttl(OUR_TTL).wait(secs(60)).acquire());
            tokio::time::sleep(ms(100)).await;
            assert!(!waiting.is_finished(), "entered beside them");
            assert!(other.ask(release).await);
            let ours = waiting.await.unwrap().unwrap();
            other.tell("wait").await;
            tokio::time::sleep(ms(100)).await;
            ours.release().await.unwrap();
            assert!(other.answer().await);
            assert!(other.ask(release).await);
        }
    }

    /// How long whoever waits takes to get the lock of a dead holder: `theirs` or ours, for each of both.
    async fn take_over(&self, dead_is_theirs: bool, next_is_theirs: bool) -> Duration {
        let lease = Duration::from_millis(THEIR_LEASE);
        // It takes a while to start.
        let mut next = match next_is_theirs {
            true => Some(self.other().await),
            false => None,
        };
        match dead_is_theirs {
            true => {
                let mut dead = self.other().await;
                assert!(dead.ask("wait").await);
                dead.kill().await;
            }
            false => {
                self.ours(lease).await.detach();
            }
        }
        let start = Instant::now();
        match &mut next {
            Some(next) => {
                assert!(next.ask("wait").await);
                let took = start.elapsed();
                assert!(next.ask("release").await);
                took
            }
            None => {
                let ours = self.ours(lease).await;
                let took = start.elapsed();
                ours.release().await.unwrap();
                took
            }
        }
    }

    /// Each side takes over from the other when that is dead, and no sooner than its lease is over.
    async fn each_side_takes_over_from_the_dead(&self) {
        let mut other = self.other().await;
        assert!(other.ask("try").await);
        other.kill().await;
        let start = Instant::now();
        let ours = self.ours(ms(1500)).await;
        let (took, lease) = (start.elapsed(), Duration::from_millis(THEIR_LEASE));
        println!(
            "{}: from their dead holder in {took:?}, by a lease of {lease:?}",
            self.dialect
        );
        assert!(took >= lease * 3 / 4, "{took:?}");
        ours.detach();
        let mut other = self.other().await;
        let start = Instant::now();
        assert!(other.ask("wait").await);
        println!(
            "{}: by them from ours in {:?}, by the same lease",
            self.dialect,
            start.elapsed()
        );
        assert!(other.ask("release").await);
    }
}

async fn fleet_of(dialect: &'static str, rounds: usize) {
    let fleet = Fleet::start(dialect).await;
    each_side_is_refused(&fleet.locks, fleet.other().await).await;
    fleet.each_side_lets_the_other_in().await;
    fleet.each_side_takes_over_from_the_dead().await;
    let others = [fleet.other().await, fleet.other().await];
    nothing_is_lost_in(rounds, dialect, &fleet.locks, others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java_clients_and_ours_exclude_each_other() {
    fleet_of("java", ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_clients_and_ours_exclude_each_other() {
    fleet_of("go", ROUNDS / 5).await;
}

#[tokio::test]
async fn dialect_has_no_modes_and_no_queue() {
    let fleet = Fleet::start("java").await;
    for request in [
        fleet.locks.lock("x").shared(),
        fleet.locks.lock("x").permits(2),
    ] {
        let error = request.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert!(fleet.locks.store().is_err());
    // What they have beside the lock stays where they keep it.
    let data = r#"{"TableName":"locks","Item":{"key":{"S":"x"},"ownerName":{"S":"them"},"leaseDuration":{"S":"1000"},"recordVersionNumber":{"S":"v"},"isReleased":{"S":"1"},"colour":{"S":"red"}}}"#;
    fleet.server.dynamo("PutItem", data);
    let lease = fleet.locks.lock("x").acquire().await.unwrap();
    let row = || {
        fleet.server.dynamo(
            "GetItem",
            r#"{"TableName":"locks","Key":{"key":{"S":"x"}}}"#,
        )
    };
    assert!(row().contains("colour") && !row().contains("isReleased"));
    lease.release().await.unwrap();
    assert!(row().contains("isReleased"));
}

/// Whoever waited has a dead holder's lock within its TTL and a second: by our rules, by those of the Java client, and across.
#[tokio::test(flavor = "multi_thread")]
async fn dead_holder_is_replaced_as_soon_as_by_the_rule_of_the_java_client() {
    let fleet = Fleet::start("java").await;
    let lease = Duration::from_millis(THEIR_LEASE);
    for (dead, next) in [(true, true), (true, false), (false, true), (false, false)] {
        unless_stalled(ms(150), async || {
            let took = fleet.take_over(dead, next).await;
            let whose = |theirs| if theirs { "theirs" } else { "ours" };
            println!(
                "from {} by {}: {took:?}, by a lease of {lease:?}",
                whose(dead),
                whose(next)
            );
            match (lease * 3 / 4..lease + secs(1)).contains(&took) {
                true => Ok(()),
                false => Err(format!("{took:?}")),
            }
        })
        .await;
    }
}
