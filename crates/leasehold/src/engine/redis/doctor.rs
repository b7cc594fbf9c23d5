//! What the settings of Redis servers mean for locks.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use humantime::format_duration;

use super::client::Client;
use super::health::{self, Info};
use super::sentinel::sentinels::Sentinels;
use super::servers::Servers;
use super::{Redis, one_slot};
use crate::claim::Ttl;
use crate::engine::doctor::{self, Finding};
use crate::error::Result;

/// Past this share of its memory a server may soon refuse writes, in percent.
const FULL: u64 = 90;

/// A hundred waiters that are woken at once are told within this many bytes.
const OUTPUT_BUFFER: u64 = 1024 * 1024;

/// What the engine needs of a user's rights, on one of its keys (K) and channels (C).
const COMMANDS: &[&str] = &[
    "BLPOP K 0",
    "CLIENT ID",
    "DEL K",
    "EVALSHA x 0",
    "EXISTS K",
    "GET K",
    "GETRANGE K 0 1",
    "HDEL K x",
    "HEXISTS K x",
    "HGET K x",
    "HGETALL K",
    "HMGET K x",
    "HSET K x x",
    "INFO",
    "PERSIST K",
    "PEXPIRE K 1",
    "PTTL K",
    "PUBLISH C x",
    "PUBSUB NUMSUB",
    "RPUSH K x",
    "SCAN 0",
    "SCRIPT EXISTS x",
    "SCRIPT LOAD x",
    "SET K x",
    "SUBSCRIBE C",
    "TIME",
    "TYPE K",
    "ZADD K 1 x",
    "ZCARD K",
    "ZINCRBY K 1 x",
    "ZRANDMEMBER K",
    "ZRANGE K 0 1",
    "ZRANGEBYSCORE K 0 1",
    "ZRANK K x",
    "ZREM K x",
    "ZREVRANGE K 0 1",
    "ZSCORE K x",
];

/// A server, as it is asked.
pub(crate) struct Asked<'a> {
    pub(crate) client: &'a Client,
    pub(crate) prefix: &'a str,
    pub(crate) channel: &'a str,
}

pub(super) async fn findings(redis: &Redis, ttl: Ttl) -> Vec<Finding> {
    let asked = |client| Asked {
        client,
        prefix: &redis.config.prefix,
        channel: &redis.listener.channel,
    };
    let mut findings = match &redis.servers {
        Servers::One(client) => {
            let checked = health::check(client, Some(redis.config.wait_replicas)).await;
            let mut findings = or_refused(checked);
            findings.extend(of_server(&asked(client), ttl).await);
            findings.extend(restart(client, redis.config.max_ttl).await);
            findings
        }
        Servers::Cluster(nodes) => {
            let mut findings = or_refused(nodes.check_primaries().await);
            let primaries = nodes.primaries().unwrap_or_default();
            let each = primaries.iter().map(async |(server, client)| {
                let mut found = of_server(&asked(client), ttl).await;
                found.extend(restart(client, Duration::ZERO).await);
                found.extend(of_node(client, ttl).await);
                (server.to_string(), found)
            });
            findings.extend(doctor::together(join_all(each).await));
            findings.extend(one_slot(&redis.keys, &redis.config));
            findings
        }
    };
    findings.push(redis.config.server.cleartext());
    if let Some(sentinels) = &redis.sentinels {
        findings.extend(of_sentinels(sentinels, ttl).await);
    }
    findings
}

/// It was fit when it was connected.
pub(crate) fn or_refused(checked: Result<Vec<Finding>>) -> Vec<Finding> {
    checked.unwrap_or_else(|error| vec![Finding::refused(&error)])
}

/// What matters on each server, alone or one of several.
pub(crate) async fn of_server(asked: &Asked<'_>, ttl: Ttl) -> Vec<Finding> {
    let Ok(info) = Info::ask(asked.client).await else {
        return vec![Finding::unknown("settings", "the server does not answer")];
    };
    let settings = Settings::ask(asked.client).await;
    vec![
        kind(&info),
        memory(&info),
        idle_timeout(&settings, ttl),
        output_buffer(&settings),
        rights(asked).await,
        clock(asked.client).await,
    ]
}

/// None if nobody may ask.
struct Settings(Option<HashMap<String, String>>);

