//! The user's own writes depend on the lock, in one transaction.

use leasehold::{ErrorKind, Lease, Locks};

use crate::support::aws_server::AwsServer;
use crate::support::times::{ms, secs};

async fn write(server: &AwsServer, lease: &Lease, value: &str) -> bool {
    let check = lease.condition_check().unwrap().to_json();
    let put = format!(
        "{{\"Put\":{{\"TableName\":\"locks\",\"Item\":{{\"key\":{{\"S\":\"mine\"}},\"v\":{{\"S\":\"{value}\"}}}}}}}}"
    );
    let said = server.dynamo(
        "TransactWriteItems",
        &format!("{{\"TransactItems\":[{check},{put}]}}"),
    );
    let refused = said.contains("TransactionCanceledException");
    assert!(refused || said.trim() == "{}", "{said}");
    !refused
}

#[tokio::test]
async fn transaction_happens_only_while_the_lock_is_held() {
    let server = AwsServer::ministack();
    let locks = Locks::connect(server.dynamodb("&poll=50ms")).await.unwrap();
    let other = Locks::connect(server.dynamodb("&poll=50ms")).await.unwrap();
    // Stopped for longer than its TTL, it is refused once another has the lock.
    let sleeper = locks.lock("x").ttl(ms(1000)).max_hold(ms(1000)).acquire();
    let sleeper = sleeper.await.unwrap();
    assert!(write(&server, &sleeper, "first").await);
    let next = other
        .lock("x")
        .ttl(secs(60))
        .wait(secs(20))
        .acquire()
        .await
        .unwrap();
    assert!(write(&server, &next, "second").await);
    assert!(!write(&server, &sleeper, "late").await);
    let check = next.view();
    next.release().await.unwrap();
    let json = check.condition_check().unwrap().to_json();
    let said = server.dynamo(
        "TransactWriteItems",
        &format!("{{\"TransactItems\":[{json}]}}"),
    );
    assert!(said.contains("TransactionCanceledException"), "{said}");
    // Readers hold it together.
    let readers = [&locks, &other].map(|locks| locks.lock("r").shared().ttl(secs(60)).acquire());
    for reader in futures_util::future::join_all(readers).await {
        assert!(write(&server, &reader.unwrap(), "read").await);
    }
}

#[tokio::test]
async fn other_engines_have_no_such_condition() {
    let locks = Locks::connect("memory:").await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    let error = lease.condition_check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.advice().is_some());
}
