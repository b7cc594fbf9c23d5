//! Whether a server can be trusted with locks, and what to know about it.

use futures_util::FutureExt;
use tokio::net::TcpStream;
use tokio_postgres::Row;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;

use super::client::{Client, cell};
use super::config::{Pooler, PostgresConfig};
use super::failure::{self, not_read_committed, only_reads, unfit};
use super::tls;
use crate::engine::doctor::Finding;
use crate::engine::sql::store::Lane;
use crate::error::Result;
use crate::url::invalid;

const READ_COMMITTED: &str = "read committed";

/// The oldest version that has all that the functions need.
const OLDEST: i32 = 130_000;

const QUESTION: &str = "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, \
    pg_catalog.current_setting('server_encoding'), \
    pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on', \
    pg_catalog.current_setting('fsync'), pg_catalog.current_setting('synchronous_standby_names'), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication), pg_catalog.inet_client_port(), \
    pg_catalog.current_setting('transaction_isolation')";

/// Which database of which server: no two servers that run at once started in the same microsecond, whereas copies of one have the same identifier.
const IDENTITY: &str = "SELECT pg_catalog.current_database()::pg_catalog.text, \
    (pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) * 1000000)::pg_catalog.int8";

/// What the transactions of a session are like, and when the one that asks began.
const MODE: &str = "SELECT pg_catalog.current_setting('transaction_isolation'), \
    pg_catalog.current_setting('transaction_read_only') = 'on', \
    (pg_catalog.date_part('epoch', pg_catalog.now()) * 1000000)::pg_catalog.int8";

/// What is known of a server that can serve.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) findings: Vec<Finding>,
    /// The server sees another client than us: there may be a pooler in between, which gives each transaction another session.
    pub(crate) pooled: bool,
    identity: Identity,
}

/// A database, and when its server started.
type Identity = (String, i64);

fn identity(rows: &[Row]) -> Result<Identity> {
    let row = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
    Ok((cell(row, 0)?, cell(row, 1)?))
}

/// Refuses a pool of the program's own that leads elsewhere than the configuration, or whose connections do not answer or are in a mode in
/// which no lock can be taken.
pub(crate) async fn check_pool(client: &Client, found: &Found) -> Result<()> {
    let asked = client
        .ask_in_turn(Lane::Upkeep, [IDENTITY, MODE, MODE])
        .await;
    let asked = asked.and_then(|rows| rows.map_err(failure::of_call));
    let [who, first, second] =
        asked.map_err(|error| error.with_context("over the pool that was given"))?;
    check_identity(&identity(&who)?, &found.identity)?;
    let mode = |rows: &[Row]| -> Result<(String, bool, i64)> {
        let row = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
        Ok((cell(row, 0)?, cell(row, 1)?, cell(row, 2)?))
    };
    let (isolation, only_reads, began) = mode(&first)?;
    let (_, _, began_again) = mode(&second)?;
    if began == began_again {
        let what = "the connections of the pool come with a transaction that is open";
        return Err(invalid(what).advise("end each transaction before its connection goes back to the pool, and begin none when it is made"));
    }
    if only_reads {
        let what = "the connections of the pool are read-only";
        return Err(invalid(what)
            .advise("let default_transaction_read_only be off for them, or give another pool"));
    }
    if isolation != READ_COMMITTED {
        let what = format!("the transactions of the pool are {isolation} by default");
        return Err(invalid(what).advise(
            "let default_transaction_isolation be 'read committed' for them, or give another pool",
        ));
    }
    Ok(())
}

fn check_identity((database, started): &Identity, (expected, its_start): &Identity) -> Result<()> {
    let what = match (database == expected, started == its_start) {
        (true, true) => return Ok(()),
        (false, true) => format!(
            "the pool leads to the database {database:?}, the configuration to {expected:?}"
        ),
        (_, false) => "the pool leads to another server than the configuration".to_owned(),
    };
    Err(invalid(what)
        .advise("give the configuration the address and the database that the pool has"))
}

