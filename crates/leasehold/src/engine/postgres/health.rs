//! Whether a server can be trusted with locks, and what to know about it.

use tokio::net::TcpStream;
use tokio_postgres::Row;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;

use super::failure::{self, read_only, unfit};
use super::server::cell;
use super::settings::{Pooler, Settings, invalid};
use super::tls;
use crate::error::{Error, ErrorKind, Result};

/// The oldest version that has all that the functions need.
const OLDEST: i32 = 130_000;

const QUESTION: &str = "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), \
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', current_setting('fsync'), \
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), inet_client_port()";

/// What is known of a server that can serve.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) warnings: Vec<String>,
    /// The server sees another client than us: there may be a pooler in between, which gives each transaction another session.
    pub(crate) pooled: bool,
}

/// Refuses a server that cannot serve.
pub(crate) async fn check(settings: &Settings) -> Result<Found> {
    let asked = tokio::time::timeout(settings.connect_timeout, ask(settings)).await;
    let (rows, port) = asked.map_err(|_| failure::no_connection_in_time())??;
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
        return Err(read_only());
    }
    let mut warnings = Vec::new();
    if cell::<String>(row, 3)? == "off" {
        warnings.push(
            "the server does not wait for its disk (fsync is off): a power cut can lose a lock that was granted, or all"
                .to_owned(),
        );
    }
    let standbys: i64 = cell(row, 5)?;
    if standbys > 0 && cell::<String>(row, 4)?.is_empty() {
        warnings.push(format!(
            "the server has {standbys} standby(s) that may lag: a failover can lose a lock that was just granted; set \
             synchronous_standby_names, or check the fencing token"
        ));
    }
    let seen = cell::<Option<i32>>(row, 6)?.and_then(|port| u16::try_from(port).ok());
    let pooled = match settings.pooler {
        Pooler::Unknown => seen.is_none() || seen != port,
        Pooler::Transaction => true,
        Pooler::None => false,
    };
    Ok(Found { warnings, pooled })
}

/// On a connection of its own, whose port is known: if the server sees that port, nobody is in between.
async fn ask(settings: &Settings) -> Result<(Vec<Row>, Option<u16>)> {
    let mut tls = tls::connector(&settings.trust)?;
    let server = &settings.server;
    let unreachable = |cause: std::io::Error| {
        Error::new(
            ErrorKind::Unreachable,
            format!("the connection failed: {cause}"),
        )
        .advise("see that the server is up, and the address right")
        .caused_by(cause)
    };
    let (client, port) = match (server.get_hosts(), server.get_ports()) {
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
            tokio::spawn(connection);
            (client, Some(mine))
        }
        _ => {
            let connected = server.connect(tls).await;
            let (client, connection) = connected.map_err(failure::of_greeting)?;
            tokio::spawn(connection);
            (client, None)
        }
    };
    let rows = client.query_typed(QUESTION, &[]).await;
    Ok((rows.map_err(failure::of_call)?, port))
}
