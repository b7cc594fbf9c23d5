//! URLs: pure parsing, then connecting. An unknown scheme or option is an error that lists the
//! known ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::engine::{DRIVERS, Driver, Engine};
use crate::error::{Error, ErrorKind, Result};
use crate::observe;

/// The URL of an engine, in parts: `scheme:[//[user[:password]@]host[:port][,host[:port]…]][path][?option=value&…]`.
///
/// It prints without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct EngineUrl {
    /// What stands before the first colon, in lower case.
    pub scheme: String,
    /// The user's name.
    pub user: Option<String>,
    /// The password. Never printed.
    pub password: Option<String>,
    /// `host`, `host:port` or `[::1]:port`, as given.
    pub hosts: Vec<String>,
    /// The path, percent-decoded, with its leading slash if it has one.
    pub path: String,
    /// The options, each allowed by the driver.
    options: BTreeMap<String, String>,
}

impl EngineUrl {
    /// Takes a URL apart and checks its scheme and the names of its options against what is compiled in.
    pub fn parse(url: &str) -> Result<Self> {
        let (parsed, options) = Self::split(url)?;
        let driver = parsed.driver()?;
        for name in options.keys() {
            if !driver.options.iter().any(|(known, _)| known == name) {
                return Err(unknown_option(&parsed.scheme, name, driver));
            }
        }
        Ok(Self { options, ..parsed })
    }

    fn split(url: &str) -> Result<(Self, BTreeMap<String, String>)> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(invalid("a URL starts with a scheme and a colon".to_owned())
                .advise(format!("the known schemes are {}", known_schemes())));
        };
        refuse_raw_credentials(rest)?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or((c, ""))) {
            Some((user, password)) => (
                Some(decode(user)?).filter(|user| !user.is_empty()),
                Some(decode(password)?).filter(|password| !password.is_empty()),
            ),
            None => (None, None),
        };
        let parsed = Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts: hosts
                .split(',')
                .filter(|host| !host.is_empty())
                .map(str::to_owned)
                .collect(),
            path: decode(path)?,
            options: BTreeMap::new(),
        };
        Ok((parsed, split_query(query.unwrap_or(""))?))
    }

    fn driver(&self) -> Result<&'static Driver> {
        DRIVERS
            .iter()
            .find(|driver| driver.schemes.contains(&self.scheme.as_str()))
            .ok_or_else(|| {
                invalid(format!("there is no engine for {:?} URLs", self.scheme)).advise(format!(
                    "the known schemes are {}; others may need a cargo feature",
                    known_schemes()
                ))
            })
    }

    /// An option as text.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// An option as a time, such as `500ms` or `5s`.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.option(name) else {
            return Ok(None);
        };
        humantime::parse_duration(text).map(Some).map_err(|cause| {
            invalid(format!("the option {name}={text} is not a time"))
                .advise("write it like 500ms, 5s or 1m")
                .caused_by(cause)
        })
    }
}

/// Connects to whatever the URL names.
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Engine>> {
    let url = EngineUrl::parse(url)?;
    let driver = url.driver()?;
    let engine = (driver.connect)(url).await?;
    observe::warnings(&*engine);
    Ok(engine)
}

/// `memory:, sqlite:`
pub(crate) fn known_schemes() -> String {
    let schemes = DRIVERS.iter().flat_map(|driver| driver.schemes);
    schemes
        .map(|scheme| format!("{scheme}:"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn split_query(query: &str) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            invalid(format!("the option {pair:?} has no value")).advise("write it as name=value")
        })?;
        if options.insert(decode(name)?, decode(value)?).is_some() {
            return Err(
                invalid(format!("the option {name:?} is given twice")).advise("give it once")
            );
        }
    }
    Ok(options)
}

fn decode(text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(cause) => Err(invalid("the URL is not UTF-8 when decoded".to_owned())
            .advise("percent-encode it as UTF-8")
            .caused_by(cause)),
    }
}

/// A password with a `/` or `?` in it would be taken for something else, and shown. So would one that is given again
/// for each host.
fn refuse_raw_credentials(rest: &str) -> Result<()> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Ok(());
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    let path = after.split('?').next().unwrap_or_default();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let no_ports = authority
        .split(',')
        .filter_map(|host| host.rsplit_once(':'))
        .any(|(_, port)| !is_port(port) && !port.ends_with(']'));
    let stray = match authority.rsplit_once('@') {
        Some((credentials, _)) => credentials.contains('@') && credentials.contains(','),
        None if authority.is_empty() => false,
        None => path.contains('@') || (no_ports && after.contains('@')),
    };
    match stray {
        true => Err(invalid("the user or the password cannot be told from the rest".to_owned())
            .advise("give them once, before the first host, and percent-encode what is neither letter nor digit: %2F for /, %3F for ?, %40 for @")),
        false => Ok(()),
    }
}