impl Settings {
    async fn ask(client: &Client) -> Self {
        let mut get = redis::cmd("CONFIG");
        Self(client.send(get.arg("GET").arg("*")).await.ok())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.as_ref()?.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

fn kind(info: &Info) -> Finding {
    let version = info.get("redis_version").unwrap_or("?");
    if let Some(theirs) = info.get("dragonfly_version") {
        return Finding::unknown("server", format!("Dragonfly {theirs}: not tested"));
    }
    if info
        .get("executable")
        .is_some_and(|path| path.contains("keydb"))
    {
        return Finding::unknown("server", format!("KeyDB {version}: not tested"));
    }
    match info.get("valkey_version") {
        Some(theirs) => Finding::good("server", format!("Valkey {theirs}")),
        None => Finding::good("server", format!("Redis {version}")),
    }
}

fn memory(info: &Info) -> Finding {
    let memory = info.number("used_memory").zip(info.number("maxmemory"));
    Finding::of("memory", memory, |(used, limit)| {
        if limit == 0 {
            return Finding::good("memory", "maxmemory 0");
        }
        let percent = used.saturating_mul(100) / limit;
        let seen = format!("{percent} % of maxmemory");
        if percent <= FULL {
            return Finding::good("memory", seen);
        }
        Finding::warning("memory", seen)
            .means("once it is full, locks can be neither acquired nor renewed")
            .fix("free memory, or CONFIG SET maxmemory to more")
    })
}

fn idle_timeout(settings: &Settings, ttl: Ttl) -> Finding {
    Finding::of("idle_timeout", settings.number("timeout"), |seconds| {
        let seen = format!("timeout {seconds}");
        let renewed_every = ttl.get() / 3;
        match seconds == 0 || Duration::from_secs(seconds) > renewed_every {
            true => Finding::good("idle_timeout", seen),
            false => Finding::warning("idle_timeout", seen)
                .means(format!(
                    "the server closes connections between two renewals, which are {} apart: each needs a new one",
                    format_duration(renewed_every)
                ))
                .fix("CONFIG SET timeout 0"),
        }
    })
}

fn output_buffer(settings: &Settings) -> Finding {
    let limits = settings.get("client-output-buffer-limit");
    let hard = limits.and_then(|limits| {
        let mut words = limits.split_whitespace();
        words.find(|word| *word == "pubsub")?;
        words.next()?.parse::<u64>().ok()
    });
    Finding::of("output_buffer", hard, |bytes| {
        let seen = format!("client-output-buffer-limit pubsub {bytes}");
        match bytes == 0 || bytes >= OUTPUT_BUFFER {
            true => Finding::good("output_buffer", seen),
            false => Finding::warning("output_buffer", seen)
                .means("a process with many waiters is disconnected when they are woken")
                .fix("CONFIG SET client-output-buffer-limit \"pubsub 33554432 8388608 60\""),
        }
    })
}

/// Whether the user may do all that the engine does; on servers that tell, from Redis 7 on.
async fn rights(asked: &Asked<'_>) -> Finding {
    let mut who = redis::cmd("ACL");
    let user: Result<String> = asked.client.send(who.arg("WHOAMI")).await;
    let Ok(user) = user else {
        return Finding::unknown("rights", "the user may not ask (ACL WHOAMI)");
    };
    let key = format!("{}x", asked.prefix);
    let tried = COMMANDS.iter().map(async |command| {
        let mut dry_run = redis::cmd("ACL");
        dry_run.arg("DRYRUN").arg(&user);
        for word in command.split(' ') {
            dry_run.arg(match word {
                "K" => key.as_str(),
                "C" => asked.channel,
                word => word,
            });
        }
        let said: Result<String> = asked.client.send(&dry_run).await;
        (*command, said)
    });
    let mut missing = Vec::new();
    for (command, said) in join_all(tried).await {
        match said.as_deref() {
            Ok("OK") => {}
            Ok(_) => missing.push(command.split(' ').next().unwrap_or(command)),
            Err(_) => {
                return Finding::unknown(
                    "rights",
                    "the user may not ask, or the server is older than 7 (ACL DRYRUN)",
                );
            }
        }
    }
    if missing.is_empty() {
        return Finding::good(
            "rights",
            format!("the user {user:?} may do all that is needed"),
        );
    }
    missing.dedup();
    let commands: Vec<_> = missing
        .iter()
        .map(|command| format!("+{}", command.to_lowercase()))
        .collect();
    Finding::warning(
        "rights",
        format!("the user {user:?} may not use {}", missing.join(", ")),
    )
    .means("some operations on locks fail")
    .fix(format!(
        "ACL SETUSER {user} {} ~{prefix}* &{prefix}*",
        commands.join(" "),
        prefix = asked.prefix
    ))
}

async fn clock(client: &Client) -> Finding {
    let before = doctor::now();
    let said: Result<(u64, u64)> = client.send(&redis::cmd("TIME")).await;
    let said = said
        .ok()
        .map(|(seconds, micros)| seconds * 1_000_000 + micros);
    Finding::of("clock", said, |said| {
        doctor::clock_offset(before, said, doctor::now())
    })
}

/// What a restart forgets.
async fn restart(client: &Client, max_ttl: Duration) -> Option<Finding> {
    if !max_ttl.is_zero() {
        let seen = format!("max_ttl={}", format_duration(max_ttl));
        return Some(
            Finding::good("restart", seen).means("after a restart no lock is granted until then"),
        );
    }
    let info = Info::ask(client).await.ok()?;
    let settings = Settings::ask(client).await;
    let appends = match info.get("aof_enabled") {
        Some(flag) => Some(flag == "1"),
        None => settings.get("appendonly").map(|word| word == "yes"),
    };
    let forgets = |seen: String, means: &str| {
        Finding::warning("restart", seen)
            .means(means)
            .fix("CONFIG SET appendonly yes, and the same in redis.conf; or, with one server and without locks or periods that last longer, add ?max_ttl=1m to the URL")
    };
    Some(Finding::of("restart", appends, |appends| {
        if !appends {
            return match settings.get("save") {
                Some("") | None => {
                    forgets("appendonly no".to_owned(), "a restart forgets all locks")
                }
                Some(_) => forgets(
                    "appendonly no".to_owned(),
                    "a restart forgets locks that were granted since the last save",
                ),
            };
        }
        match settings.get("appendfsync") {
            Some("no") => forgets("appendfsync no".to_owned(), "a power cut forgets locks"),
            Some("always") => Finding::good("restart", "appendonly yes, appendfsync always"),
            _ => Finding::good("restart", "appendonly yes")
                .means("a power cut can forget the locks of the last two seconds"),
        }
    }))
}

/// What matters on a node of a cluster.
async fn of_node(client: &Client, ttl: Ttl) -> Vec<Finding> {
    let replicas = match Info::ask(client).await {
        Ok(info) => info.number("connected_slaves"),
        Err(_) => None,
    };
    let settings = Settings::ask(client).await;
    let stops_all = settings.get("cluster-require-full-coverage") == Some("yes");
    vec![
        Finding::of("failover", replicas, |replicas| {
            match replicas {
            0 => Finding::warning("failover", "a primary without replicas")
                .means(match stops_all {
                    true => "if it fails, no lock of the whole cluster can be had (cluster-require-full-coverage yes)",
                    false => "if it fails, its locks cannot be had",
                })
                .fix("redis-cli --cluster add-node … --cluster-slave"),
            _ => Finding::good("failover", "every primary has a replica"),
        }
        }),
        Finding::of(
            "failover_time",
            settings.number("cluster-node-timeout"),
            |millis| {
                let fix = "CONFIG SET cluster-node-timeout 5000, or use a longer TTL";
                failover_time("cluster-node-timeout", millis, ttl, fix)
            },
        ),
    ]
}

async fn of_sentinels(sentinels: &Sentinels, ttl: Ttl) -> Vec<Finding> {
    let mut findings = sentinels.disagreements().await;
    let told = sentinels.describe().await.unwrap_or_default();
    let number = |name: &str| told.get(name)?.parse::<u64>().ok();
    let name = told.get("name").map_or("NAME", String::as_str);
    let votes = number("num-other-sentinels").zip(number("quorum"));
    findings.push(Finding::of("quorum", votes, |(others, quorum)| {
        judge_quorum(others + 1, quorum, name)
    }));
    findings.push(Finding::of(
        "failover_time",
        number("down-after-milliseconds"),
        |millis| {
            let fix =
                format!("SENTINEL SET {name} down-after-milliseconds 5000, or use a longer TTL");
            failover_time("down-after-milliseconds", millis, ttl, &fix)
        },
    ));
    findings
}

fn judge_quorum(sentinels: u64, quorum: u64, name: &str) -> Finding {
    let seen = format!("{sentinels} sentinel(s), quorum {quorum}");
    if sentinels < 3 {
        return Finding::warning("quorum", seen)
            .means("without one of the sentinels there is no failover")
            .fix("let three or more sentinels monitor the primary");
    }
    match 2 * quorum > sentinels {
        true => Finding::good("quorum", seen),
        false => Finding::warning("quorum", seen)
            .means("a minority of the sentinels, cut off from the primary, starts failovers")
            .fix(format!("SENTINEL SET {name} quorum {}", sentinels / 2 + 1)),
    }
}

/// A lease is renewed at a third of its TTL: it survives a failover that takes up to half of it.
fn failover_time(setting: &str, millis: u64, ttl: Ttl, fix: &str) -> Finding {
    let seen = format!(
        "{setting} {millis}, at a TTL of {}",
        format_duration(ttl.get())
    );
    match Duration::from_millis(millis) <= ttl.get() / 2 {
        true => Finding::good("failover_time", seen),
        false => Finding::warning("failover_time", seen)
            .means("leases are lost before a failover is over")
            .fix(fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    fn settings(given: &[(&str, &str)]) -> Settings {
        let given = given.iter().copied();
        let owned = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Settings(Some(owned.collect()))
    }

    #[test]
    fn a_majority_of_three_sentinels_is_two() {
        for (sentinels, quorum, weight) in [
            (3, 2, Weight::Good),
            (5, 3, Weight::Good),
            (3, 1, Weight::Warning),
            (4, 2, Weight::Warning),
            (2, 2, Weight::Warning),
        ] {
            let finding = judge_quorum(sentinels, quorum, "mymaster");
            assert_eq!(finding.weight, weight, "{finding}");
        }
    }

    #[test]
    fn limits_of_listeners() {
        let limit = |bytes: &str| {
            let value = format!("normal 0 0 0 slave 268435456 67108864 60 pubsub {bytes} 0 0");
            output_buffer(&settings(&[("client-output-buffer-limit", &value)])).weight
        };
        assert_eq!(limit("33554432"), Weight::Good);
        assert_eq!(limit("0"), Weight::Good);
        assert_eq!(limit("65536"), Weight::Warning);
        assert_eq!(output_buffer(&Settings(None)).weight, Weight::Unknown);
    }
}
