//! What the nodes of a deployment mean for locks.

use std::collections::HashMap;

use futures_util::future::join_all;

use super::nodes::unreachable;
use super::{CONNECT, Redlock};
use crate::claim::Ttl;
use crate::engine::doctor::{self, Finding};
use crate::engine::redis::client::Client;
use crate::engine::redis::doctor::{Asked, of_server};
use crate::engine::redis::health::{self, Info};
use crate::error::Result;

pub(super) async fn findings(redlock: &Redlock, ttl: Ttl) -> Vec<Finding> {
    let members = &redlock.nodes.members;
    let asked = members.iter().map(async |member| {
        let asked = Asked {
            client: &member.client,
            prefix: &redlock.config.prefix,
            channel: &redlock.listener.channel,
        };
        member.in_time(CONNECT, of_node(asked, ttl)).await
    });
    let (mut each, mut runs, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (member, answer) in members.iter().zip(join_all(asked).await) {
        match answer {
            Ok((run, findings)) => {
                each.push((member.address.clone(), findings));
                runs.push((member.address.clone(), run));
            }
            Err(error) => failed.push(unreachable(&error)),
        }
    }
    let mut findings = vec![judge_number(members.len()), judge_runs(&runs)];
    findings.extend(doctor::together(each));
    findings.extend(failed);
    findings.push(redlock.config.cleartext());
    findings
}

async fn of_node(asked: Asked<'_>, ttl: Ttl) -> Result<(Option<String>, Vec<Finding>)> {
    let client: &Client = asked.client;
    let run = Info::ask(client).await?.get("run_id").map(str::to_owned);
    let mut findings = health::check(client, None).await?;
    findings.push(health::check_persistence(client).await?);
    findings.extend(of_server(&asked, ttl).await);
    Ok((run, findings))
}

fn judge_number(nodes: usize) -> Finding {
    let seen = format!("{nodes} node(s)");
    match nodes {
        0..3 => Finding::warning("nodes", seen)
            .means("no node may fail")
            .fix("use three or five"),
        _ if nodes.is_multiple_of(2) => Finding::warning("nodes", seen)
            .means("as many nodes may fail as with one less, and more can")
            .fix("use an odd number"),
        _ => Finding::good("nodes", seen),
    }
}

/// Each run of a server has an id of its own.
fn judge_runs(runs: &[(String, Option<String>)]) -> Finding {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for (address, run) in runs {
        let Some(run) = run else {
            return Finding::unknown(
                "independence",
                format!("{address} does not tell its run_id"),
            );
        };
        if let Some(other) = seen.insert(run, address) {
            return Finding::unfit(
                "independence",
                format!("{other} and {address} are one server"),
            )
            .means("one server votes twice: if it forgets a lock, another gets it")
            .fix("name servers of their own, on machines of their own");
        }
    }
    Finding::good("independence", "every node is a server of its own")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn three_or_five_are_good_numbers() {
        let weights = [1, 2, 3, 4, 5].map(|nodes| judge_number(nodes).weight);
        let (good, bad) = (Weight::Good, Weight::Warning);
        assert_eq!(weights, [bad, bad, good, bad, good]);
    }
}
