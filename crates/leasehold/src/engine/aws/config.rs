//! Regions and endpoints, as every AWS tool finds them.

use std::time::Duration;

use http::Uri;
use http::uri::{Authority, Scheme};

use crate::error::Result;
use crate::url::{EngineUrl, invalid};

/// An access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
}

/// Without the secret.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:***", self.id)
    }
}

impl Keys {
    /// Those of a URL.
    pub(crate) fn of(url: &EngineUrl) -> Result<Option<Self>> {
        match (&url.user, &url.password) {
            (None, None) => Ok(None),
            (Some(id), Some(secret)) => Ok(Some(Self {
                id: id.clone(),
                secret: secret.clone(),
            })),
            _ => Err(invalid("an access key and its secret go together").advise(
                "give both before the @, or none and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )),
        }
    }
}

/// Where a service is, and in which region its requests are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) region: String,
    /// One that was named; `None` for that of AWS.
    pub(crate) endpoint: Option<Endpoint>,
    /// How long one request may take.
    pub(crate) timeout: Duration,
    /// Keys that were given, instead of those that are found.
    pub(crate) keys: Option<Keys>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
}

/// What a URL or a program says of the place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) keys: Option<Keys>,
}

impl Said {
    pub(crate) fn by(url: &EngineUrl) -> Result<Self> {
        Ok(Self {
            region: url.option("region").map(str::to_owned),
            endpoint: url.option("endpoint").map(str::to_owned),
            keys: Keys::of(url)?,
        })
    }

    /// For a URL in messages: what stands before the name, and the options behind it, of which there may be more.
    pub(crate) fn location(
        &self,
        scheme: &str,
        name: &str,
        more: &[(&str, Option<&str>)],
    ) -> String {
        let keys = self
            .keys
            .as_ref()
            .map_or(String::new(), |keys| format!("{keys:?}@"));
        let own = [
            ("region", self.region.as_deref()),
            ("endpoint", self.endpoint.as_deref()),
        ];
        let options = own
            .iter()
            .chain(more)
            .filter_map(|(option, value)| Some(format!("{option}={}", (*value)?)));
        let options: Vec<_> = options.collect();
        let ask = if options.is_empty() { "" } else { "?" };
        format!("{scheme}://{keys}{name}{ask}{}", options.join("&"))
    }
}

/// What configurations have in common that have `said` and `settings`.
macro_rules! aws_setters {
    () => {
        /// The region; by default AWS_REGION, or that of the profile.
        #[must_use]
        pub fn region(mut self, region: impl Into<String>) -> Self {
            self.said.region = Some(region.into());
            self
        }

        /// Another endpoint than that of AWS, such as `http://127.0.0.1:8000`.
        #[must_use]
        pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
            self.said.endpoint = Some(endpoint.into());
            self
        }

        /// Signs with this access key, instead of what is found as every AWS tool finds it.
        #[must_use]
        pub fn access_key(mut self, id: impl Into<String>, secret: impl Into<String>) -> Self {
            self.said.keys = Some(crate::engine::aws::config::Keys {
                id: id.into(),
                secret: secret.into(),
            });
            self
        }

        /// How often the first in a queue looks; 200 ms by default. The second looks half as often, and so on.
        #[must_use]
        pub fn poll(mut self, interval: std::time::Duration) -> Self {
            self.settings.poll = interval;
            self
        }

        /// For how long the place of a waiter is kept that gives no sign of life; 10 s by default.
        #[must_use]
        pub fn waiter_ttl(mut self, time: std::time::Duration) -> Self {
            self.settings.waiter_ttl = time;
            self
        }

        /// By how much the wall clocks of clients may differ. A dead holder's lock is then taken at first sight, instead of after a whole TTL on
        /// one's own clock; and if clocks differ by more, two may hold a lock.
        #[must_use]
        pub fn max_clock_skew(mut self, skew: std::time::Duration) -> Self {
            self.settings.max_clock_skew = Some(skew);
            self
        }

        /// How long one request may take; 5 s by default.
        #[must_use]
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.settings.timeout = timeout;
            self
        }
    };
}

/// Options of URLs: those that are the same with every service, and its own.
macro_rules! aws_options {
    ($($own:expr),* $(,)?) => {
        &[
            ("region", "else AWS_REGION or the profile's"),
            (
                "endpoint",
                "another endpoint than that of AWS, such as http://127.0.0.1:8000",
            ),
            $($own,)*
            ("poll", "how often the first in a queue looks, 200ms"),
            (
                "waiter_ttl",
                "for how long the place of a waiter is kept that gives no sign of life, 10s",
            ),
            (
                "max_clock_skew",
                "by how much clocks may differ: lets a dead holder's lock be taken at first sight",
            ),
            ("timeout", "how long one request may take, 5s"),
        ]
    };
}

pub(crate) use {aws_options, aws_setters};

/// Where values come from beside the URL.
pub(crate) trait Surroundings {
    fn variable(&self, name: &str) -> Option<String>;

    fn file(&self, path: &str) -> Option<String>;
}

/// This process's environment, and its user's files.
pub(crate) struct ThisProcess;

impl Surroundings for ThisProcess {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn file(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }
}

