//! URLs, taken apart: the same on every engine. The [registry](crate::Registry) knows which schemes and options there are.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result};

/// The times that an option may give.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(86_400);
const IN_RANGE: &str = "give a time from 1ms to 1day";

/// The URL of an engine, in parts: `scheme:[//[user[:password]@]host[:port][,host[:port]…]][path][?option=value&…]`.
///
/// It prints without the password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineUrl {
    /// What stands before the first colon, in lower case.
    pub scheme: String,
    /// The user's name.
    pub user: Option<String>,
    /// The password. Never printed.
    pub password: Option<String>,
    /// `host`, `host:port` or `[::1]:port`, as given; [`servers`](Self::servers) checks them.
    pub hosts: Vec<String>,
    /// The path, percent-decoded, with its leading slash if it has one.
    pub path: String,
    /// The options, by name.
    pub(crate) options: BTreeMap<String, String>,
    /// The findings that the user knows of: the option `accept`.
    pub(crate) accepted: Vec<&'static str>,
    /// What a URL of this scheme looks like, for advice.
    pub(crate) example: &'static str,
}

/// A host and a port that a URL names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Server {
    /// A name or an address; that of IPv6 without its brackets.
    pub host: String,
    /// The port; that of the scheme if none is given.
    pub port: u16,
}

impl Server {
    #[allow(dead_code)] // not every engine has servers
    pub(crate) fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        Self { host, port }
    }
}

/// As in a URL: `host:port` or `[::1]:port`.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl EngineUrl {
    /// Takes a URL apart; its scheme and options may be unknown.
    pub(crate) fn split(url: &str) -> Result<Self> {
        let is_scheme = |scheme: &str| {
            let mut bytes = scheme.bytes();
            bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        };
        // What stands there instead may be a password: it is not shown.
        let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme))
        else {
            return Err(invalid("a URL starts with a scheme and a colon"));
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
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            user,
            password,
            hosts: hosts
                .split(',')
                .filter(|host| !host.is_empty())
                .map(str::to_owned)
                .collect(),
            path: decode(path)?,
            options: split_query(query.unwrap_or(""))?,
            accepted: Vec::new(),
            example: "",
        })
    }

    /// An option as text.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// An option as a time, such as `500ms` or `5s`; of a millisecond to a day.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        let Some(text) = self.option(name) else {
            return Ok(None);
        };
        let time = humantime::parse_duration(text).map_err(|cause| {
            invalid(format!("the option {name}={text} is not a time"))
                .advise("write it like 500ms, 5s or 1m")
                .caused_by(cause)
        })?;
        match (SHORTEST..=LONGEST).contains(&time) {
            true => Ok(Some(time)),
            false => {
                Err(invalid(format!("the option {name}={text} is out of range")).advise(IN_RANGE))
            }
        }
    }

    /// The same, if it is given: `time` is left as it is if not.
    #[allow(dead_code)] // not every engine has times
    pub(crate) fn set_duration(&self, name: &str, time: &mut Duration) -> Result<()> {
        if let Some(given) = self.duration(name)? {
            *time = given;
        }
        Ok(())
    }

    /// An option as a whole number.
    pub fn number(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = self.option(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            invalid(format!("the option {name}={text} is not a number"))
                .advise("give a whole number")
        })
    }

    /// The one server that it names.
    pub fn server(&self, default_port: u16) -> Result<Server> {
        match self.hosts.as_slice() {
            [host] => self.parse_server(host, default_port),
            _ => Err(self.invalid(format!("a {}: URL names one server", self.scheme))),
        }
    }

    /// All servers that it names: at least one, and none twice.
    pub fn servers(&self, default_port: u16) -> Result<Vec<Server>> {
        if self.hosts.is_empty() {
            return Err(self.invalid(format!("a {}: URL names its servers", self.scheme)));
        }
        let parse = |host: &String| self.parse_server(host, default_port);
        let servers: Vec<_> = self.hosts.iter().map(parse).collect::<Result<_>>()?;
        let mut seen = HashSet::new();
        match servers.iter().find(|server| !seen.insert(*server)) {
            Some(twice) => Err(self.invalid(format!("the server {twice} is named twice"))),
            None => Ok(servers),
        }
    }

    /// A server that is named elsewhere in the URL, such as in an option.
    pub fn parse_server(&self, text: &str, default_port: u16) -> Result<Server> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let host = match host.strip_prefix('[') {
            Some(address) => address.strip_suffix(']').unwrap_or(""),
            None => host,
        };
        if host.is_empty() || host.contains(['[', ']', '/', ' ']) {
            return Err(self.invalid(format!("{text:?} is not a host")));
        }
        if text.matches(':').count() > 1 && !text.starts_with('[') {
            return Err(self.invalid(format!("{text:?} has an address without brackets")));
        }
        let port = match port {
            None => default_port,
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(self.invalid(format!("{port:?} is not a port"))),
            },
        };
        Ok(Server {
            host: host.to_owned(),
            port,
        })
    }

    /// The error for a URL that says something impossible, with an example of one that does not.
    pub(crate) fn invalid(&self, what: impl Into<String>) -> Error {
        invalid(what).advise(format!("write {}", self.example))
    }
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
        Err(cause) => Err(invalid("the URL is not UTF-8 when decoded")
            .advise("percent-encode it as UTF-8")
            .caused_by(cause)),
    }
}

