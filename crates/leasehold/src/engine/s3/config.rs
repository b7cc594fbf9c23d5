//! Which bucket, and how it is used.

use std::sync::Arc;

use super::client::Client;
use super::keys::Keys;
use super::protocol::Objects;
use super::{DRIVER, probe};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::aws::config::{Place, Said, ThisProcess, aws_options, aws_setters};
use crate::engine::cas::config::Settings;
use crate::engine::cas::engine::CasEngine;
use crate::engine::config::by_url;
use crate::error::Result;
use crate::url::{EngineUrl, invalid};

/// The options of `s3:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = aws_options![];

/// How locks are kept on S3: in which bucket, and all that an `s3:` URL can say.
///
/// ```no_run
/// use leasehold::Locks;
/// use leasehold::engine::s3::S3Config;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = S3Config::new("bucket").prefix("locks").region("eu-west-1");
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: S3Config = "s3://bucket/locks?region=eu-west-1".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct S3Config {
    bucket: String,
    prefix: String,
    said: Said,
    settings: Settings,
}

by_url!(S3Config);

impl S3Config {
    /// Locks in this bucket.
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            prefix: String::new(),
            said: Said::default(),
            settings: Settings::default(),
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let [bucket] = url.hosts.as_slice() else {
            return Err(url.invalid("an s3: URL names one bucket"));
        };
        let config = Self {
            bucket: bucket.clone(),
            prefix: url.path.trim_matches('/').to_owned(),
            said: Said::by(url)?,
            settings: Settings::of(url)?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        if !(3..=63).contains(&self.bucket.len()) || !self.bucket.bytes().all(is_plain) {
            return Err(
                invalid(format!("{:?} is not the name of a bucket", self.bucket))
                    .advise("use 3 to 63 lower-case letters, digits, dots and dashes"),
            );
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        let is_dots = |part: &str| part.is_empty() || part.bytes().all(|byte| byte == b'.');
        let parts = self.prefix.split('/');
        let bad = !self.prefix.bytes().all(is_plain) || self.prefix.len() > 100;
        if !self.prefix.is_empty() && (bad || parts.into_iter().any(is_dots)) {
            return Err(
                invalid(format!("the prefix {:?} cannot be used", self.prefix))
                    .advise("use up to 100 letters, digits, dashes, underscores, dots and slashes"),
            );
        }
        self.settings.check()
    }

    /// What stands before the names of all objects.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.prefix = prefix.as_ref().trim_matches('/').to_owned();
        self
    }

    aws_setters!();

    /// Looks for credentials and the bucket, and probes whether it honours conditions. [`Locks::new`](crate::Locks::new) makes locks of the
    /// engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if a name, a time, a region or an endpoint cannot be used, or there is no such bucket; `Denied` without credentials or
    /// rights; `EngineUnfit` if the store writes although the condition of a write does not hold; `Unreachable`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the object behind that conditions are probed on.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        let location = self.location();
        let connected = self.open().await;
        let (objects, settings) = connected.map_err(|error| error.during("connect", location))?;
        let engine = CasEngine::new(Arc::new(objects), settings, Clock::machine());
        Ok(Arc::new(engine))
    }

    async fn open(self) -> Result<(Objects, Settings)> {
        self.check()?;
        let place = Place::of(&self.said, "S3", self.settings.timeout, &ThisProcess)?;
        let client = Client::new(&place, &self.bucket)?;
        let keys = Keys::under(&self.prefix);
        probe::conditions_hold(&client, &keys).await?;
        let location = self.location();
        Ok((Objects::new(client, keys, location), self.settings))
    }

    /// A URL for messages.
    fn location(&self) -> String {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        let name = format!("{}{slash}{}", self.bucket, self.prefix);
        self.said.location("s3", &name, &[])
    }
}