impl Place {
    /// What was said of it, and for what was not, what every AWS tool finds for this service (`DYNAMODB`, `S3`).
    pub(crate) fn of(
        said: &Said,
        service: &str,
        timeout: Duration,
        around: &impl Surroundings,
    ) -> Result<Self> {
        let endpoint = match &said.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => around
                .variable(&format!("AWS_ENDPOINT_URL_{service}"))
                .or_else(|| around.variable("AWS_ENDPOINT_URL")),
        };
        let endpoint = endpoint.map(|text| Endpoint::read(&text)).transpose()?;
        let region = said.region.clone();
        let region = region
            .or_else(|| around.variable("AWS_REGION"))
            .or_else(|| around.variable("AWS_DEFAULT_REGION"))
            .or_else(|| region_of_profile(around))
            // Others than AWS have no regions, and ask for one all the same.
            .or_else(|| endpoint.as_ref().map(|_| "us-east-1".to_owned()));
        let Some(region) = region else {
            return Err(invalid("no region is known")
                .advise("add region=eu-west-1 to the URL, or set AWS_REGION"));
        };
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if region.is_empty() || !region.bytes().all(is_plain) {
            return Err(
                invalid(format!("{region:?} is not a region")).advise("write it like eu-west-1")
            );
        }
        Ok(Self {
            region,
            endpoint,
            timeout,
            keys: said.keys.clone(),
        })
    }

    /// Under which domain AWS has this region.
    pub(crate) fn domain(&self) -> &'static str {
        match self.region.starts_with("cn-") {
            true => "amazonaws.com.cn",
            false => "amazonaws.com",
        }
    }
}

impl Endpoint {
    fn read(text: &str) -> Result<Self> {
        let wrong = || {
            invalid(format!("the endpoint {text:?} cannot be used"))
                .advise("write it like https://host or http://127.0.0.1:8000")
        };
        let parts = text
            .trim_end_matches('/')
            .parse::<Uri>()
            .map_err(|_| wrong())?;
        let parts = parts.into_parts();
        let has_path = parts.path_and_query.is_some_and(|path| path != "/");
        match (parts.scheme, parts.authority) {
            (Some(scheme), Some(authority))
                if !has_path
                    && [Scheme::HTTP, Scheme::HTTPS].contains(&scheme)
                    && !authority.as_str().contains('@') =>
            {
                Ok(Self { scheme, authority })
            }
            _ => Err(wrong()),
        }
    }

    /// One of AWS's own.
    pub(crate) fn https(host: &str) -> Result<Self> {
        Self::read(&format!("https://{host}"))
    }
}

/// What the user's configuration file says of the profile.
fn region_of_profile(around: &impl Surroundings) -> Option<String> {
    let file = around.variable("AWS_CONFIG_FILE").or_else(|| {
        let home = around
            .variable("HOME")
            .or_else(|| around.variable("USERPROFILE"))?;
        Some(format!("{home}/.aws/config"))
    })?;
    let profile = around
        .variable("AWS_PROFILE")
        .unwrap_or_else(|| "default".to_owned());
    let mut inside = false;
    for line in around.file(&file)?.lines().map(str::trim) {
        if let Some(section) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            let name = section.trim();
            let name = name.strip_prefix("profile ").unwrap_or(name);
            inside = name.trim() == profile;
        } else if inside
            && let Some((key, value)) = line.split_once('=')
            && key.trim() == "region"
        {
            return Some(value.trim().to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Pretended(HashMap<&'static str, &'static str>);

    impl Surroundings for Pretended {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).map(|value| value.to_string())
        }

        fn file(&self, path: &str) -> Option<String> {
            self.variable(path)
        }
    }

    fn place(query: &str, around: &[(&'static str, &'static str)]) -> Result<Place> {
        let url = EngineUrl::split(&format!("x://t?{query}")).unwrap();
        let around = Pretended(around.iter().copied().collect());
        Place::of(&Said::by(&url)?, "S3", Duration::from_secs(1), &around)
    }

    #[test]
    fn region_is_found_as_other_tools_find_it() {
        const FILE: &str = "[default]\nregion = a-1\n[profile two]\noutput=json\nregion=b-2\n";
        type Around = &'static [(&'static str, &'static str)];
        let table: [(&str, Around, Option<&str>); 7] = [
            ("region=c-3", &[("AWS_REGION", "d-4")], Some("c-3")),
            (
                "",
                &[("AWS_REGION", "d-4"), ("AWS_DEFAULT_REGION", "e-5")],
                Some("d-4"),
            ),
            ("", &[("AWS_DEFAULT_REGION", "e-5")], Some("e-5")),
            ("", &[("HOME", "/h"), ("/h/.aws/config", FILE)], Some("a-1")),
            (
                "",
                &[
                    ("AWS_CONFIG_FILE", "f"),
                    ("AWS_PROFILE", "two"),
                    ("f", FILE),
                ],
                Some("b-2"),
            ),
            ("endpoint=http://h:1", &[], Some("us-east-1")),
            ("", &[("HOME", "/h")], None),
        ];
        for (query, around, region) in table {
            let found = place(query, around);
            assert_eq!(
                found.ok().map(|place| place.region).as_deref(),
                region,
                "{query}"
            );
        }
    }

    #[test]
    fn bad_endpoints_and_regions_are_refused_with_advice() {
        for bad in [
            "endpoint=h:1",
            "endpoint=ftp://h",
            "endpoint=http://",
            "endpoint=http://h/path",
            "endpoint=http://me:secret%40h",
            "region=Europe&endpoint=http://h",
            "region=&endpoint=http://h",
            "region=a/b",
            "",
        ] {
            let error = place(bad, &[]).unwrap_err();
            assert!(error.advice().is_some(), "{bad}");
        }
        let named = place(
            "",
            &[
                ("AWS_ENDPOINT_URL", "https://h:1/"),
                ("AWS_ENDPOINT_URL_S3", "http://s3:2"),
            ],
        );
        assert_eq!(named.unwrap().endpoint.unwrap().authority, "s3:2");
    }
}
