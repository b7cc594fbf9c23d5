//! A configuration made without a URL, and a channel of the program's own.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::authority::Authority;
use crate::support::bad_input::{PASSWORD, check};
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::free_port;
use crate::support::of_use::is_of_use;
use crate::support::redis_server::RedisServer;
use crate::support::times::{ms, secs};
use leasehold::engine::etcd::EtcdConfig;
use leasehold::{ErrorKind, Locks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::http::Response;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

/// All members of a cluster.
fn members(cluster: &EtcdCluster, count: usize) -> EtcdConfig {
    let first = EtcdConfig::new("127.0.0.1", cluster.client_port(0));
    let others = (1..count).map(|nth| cluster.client_port(nth));
    others.fold(first, |config, port| config.member("127.0.0.1", port))
}

fn channel(port: u16) -> Channel {
    let endpoint = Channel::from_shared(format!("http://127.0.0.1:{port}"));
    endpoint.unwrap().connect_lazy()
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_without_a_url_connects_to_all_members() {
    let cluster = EtcdCluster::start(3);
    let config = members(&cluster, 3).prefix("own/").timeout(secs(10));
    let locks = Locks::new(config.connect().await.unwrap());
    is_of_use(&locks, "x").await;
    let held = locks.lock("x").ttl(secs(20)).acquire().await.unwrap();
    assert!(cluster.keys("own/x/").len() == 1);
    // It is the same lock by URL.
    let url = format!("{}?prefix=own/", cluster.url());
    let other = Locks::connect(url).await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    cluster.kill(0);
    // While a new leader is elected, a renewal may fail.
    while let Err(error) = held.renew().await {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        tokio::time::sleep(ms(200)).await;
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_of_the_programs_own_is_used() {
    let cluster = EtcdCluster::start(3);
    let one = channel(cluster.client_port(0));
    let endpoints = (0..3).map(|nth| {
        let port = cluster.client_port(nth);
        Channel::from_shared(format!("http://127.0.0.1:{port}")).unwrap()
    });
    let all = Channel::balance_list(endpoints);
    for (name, channel) in [("one", one), ("all", all)] {
        let config = EtcdConfig::default().prefix(format!("{name}/"));
        let engine = config.connect_with(channel.clone()).await.unwrap();
        let locks = Locks::new(engine);
        is_of_use(&locks, name).await;
        assert!(locks.location().ends_with(&format!("?prefix={name}/")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_configuration_of_the_programs_own_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let authority = Authority::new(at, "ca");
    authority.vouch_for(at, "server", "127.0.0.1");
    authority.vouch_for(at, "client", "client.example");
    let cluster = EtcdCluster::secured(1, at);
    let read = |name: &str| std::fs::read(at.join(name)).unwrap();
    let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca.pem")));
    let identity = Identity::from_pem(read("client.pem"), read("client-key.pem"));
    let config = members(&cluster, 1).timeout(secs(2));
    let with_identity = config.clone().tls(trusting.clone().identity(identity));
    let locks = Locks::new(with_identity.connect().await.unwrap());
    is_of_use(&locks, "x").await;
    let unusable = Identity::from_pem("no", "certificate");
    for (tls, kind) in [
        (Some(trusting.clone()), ErrorKind::Unreachable),
        (Some(trusting.identity(unusable)), ErrorKind::InvalidConfig),
        (None, ErrorKind::Unreachable),
    ] {
        let config = match tls {
            Some(tls) => config.clone().tls(tls),
            None => config.clone(),
        };
        assert_eq!(config.connect().await.unwrap_err().kind(), kind);
    }
}

/// Accepts connections and lets `serve` answer each of them.
async fn server<F: Future<Output = ()> + Send + 'static>(serve: fn(TcpStream) -> F) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

/// Speaks gRPC, and knows none of etcd's calls.
async fn answer_in_grpc(stream: TcpStream) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let unimplemented = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "12");
        let _ = respond.send_response(unimplemented.body(()).unwrap(), true);
    }
}

/// Speaks HTTP/2, and has no such page.
async fn answer_in_http(stream: TcpStream) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let missing = Response::builder()
            .status(404)
            .header("content-type", "text/html");
        let _ = respond.send_response(missing.body(()).unwrap(), true);
    }
}

/// Speaks no HTTP/2 at all, as a web server of old.
async fn answer_in_text(mut stream: TcpStream) {
    let mut asked = [0; 1024];
    while let Ok(1..) = stream.read(&mut asked).await {
        let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        if stream.write_all(answer).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn channel_to_another_server_is_refused() {
    for (port, says) in [
        (server(answer_in_grpc).await, "is not etcd 3.4 or newer"),
        (server(answer_in_http).await, "is not etcd 3.4 or newer"),
        (server(answer_in_text).await, "does not speak HTTP/2"),
    ] {
        let config = || EtcdConfig::new("127.0.0.1", port).timeout(secs(2));
        let address = format!("127.0.0.1:{port}");
        for error in [
            config().connect_with(channel(port)).await.unwrap_err(),
            config().connect().await.unwrap_err(),
        ] {
            check(&error, ErrorKind::EngineUnfit, says, &address);
        }
    }
    // It may close the connection before its answer is read, and that is all that is seen of it then.
    let redis = RedisServer::start();
    let config = EtcdConfig::new("127.0.0.1", redis.port).timeout(secs(2));
    let error = config.connect().await.unwrap_err();
    let (kind, says) = match error.kind() {
        ErrorKind::EngineUnfit => (ErrorKind::EngineUnfit, "does not speak HTTP/2"),
        _ => (ErrorKind::Unreachable, "the connection was closed"),
    };
    check(&error, kind, says, &redis.port.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_that_cannot_be_used_is_refused() {
    let cluster = EtcdCluster::start(1);
    let config = members(&cluster, 1);
    for (config, word) in [
        (config.clone().timeout(Duration::ZERO), "timeout is zero"),
        (
            config.clone().attempt_timeout(Duration::ZERO),
            "attempt_timeout is zero",
        ),
        (EtcdConfig::new("no host", 1), "not the address"),
    ] {
        let error = config.connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    // Nobody listens there.
    let nowhere = free_port();
    let config = EtcdConfig::new("127.0.0.1", nowhere).timeout(ms(300));
    let config = config.login("me", PASSWORD);
    assert!(!format!("{config:?}").contains(PASSWORD));
    let error = config.clone().connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!error.to_string().contains(PASSWORD), "{error}");
    let error = config.connect_with(channel(nowhere)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    for url in [
        "redis://127.0.0.1",
        "etcd://127.0.0.1?wrong=1",
        "etcd://a/b",
    ] {
        let error = url.parse::<EtcdConfig>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
    }
}
