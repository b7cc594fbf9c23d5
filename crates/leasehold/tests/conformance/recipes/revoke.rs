//! Asking a holder to give a lock up.

use std::sync::Arc;
use std::time::Duration;

use leasehold::ErrorKind;

use crate::target::Target;

const TTL: Duration = Duration::from_secs(3);

pub(crate) async fn the_holder_hears_and_later_ones_do_not(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.request_revoke("revoke/none", "why").await);
    if made.is_none() {
        return;
    }
    let other = target.connect().await;
    let held = || locks.lock("revoke/a").ttl(TTL).acquire();
    let lease = held().await.unwrap();
    let listening = tokio::spawn({
        let view = lease.view();
        async move { view.revoke_requested().await }
    });
    let asked = other.request_revoke("revoke/a", "a deploy").await.unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].token, lease.token());
    let heard = listening.await.unwrap().unwrap();
    assert_eq!(
        (heard.reason.as_str(), heard.by.pid),
        ("a deploy", std::process::id())
    );
    assert!(lease.is_valid(), "nothing was taken away");
    // Whoever listens later hears of it too.
    assert_eq!(lease.revoke_requested().await.unwrap(), heard);

    lease.release().await.unwrap();
    let next = held().await.unwrap();
    let quiet = tokio::time::timeout(TTL / 2, next.revoke_requested()).await;
    assert!(
        quiet.is_err(),
        "what was asked of the last is not for the next"
    );
    other.force_release("revoke/a").await.unwrap();
    let lost = next.revoke_requested().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
}

pub(crate) async fn nobody_to_ask(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.request_revoke("revoke/free", "why").await);
    let Some(asked) = made else {
        let locks = target.connect().await;
        let lease = locks.lock("revoke/no-store").acquire().await.unwrap();
        let error = lease.revoke_requested().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        return;
    };
    assert_eq!(asked, []);
    let error = locks
        .request_revoke("revoke/free", "a\nb")
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}