/// Refuses a server that cannot serve.
pub(crate) async fn check(config: &PostgresConfig) -> Result<Found> {
    let asked = tokio::time::timeout(config.connect_timeout, ask(config)).await;
    let (rows, identity, port) = asked.map_err(|_| failure::no_connection_in_time())??;
    let row = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
    let version: i32 = cell(row, 0)?;
    if version < OLDEST {
        return Err(
            unfit(format!("the server is PostgreSQL {}", version / 10_000))
                .advise("use 13 or newer"),
        );
    }
    let encoding: String = cell(row, 1)?;
    if encoding != "UTF8" {
        return Err(unfit(format!("the database is encoded as {encoding}"))
            .advise("use a database whose encoding is UTF8"));
    }
    if cell(row, 2)? {
        return Err(only_reads());
    }
    if cell::<String>(row, 7)? != READ_COMMITTED {
        return Err(not_read_committed());
    }
    let findings = vec![
        fsync(&cell::<String>(row, 3)?),
        standbys(cell(row, 5)?, &cell::<String>(row, 4)?),
    ];
    let seen = cell::<Option<i32>>(row, 6)?.and_then(|port| u16::try_from(port).ok());
    let pooled = match config.pooler {
        Pooler::Unknown => seen.is_none() || seen != port,
        Pooler::Transaction => true,
        Pooler::None => false,
    };
    Ok(Found {
        findings,
        pooled,
        identity,
    })
}

fn fsync(setting: &str) -> Finding {
    match setting {
        "off" => Finding::efficiency("fsync", "fsync is off")
            .means("the server does not flush its writes to disk: a power cut can lose locks that were granted, or the whole database")
            .fix("ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()"),
        _ => Finding::good("fsync", "fsync is on"),
    }
}

fn standbys(standbys: i64, synchronous: &str) -> Finding {
    match (standbys, synchronous) {
        (0, _) => Finding::good("standbys", "none"),
        (_, "") => Finding::efficiency("standbys", format!("{standbys} standby(s)"))
            .means("the server has standbys that may lag: a failover can lose a lock that was just granted")
            .fix("set synchronous_standby_names, or check the fencing token"),
        _ => Finding::good("standbys", format!("{standbys}, synchronous")),
    }
}

/// On a connection of its own, whose port is known: if the server sees that port, nobody is in between.
async fn ask(config: &PostgresConfig) -> Result<(Vec<Row>, Identity, Option<u16>)> {
    let mut tls = tls::connector(&config.trust)?;
    let server = config.server();
    let unreachable =
        |cause: std::io::Error| failure::not_connected(&cause.to_string()).caused_by(cause);
    let (client, connection, port) = match (server.get_hosts(), server.get_ports()) {
        ([Host::Tcp(host)], [port]) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await;
            let stream = stream.map_err(unreachable)?;
            let mine = stream.local_addr().map_err(unreachable)?.port();
            let tls =
                MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, host).map_err(|cause| {
                    invalid(format!("{host:?} is no name for a certificate: {cause}"))
                })?;
            let connected = server.connect_raw(stream, tls).await;
            let (client, connection) = connected.map_err(failure::of_greeting)?;
            (client, tokio::spawn(connection.map(drop)), Some(mine))
        }
        _ => {
            let connected = server.connect(tls).await;
            let (client, connection) = connected.map_err(failure::of_greeting)?;
            (client, tokio::spawn(connection.map(drop)), None)
        }
    };
    let rows = client.query_typed(QUESTION, &[]).await;
    let who = client.query_typed(IDENTITY, &[]).await;
    // It is gone before another is made: the server may have room for one only.
    drop(client);
    let _ = connection.await;
    let rows = rows.map_err(failure::of_call)?;
    Ok((rows, identity(&who.map_err(failure::of_call)?)?, port))
}
