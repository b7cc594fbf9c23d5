//! What roles with few rights can do to those who take locks: on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::bad_input::{check, refused};
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres_server::PostgresServer;
use leasehold::engine::postgres::schema;
use leasehold::{ErrorKind, FencingToken, Locks};
use tokio_postgres::{Client, NoTls};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const LONG: Duration = Duration::from_secs(30);

async fn connected(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn url_of(server: &PostgresServer, role: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{}/postgres", server.port)
}

/// Who may only read knows the channels and the waiters, and may send on any channel.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_grant_lets_nobody_in() {
    let server = PostgresServer::start();
    let holder = Locks::connect(server.url()).await.unwrap();
    let held = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    let url = format!("{}?connect_timeout=6s", server.url());
    let waiter = Locks::connect(url).await.unwrap();
    let waiting = waiter.lock("x").ttl(LONG).wait(LONG);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    while holder.inspect("x").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(ms(10)).await;
    }
    server.sql(
        "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA leasehold TO reader; \
         GRANT SELECT ON ALL TABLES IN SCHEMA leasehold TO reader",
    );
    let reader = connected(&url_of(&server, "reader")).await;
    let forged = "SELECT pg_notify(listener, format(message, number, 9007199254740991, \
                    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)) \
                  FROM leasehold.waiters, unnest(ARRAY['granted:%s:%s:500:%s', 'offer:%s', 'look:%s:0', '%s']) message";
    for _ in 0..20 {
        assert_eq!(reader.execute(forged, &[]).await.unwrap(), 4);
        tokio::time::sleep(ms(20)).await;
        assert!(!waiting.is_finished(), "a second holder");
    }
    // It waits on, and is let in when it is its turn.
    let began = Instant::now();
    held.release().await.unwrap();
    let lease = tokio::time::timeout(ms(10_000), waiting).await;
    let lease = lease.expect("it is let in").unwrap();
    println!("let in after {:?}", began.elapsed());
    assert!(lease.token() < FencingToken::new((1 << 53) - 1).unwrap());
    lease.release().await.unwrap();
}

/// Each of these is a better match for a call with these types than what the server brings, and is found where `public` is searched.
const TRAPS: &str = "CREATE TABLE public.stolen (by name, how text);
    GRANT INSERT ON public.stolen TO PUBLIC;
    CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.stolen VALUES (current_user, 'hashtextextended');
      RETURN pg_catalog.hashtextextended($1, $2::bigint); END $$;
    CREATE FUNCTION public.concat_ws(text, text, bigint, integer) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.stolen VALUES (current_user, 'concat_ws'); RETURN $2; END $$;
    CREATE FUNCTION public.concat_ws(text, text, bigint, bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.stolen VALUES (current_user, 'concat_ws'); RETURN $2; END $$;
    CREATE FUNCTION public.concat_ws(text, text, bigint) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.stolen VALUES (current_user, 'concat_ws'); RETURN $2; END $$;
    CREATE FUNCTION public.times(bigint, interval) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.stolen VALUES (current_user, 'bigint * interval');
      RETURN $1::double precision OPERATOR(pg_catalog.*) $2; END $$;
    CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.times);
    CREATE FUNCTION public.times(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO public.stolen VALUES (current_user, 'numeric * integer');
      RETURN $1 OPERATOR(pg_catalog.*) $2::numeric; END $$;
    CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.times);";

/// All that leasehold's functions do.
async fn work_through(url: &str, other_url: &str) {
    let locks = Locks::connect(url).await.unwrap();
    let other = Locks::connect(other_url).await.unwrap();
    for round in 0..2 {
        let held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
        held.renew().await.unwrap();
        let waiting = other.lock("x").ttl(ms(1000)).wait(LONG);
        let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
        while locks.inspect("x").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(10)).await;
        }
        assert_eq!(locks.list("").await.unwrap().len(), 1);
        if round == 0 {
            let store = locks.store().unwrap();
            store.write_fenced("k", b"v", &held).await.unwrap();
            store.update("l", |_| "v").await.unwrap();
            held.release().await.unwrap();
        } else {
            locks.force_release("x").await.unwrap();
            held.detach();
        }
        let next = waiting.await.unwrap();
        let sql = connected(url.split('?').next().unwrap()).await;
        let check = next.check_sql().unwrap();
        let (name, token) = check.parameters();
        let checked = sql.execute(check.statement(), &[&name, &token]).await;
        checked.unwrap();
        next.release().await.unwrap();
    }
    let at_least = locks.lock("x").ttl(LONG).hold_at_least(ms(50));
    let kept = at_least.acquire().await.unwrap();
    let waiting = other.lock("x").wait(LONG);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    while locks.inspect("x").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(ms(10)).await;
    }
    kept.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    let both = [locks.lock("y").shared(), other.lock("y").shared()];
    for shared in both {
        shared.acquire().await.unwrap().release().await.unwrap();
    }
    locks.flush().await;
}

