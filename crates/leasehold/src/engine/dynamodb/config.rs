//! Which table, and how it is used.

use std::sync::Arc;

use super::client::Client;
use super::protocol::Items;
use super::table::Table;
use super::{DRIVER, table};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::aws::config::{Place, Said, ThisProcess, aws_options, aws_setters};
use crate::engine::cas::config::Settings;
use crate::engine::cas::engine::CasEngine;
use crate::engine::config::by_url;
use crate::error::Result;
use crate::url::{EngineUrl, invalid};

/// The options of `dynamodb:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = aws_options![
    (
        "dialect",
        "java or go: share locks with the lock clients of these languages",
    ),
    (
        "sort_key",
        "the value of the sort key, if the table has one; with a dialect",
    ),
];

/// In whose way locks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockDialect {
    /// That of the lock client for Java (`amazon-dynamodb-lock-client`).
    Java,
    /// That of `dynamolock` for Go.
    Go,
}

/// How locks are kept on DynamoDB: in which table, and all that a `dynamodb:` URL can say.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::dynamodb::DynamoDbConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = DynamoDbConfig::new("locks")
///     .region("eu-west-1")
///     .poll(Duration::from_millis(500));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: DynamoDbConfig = "dynamodb://locks?region=eu-west-1&poll=500ms".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DynamoDbConfig {
    pub(super) table: String,
    said: Said,
    pub(super) dialect: Option<LockDialect>,
    pub(super) sort_key: Option<String>,
    settings: Settings,
}

by_url!(DynamoDbConfig);

impl DynamoDbConfig {
    /// Locks in this table.
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            said: Said::default(),
            dialect: None,
            sort_key: None,
            settings: Settings::default(),
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let table = match url.hosts.as_slice() {
            [table] if url.path.trim_matches('/').is_empty() => table,
            _ => return Err(url.invalid("a dynamodb: URL names one table, and has no path")),
        };
        let dialect = match url.option("dialect") {
            None => None,
            Some("java") => Some(LockDialect::Java),
            Some("go") => Some(LockDialect::Go),
            Some(other) => {
                return Err(invalid(format!("the dialect {other:?} is not known"))
                    .advise("use java or go, or none to share locks with leasehold only"));
            }
        };
        let config = Self {
            table: table.clone(),
            said: Said::by(url)?,
            dialect,
            sort_key: url.option("sort_key").map(str::to_owned),
            settings: Settings::of(url)?,
        };
        config.check()?;
        Ok(config)
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !(3..=255).contains(&self.table.len()) || !self.table.bytes().all(is_plain) {
            return Err(
                invalid(format!("{:?} is not the name of a table", self.table))
                    .advise("use 3 to 255 letters, digits, dots, dashes and underscores"),
            );
        }
        if self.sort_key.is_some() && self.dialect.is_none() {
            return Err(invalid("a sort key is for tables of other lock clients")
                .advise("add dialect=java or dialect=go"));
        }
        self.settings.check()
    }

    /// Shares locks with the lock client of another language.
    #[must_use]
    pub fn dialect(mut self, dialect: LockDialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// The value of the sort key, if the table of the other lock client has one.
    #[must_use]
    pub fn sort_key(mut self, value: impl Into<String>) -> Self {
        self.sort_key = Some(value.into());
        self
    }

    aws_setters!();

    /// Looks for credentials and for the table, and makes it if there is none. [`Locks::new`](crate::Locks::new) makes locks of the engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if a name, a time, a region or an endpoint cannot be used; `Denied` without credentials or rights; `EngineUnfit` if
    /// the table is not one for locks; `Unreachable`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a new table behind.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        let location = self.location();
        let connected = self.open().await;
        let items = connected.map_err(|error| error.during("connect", location))?;
        let engine = CasEngine::new(Arc::new(items.0), items.1, Clock::machine());
        Ok(Arc::new(engine))
    }

    async fn open(self) -> Result<(Items, Settings)> {
        self.check()?;
        let place = Place::of(&self.said, "DYNAMODB", self.settings.timeout, &ThisProcess)?;
        let host = format!("dynamodb.{}.{}", place.region, place.domain());
        let client = Client::new(&place, &host)?;
        let (settings, location) = (self.settings, self.location());
        let found: Table = table::find(&client, &self).await?;
        Ok((Items::new(client, self, found, location), settings))
    }

    /// A URL for messages.
    pub(super) fn location(&self) -> String {
        let dialect = self.dialect.map(|dialect| match dialect {
            LockDialect::Java => "java",
            LockDialect::Go => "go",
        });
        let more = [("dialect", dialect), ("sort_key", self.sort_key.as_deref())];
        self.said.location("dynamodb", &self.table, &more)
    }
}
