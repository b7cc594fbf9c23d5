//! Log-ins and leases: they are made again when they have to be, and nothing of them stays behind.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::Future;
use std::pin::pin;
use std::time::Instant;

use crate::support::bad_input::PASSWORD;
use crate::support::claim;
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::proxy::Proxy;
use crate::support::times::{ms, secs, until};
use leasehold::engine::{Attempt, Renew, Renewal};
use leasehold::{Claim, Effect, LeaseState, Locks, Ttl};

/// An operator who changes users may well do that. The password is right all the time.
#[tokio::test(flavor = "multi_thread")]
async fn authentication_that_is_switched_off_and_on_ends_nobody() {
    let cluster = EtcdCluster::start(3);
    let root = format!("root:{PASSWORD}");
    cluster.etcdctl(&["user", "add", &root]);
    cluster.etcdctl(&["user", "grant-role", "root", "root"]);
    cluster.etcdctl(&["auth", "enable"]);
    let as_root = |arguments: &[&str]| {
        let credentials = ["--user", &root];
        cluster.etcdctl(&[arguments, &credentials].concat())
    };
    let url = cluster.url().replace("etcd://", &format!("etcd://{root}@"));
    let holder = Locks::connect(&url).await.unwrap();
    let held = holder.lock("x").ttl(secs(3)).acquire().await.unwrap();
    let waiter = Locks::connect(&url).await.unwrap();
    let next = tokio::spawn(waiter.lock("x").ttl(secs(3)).wait(secs(60)).acquire());
    until("it waits", async || {
        holder.inspect("x").await.unwrap().waiters.len() == 1
    })
    .await;
    for _ in 0..2 {
        as_root(&["auth", "disable"]);
        // Through renewals.
        tokio::time::sleep(secs(3)).await;
        assert_eq!(held.state(), LeaseState::Held, "while it is off");
        // Something new is begun meanwhile.
        let other = Locks::connect(&url).await.unwrap();
        let warnings = other.warnings().join(" ");
        assert!(
            warnings.contains("does not ask for passwords"),
            "{warnings}"
        );
        cluster.etcdctl(&["auth", "enable"]);
        let brief = other.lock("y").acquire().await.unwrap();
        brief.release().await.unwrap();
        tokio::time::sleep(secs(4)).await;
        assert!(held.is_valid(), "after it is on again: {:?}", held.state());
        assert!(!next.is_finished(), "it goes on waiting");
    }
    // The watch for this one would be refused with the old login: it is opened with the new one, and does not ask all the time.
    let last = tokio::spawn(waiter.lock("x").wait(secs(60)).acquire());
    until("both wait", async || {
        holder.inspect("x").await.unwrap().waiters.len() == 2
    })
    .await;
    let sent = || waiter.engine().about().requests.unwrap();
    let before = sent();
    tokio::time::sleep(secs(3)).await;
    let in_three_seconds = sent() - before;
    assert!(in_three_seconds < 40, "{in_three_seconds} requests");
    let (token, released) = (held.token(), Instant::now());
    held.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    println!("handed over after {:?}", released.elapsed());
    assert!(next.token() > token);
    tokio::time::sleep(secs(2)).await;
    assert_eq!(next.state(), LeaseState::Held);
    next.release().await.unwrap();
    let released = Instant::now();
    let last = last.await.unwrap().unwrap();
    assert!(released.elapsed() < secs(5), "{:?}", released.elapsed());
    last.release().await.unwrap();
}

/// etcd takes no transaction that writes a key twice.
#[tokio::test(flavor = "multi_thread")]
async fn claim_twice_in_a_batch_is_renewed_with_the_others() {
    let cluster = EtcdCluster::start(1);
    let [first, second] = cluster.connect().await;
    let (twice, once) = (claim("twice", secs(5)), claim("once", secs(5)));
    for claim in [&twice, &once] {
        let attempt = first.engine().try_acquire(claim).await.unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)));
    }
    let with_ttl = |claim: &Claim, ttl| {
        let mut claim = claim.clone();
        claim.ttl = Ttl::new(ttl).unwrap();
        claim
    };
    // By the process that took them, and by one that only knows their ids.
    for (locks, [short, long]) in [(&first, [20, 40]), (&second, [60, 80])] {
        let (short, long) = (secs(short), secs(long));
        let claims = [
            with_ttl(&twice, short),
            with_ttl(&once, short),
            with_ttl(&twice, long),
            with_ttl(&twice, short),
        ];
        let batch = claims.each_ref().map(Renew::new);
        let answers = locks.engine().renew(&batch).await;
        assert_eq!(answers.len(), batch.len());
        for (answer, renew) in answers.into_iter().zip(batch) {
            let Renewal::Renewed(grant) = answer.unwrap() else {
                panic!("{:?} is lost", renew.claim.name);
            };
            let left = grant.valid_until.since(locks.engine().about().clock.now());
            let least = renew.claim.ttl.get() / 2;
            assert!(left > least, "{:?}: {left:?}", renew.claim.name);
        }
    }
}