fn unknown_option(scheme: &str, name: &str, driver: &Driver) -> Error {
    let known: Vec<_> = driver
        .options
        .iter()
        .map(|(name, meaning)| format!("{name} ({meaning})"))
        .collect();
    invalid(format!("{scheme}: URLs have no option {name:?}")).advise(match known.as_slice() {
        [] => "they have no options at all".to_owned(),
        known => format!("the known ones are {}", known.join(", ")),
    })
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if !self.hosts.is_empty() {
            f.write_str("//")?;
            if self.user.is_some() || self.password.is_some() {
                write!(f, "{}", self.user.as_deref().unwrap_or(""))?;
                write!(f, "{}@", self.password.as_ref().map_or("", |_| ":***"))?;
            }
            f.write_str(&self.hosts.join(","))?;
        }
        f.write_str(&self.path)?;
        for (nth, (name, value)) in self.options.iter().enumerate() {
            write!(f, "{}{name}={value}", if nth == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_of_a_url() {
        struct Row {
            url: &'static str,
            prints: &'static str,
            hosts: &'static [&'static str],
            path: &'static str,
        }
        let table = [
            Row {
                url: "memory:",
                prints: "memory:",
                hosts: &[],
                path: "",
            },
            Row {
                url: "sqlite:",
                prints: "sqlite:",
                hosts: &[],
                path: "",
            },
            Row {
                url: "SQLite:locks.db",
                prints: "sqlite:locks.db",
                hosts: &[],
                path: "locks.db",
            },
            Row {
                url: "sqlite:/a%20b/c.db",
                prints: "sqlite:/a b/c.db",
                hosts: &[],
                path: "/a b/c.db",
            },
            Row {
                url: "sqlite:///a/b.db",
                prints: "sqlite:/a/b.db",
                hosts: &[],
                path: "/a/b.db",
            },
            Row {
                url: "x://h1:1,h2:2,[::1]:3/root",
                prints: "x://h1:1,h2:2,[::1]:3/root",
                hosts: &["h1:1", "h2:2", "[::1]:3"],
                path: "/root",
            },
            Row {
                url: "x://me:s%40crt@h",
                prints: "x://me:***@h",
                hosts: &["h"],
                path: "",
            },
            Row {
                url: "x://:s3cr%3At@h/2",
                prints: "x://:***@h/2",
                hosts: &["h"],
                path: "/2",
            },
        ];
        for row in table {
            let (url, _) = EngineUrl::split(row.url).unwrap();
            assert_eq!(url.to_string(), row.prints);
            assert_eq!(
                (url.hosts.as_slice(), url.path.as_str()),
                (
                    &row.hosts.iter().map(|h| h.to_string()).collect::<Vec<_>>()[..],
                    row.path
                )
            );
        }
        let (url, _) = EngineUrl::split("x://me:s%40crt@h").unwrap();
        assert_eq!(
            (url.user.as_deref(), url.password.as_deref()),
            (Some("me"), Some("s@crt"))
        );
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        let table = [
            ("", "memory:"),
            ("nonsense", "memory:"),
            ("mysqlite:x", "memory:"),
            ("memory:?colour=red", "no options at all"),
            ("sqlite:a.db?timeout=1s", "busy_timeout"),
            ("sqlite:a.db?busy_timeout", "name=value"),
            (
                "sqlite:a.db?busy_timeout=1s&busy_timeout=2s",
                "give it once",
            ),
            ("sqlite:%ff", "UTF-8"),
        ];
        for (url, advice) in table {
            let error = EngineUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(error.advice().unwrap().contains(advice), "{url}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic_or_print_a_password(text in "\\PC{0,40}", password in "[A-Z]{8}") {
            let _ = EngineUrl::parse(&text);
            let url = format!("x://me:{password}@host/{text}");
            if let Ok((url, _)) = EngineUrl::split(&url) && !text.contains(&password) && !text.contains('@') {
                prop_assert!(!url.to_string().contains(&password));
                let debug = format!("{url:?}");
                prop_assert!(!debug.contains(&password));
            }
        }
    }
}