/// A password with a `/` or `?` in it would be taken for something else, and shown. So would one that is given again
/// for each host. An `@` in a path or an option is percent-encoded where there are no credentials.
fn refuse_raw_credentials(rest: &str) -> Result<()> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Ok(());
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    let stray = match authority.rsplit_once('@') {
        Some((credentials, _)) => credentials.contains('@') && credentials.contains(','),
        None if authority.is_empty() => false,
        None => after.contains('@'),
    };
    match stray {
        true => Err(invalid("the user or the password cannot be told from the rest")
            .advise("give them once, before the first host, and percent-encode what is neither letter nor digit: %2F for /, %3F for ?, %40 for @")),
        false => Ok(()),
    }
}

/// The times of a configuration must be those that a URL could give: with none, every request would end before it is answered, and sums
/// of longer ones could overflow.
#[allow(dead_code)] // not every engine has times
pub(crate) fn check_times(times: &[(&str, Duration)]) -> Result<()> {
    let fits = |time: &Duration| (SHORTEST..=LONGEST).contains(time);
    let Some((name, time)) = times.iter().find(|(_, time)| !fits(time)) else {
        return Ok(());
    };
    let what = match time.is_zero() {
        true => format!("{name} is zero"),
        false => format!("{name} is out of range"),
    };
    Err(invalid(what).advise(IN_RANGE))
}

pub(crate) fn invalid(what: impl Into<String>) -> Error {
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
            let is_secret = name.ends_with("password") || name == "token";
            let value = if is_secret { "***" } else { value };
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
                url: "x://h/a?my_password=s3cret",
                prints: "x://h/a?my_password=***",
                hosts: &["h"],
                path: "/a",
            },
            Row {
                url: "x://:s3cr%3At@h/2",
                prints: "x://:***@h/2",
                hosts: &["h"],
                path: "/2",
            },
        ];
        for row in table {
            let url = EngineUrl::split(row.url).unwrap();
            assert_eq!(url.to_string(), row.prints);
            assert_eq!(
                (url.hosts.as_slice(), url.path.as_str()),
                (
                    &row.hosts.iter().map(|h| h.to_string()).collect::<Vec<_>>()[..],
                    row.path
                )
            );
        }
        let url = EngineUrl::split("x://me:s%40crt@h").unwrap();
        assert_eq!(
            (url.user.as_deref(), url.password.as_deref()),
            (Some("me"), Some("s@crt"))
        );
    }

    #[test]
    fn servers_of_a_url() {
        let url = EngineUrl::split("x://h,h:1,[::1],[::1]:2,1.2.3.4").unwrap();
        let servers: Vec<_> = url.servers(7).unwrap();
        let texts: Vec<_> = servers.iter().map(Server::to_string).collect();
        assert_eq!(texts, ["h:7", "h:1", "[::1]:7", "[::1]:2", "1.2.3.4:7"]);
        assert_eq!(servers[2].host, "::1");
        for bad in [
            "", "h,h", "h:7,i,h", "h:0", "h:x", ":1", "[::1", "::1", "a b",
        ] {
            let url = EngineUrl::split(&format!("x://{bad}")).unwrap();
            assert!(url.servers(7).is_err(), "{bad}");
        }
        assert!(url.server(7).is_err());
    }

    #[test]
    fn options_as_times_and_numbers() {
        let url = EngineUrl::split("x:?a=5s&b=0s&c=2days&d=soon&e=1ms&n=7&m=-7").unwrap();
        assert_eq!(url.duration("a").unwrap(), Some(Duration::from_secs(5)));
        assert_eq!(url.duration("e").unwrap(), Some(Duration::from_millis(1)));
        assert_eq!(url.duration("none").unwrap(), None);
        for bad in ["b", "c", "d"] {
            assert!(url.duration(bad).is_err(), "{bad}");
        }
        assert_eq!(
            (url.number("n").unwrap(), url.number("none").unwrap()),
            (Some(7), None)
        );
        assert!(url.number("m").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic_or_print_a_password(text in "\\PC{0,40}", password in "[A-Z]{8}") {
            let _ = EngineUrl::split(&text);
            let url = format!("x://me:{password}@host/{text}");
            if let Ok(url) = EngineUrl::split(&url) && !text.contains(&password) && !text.contains('@') {
                prop_assert!(!url.to_string().contains(&password));
                let debug = format!("{url:?}");
                prop_assert!(!debug.contains(&password));
            }
        }
    }
}
