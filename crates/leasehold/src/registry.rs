//! The engines by the scheme of their URLs. An unknown scheme or option is an error that lists the known ones.

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::doctor::Accepting;
use crate::engine::{Driver, Engine, connect_to};
use crate::error::Result;
use crate::observe;
use crate::url::{EngineUrl, invalid};

/// Every engine that was compiled in.
static BUILTIN: &[Driver] = &[
    crate::engine::memory::DRIVER,
    #[cfg(all(feature = "sqlite", unix))]
    crate::engine::sqlite::DRIVER,
    #[cfg(feature = "redis")]
    crate::engine::redis::DRIVER,
    #[cfg(feature = "redis")]
    crate::engine::redis::sentinel::DRIVER,
    #[cfg(feature = "redis")]
    crate::engine::redis::cluster::DRIVER,
    #[cfg(feature = "redis")]
    crate::engine::redlock::DRIVER,
    #[cfg(feature = "etcd")]
    crate::engine::etcd::DRIVER,
    #[cfg(feature = "zookeeper")]
    crate::engine::zookeeper::DRIVER,
    #[cfg(feature = "dynamodb")]
    crate::engine::dynamodb::DRIVER,
    #[cfg(feature = "s3")]
    crate::engine::s3::DRIVER,
    #[cfg(feature = "postgres")]
    crate::engine::postgres::DRIVER,
    #[cfg(feature = "mysql")]
    crate::engine::mysql::DRIVER,
    #[cfg(feature = "http")]
    crate::engine::http::DRIVER,
];

/// Which cargo feature brings the engine of a scheme.
const FEATURES: &[(&str, &[&str])] = &[
    ("sqlite", &["sqlite"]),
    (
        "redis",
        &[
            "redis",
            "rediss",
            "redis+unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
            "redlock",
            "redlocks",
        ],
    ),
    ("etcd", &["etcd", "etcds"]),
    ("zookeeper", &["zookeeper"]),
    ("dynamodb", &["dynamodb"]),
    ("s3", &["s3"]),
    ("zookeeper-tls", &["zookeepers"]),
    ("postgres", &["postgres", "postgresql"]),
    ("mysql", &["mysql", "mariadb"]),
    ("http", &["http", "https"]),
];

/// The SQL of an engine's tables, by their name.
type Schema = fn(&str) -> Result<String>;

/// Engines whose tables an administrator may make beforehand: their schemes, how the tables are named by default, and the SQL or the commands that make them.
static SCHEMAS: &[(&str, &str, Schema)] = &[
    #[cfg(feature = "postgres")]
    (
        "postgres",
        crate::engine::postgres::DEFAULT_SCHEMA,
        crate::engine::postgres::schema::sql,
    ),
    #[cfg(feature = "mysql")]
    (
        "mysql",
        crate::engine::mysql::DEFAULT_TABLE,
        crate::engine::mysql::schema::sql,
    ),
    #[cfg(feature = "dynamodb")]
    (
        "dynamodb",
        "locks",
        crate::engine::dynamodb::create_table_commands,
    ),
];

/// The engines that URLs may name. [`Locks::connect`](crate::Locks::connect) uses [`Registry::builtin`]; to add an engine of
/// your own, add its [`Driver`] to a registry:
///
/// ```
/// use leasehold::engine::memory::Memory;
/// use leasehold::engine::{Driver, connecting};
/// use leasehold::{Locks, Registry};
///
/// const MINE: Driver = Driver::new(&["mine"], "mine:", |_url| {
///     connecting(async { Ok(Memory::default()) })
/// });
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let registry = Registry::builtin().with(MINE);
/// let locks = Locks::new(registry.connect("mine:").await?);
/// let lease = locks.lock("report").acquire().await?;
/// # lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Registry {
    drivers: Cow<'static, [Driver]>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}

impl Registry {
    /// The engines that were compiled in. Each needs the cargo feature of its name.
    pub const fn builtin() -> Self {
        Self {
            drivers: Cow::Borrowed(BUILTIN),
        }
    }

