//! A server that takes few connections, and many who start at once: on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::postgres_server::PostgresServer;
use leasehold::{ErrorKind, Locks};
use tokio::task::JoinSet;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const LONG: Duration = Duration::from_secs(30);

fn connections(server: &PostgresServer) -> usize {
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    server.sql(ours).parse().unwrap()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(10)).await;
    }
}

/// Another process, as far as the server can tell: it has a listener of its own.
async fn process(server: &PostgresServer, nth: usize) -> leasehold::Result<Locks> {
    let url = format!("{}?connect_timeout={}ms", server.url(), 10_000 + nth);
    Locks::connect(url).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_waits_has_one_connection() {
    let server = PostgresServer::start();
    let holder = Locks::connect(server.url()).await.unwrap();
    let held = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    until("the holder has one", async || connections(&server) == 1).await;
    let (mut processes, mut waiting) = (Vec::new(), Vec::new());
    for nth in 1..=5 {
        let locks = process(&server, nth).await.unwrap();
        let request = locks.lock("x").ttl(ms(3000)).wait(LONG);
        waiting.push(tokio::spawn(
            async move { request.acquire().await.unwrap() },
        ));
        processes.push(locks);
        until("it queues", async || {
            holder.inspect("x").await.unwrap().waiters.len() == nth
        })
        .await;
        until("it has one", async || connections(&server) == 1 + nth).await;
    }
    held.release().await.unwrap();
    for waiting in waiting {
        let lease = waiting.await.unwrap();
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
    }
    drop(processes);
}

/// Twelve processes at a server that has room for six: each comes in, in its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_is_waited_for() {
    // Three are the superuser's.
    let server = PostgresServer::with(&["max_connections=9"]);
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let url = |nth: usize| {
        format!(
            "postgres://app@127.0.0.1:{}/postgres?connect_timeout={}ms",
            server.port,
            10_000 + nth
        )
    };
    drop(Locks::connect(url(0)).await.unwrap());
    let mut processes = JoinSet::new();
    for nth in 1..=12 {
        let url = url(nth);
        processes.spawn(async move {
            let began = Instant::now();
            let mut refused = 0;
            let locks = loop {
                match Locks::connect(&url).await {
                    Ok(locks) => break locks,
                    Err(error) => {
                        assert!(error.is_busy(), "{error}");
                        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                        assert!(began.elapsed() < LONG, "{error}");
                        refused += 1;
                    }
                }
                tokio::time::sleep(ms(fastrand::u64(10..100))).await;
            };
            for _ in 0..5 {
                let lease = locks.lock("x").ttl(ms(10_000)).wait(LONG).acquire().await;
                let lease = lease.unwrap();
                tokio::time::sleep(ms(5)).await;
                assert!(lease.is_valid());
                lease.release().await.unwrap();
            }
            locks.flush().await;
            refused
        });
    }
    let mut refused = 0;
    while let Some(done) = processes.join_next().await {
        refused += done.unwrap();
    }
    println!("refused {refused} times");
    assert!(refused > 0, "there was room for all");
}

/// One that waits while the server is full goes on until its deadline, and comes in when there is room again.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_at_a_full_server_enters_when_there_is_room() {
    let server = PostgresServer::with(&["max_connections=12"]);
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app");
    let app = format!("postgres://app@127.0.0.1:{}/postgres", server.port);
    let locks = Locks::connect(&app).await.unwrap();
    let held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let late = Locks::connect(format!("{app}?connect_timeout=6s"));
    let late = late.await.unwrap();
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'");
    // Others have taken all there is.
    let others = async || {
        let mut others = Vec::new();
        while let Ok((client, connection)) =
            tokio_postgres::connect(&app, tokio_postgres::NoTls).await
        {
            tokio::spawn(connection);
            others.push(client);
        }
        others
    };
    let crowd = others().await;
    let error = late.lock("y").try_acquire().await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    let error = late.lock("y").wait(ms(500)).acquire().await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    let waiting = late.lock("x").wait(LONG);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    tokio::time::sleep(ms(1000)).await;
    assert!(!waiting.is_finished());
    drop(crowd);
    until("it queues", async || {
        let waiters = "SELECT count(*) FROM leasehold.waiters";
        server.sql(waiters) == "1"
    })
    .await;
    held.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

