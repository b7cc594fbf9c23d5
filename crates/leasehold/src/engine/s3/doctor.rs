//! What a bucket's settings mean for locks.

use super::client::Client;
use super::failure::elements;
use super::keys::Keys;
use super::probe;
use crate::engine::doctor::Finding;
use crate::error::ErrorKind;

pub(super) async fn findings(client: &Client, keys: &Keys) -> Vec<Finding> {
    let conditions = match probe::conditions_hold(client, keys).await {
        Ok(()) => Finding::good("conditions", "conditional writes are honoured"),
        Err(error) if error.kind() == ErrorKind::EngineUnfit => Finding::refused(&error),
        Err(error) => Finding::unknown("conditions", error.what()),
    };
    let versioning = client.setting("versioning").await.ok().flatten();
    let lifecycle = client.setting("lifecycle").await.ok();
    vec![
        conditions,
        Finding::of("versioning", versioning, |told| versions(&told)),
        Finding::of("lifecycle", lifecycle, |told| {
            expiry(&told.unwrap_or_default(), &keys.beginning(""))
        }),
    ]
}

fn versions(told: &str) -> Finding {
    match elements(told, "Status").next() {
        Some("Enabled") => Finding::warning("versioning", "enabled")
            .means("every renewal leaves a version of the object behind, and each costs")
            .fix("suspend it for this bucket, or let a lifecycle rule delete noncurrent versions after a day"),
        _ => Finding::good("versioning", "off"),
    }
}

/// A rule that ends objects of ours takes the last token of a lock with it.
fn expiry(told: &str, ours: &str) -> Finding {
    let ends_ours = |rule: &&str| {
        let is_on = elements(rule, "Status").any(|status| status == "Enabled");
        let prefix = elements(rule, "Prefix").next().unwrap_or_default();
        is_on
            && elements(rule, "Expiration").next().is_some()
            && (ours.starts_with(prefix) || prefix.starts_with(ours))
    };
    let rules = elements(told, "Rule").filter(ends_ours).count();
    match rules {
        0 => Finding::good("lifecycle", "no rule deletes locks"),
        _ => Finding::efficiency(
            "lifecycle",
            format!("{rules} rule(s) that delete objects of ours"),
        )
        .means("a lock that is deleted is free although it is held, and its tokens begin anew")
        .fix(format!(
            "leave the prefix {ours:?} out of the rules that expire objects"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn a_rule_on_our_prefix_deletes_locks() {
        let rule = |prefix: &str, status: &str, what: &str| {
            let told = format!(
                "<LifecycleConfiguration><Rule><ID>x</ID><Filter><Prefix>{prefix}</Prefix></Filter>\
                 <Status>{status}</Status><{what}><Days>1</Days></{what}></Rule></LifecycleConfiguration>"
            );
            expiry(&told, "app/lock/").weight
        };
        assert_eq!(rule("", "Enabled", "Expiration"), Weight::Efficiency);
        assert_eq!(rule("app/", "Enabled", "Expiration"), Weight::Efficiency);
        assert_eq!(rule("app/", "Disabled", "Expiration"), Weight::Good);
        assert_eq!(rule("logs/", "Enabled", "Expiration"), Weight::Good);
        assert_eq!(
            rule("", "Enabled", "NoncurrentVersionExpiration"),
            Weight::Good
        );
        assert_eq!(expiry("", "app/lock/").weight, Weight::Good);
    }
}
