//! What the doctor finds.

use std::time::Duration;

use leasehold::engine::doctor::{Finding, Weight};
use leasehold::{Locks, Ttl};

/// All that it finds with this URL.
pub async fn findings(url: &str) -> Vec<Finding> {
    let locks = Locks::connect(url).await.unwrap();
    locks.engine().findings(Ttl::DEFAULT).await
}

/// The names of what is wrong, each once.
pub async fn wrong(url: &str) -> Vec<&'static str> {
    let mut ids: Vec<_> = findings(url)
        .await
        .iter()
        .filter(|finding| finding.is_bad())
        .map(|finding| finding.id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Waits until just this is wrong, and returns what is said of it. Some servers take a moment to adopt a setting.
pub async fn until_wrong(url: &str, ids: &[&str]) -> Vec<Finding> {
    let mut last = Vec::new();
    let what = format!("just {ids:?} is wrong");
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while std::time::Instant::now() < deadline {
        last = wrong(url).await;
        if last == ids {
            let mut findings = findings(url).await;
            findings.retain(Finding::is_bad);
            return findings;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}, not {last:?}");
}

/// How much the finding of this name matters.
pub async fn weight(url: &str, id: &str) -> Weight {
    let findings = findings(url).await;
    let found = findings.iter().find(|finding| finding.id == id);
    found
        .unwrap_or_else(|| panic!("no {id} in {findings:?}"))
        .weight
}
