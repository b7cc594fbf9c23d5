//! Asking the sentinels which server is the primary, and what to make of their answers.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, TlsCertificates};

use crate::engine::doctor::Finding;
use crate::engine::redis::config::{Endpoint, RedisConfig};
use crate::engine::redis::failure;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::url::{Server, invalid};

/// The sentinels that are asked for one primary.
pub(crate) struct Sentinels {
    service: String,
    each: Vec<Sentinel>,
    config: AsyncConnectionConfig,
    /// How to log in there, wherever it is.
    primary: Endpoint,
    tls: Option<TlsCertificates>,
}

impl std::fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinels").finish_non_exhaustive()
    }
}

struct Sentinel {
    address: String,
    client: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// What a sentinel says.
#[derive(Debug, Clone, PartialEq)]
enum Said {
    PrimaryIs(Server),
    /// It does not know the name, but these.
    Knows(Vec<String>),
}

type Told = (String, Result<Said>);

impl Sentinels {
    pub(super) fn open(
        service: String,
        sentinels: &[(String, Endpoint)],
        primary: &RedisConfig,
    ) -> Result<Self> {
        let tls = primary.tls.clone();
        let open = |(address, endpoint): &(String, Endpoint)| {
            Ok(Sentinel {
                address: address.clone(),
                client: endpoint.open(tls.as_ref())?,
                connection: Mutex::default(),
            })
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(primary.connect_timeout))
            .set_response_timeout(Some(primary.timeout.max(Duration::from_millis(1))));
        Ok(Self {
            service,
            each: sentinels.iter().map(open).collect::<Result<_>>()?,
            config,
            primary: primary.server.clone(),
            tls,
        })
    }

    /// The server that most of those name who answer. Does not wait for the others once a majority of all has.
    pub(crate) async fn primary(&self) -> Result<Server> {
        let mut asked: FuturesUnordered<_> = self.each.iter().map(|each| self.ask(each)).collect();
        let mut told = Vec::new();
        while let Some(answer) = asked.next().await {
            told.push(answer);
            if let Some((primary, votes)) = most_named(&told)
                && votes > self.each.len() / 2
            {
                return Ok(primary.clone());
            }
        }
        judge(&self.service, told)
    }

    /// A client for the server that they name.
    pub(crate) fn open_primary(&self, primary: &Server) -> Result<redis::Client> {
        self.primary.moved_to(primary).open(self.tls.as_ref())
    }

    /// What is wrong with some of them.
    pub(crate) async fn disagreements(&self) -> Vec<Finding> {
        let asked: FuturesUnordered<_> = self.each.iter().map(|each| self.ask(each)).collect();
        let told: Vec<Told> = asked.collect().await;
        let Some((primary, _)) = most_named(&told).map(|(primary, votes)| (primary.clone(), votes))
        else {
            return Vec::new();
        };
        let wrong = told.into_iter().filter_map(|(address, said)| {
            let wrong = match said {
                Ok(Said::PrimaryIs(other)) if other == primary => return None,
                Ok(Said::PrimaryIs(other)) => format!("it names {other}, the others {primary}"),
                Ok(Said::Knows(_)) => format!("it does not know {:?}", self.service),
                Err(error) => error.what().to_owned(),
            };
            Some(
                Finding::warning("sentinels", wrong)
                    .means("a sentinel is of no use, or of another mind")
                    .fix(format!("see SENTINEL MASTER {} there", self.service))
                    .at(format!("sentinel {address}")),
            )
        });
        let mut wrong: Vec<_> = wrong.collect();
        wrong.sort_by(|one, other| one.place.cmp(&other.place));
        wrong
    }

    /// What the first that tells says of the primary.
    pub(crate) async fn describe(&self) -> Option<BTreeMap<String, String>> {
        for sentinel in &self.each {
            let client = &sentinel.client;
            let connection = client.get_multiplexed_async_connection_with_config(&self.config);
            let Ok(mut connection) = connection.await else {
                continue;
            };
            let mut master = redis::cmd("SENTINEL");
            master.arg("master").arg(&self.service);
            if let Ok(told) = master.query_async(&mut connection).await {
                return Some(told);
            }
        }
        None
    }

    /// The error of connecting to the server that they name.
    pub(crate) fn not_there(&self, primary: &Server, error: Error) -> Error {
        if error.kind() != ErrorKind::Unreachable || error.is_busy() {
            return error.with_context(primary);
        }
        let what = format!(
            "the sentinels name {primary} as the primary of {:?}, which cannot be reached",
            self.service
        );
        Error::new(ErrorKind::Unreachable, what)
            .advise(
                "wait, if a failover is under way; if not, check that this address leads to it from here too \
                 (replica-announce-ip, sentinel announce-ip)",
            )
            .because_busy()
            .caused_by(error)
    }

    async fn ask(&self, sentinel: &Sentinel) -> Told {
        let address = sentinel.address.clone();
        let answer = self.answer_of(sentinel).await;
        (
            address,
            answer.map_err(|cause| describe(&sentinel.address, cause)),
        )
    }

    async fn answer_of(&self, sentinel: &Sentinel) -> RedisResult<Said> {
        let known = sentinel.connection.lock().take();
        if let Some(mut connection) = known
            && let Ok(said) = self.query(&mut connection).await
        {
            *sentinel.connection.lock() = Some(connection);
            return Ok(said);
        }
        let client = &sentinel.client;
        let connection = client.get_multiplexed_async_connection_with_config(&self.config);
        let mut connection = connection.await?;
        let said = self.query(&mut connection).await?;
        *sentinel.connection.lock() = Some(connection);
        Ok(said)
    }

