//! What a cluster's members and settings mean for locks.

use super::client::{Client, Haste, Refused, Reply};
use super::proto::{
    AlarmRequest, AlarmResponse, MemberListRequest, MemberListResponse, RangeRequest,
    StatusResponse,
};
use super::{Etcd, Version, failure};
use crate::engine::doctor::{self, Finding};

/// Past this share of its quota a cluster may soon refuse writes, in percent.
const FULL: i64 = 80;

/// A cluster that has not been compacted after so many revisions is not compacted by itself.
const UNCOMPACTED: i64 = 50_000;

const NOSPACE: i32 = 1;
const CORRUPT: i32 = 2;

pub(super) async fn findings(etcd: &Etcd) -> Vec<Finding> {
    let (client, config) = (&etcd.shared.client, &etcd.shared.config);
    let mut findings = etcd.found.clone();
    match client.status().await {
        Ok(Reply { message, .. }) => findings.extend([
            Finding::good("server", format!("etcd {}", message.version)),
            corruption(Version::read(&message.version)),
            quota(&message),
        ]),
        Err(_) => findings.push(Finding::unknown("settings", "the cluster does not answer")),
    }
    findings.extend([
        members(client).await,
        alarms(client).await,
        compaction(client).await,
        doctor::cleartext(config.hosts(), config.has_tls(), config.login.is_some()),
    ]);
    findings
}

fn corruption(version: Option<Version>) -> Finding {
    let broken = Version(3, 5, 0)..=Version(3, 5, 2);
    match version {
        Some(version) if broken.contains(&version) => {
            Finding::efficiency("corruption", "etcd 3.5.0 to 3.5.2")
                .means("members that are killed under load may disagree on what is stored")
                .fix("use etcd 3.5.4 or newer")
        }
        _ => Finding::good("corruption", "no version that is known for it"),
    }
}

fn quota(status: &StatusResponse) -> Finding {
    // Servers before 3.6 do not tell it.
    let quota = Some(status.db_size_quota).filter(|quota| *quota > 0);
    Finding::of("quota", quota, |quota| {
        let percent = status.db_size.saturating_mul(100) / quota;
        let seen = format!("{percent} % of the quota");
        match percent <= FULL {
            true => Finding::good("quota", seen),
            false => Finding::warning("quota", seen)
                .means("once it is full, locks can be neither acquired nor renewed")
                .fix("etcdctl compact, etcdctl defrag, and start the members with --auto-compaction-retention=1h"),
        }
    })
}

async fn members(client: &Client) -> Finding {
    let asked: Result<Reply<MemberListResponse>, _> = client
        .ask(
            "/etcdserverpb.Cluster/MemberList",
            MemberListRequest {},
            Haste::Patient,
        )
        .await;
    Finding::of("members", asked.ok(), |told| {
        let voters = told
            .message
            .members
            .iter()
            .filter(|member| !member.is_learner);
        judge_members(voters.count())
    })
}

fn judge_members(voters: usize) -> Finding {
    let seen = format!("{voters} voting member(s)");
    match voters {
        0..3 => Finding::warning("members", seen)
            .means("if a member fails, no lock can be acquired or renewed")
            .fix("use three or five (etcdctl member add)"),
        _ if voters.is_multiple_of(2) => Finding::warning("members", seen)
            .means("as many members may fail as with one less, and more can")
            .fix("use an odd number (etcdctl member add)"),
        _ => Finding::good("members", seen),
    }
}

async fn alarms(client: &Client) -> Finding {
    let asked: Result<Reply<AlarmResponse>, _> = client
        .ask(
            "/etcdserverpb.Maintenance/Alarm",
            AlarmRequest {},
            Haste::Patient,
        )
        .await;
    let Ok(Reply { message, .. }) = asked else {
        return Finding::unknown("alarms", "only root may ask");
    };
    let is_raised = |kind| message.alarms.iter().any(|alarm| alarm.alarm == kind);
    if is_raised(CORRUPT) {
        return Finding::unfit("alarms", "CORRUPT")
            .means("the members disagree on what is stored")
            .fix("see etcd's guide to data corruption");
    }
    if is_raised(NOSPACE) {
        return Finding::unfit("alarms", "NOSPACE")
            .means("the cluster takes no writes: locks can be neither acquired nor renewed")
            .fix("etcdctl compact, etcdctl defrag, etcdctl alarm disarm");
    }
    Finding::good("alarms", "none")
}

/// Each cycle of a lock leaves revisions. The first one can be read for as long as nobody has compacted the store.
async fn compaction(client: &Client) -> Finding {
    let first = RangeRequest {
        key: b"\0".to_vec(),
        limit: 1,
        keys_only: true,
        revision: 1,
        ..RangeRequest::default()
    };
    match client.range(first).await {
        Ok(reply) => {
            let revision = reply.message.header.map_or(0, |header| header.revision);
            judge_compaction(revision)
        }
        Err(Refused { said, .. }) if failure::is_compacted(&said) => {
            Finding::good("compaction", "old revisions have been compacted")
        }
        Err(_) => Finding::unknown("compaction", "the user may not read all keys"),
    }
}

fn judge_compaction(revision: i64) -> Finding {
    let seen = format!("none in {revision} revisions");
    match revision > UNCOMPACTED {
        true => Finding::warning("compaction", seen)
            .means("each use of a lock leaves revisions behind, until the quota is reached and no lock can be acquired")
            .fix("start the members with --auto-compaction-retention=1h"),
        false => Finding::unknown("compaction", seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn three_or_five_members_are_good_numbers() {
        let weights = [1, 2, 3, 4, 5].map(|members| judge_members(members).weight);
        let (good, bad) = (Weight::Good, Weight::Warning);
        assert_eq!(weights, [bad, bad, good, bad, good]);
    }

    #[test]
    fn a_young_cluster_need_not_have_been_compacted() {
        assert_eq!(judge_compaction(100).weight, Weight::Unknown);
        assert_eq!(judge_compaction(1_000_000).weight, Weight::Warning);
    }

    #[test]
    fn versions_that_corrupt_data() {
        for (version, weight) in [
            ("3.5.0", Weight::Efficiency),
            ("3.5.2", Weight::Efficiency),
            ("3.5.4", Weight::Good),
            ("3.4.30", Weight::Good),
        ] {
            assert_eq!(
                corruption(Version::read(version)).weight,
                weight,
                "{version}"
            );
        }
    }

    #[test]
    fn a_quota_that_is_not_told_is_unknown() {
        let status = |db_size, db_size_quota| StatusResponse {
            db_size,
            db_size_quota,
            ..StatusResponse::default()
        };
        assert_eq!(quota(&status(5, 0)).weight, Weight::Unknown);
        assert_eq!(quota(&status(5, 100)).weight, Weight::Good);
        assert_eq!(quota(&status(95, 100)).weight, Weight::Warning);
    }
}