/// Who may create in `public` does not run code as those who take locks.
#[tokio::test(flavor = "multi_thread")]
async fn functions_and_operators_in_public_shadow_nothing() {
    let server = PostgresServer::start();
    let pooler = PgBouncer::before(&server, 10);
    server.sql("CREATE ROLE mallory LOGIN; GRANT CREATE ON SCHEMA public TO mallory");
    let mallory = connected(&url_of(&server, "mallory")).await;
    mallory.batch_execute(TRAPS).await.unwrap();
    // It is a trap.
    server.sql("SELECT hashtextextended('a', 0), concat_ws(':', 'a', 1::bigint, 1), 1::bigint * interval '1 s', 1.5 * 2");
    let caught = "SELECT count(DISTINCT how) FROM public.stolen";
    assert_eq!(server.sql(caught), "4");
    server.sql("DELETE FROM public.stolen");

    let other = format!("{}?connect_timeout=6s", server.url());
    work_through(&server.url(), &other).await;
    let pooled = format!("{}?connect_timeout=6s", pooler.url());
    work_through(&pooler.url(), &pooled).await;
    server.sql("SELECT leasehold.sweep()");
    let stolen = server.sql("SELECT DISTINCT by, how FROM public.stolen");
    assert_eq!(stolen, "", "ran as others");
}

/// The functions of a schema run with the rights of whoever calls them: so its owner must be trusted.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_somebody_else_is_refused() {
    let server = PostgresServer::start();
    let address = format!("127.0.0.1:{}", server.port);
    server.sql(
        "CREATE ROLE mallory LOGIN; CREATE ROLE app LOGIN; \
         GRANT CREATE ON DATABASE postgres TO mallory, app",
    );
    let mallory = connected(&url_of(&server, "mallory")).await;
    let planted = format!(
        "{}; GRANT ALL ON SCHEMA leasehold TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA leasehold TO PUBLIC;",
        schema::sql("leasehold").unwrap()
    );
    mallory.batch_execute(&planted).await.unwrap();
    for role in ["app", "postgres"] {
        let url = url_of(&server, role);
        let error = refused(&url).await;
        check(&error, ErrorKind::EngineUnfit, "mallory", &address);
        let advice = error.advice().unwrap();
        assert!(advice.contains("schema_owner=mallory"), "{advice}");
        let error = refused(&format!("{url}?schema_owner=someone")).await;
        check(&error, ErrorKind::EngineUnfit, "mallory", &address);
        // Who trusts that role says so.
        let locks = Locks::connect(format!("{url}?schema_owner=mallory")).await;
        let lease = locks.unwrap().lock("a").acquire().await.unwrap();
        lease.release().await.unwrap();
    }
    // Its owner needs no word for it, nor do those who are members of it.
    Locks::connect(url_of(&server, "mallory")).await.unwrap();
    server.sql("GRANT mallory TO app");
    Locks::connect(url_of(&server, "app")).await.unwrap();

    // A schema that is one's own, in which somebody else owns a table or a function.
    server.sql("REVOKE mallory FROM app");
    for theirs in ["TABLE leasehold.waiters", "FUNCTION leasehold.sweep()"] {
        server.sql(
            "DROP SCHEMA leasehold CASCADE; CREATE SCHEMA leasehold AUTHORIZATION app; \
             GRANT ALL ON SCHEMA leasehold TO mallory",
        );
        Locks::connect(url_of(&server, "app")).await.unwrap();
        server.sql(&format!("ALTER {theirs} OWNER TO mallory"));
        let error = refused(&url_of(&server, "app")).await;
        check(&error, ErrorKind::EngineUnfit, "mallory", &address);
    }
}

/// An administrator makes the tables; the application may only use them.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_an_administrator_are_used_by_name() {
    let server = PostgresServer::start();
    let address = format!("127.0.0.1:{}", server.port);
    let grants = "GRANT USAGE ON SCHEMA leasehold TO app; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO app";
    server.sql(
        "CREATE ROLE admin LOGIN; CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO admin",
    );
    let admin = connected(&url_of(&server, "admin")).await;
    admin
        .batch_execute(&schema::sql("leasehold").unwrap())
        .await
        .unwrap();
    admin.batch_execute(grants).await.unwrap();
    let app = url_of(&server, "app");
    let error = refused(&app).await;
    check(&error, ErrorKind::EngineUnfit, "admin", &address);
    let locks = Locks::connect(format!("{app}?schema_owner=admin")).await;
    let lease = locks.unwrap().lock("a").acquire().await.unwrap();
    lease.release().await.unwrap();
    // Who owns the database, and a superuser, are trusted as they are.
    server.sql("ALTER DATABASE postgres OWNER TO admin");
    Locks::connect(&app).await.unwrap();
    server.sql("ALTER DATABASE postgres OWNER TO postgres; DROP SCHEMA leasehold CASCADE");
    server.sql(&schema::sql("leasehold").unwrap());
    server.sql(grants);
    Locks::connect(&app).await.unwrap();
}