/// Whoever is told that nothing was done does not take it back.
#[tokio::test(flavor = "multi_thread")]
async fn attempt_failed_after_its_first_write_is_unknown() {
    let cluster = EtcdCluster::start(1);
    let [first] = cluster.connect().await;
    let mut cut_between = 0;
    // The answer to the write comes with the second poll or the third.
    for (round, nth) in [2, 3, 2, 3, 2, 3].into_iter().enumerate() {
        let network = Proxy::to(cluster.client_port(0)).await;
        let url = format!("etcd://127.0.0.1:{}?timeout=1s", network.port);
        let locks = Locks::connect(url).await.unwrap();
        let engine = locks.engine();
        // It has a lease for the claim.
        let other = locks.lock("y").ttl(secs(60)).acquire().await.unwrap();
        other.release().await.unwrap();
        // The claim is in the queue, and this client does not know that.
        let claim = claim(&format!("x{round}"), secs(60));
        let attempt = first.engine().try_acquire(&claim).await.unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)));
        let written =
            || cluster.metric("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\"");
        let before = written();
        let mut has_written = false;
        let (mut polls, mut network) = (0, Some(network));
        let mut again = pin!(engine.try_acquire(&claim));
        let again = std::future::poll_fn(|context| {
            polls += 1;
            if polls == nth {
                // From now on nobody listens there.
                network = None;
                // Until the client has seen that, on other threads: what it sends then never leaves.
                std::thread::sleep(ms(200));
                has_written = written() > before;
            }
            again.as_mut().poll(context)
        })
        .await;
        if let Err(error) = again
            && has_written
        {
            cut_between += 1;
            assert_eq!(error.effect(), Effect::Unknown, "{nth}: {error}");
        }
    }
    assert!(cut_between > 0);
}

fn leases(cluster: &EtcdCluster) -> usize {
    let listed = cluster.etcdctl(&["lease", "list"]);
    listed
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .count()
}

/// Not a lease that lives for another hour, nor a key under it.
#[tokio::test(flavor = "multi_thread")]
async fn who_ends_leaves_no_lease_behind() {
    let cluster = EtcdCluster::start(1);
    let hour = secs(3600);
    let [locks, other] = cluster.connect().await;
    for round in 0..3 {
        let held = locks.lock("x").ttl(hour).acquire().await.unwrap();
        let next = tokio::spawn(locks.lock("x").ttl(hour).wait(secs(20)).acquire());
        until("it waits", async || {
            locks.inspect("x").await.unwrap().waiters.len() == 1
        })
        .await;
        until("there is a session", async || {
            cluster
                .keys("leasehold/")
                .iter()
                .any(|key| key.contains("session"))
        })
        .await;
        held.release().await.unwrap();
        next.await.unwrap().unwrap().release().await.unwrap();
        locks.flush().await;
        locks.engine().close().await;
        assert_eq!((cluster.keys(""), leases(&cluster)), (vec![], 0), "{round}");
    }
    // What is held is no leftover, nor is what has been left to its TTL.
    let held = other.lock("held").ttl(hour).acquire().await.unwrap();
    let left = other.lock("left").ttl(secs(1800)).acquire().await.unwrap();
    left.detach();
    other
        .lock("free")
        .ttl(secs(900))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    other.engine().close().await;
    assert_eq!(leases(&cluster), 2);
    held.renew().await.unwrap();
    assert!(locks.lock("left").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    // Without a word.
    drop((locks, other));
    until(
        "the last lease but that of what is left to its TTL ends",
        async || leases(&cluster) == 1,
    )
    .await;
    assert!(
        cluster
            .keys("leasehold/")
            .iter()
            .any(|key| key.contains("/left/"))
    );
}
