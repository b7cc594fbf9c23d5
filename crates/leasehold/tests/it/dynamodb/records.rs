//! Guarded records that need more than one item.

use std::time::{Duration, Instant};

use leasehold::guard::{Checked, Content, Key};
use leasehold::{FencingToken, Locks};

use crate::support::aws_server::AwsServer;
use crate::support::http_faults::{Fate, HttpFaults};
use crate::support::times::{ms, secs};

fn value(letter: &str) -> Vec<u8> {
    letter.repeat(700_000).into_bytes()
}

/// The keys of all parts that are in the table.
fn parts(server: &AwsServer) -> Vec<String> {
    let all = server.dynamo(
        "Scan",
        r##"{"TableName":"locks","ProjectionExpression":"#k","ExpressionAttributeNames":{"#k":"key"}}"##,
    );
    let keys = all.split('"').filter(|text| text.starts_with("part:"));
    keys.map(str::to_owned).collect()
}

/// By a proxy that repeats a request of which it has not seen the answer, as some do.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_is_sent_twice_keeps_the_parts_of_its_value() {
    let server = AwsServer::ministack();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("dynamodb", "locks", faults.port, "&timeout=20s");
    let store = Locks::connect(&url).await.unwrap().store().unwrap();
    faults.set(|asked| match asked.writes() {
        true => Fate::IsSentTwice,
        false => Fate::Passes,
    });
    let first = store.write_if("x", value("a"), None).await.unwrap();
    let Checked::Written { version } = first else {
        panic!("{first:?}");
    };
    assert_eq!(store.read("x").await.unwrap().unwrap().value, value("a"));
    let second = store.write_if("x", value("b"), Some(version)).await;
    assert!(matches!(second, Ok(Checked::Written { .. })), "{second:?}");
    assert_eq!(store.read("x").await.unwrap().unwrap().value, value("b"));
}

/// The table's expiry deletes items one by one, in any order and some time later.
#[tokio::test(flavor = "multi_thread")]
async fn value_whose_parts_have_expired_before_it_is_absent_and_replaced() {
    let server = AwsServer::ministack();
    let locks = Locks::connect(server.dynamodb("&timeout=20s"))
        .await
        .unwrap();
    let records = locks.engine().store().unwrap();
    let (key, token) = (Key::new("x").unwrap(), FencingToken::new(7).unwrap());
    let lifetime = ms(1500);
    let old = value("a");
    let passing = Content::passing(&old, lifetime);
    let written = records.write_fenced(&key, passing, &token.into()).await;
    written.unwrap();
    let keys = parts(&server);
    assert_eq!(keys.len(), 2, "{keys:?}");
    for part in keys {
        server.dynamo(
            "DeleteItem",
            &format!("{{\"TableName\":\"locks\",\"Key\":{{\"key\":{{\"S\":\"{part}\"}}}}}}"),
        );
    }
    let over = Instant::now() + lifetime + Duration::from_secs(2);
    tokio::time::sleep_until(over.into()).await;
    let store = locks.store().unwrap();
    assert_eq!(store.read("x").await.unwrap(), None);
    store.write_fenced("x", value("b"), token).await.unwrap();
    assert_eq!(store.read("x").await.unwrap().unwrap().value, value("b"));
    assert_eq!(parts(&server).len(), 2);
    // What replaces it deletes its parts.
    store.write_fenced("x", "short", token).await.unwrap();
    tokio::time::timeout(secs(20), async {
        while !parts(&server).is_empty() {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await
    .expect("the parts are deleted");
}
