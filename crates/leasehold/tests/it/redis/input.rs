//! Servers, users and URLs that cannot serve: each says what, where and what to do; no password is shown, and nothing
//! is left behind.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::deployment::Deployment;
use crate::support::free_port;
use crate::support::redis_server::RedisServer;
use leasehold::{Error, ErrorKind, Locks};

/// Connecting may succeed; taking a lock does not.
async fn not_acquired(url: &str) -> Error {
    let locks = match Locks::connect(url).await {
        Ok(locks) => locks,
        Err(error) => return error,
    };
    assert!(!locks.location().contains(PASSWORD));
    let lock = locks.lock("a").wait(Duration::from_secs(1));
    lock.acquire().await.expect_err(url)
}

/// All keys but the register of tokens, which stays by design.
fn keys(server: &RedisServer) -> String {
    let script = r#"EVAL "local k = redis.call('KEYS', '*') local r = {} for _, n in ipairs(k) do if not string.find(n, 'register') then r[#r+1] = n end end table.sort(r) return table.concat(r, ' ')" 0"#;
    let answer = server.command(script);
    answer.lines().nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn nobody_listens() {
    let address = format!("127.0.0.1:{}", free_port());
    let error = refused(&format!("redis://me:{PASSWORD}@{address}")).await;
    check(
        &error,
        ErrorKind::Unreachable,
        "cannot be reached",
        &address,
    );
    let error = refused("redis://no-such-host.invalid:6379").await;
    check(
        &error,
        ErrorKind::Unreachable,
        "address",
        "no-such-host.invalid:6379",
    );
}

#[tokio::test]
async fn a_server_that_never_answers_costs_the_time_out() {
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = refused(&format!(
        "redis://{address}?timeout=200ms&connect_timeout=200ms"
    ))
    .await;
    check(&error, ErrorKind::Unreachable, "", &address);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_server_that_is_none() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = refused(&format!("redis://{address}?connect_timeout=500ms")).await;
    check(&error, ErrorKind::EngineUnfit, "not a Redis", &address);
}

#[tokio::test]
async fn passwords() {
    let server = RedisServer::with(&["--requirepass", PASSWORD]);
    let address = format!("127.0.0.1:{}", server.port);
    let none = refused(&format!("redis://{address}")).await;
    check(&none, ErrorKind::Denied, "password", &address);
    let wrong = refused(&format!("redis://:{PASSWORD}-wrong@{address}")).await;
    check(&wrong, ErrorKind::Denied, "password", &address);
    let nobody = refused(&format!("redis://nobody:{PASSWORD}@{address}")).await;
    check(&nobody, ErrorKind::Denied, "password", &address);

    let locks = Locks::connect(format!("redis://:{PASSWORD}@{address}"))
        .await
        .unwrap();
    assert_eq!(locks.location(), format!("redis://:***@{address}"));
    assert!(!format!("{locks:?}").contains(PASSWORD));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

/// A server that does not know a command repeats what came with it.
#[tokio::test]
async fn password_is_not_in_what_the_server_repeats() {
    let server = RedisServer::with(&["--rename-command", "HELLO", ""]);
    let error = refused(&format!("redis://:{PASSWORD}@127.0.0.1:{}", server.port)).await;
    assert!(error.to_string().contains("HELLO"), "{error}");
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
}

#[tokio::test]
async fn a_password_of_any_letters() {
    let server = RedisServer::with(&["--requirepass", "a/b?c@d,e:f%"]);
    let url = format!(
        "redis://:a%2Fb%3Fc%40d%2Ce%3Af%25@127.0.0.1:{}",
        server.port
    );
    let locks = Locks::connect(url).await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_user_without_rights() {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port);
    for (user, rights) in [
        ("nothing", ""),
        ("reads", "~* &* +@read +info"),
        ("elsewhere", "~other:* &* +@all"),
        ("scripts", "~* &* +@all -@write"),
        ("quiet", "~* resetchannels +@all"),
        ("hasty", "~* &* +@all -blpop"),
    ] {
        server.command(&format!("ACL SETUSER {user} on >{PASSWORD} {rights}"));
        let url = format!("redis://{user}:{PASSWORD}@{address}");
        if ["quiet", "hasty"].contains(&user) {
            // Only who waits needs the channels and the inbox.
            let admin = Locks::connect(server.url()).await.unwrap();
            let lease = admin.lock("a").acquire().await.unwrap();
            check(
                &not_acquired(&url).await,
                ErrorKind::Denied,
                "may not",
                &address,
            );
            lease.release().await.unwrap();
        } else {
            check(
                &not_acquired(&url).await,
                ErrorKind::Denied,
                "may not",
                &address,
            );
        }
        assert_eq!(keys(&server), "", "{user}");
    }
}

/// The rights that the documentation names are enough.
#[tokio::test]
async fn a_user_with_just_the_rights_it_needs() {
    let server = RedisServer::start();
    server.command(&format!(
        "ACL SETUSER app on >{PASSWORD} ~leasehold:* &leasehold:* +@read +@write +@connection +@pubsub +@scripting +info +time"
    ));
    let url = format!("redis://app:{PASSWORD}@127.0.0.1:{}", server.port);
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").wait_forever().acquire());
    while locks.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lease.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(locks.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn something_else_at_the_key() {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port);
    let kinds = ["RPUSH", "SADD", "HSET", "ZADD"];
    for (kind, member) in kinds.iter().zip(["x", "x", "x y", "1 x"]) {
        server.command("FLUSHALL");
        server.command(&format!("{kind} leasehold:a {member}"));
        let error = not_acquired(&server.url()).await;
        check(&error, ErrorKind::EngineUnfit, "something else", &address);
        assert_eq!(error.lock(), Some("a"));
        let locks = Locks::connect(server.url()).await.unwrap();
        let error = locks.inspect("a").await.unwrap_err();
        check(&error, ErrorKind::EngineUnfit, "something else", &address);
        let error = locks.force_release("a").await.unwrap_err();
        check(&error, ErrorKind::EngineUnfit, "something else", &address);
        assert!(locks.list("").await.unwrap().is_empty());
        assert_eq!(keys(&server), "leasehold:a", "{kind}");
    }
}

#[tokio::test]
async fn a_replica_is_refused_and_its_primary_warns() {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = RedisServer::with(&["--replicaof", &of]);
    let error = refused(&replica.url()).await;
    let address = format!("127.0.0.1:{}", replica.port);
    check(&error, ErrorKind::EngineUnfit, "replica", &address);
    let its_primary = format!("127.0.0.1:{}", primary.port);
    assert!(error.advice().unwrap().contains(&its_primary), "{error}");

    until(|| primary.command("INFO replication").contains("state=online")).await;
    let locks = Locks::connect(primary.url()).await.unwrap();
    let warnings = locks.warnings();
    assert!(
        warnings
            .iter()
            .any(|w| w.contains("replica") && w.contains("wait_replicas")),
        "{warnings:?}"
    );

    // It was the primary when we connected.
    let lost = Locks::connect(primary.url()).await.unwrap();
    primary.command(&format!("REPLICAOF 127.0.0.1 {}", free_port()));
    let error = lost.lock("a").acquire().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "replica", &its_primary);
}

#[tokio::test]
async fn a_grant_that_reaches_no_replica_is_given_back() {
    let primary = RedisServer::with(&["--repl-diskless-sync-delay", "0"]);
    let address = format!("127.0.0.1:{}", primary.port);
    let url = format!("redis://{address}?wait_replicas=1&timeout=400ms");
    let error = not_acquired(&url).await;
    check(&error, ErrorKind::Unreachable, "0 of 1", &address);
    assert_eq!(keys(&primary), "");

    let of = format!("127.0.0.1 {}", primary.port);
    let _replica = RedisServer::with(&["--replicaof", &of]);
    until(|| primary.command("INFO replication").contains("state=online")).await;
    let url = format!("redis://{address}?wait_replicas=1&timeout=10s");
    let locks = Locks::connect(&url).await.unwrap();
    assert_eq!(locks.warnings(), [""; 0]);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_server_that_may_drop_locks_warns() {
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", policy]);
        let warnings = Locks::connect(server.url()).await.unwrap().warnings();
        assert!(
            warnings
                .iter()
                .any(|w| w.contains(policy) && w.contains("noeviction")),
            "{warnings:?}"
        );
    }
    let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    assert_eq!(
        Locks::connect(server.url()).await.unwrap().warnings(),
        [""; 0]
    );
}

#[tokio::test]
async fn nodes_that_write_to_disk_warn() {
    let quiet = [RedisServer::start(), RedisServer::start()];
    for (arguments, setting) in [
        (["--save", "3600 1"], "save"),
        (["--appendonly", "yes"], "appendonly"),
    ] {
        let node = RedisServer::with(&arguments);
        let nodes = [&quiet[0], &quiet[1], &node].map(|node| format!("127.0.0.1:{}", node.port));
        let url = format!("redlock://{}", nodes.join(","));
        let warnings = Locks::connect(url).await.unwrap().warnings();
        let [warning] = warnings.as_slice() else {
            panic!("one warning: {warnings:?}");
        };
        assert!(
            warning.contains(&nodes[2]) && warning.contains(setting),
            "{warning}"
        );
    }
}

#[tokio::test]
async fn a_cluster_is_refused() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    let error = refused(&server.url()).await;
    let address = format!("127.0.0.1:{}", server.port);
    check(&error, ErrorKind::EngineUnfit, "cluster mode", &address);
}

#[tokio::test]
async fn a_server_without_memory() {
    let server = RedisServer::with(&["--maxmemory-policy", "noeviction"]);
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("held").acquire().await.unwrap();
    server.command("CONFIG SET maxmemory 1");
    let address = format!("127.0.0.1:{}", server.port);
    let waiting = locks.lock("a").wait(Duration::from_millis(300)).acquire();
    let error = waiting.await.unwrap_err();
    check(&error, ErrorKind::Unreachable, "out of memory", &address);
    assert!(error.is_busy(), "what is held may be released, or expire");
    // What frees memory must go on.
    held.release().await.unwrap();
    assert_eq!(keys(&server), "");
    server.command("CONFIG SET maxmemory 0");
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn tls_to_a_plain_port() {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port);
    let error = refused(&format!(
        "rediss://{address}?timeout=500ms&connect_timeout=1s"
    ))
    .await;
    check(&error, ErrorKind::Unreachable, "", &address);
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    let table = [
        ("redis://", "one server"),
        ("redis:", "one server"),
        ("redis://h1,h2", "one server"),
        ("redis://h:notaport", "not a port"),
        ("redis://h:99999", "not a port"),
        ("redis://h:", "not a port"),
        ("redis://:6379", "host"),
        ("redis://h/x", "database"),
        ("redis://h/-1", "database"),
        ("redis://h?db=x", "db=x"),
        ("redis://h/1?db=2", "database"),
        ("redis://h?wait_replicas=x", "wait_replicas=x"),
        ("redis://h?wait_replicas=-1", "wait_replicas=-1"),
        ("redis://h?timeout=5", "timeout=5"),
        ("redis://h?colour=red", "colour"),
        ("redis://h?quorum=1", "quorum"),
        ("redis+unix:", "socket"),
        ("redlock:", "names its servers"),
        ("redlock://", "names its servers"),
        ("redlock://a,b,a", "twice"),
        ("redlock://a,b,a:6379", "twice"),
        ("redlock://a:x,b,c", "not a port"),
        ("redlock://a,b,c?quorum=1", "quorum=1"),
        ("redlock://a,b,c?quorum=most", "quorum=most"),
        ("redlock://a,b,c?drift=0%25", "drift=0%"),
        ("redlock://a,b,c?max_ttl=48h", "max_ttl=48h"),
        ("redlock://a,b,c?max_ttl=x", "max_ttl=x"),
        ("redlock://a,b,c?node_timeout=x", "node_timeout=x"),
        ("redlock://a,b,c?wait_replicas=1", "wait_replicas"),
        ("redlock://a,b,c?colour=red", "colour"),
    ];
    for (url, says) in table {
        let error = refused(url).await;
        check(&error, ErrorKind::InvalidConfig, says, "");
    }
}

/// What has to be percent-encoded and is not ends up elsewhere in the URL, and must not be shown there.
#[tokio::test]
async fn passwords_in_urls_that_are_wrong() {
    for url in [
        format!("redis://me:{PASSWORD}/more@h"),
        format!("redis://me:a/{PASSWORD}@h"),
        format!("redis://me:{PASSWORD}?more@h"),
        format!("redis://me:a?{PASSWORD}@h"),
        format!("redis://me:12/{PASSWORD}@h"),
        format!("redis://me:{PASSWORD}@h:x"),
        format!("redlock://me:{PASSWORD}@a,me:{PASSWORD}@b,me:{PASSWORD}@c"),
    ] {
        let error = refused(&url).await;
        check(&error, ErrorKind::InvalidConfig, "", "");
    }
}

#[tokio::test]
async fn ttls_and_modes_that_a_deployment_does_not_have() {
    let deployment = Deployment::with(3, Duration::from_secs(10), "node_timeout=1s");
    deployment.has_stood_a_while();
    let locks = Locks::connect(deployment.url()).await.unwrap();
    let address = format!("127.0.0.1:{}", deployment.nodes[0].port);
    let error = locks
        .lock("a")
        .ttl(Duration::from_secs(11))
        .acquire()
        .await
        .unwrap_err();
    check(&error, ErrorKind::InvalidConfig, "max_ttl, 10s", &address);
    let ttl = Duration::from_secs(5);
    let error = locks
        .lock("a")
        .ttl(ttl)
        .permits(2)
        .acquire()
        .await
        .unwrap_err();
    check(&error, ErrorKind::Unsupported, "permits", &address);

    let other = Locks::connect(deployment.url().replace("max_ttl=10000ms", "max_ttl=20s")).await;
    let error = other
        .unwrap()
        .lock("a")
        .ttl(ttl)
        .acquire()
        .await
        .unwrap_err();
    check(&error, ErrorKind::InvalidConfig, "max_ttl=10s", &address);
    for node in &deployment.nodes {
        assert_eq!(keys(node), "");
    }
}

/// One node that is set up wrong is named.
#[tokio::test]
async fn one_bad_node_of_three() {
    let good = [RedisServer::start(), RedisServer::start()];
    let bad = [
        (
            RedisServer::with(&["--requirepass", PASSWORD]),
            ErrorKind::Denied,
        ),
        (
            RedisServer::with(&["--cluster-enabled", "yes"]),
            ErrorKind::EngineUnfit,
        ),
    ];
    for (bad, kind) in bad {
        let nodes = [&good[0], &good[1], &bad].map(|node| format!("127.0.0.1:{}", node.port));
        let error = refused(&format!("redlock://{}?max_ttl=1s", nodes.join(","))).await;
        check(&error, kind, &format!("{}: ", nodes[2]), &nodes[0]);
    }
}

/// Two of five nodes may go bad in any way; the others go on, also for those who wait.
#[tokio::test]
async fn two_nodes_that_go_bad_are_done_without() {
    let ttl = Duration::from_secs(5);
    for harm in [
        "RPUSH leasehold:a x",
        "REPLICAOF 127.0.0.1 1",
        "CONFIG SET maxmemory 1",
        r#"EVAL "redis.call('DEL', KEYS[1]) redis.call('ZADD', KEYS[1], 0, 'mark:77:x')" 1 "leasehold:\x01register""#,
        "ACL SETUSER default -@all",
    ] {
        let deployment = Deployment::with(5, Duration::from_secs(10), "node_timeout=1s");
        deployment.has_stood_a_while();
        let locks = Locks::connect(deployment.url()).await.unwrap();
        for node in &deployment.nodes[..2] {
            node.command(harm);
        }
        let lease = locks.lock("a").ttl(ttl).acquire().await;
        let lease = lease.unwrap_or_else(|error| panic!("{harm}: {error}"));
        assert!(lease.renew().await.is_ok(), "{harm}");
        let refused = locks.lock("a").ttl(ttl).try_acquire().await;
        let refused = refused.unwrap_or_else(|error| panic!("{harm}: {error}"));
        assert!(refused.is_none(), "{harm}");
        let waiting = tokio::spawn(locks.lock("a").ttl(ttl).wait(ttl).acquire());
        tokio::time::sleep(Duration::from_millis(200)).await;
        lease.release().await.unwrap();
        let lease = waiting.await.unwrap();
        let lease = lease.unwrap_or_else(|error| panic!("{harm}: {error}"));
        lease.release().await.unwrap();

        deployment.nodes[2].command(harm);
        let waiting = locks.lock("a").ttl(ttl).wait(Duration::from_millis(300));
        let error = waiting.acquire().await.unwrap_err();
        assert!(error.advice().is_some(), "{harm}: {error}");
        let named = deployment.nodes[..3]
            .iter()
            .any(|node| error.what().contains(&format!("127.0.0.1:{}: ", node.port)));
        assert!(named, "{harm}: {error}");
        // Not only when the TTL has passed.
        let failed = Instant::now();
        until(|| {
            deployment.nodes[3..]
                .iter()
                .all(|node| keys(node).is_empty())
        })
        .await;
        assert!(failed.elapsed() < ttl / 2, "{harm}");
    }
}

#[tokio::test]
async fn a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis socket").display().to_string();
    let server = RedisServer::with(&["--unixsocket", &socket, "--requirepass", PASSWORD]);
    let path = socket.replace(' ', "%20");
    let error = refused(&format!("redis+unix:{path}")).await;
    check(&error, ErrorKind::Denied, "password", &socket);
    let error = refused("redis+unix:/no/such/socket").await;
    check(&error, ErrorKind::Unreachable, "", "/no/such/socket");
    server.command(&format!("AUTH {PASSWORD}"));

    let plain = RedisServer::with(&["--unixsocket", &format!("{socket}2")]);
    for url in [
        format!("redis+unix:{path}2"),
        format!("redis+unix:{path}2?db=3"),
    ] {
        let locks = Locks::connect(&url).await.unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        lease.release().await.unwrap();
    }
    assert!(plain.command("INFO keyspace").contains("db3"));
}

#[tokio::test]
async fn databases() {
    let server = RedisServer::start();
    let url = server.url();
    let [zero, path, option] = [url.clone(), format!("{url}/3"), format!("{url}?db=3")];
    let zero = Locks::connect(zero).await.unwrap();
    let path = Locks::connect(path).await.unwrap();
    let option = Locks::connect(option).await.unwrap();
    let _lease = path.lock("a").acquire().await.unwrap();
    assert!(option.lock("a").try_acquire().await.unwrap().is_none());
    assert!(zero.lock("a").try_acquire().await.unwrap().is_some());
    let error = refused(&format!("{url}/99")).await;
    check(
        &error,
        ErrorKind::InvalidConfig,
        "database",
        &server.port.to_string(),
    );
}

async fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
