//! Guarded records on a way that repeats requests.

use leasehold::Locks;
use leasehold::guard::Checked;

use crate::support::aws_server::AwsServer;
use crate::support::http_faults::{Fate, HttpFaults};

/// By a proxy that repeats a request of which it has not seen the answer, as some do.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_is_sent_twice_counts_once() {
    let server = AwsServer::ministack();
    server.make_bucket();
    let faults = HttpFaults::before(server.port()).await;
    let url = AwsServer::url_at("s3", "locks-of-tests/app", faults.port, "&timeout=20s");
    let store = Locks::connect(&url).await.unwrap().store().unwrap();
    faults.set(|asked| match asked.writes() {
        true => Fate::IsSentTwice,
        false => Fate::Passes,
    });
    let first = store.write_if("x", "5", None).await.unwrap();
    let Checked::Written { version } = first else {
        panic!("{first:?}");
    };
    let second = store.write_if("x", "4", Some(version)).await.unwrap();
    assert!(matches!(second, Checked::Written { .. }), "{second:?}");
    assert_eq!(store.read("x").await.unwrap().unwrap().value, b"4");
}