    /// Adds an engine. It replaces engines that have one of its schemes.
    #[must_use]
    pub fn with(mut self, driver: Driver) -> Self {
        self.drivers.to_mut().insert(0, driver);
        self
    }

    /// The engines.
    pub fn drivers(&self) -> &[Driver] {
        &self.drivers
    }

    /// Takes a URL apart, and checks its scheme and the names of its options.
    ///
    /// # Errors
    ///
    /// `ErrorKind::InvalidConfig` if the URL is not well formed, or names a scheme or an option that is unknown; the advice
    /// lists the known ones.
    pub fn parse(&self, url: &str) -> Result<EngineUrl> {
        self.find(url).map(|(url, _)| url)
    }

    /// Connects to whatever the URL names.
    ///
    /// # Errors
    ///
    /// Those of [`parse`](Self::parse), and those of the engine: it cannot be reached, refuses the password, or is unfit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect(&self, url: &str) -> Result<Arc<dyn Engine>> {
        let (url, driver) = self.find(url)?;
        let accepted = url.accepted.clone();
        let mut engine = connect_to(url.to_string(), (driver.connect)(url)).await?;
        if !accepted.is_empty() {
            engine = Arc::new(Accepting { engine, accepted });
        }
        observe::warnings(&engine.about());
        Ok(engine)
    }

    /// What to compare the engine with that the URL names, if it has a baseline.
    ///
    /// # Errors
    ///
    /// Those of [`parse`](Self::parse).
    #[cfg(feature = "bench")]
    pub fn baseline(
        &self,
        url: &str,
    ) -> Result<Option<Arc<dyn crate::engine::baseline::Baseline>>> {
        let (url, driver) = self.find(url)?;
        driver.baseline.map(|baseline| baseline(&url)).transpose()
    }

    /// The SQL that makes the tables of the engine of this scheme, in the schema or with the prefix of this name.
    ///
    /// # Errors
    ///
    /// `ErrorKind::InvalidConfig` if the engine was not compiled in or has no such tables, or if the name cannot be used.
    pub fn schema(&self, scheme: &str, name: Option<&str>) -> Result<String> {
        self.parse(&format!("{scheme}:"))?;
        let found = SCHEMAS.iter().find(|(known, ..)| *known == scheme);
        let Some((_, default, sql)) = found else {
            return Err(
                invalid(format!("{scheme}: has no tables to make beforehand"))
                    .advise("connect: what an engine needs is made then"),
            );
        };
        sql(name.unwrap_or(default))
    }

    fn find(&self, url: &str) -> Result<(EngineUrl, &Driver)> {
        let known = || format!("the known schemes are {}", self.schemes());
        let url = EngineUrl::split(url).map_err(|error| error.advise_if_none(known()))?;
        let knows = |driver: &&Driver| driver.schemes.contains(&&*url.scheme);
        match self.drivers.iter().find(knows) {
            Some(driver) => Ok((driver.check(url)?, driver)),
            None => {
                let error = invalid(format!("there is no engine for {:?} URLs", url.scheme));
                let mut features = FEATURES.iter();
                let feature = features.find(|(_, schemes)| schemes.contains(&&*url.scheme));
                Err(error.advise(match feature {
                    Some((feature, _)) => format!(
                        "this program was built without it: add the feature {feature:?}, with `cargo add leasehold --features {feature}` or, for the command line, `cargo install leasehold-cli --features {feature}` (in a clone of its repository, `cargo run --features {feature}`); it has {}",
                        self.schemes()
                    ),
                    None => known(),
                }))
            }
        }
    }

    /// `memory:, sqlite:`
    fn schemes(&self) -> String {
        let schemes = self.drivers.iter().flat_map(|driver| driver.schemes);
        let schemes: Vec<_> = schemes.map(|scheme| format!("{scheme}:")).collect();
        schemes.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        let table = [
            ("", "memory:"),
            ("nonsense", "memory:"),
            ("s3cret@h:6379", "memory:"),
            ("redis://me:12?s3cret@h/0", "%40"),
            ("mysqlite:x", "memory:"),
            ("memory:?colour=red", "accept ("),
            ("memory:?accept=evictions", "eviction"),
            ("sqlite:a.db?accept=", "eviction"),
            ("sqlite:a.db?timeout=1s", "busy_timeout"),
            ("sqlite:a.db?busy_timeout", "name=value"),
            (
                "sqlite:a.db?busy_timeout=1s&busy_timeout=2s",
                "give it once",
            ),
            ("sqlite:%ff", "UTF-8"),
        ];
        for (url, advice) in table {
            let error = Registry::builtin().parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.advice().unwrap().contains(advice), "{url}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    /// On every engine that is reached over the network.
    #[tokio::test]
    async fn bad_hosts_ports_and_times_are_refused_alike() {
        for driver in BUILTIN
            .iter()
            .filter(|driver| driver.example.contains("://"))
        {
            let scheme = driver.schemes[0];
            let path = match scheme {
                "etcd" => "",
                _ => "/1",
            };
            let mut bad: Vec<_> = [
                ":1",
                "h:",
                "h:0",
                "h:x",
                "h:65536",
                "[::1",
                "::1",
                "h,h",
                "h:7,i:7,h:7",
            ]
            .map(|hosts| format!("{scheme}://{hosts}{path}"))
            .into();
            let times = driver.options.iter().map(|(option, _)| option);
            for option in times.filter(|option| option.ends_with("timeout")) {
                for time in ["0s", "0ms", "2days", "soon", "-1s"] {
                    bad.push(format!("{scheme}://h{path}?{option}={time}"));
                }
            }
            for bad in bad {
                let error = Registry::builtin().connect(&bad).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}: {error}");
                assert!(error.advice().is_some(), "{bad}: {error}");
            }
        }
    }

    #[test]
    fn a_missing_engine_is_named_with_its_feature() {
        let none = Registry {
            drivers: Cow::Borrowed(&[]),
        };
        for scheme in BUILTIN.iter().flat_map(|driver| driver.schemes) {
            let error = none.parse(&format!("{scheme}://h/1")).unwrap_err();
            let named = error.advice().unwrap().contains("--features");
            assert_eq!(named, *scheme != "memory", "{error}");
        }
    }

    #[test]
    fn only_engines_with_tables_have_a_schema() {
        let registry = Registry::builtin();
        for (scheme, default, _) in SCHEMAS {
            let sql = registry.schema(scheme, None).unwrap();
            let makes_tables = sql.contains("CREATE TABLE") || sql.contains("create-table");
            assert!(makes_tables, "{sql}");
            assert_eq!(sql, registry.schema(scheme, Some(default)).unwrap());
            let named = registry.schema(scheme, Some("elsewhere")).unwrap();
            assert!(named.contains("elsewhere"), "{named}");
            let error = registry.schema(scheme, Some("a b")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        }
        for scheme in ["memory", "nonsense"] {
            let error = registry.schema(scheme, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.advice().is_some(), "{error}");
        }
    }

    #[tokio::test]
    async fn an_added_engine_takes_the_place_of_another() {
        use crate::engine::{connecting, memory::Memory};
        let mine = Driver::new(&["memory", "mine"], "mine:?size=1", |_| {
            connecting(async { Ok(Memory::default()) })
        });
        let registry = Registry::builtin().with(mine.options(&[("size", "how large")]));
        for good in ["mine:?size=1", "memory:?size=1", "memory:"] {
            registry.connect(good).await.unwrap();
        }
        assert!(registry.parse("mine:?colour=red").is_err());
        assert!(Registry::builtin().parse("mine:").is_err());
        let error = mine.parse("sqlite:x").unwrap_err();
        assert!(error.advice().unwrap().contains("mine:?size=1"), "{error}");
    }
}