    async fn query(&self, connection: &mut MultiplexedConnection) -> RedisResult<Said> {
        let mut who = redis::cmd("SENTINEL");
        who.arg("get-master-addr-by-name").arg(&self.service);
        let named: Option<(String, u16)> = who.query_async(connection).await?;
        if let Some((host, port)) = named {
            return Ok(Said::PrimaryIs(Server { host, port }));
        }
        // Only for the message.
        let mut all = redis::cmd("SENTINEL");
        let all: RedisResult<Vec<BTreeMap<String, String>>> =
            all.arg("masters").query_async(connection).await;
        let names = all.unwrap_or_default().into_iter();
        Ok(Said::Knows(
            names.filter_map(|mut each| each.remove("name")).collect(),
        ))
    }
}

/// The server that more of them name than any other, and how many do.
fn most_named(told: &[Told]) -> Option<(&Server, usize)> {
    let named = told.iter().filter_map(|(_, said)| match said {
        Ok(Said::PrimaryIs(server)) => Some(server),
        _ => None,
    });
    let votes = |server: &Server| named.clone().filter(|other| *other == server).count();
    named
        .clone()
        .map(|server| (server, votes(server)))
        .max_by_key(|(_, votes)| *votes)
}

fn judge(service: &str, told: Vec<Told>) -> Result<Server> {
    let answers = told
        .iter()
        .filter(|(_, said)| matches!(said, Ok(Said::PrimaryIs(_))));
    let answers = answers.count();
    match most_named(&told) {
        Some((primary, votes)) if 2 * votes > answers => Ok(primary.clone()),
        Some(_) => Err(disagree(service, &told)),
        None => Err(nobody_knows(service, told)),
    }
}

/// For a moment in the midst of a failover, too.
fn disagree(service: &str, told: &[Told]) -> Error {
    let mut named: Vec<_> = told
        .iter()
        .filter_map(|(address, said)| match said {
            Ok(Said::PrimaryIs(server)) => Some(format!("{address} names {server}")),
            _ => None,
        })
        .collect();
    named.sort();
    let what = format!(
        "the sentinels disagree on which server is the primary of {service:?}: {}",
        named.join(", ")
    );
    Error::new(ErrorKind::Unreachable, what)
        .advise(format!(
            "wait, if a failover is under way; if not, let all of them monitor the same server (SENTINEL MASTER {service})"
        ))
        .because_busy()
}

/// The most telling answer of those that there are.
fn nobody_knows(service: &str, told: Vec<Told>) -> Error {
    let mut known: Vec<String> = Vec::new();
    let mut failed = Vec::new();
    let mut asked = 0;
    for (_, said) in told {
        match said {
            Ok(Said::Knows(names)) => {
                asked += 1;
                known.extend(names);
            }
            Ok(Said::PrimaryIs(_)) => {}
            Err(error) => failed.push(error),
        }
    }
    if asked > 0 {
        known.sort();
        known.dedup();
        let advice = match known.as_slice() {
            [] => format!("let them monitor it (SENTINEL MONITOR {service} …)"),
            known => format!("write one that they know: {}", known.join(", ")),
        };
        return invalid(format!("the sentinels know no primary called {service:?}")).advise(advice);
    }
    failure::of_all(failed, "no sentinel answers")
}

fn describe(address: &str, cause: redis::RedisError) -> Error {
    if cause.to_string().contains("unknown command") {
        let what = format!("{address} is not a sentinel, but an ordinary server");
        let error = failure::unfit(what).advise(
            "name the sentinels, mostly on port 26379; for one server write redis://host:6379",
        );
        return failure::with_cause(error, cause);
    }
    let error = failure::of_connect(cause);
    match error.kind() {
        ErrorKind::Denied => error.with_context(format!("sentinel {address}")).advise(
            "give the sentinels' own user and password: ?sentinel_user=…&sentinel_password=…",
        ),
        _ => error.with_context(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(host: &str) -> Result<Said> {
        Ok(Said::PrimaryIs(Server {
            host: host.to_owned(),
            port: 1,
        }))
    }

    fn down() -> Result<Said> {
        Err(Error::new(ErrorKind::Unreachable, "gone"))
    }

    fn judged(said: Vec<Result<Said>>) -> Result<String> {
        let told = said.into_iter().enumerate();
        let told = told.map(|(nth, said)| (format!("s{nth}"), said));
        judge("main", told.collect()).map(|server| server.host)
    }

    #[test]
    fn the_server_that_most_of_those_name_who_answer() {
        let knows = || Ok(Said::Knows(vec!["other".to_owned()]));
        for (said, primary) in [
            (vec![names("a"), names("a"), names("b")], "a"),
            (vec![names("a"), down(), down()], "a"),
            (vec![knows(), names("a"), down()], "a"),
        ] {
            assert_eq!(judged(said).unwrap(), primary);
        }
    }

    #[test]
    fn what_cannot_be_decided_says_why() {
        let of = |kind| Err(Error::new(kind, "because"));
        let knows = || Ok(Said::Knows(vec!["other".to_owned()]));
        for (said, kind, says) in [
            (
                vec![names("a"), names("b")],
                ErrorKind::Unreachable,
                "disagree",
            ),
            (
                vec![names("a"), names("b"), down()],
                ErrorKind::Unreachable,
                "s0 names a:1",
            ),
            (vec![knows(), down()], ErrorKind::InvalidConfig, "\"main\""),
            (
                vec![down(), of(ErrorKind::Denied)],
                ErrorKind::Denied,
                "because",
            ),
            (
                vec![of(ErrorKind::EngineUnfit), down()],
                ErrorKind::EngineUnfit,
                "because",
            ),
            (vec![down(), down()], ErrorKind::Unreachable, "gone; gone"),
        ] {
            let error = judged(said).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.what().contains(says), "{error}");
        }
    }
}