/// On a fresh database, all who start at once want the tables, and one makes them.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_start_at_once_on_a_fresh_database() {
    let server = PostgresServer::start();
    for round in 0..3 {
        let schema = format!("fresh{round}");
        let mut starting = JoinSet::new();
        for nth in 0..60 {
            let url = format!(
                "{}?schema={schema}&connect_timeout={}ms",
                server.url(),
                20_000 + nth
            );
            starting.spawn(async move {
                let locks = Locks::connect(url).await?;
                let lease = locks.lock("x").wait(LONG).acquire().await?;
                lease.release().await?;
                leasehold::Result::Ok(())
            });
        }
        let began = Instant::now();
        let mut failed = Vec::new();
        while let Some(done) = starting.join_next().await {
            if let Err(error) = done.unwrap() {
                failed.push(leasehold::Error::to_string(&error));
            }
        }
        println!("60 on a fresh database in {:?}", began.elapsed());
        assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_role_counts_as_busy() {
    let server = PostgresServer::start();
    server
        .sql("CREATE ROLE app LOGIN CONNECTION LIMIT 1; GRANT CREATE ON DATABASE postgres TO app");
    let app = format!("postgres://app@127.0.0.1:{}/postgres", server.port);
    let mut began = Instant::now();
    let locks = loop {
        // What asked how the server is set up may not be gone yet.
        match Locks::connect(&app).await {
            Ok(locks) => break locks,
            Err(error) => assert!(error.is_busy(), "{error}"),
        }
        assert!(began.elapsed() < LONG);
        tokio::time::sleep(ms(20)).await;
    };
    let error = Locks::connect(format!("{app}?pool=3")).await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    // One connection is enough: to hold, to wait, and to do both.
    began = Instant::now();
    let held = locks.lock("x").acquire().await.unwrap();
    let next = locks.lock("x").wait(LONG);
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until("it queues", async || {
        server.sql("SELECT count(*) FROM leasehold.waiters") == "1"
    })
    .await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
    println!("with one connection: {:?}", began.elapsed());
}

/// All have seen that there are no tables before one of them may make them: the others find them made.
#[tokio::test(flavor = "multi_thread")]
async fn tables_are_made_by_one_of_many_that_miss_them() {
    let server = Arc::new(PostgresServer::start());
    let holds = std::thread::spawn({
        let server = Arc::clone(&server);
        move || {
            server.try_sql(
                "postgres",
                "BEGIN; SELECT pg_advisory_xact_lock(1818583923, -1), pg_sleep(600)",
            )
        }
    });
    let turns = |granted: &str| {
        server.sql(&format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1818583923 AND {granted}"
        ))
    };
    until("the turn is taken", async || turns("granted") == "1").await;
    let mut starting = JoinSet::new();
    for nth in 0..5 {
        let server = Arc::clone(&server);
        starting.spawn(async move { process(&server, nth).await });
    }
    until("all wait for it", async || turns("NOT granted") == "5").await;
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()");
    assert!(holds.join().unwrap().is_err());
    while let Some(started) = starting.join_next().await {
        let locks = started.unwrap().unwrap();
        locks
            .lock("x")
            .wait(LONG)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    // Made by the transaction that has made the schema, and not once more.
    let again = "SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
                 WHERE n.nspname = 'leasehold' AND p.xmin <> n.xmin";
    assert_eq!(server.sql(again), "0", "functions were made again");
    assert_ne!(
        server.sql("SELECT count(*) FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace"),
        "0"
    );
}
