//! What a MySQL URL says.

use std::fmt;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, SslOpts};

use crate::engine::certificates::certificates;
use crate::engine::rows::pool_size;
use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

/// The options of `mysql:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    (
        "table",
        "what the names of the tables begin with, leasehold",
    ),
    ("pool", "how many connections at most, 8"),
    ("timeout", "how long to wait for an answer, 5s"),
    ("connect_timeout", "how long to wait for a connection, 5s"),
    ("sslmode", "disable, prefer, require or verify-full; prefer"),
    (
        "sslrootcert",
        "a file with the certificates to trust; those of the public authorities",
    ),
    (
        "socket",
        "the path of the server's socket, instead of a host",
    ),
];

/// What the tables' names begin with unless the URL says otherwise.
pub const DEFAULT_TABLE: &str = "leasehold";

#[derive(Clone)]
pub(crate) struct Settings {
    opts: OptsBuilder,
    pub(crate) tls: Tls,
    pub(crate) location: String,
    pub(crate) table: String,
    pub(crate) pool: usize,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

/// Whether connections are encrypted.
#[derive(Clone, Debug)]
pub(crate) enum Tls {
    No,
    /// If the server can.
    Prefer(SslOpts),
    Yes(SslOpts),
}

/// The client's own options would print the password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.location)
    }
}

/// What every session begins with. Nobody waits for long on the server: what was rolled back is tried again from here. Where reads are to be
/// repeatable, whoever only looks would lock what it sees as soon as it does so within `SET` or `IF`.
const SESSION: [&str; 2] = [
    "SET SESSION autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

impl Settings {
    pub(crate) fn from_url(url: &EngineUrl) -> Result<Self> {
        let table = url.option("table").unwrap_or(DEFAULT_TABLE).to_owned();
        check_table(&table)?;
        let database = match url.path.trim_start_matches('/') {
            "" => {
                return Err(invalid("a mysql: URL names a database".to_owned())
                    .advise("write mysql://user:password@host:3306/database"));
            }
            database => database,
        };
        let opts = OptsBuilder::default()
            .user(Some(url.user.as_deref().unwrap_or("root")))
            .pass(url.password.as_deref())
            .db_name(Some(database))
            .prefer_socket(false)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .init(SESSION.to_vec());
        let opts = match (url.option("socket"), url.hosts.as_slice()) {
            (Some(path), []) => opts.socket(Some(path)),
            (None, [host]) => at(opts, host)?,
            _ => {
                return Err(invalid("a mysql: URL names one server".to_owned())
                    .advise("write mysql://user:password@host:3306/database"));
            }
        };
        let five_seconds = Duration::from_secs(5);
        Ok(Self {
            opts,
            tls: tls(url)?,
            location: url.to_string(),
            table,
            pool: pool_size(url)?,
            timeout: url.duration("timeout")?.unwrap_or(five_seconds),
            connect_timeout: url.duration("connect_timeout")?.unwrap_or(five_seconds),
        })
    }

    /// How to connect, encrypted or not.
    pub(crate) fn opts(&self, ssl: Option<&SslOpts>) -> Opts {
        self.opts.clone().ssl_opts(ssl.cloned()).into()
    }

    /// What distinguishes one place to wait at from others. A secret: the password is in it.
    pub(crate) fn place(&self) -> String {
        format!("{:?} {:?} {}", self.opts, self.tls, self.table)
    }
}

fn at(opts: OptsBuilder, host: &str) -> Result<OptsBuilder> {
    let example = "write mysql://user:password@host:3306/database";
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (host, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(invalid("the name of the host is missing".to_owned()).advise(example));
    }
    let port = match port {
        None => 3306,
        Some(port) => port
            .parse()
            .map_err(|_| invalid(format!("{port:?} is not a port")).advise(example))?,
    };
    Ok(opts.ip_or_hostname(host).tcp_port(port))
}

fn tls(url: &EngineUrl) -> Result<Tls> {
    let anyone = || {
        SslOpts::default()
            .with_danger_accept_invalid_certs(true)
            .with_danger_skip_domain_validation(true)
    };
    let roots = url.option("sslrootcert").map(certificates).transpose()?;
    let is_named = roots.is_some();
    let trusted = || match roots {
        Some(roots) => SslOpts::default()
            .with_root_certs(vec![roots.into()])
            .with_disable_built_in_roots(true),
        None => SslOpts::default(),
    };
    match url.option("sslmode").unwrap_or("prefer") {
        "disable" => Ok(Tls::No),
        "prefer" => Ok(Tls::Prefer(anyone())),
        "require" if !is_named => Ok(Tls::Yes(anyone())),
        "require" | "verify-full" => Ok(Tls::Yes(trusted())),
        other => Err(invalid(format!("the option sslmode={other} is not known"))
            .advise("use disable, prefer, require or verify-full")),
    }
}

/// The name stands in the text of procedures: only what needs no escape anywhere.
pub(crate) fn check_table(name: &str) -> Result<()> {
    let mut letters = name.bytes();
    let begins_well = letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    if begins_well
        && name.len() <= 40
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    {
        return Ok(());
    }
    Err(invalid(format!("tables' names cannot begin with {name:?}"))
        .advise("use letters, digits and _, not beginning with a digit, 40 at most"))
}

pub(crate) fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_tables() {
        for fine in ["leasehold", "_a1", "My_Locks", &"x".repeat(40)] {
            assert!(check_table(fine).is_ok(), "{fine}");
        }
        for bad in ["", "1a", "a-b", "a.b", "a`b", "a'b", "é", &"x".repeat(41)] {
            assert!(check_table(bad).is_err(), "{bad}");
        }
    }

    /// Who asks for a certificate must not be listened for by who does not.
    #[test]
    fn those_who_encrypt_differently_wait_apart() {
        let place = |mode: &str| {
            let url = format!("mysql://me@h/db?sslmode={mode}");
            let url = EngineUrl::parse(&url).unwrap();
            Settings::from_url(&url).unwrap().place()
        };
        let places = ["disable", "prefer", "require", "verify-full"].map(place);
        for (nth, one) in places.iter().enumerate() {
            assert!(places[..nth].iter().all(|other| other != one));
        }
    }

    #[test]
    fn no_password_is_printed() {
        let url = EngineUrl::parse("mysql://me:SECRET@h/db").unwrap();
        let settings = Settings::from_url(&url).unwrap();
        assert!(!format!("{settings:?}").contains("SECRET"));
    }
}
