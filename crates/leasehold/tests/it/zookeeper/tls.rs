//! `zookeepers://` on a real server with a secure port, with certificates made for the test.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::free_port;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::{ErrorKind, Locks};

fn openssl(folder: &Path, arguments: &str) {
    let run = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .stderr(Stdio::null())
        .status();
    let done = run.expect("openssl is missing: ./test.sh installs it");
    assert!(done.success(), "openssl {arguments}");
}

/// An authority, and what it has signed: the server's key and ours.
fn make_certificates(folder: &Path, ca: &str) {
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(
        folder,
        &format!("req -x509 {new} -subj /CN={ca} -keyout {ca}.key -out {ca}.pem"),
    );
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for who in ["server", "client"] {
        openssl(
            folder,
            &format!("req {new} -subj /CN={who} -keyout {ca}-{who}.key -out {who}.csr"),
        );
        openssl(
            folder,
            &format!(
                "x509 -req -in {who}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days 2 \
                 -extfile names -out {ca}-{who}.pem"
            ),
        );
    }
    let both = ["key", "pem"].map(|end| {
        let file = folder.join(format!("{ca}-server.{end}"));
        std::fs::read_to_string(file).unwrap()
    });
    std::fs::write(folder.join(format!("{ca}-both.pem")), both.concat()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_over_tls_with_certificates_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path(), "ours");
    make_certificates(folder.path(), "others");
    let (port, path) = (free_port(), folder.path().display());
    let server = ZooKeeperCluster::with(
        1,
        &format!(
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             secureClientPort={port}\nssl.clientAuth=need\n\
             ssl.keyStore.location={path}/ours-both.pem\nssl.trustStore.location={path}/ours.pem"
        ),
    );
    let url = |ca: &str, who: &str| {
        format!(
            "zookeepers://127.0.0.1:{port}?timeout=3s&ca={path}/{ca}.pem\
             &cert={path}/{who}-client.pem&key={path}/{who}-client.key"
        )
    };
    let locks = Locks::connect(url("ours", "ours")).await.unwrap();
    let plain = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    assert!(plain.lock("a").try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
    assert!(plain.lock("a").try_acquire().await.unwrap().is_some());

    let wrong = [
        url("others", "ours"),
        url("ours", "others"),
        // Without a certificate of ours, and to a port that knows no TLS.
        format!("zookeepers://127.0.0.1:{port}?timeout=3s&ca={path}/ours.pem"),
        format!(
            "zookeepers://127.0.0.1:{}?timeout=3s&ca={path}/ours.pem",
            server.nodes[0].port
        ),
    ];
    for url in wrong {
        let refused = Locks::connect(&url).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable, "{url}: {refused}");
    }
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let wrong = [
        ("zookeepers://a".to_owned(), "nobody is trusted"),
        (
            "zookeepers://a?ca=/no/such/file".to_owned(),
            "cannot be read",
        ),
        (format!("zookeepers://a?ca={file}"), "no certificates"),
        (
            "zookeepers://a?cert=/no/such/file".to_owned(),
            "go together",
        ),
        (format!("zookeeper://a?ca={file}"), "are for TLS"),
    ];
    for (url, says) in wrong {
        let error = Locks::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}
