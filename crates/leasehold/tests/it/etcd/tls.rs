//! `etcds://`: a real server that shows a certificate and asks for ours.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;

use crate::support::authority::Authority;
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::times::secs;
use leasehold::{Error, ErrorKind, LeaseState, Locks};

struct Secured {
    cluster: EtcdCluster,
    folder: tempfile::TempDir,
}

impl Secured {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let authority = Authority::new(at, "ca");
        authority.vouch_for(at, "server", "127.0.0.1");
        authority.vouch_for(at, "client", "client.example");
        let stranger = Authority::new(at, "other-ca");
        stranger.vouch_for(at, "stranger", "client.example");
        let cluster = EtcdCluster::secured(3, at);
        Self { cluster, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self, options: &[(&str, &str)]) -> String {
        let option =
            |(option, file): &(&str, &str)| format!("{option}={}", self.file(file).display());
        let options: Vec<_> = options.iter().map(option).collect();
        let hosts: Vec<_> = (0..3).map(|nth| self.cluster.host(nth)).collect();
        format!(
            "etcds://{}?timeout=3s&{}",
            hosts.join(","),
            options.join("&")
        )
    }

    async fn refused(&self, options: &[(&str, &str)]) -> Error {
        Locks::connect(self.url(options)).await.unwrap_err()
    }
}

const OURS: [(&str, &str); 3] = [
    ("ca", "ca.pem"),
    ("cert", "client.pem"),
    ("key", "client-key.pem"),
];

#[tokio::test(flavor = "multi_thread")]
async fn locks_over_tls() {
    let secured = Secured::start();
    let (one, other) = (secured.url(&OURS), secured.url(&OURS));
    let (one, other) = (
        Locks::connect(one).await.unwrap(),
        Locks::connect(other).await.unwrap(),
    );
    let held = one.lock("a").ttl(secs(3)).acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let next = tokio::spawn(other.lock("a").ttl(secs(3)).wait(secs(20)).acquire());
    // Through renewals, and one waits meanwhile.
    tokio::time::sleep(secs(4)).await;
    assert_eq!(held.state(), LeaseState::Held);
    let token = held.token();
    held.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > token);
    // Another member takes over.
    secured.cluster.kill(0);
    drop(other.lock("b").wait(secs(20)).acquire().await.unwrap());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_certificates_is_said() {
    let secured = Secured::start();
    let host = secured.cluster.host(0);
    let unknown = [("ca", "other-ca.pem"), OURS[1], OURS[2]];
    let error = secured.refused(&unknown).await;
    let says = "certificate is not trusted";
    check(
        &error,
        ErrorKind::Unreachable,
        says,
        "name the certificates to trust",
    );

    let stranger = [
        OURS[0],
        ("cert", "stranger.pem"),
        ("key", "stranger-key.pem"),
    ];
    for theirs in [&OURS[..1], &stranger] {
        let error = secured.refused(theirs).await;
        check(
            &error,
            ErrorKind::Unreachable,
            "connection was closed",
            "a certificate that it trusts",
        );
    }

    let error = secured.refused(&[("ca", "nowhere.pem")]).await;
    check(
        &error,
        ErrorKind::InvalidConfig,
        "nowhere.pem",
        "cannot be read",
    );
    let error = secured.refused(&[("ca", "server-key.pem")]).await;
    check(&error, ErrorKind::InvalidConfig, "certificates", "PEM");
    let error = secured
        .refused(&[OURS[0], ("cert", "client.pem"), ("key", "ca.pem")])
        .await;
    check(&error, ErrorKind::InvalidConfig, "certificates", "PEM");

    // Without TLS to a server that speaks it, and the other way round.
    let error = Locks::connect(format!("etcd://{host}?timeout=1s"))
        .await
        .unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        "connection was closed",
        "wants etcds://",
    );
    let plain = EtcdCluster::start(1);
    let ca = secured.file("ca.pem");
    let url = format!("etcds://{}?timeout=1s&ca={}", plain.host(0), ca.display());
    let error = Locks::connect(url).await.unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        "does not speak TLS",
        "write etcd://",
    );
}

fn check(error: &Error, kind: ErrorKind, says: &str, and: &str) {
    let text = error.to_string();
    println!("{text}");
    assert_eq!(error.kind(), kind, "{text}");
    assert!(
        text.contains(says) && text.contains(and),
        "{says}, {and}: {text}"
    );
}
