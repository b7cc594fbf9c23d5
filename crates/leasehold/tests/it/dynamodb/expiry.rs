//! What processes see of a lock's time that have never seen the lock: by default each counts it anew, with `max_clock_skew` the wall clocks count.

use std::time::Duration;

use leasehold::engine::Expiry;
use leasehold::recipe::PeriodTurn;
use leasehold::{ErrorKind, Locks, Result};

use crate::support::aws_server::AwsServer;
use crate::support::times::{ms, secs};

const PERIOD: Duration = ms(1500);

/// By a process of its own.
async fn ask(url: &str) -> Result<bool> {
    let locks = Locks::connect(url).await.unwrap();
    let turn = match locks.lock("x").once_per(PERIOD).begin().await? {
        PeriodTurn::Ours(run) => run,
        PeriodTurn::Taken(_) => return Ok(false),
    };
    turn.succeeded().await.unwrap();
    Ok(true)
}

#[tokio::test]
async fn once_per_needs_records_or_trusted_clocks() {
    let server = AwsServer::ministack();
    let trusting = "&max_clock_skew=100ms&timeout=20s";
    for (options, expiry) in [
        ("&timeout=20s", Expiry::Observed),
        (trusting, Expiry::Ttl),
        ("&dialect=java&timeout=20s", Expiry::Observed),
    ] {
        let locks = Locks::connect(server.dynamodb(options)).await.unwrap();
        assert_eq!(locks.capabilities().expiry, expiry, "{options}");
    }
    let refused = ask(&server.dynamodb("&dialect=java")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    // There the next period comes too, and nothing but the lock itself is kept.
    let url = server.dynamodb(trusting);
    assert!(ask(&url).await.unwrap());
    let next = async {
        while !ask(&url).await.unwrap() {
            tokio::time::sleep(ms(100)).await;
        }
    };
    tokio::time::timeout(secs(60), next).await.unwrap();
    let items = server.dynamo("Scan", r#"{"TableName":"locks"}"#);
    assert!(!items.contains("record:"), "{items}");
}
