//! How many requests it takes, and how long.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::support::aws_server::AwsServer;
use crate::support::times::{ms, secs};
use leasehold::Locks;

async fn requests(locks: &Locks) -> u64 {
    locks.engine().about().requests.unwrap()
}

#[tokio::test]
async fn uncontended_cycle_takes_two_requests() {
    let server = AwsServer::ministack();
    let locks = Locks::connect(server.dynamodb("")).await.unwrap();
    for other in [
        locks.clone(),
        Locks::connect(server.dynamodb("")).await.unwrap(),
    ] {
        // Also the first of one who has never seen the lock.
        for _ in 0..3 {
            let before = requests(&other).await;
            let lease = other.lock("x").acquire().await.unwrap();
            lease.release().await.unwrap();
            assert_eq!(requests(&other).await - before, 2);
        }
    }
}

/// Each in a client of its own, as processes are.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_cost_what_the_documents_say() {
    let server = AwsServer::ministack();
    for waiters in [1, 10] {
        waiters_cost(&server, waiters, ms(200), secs(10)).await;
    }
    // At the default pace, a hundred keep this server busy: it answers so late on a busy machine that waiters count as dead.
    waiters_cost(&server, 100, secs(1), secs(60)).await;
}

const HAND_OVERS: usize = 5;

async fn waiters_cost(server: &AwsServer, waiters: usize, poll: Duration, waiter_ttl: Duration) {
    let options = format!(
        "&timeout=30s&poll={}ms&waiter_ttl={}s",
        poll.as_millis(),
        waiter_ttl.as_secs()
    );
    let connect = async || Locks::connect(server.dynamodb(&options)).await.unwrap();
    let name = format!("x{waiters}");
    let mut holder = connect().await;
    let mut held = holder.lock(&name).ttl(secs(300)).acquire().await.unwrap();
    // One after the other, so that it is known who is next; and some more for the hand-overs.
    let mut waiting: VecDeque<(Locks, _)> = VecDeque::new();
    // The sum over all of them.
    let counted = async |waiting: &VecDeque<(Locks, _)>| {
        let mut sum = 0;
        for (locks, _) in waiting {
            sum += requests(locks).await;
        }
        sum
    };
    // Each look comes after three quarters of the pace or more.
    let soonest = 0.75 * poll.as_secs_f64();
    for nth in 0..waiters + HAND_OVERS {
        let locks = connect().await;
        let request = locks.lock(&name).ttl(secs(300)).wait_forever();
        let task = tokio::spawn(request.acquire());
        waiting.push_back((locks, task));
        let is_queued = async {
            while holder.inspect(&name).await.unwrap().waiters.len() <= nth {
                tokio::time::sleep(ms(20)).await;
            }
        };
        tokio::time::timeout(secs(60), is_queued)
            .await
            .expect("it is queued");
        if nth + 1 == waiters {
            let (before, start) = (counted(&waiting).await, Instant::now());
            tokio::time::sleep(secs(10)).await;
            let rate = (counted(&waiting).await - before) as f64 / start.elapsed().as_secs_f64();
            println!("{waiters} waiters make {rate:.1} requests a second");
            // The nth looks n times less often than the first; each writes a sign of life now and then, and twice if another has written meanwhile.
            let looks = |nth: usize| 1.0 / (soonest * nth.min(10) as f64);
            let looks: f64 = (1..=waiters).map(looks).sum();
            let signs =
                3.0 / waiter_ttl.as_secs_f64() * waiters as f64 / (waiters as f64 / 20.0).max(1.0);
            assert!(rate <= looks + 2.0 * signs + 1.0, "{rate}");
        }
    }
    let (mut asked, mut looks, mut others) = (0, 0.0, 0);
    for _ in 0..HAND_OVERS {
        let (next, task) = waiting.pop_front().unwrap();
        let before = requests(&holder).await + requests(&next).await;
        let others_before = counted(&waiting).await;
        let start = Instant::now();
        held.release().await.unwrap();
        held = tokio::time::timeout(secs(60), task)
            .await
            .expect("it is handed over")
            .unwrap()
            .unwrap();
        looks += start.elapsed().as_secs_f64() / soonest + 1.0;
        asked += requests(&holder).await + requests(&next).await - before;
        others += counted(&waiting).await - others_before;
        holder = next;
    }
    let each = asked as f64 / HAND_OVERS as f64;
    println!(
        "{waiters} waiters: a hand-over takes {each:.1} requests of both sides, looks included"
    );
    // Whoever gave a sign of life meanwhile has changed the document: then a write of either side is refused and sent again. How many of their
    // requests were such writes is not known: one of five, at the most, where no look is late.
    let refused = 2.0 * others as f64 / 5.0;
    let most = 4.0 * HAND_OVERS as f64 + looks + refused;
    assert!(asked as f64 <= most, "{asked}, others {others}");
    // All at once they leave the queue, which is one document: a release in the middle of that may be refused too often.
    held.detach();
    for (_, task) in waiting {
        task.abort();
    }
}

/// For whoever waited: its TTL and a second.
#[tokio::test(flavor = "multi_thread")]
async fn dead_holder_is_replaced_within_its_ttl_and_a_second() {
    let server = AwsServer::ministack();
    let (one, other) = (
        Locks::connect(server.dynamodb("")).await.unwrap(),
        Locks::connect(server.dynamodb("")).await.unwrap(),
    );
    let ttl = ms(2000);
    let mut fastest = Duration::MAX;
    // On a busy machine one of them may be slow.
    for nth in 0..3 {
        let name = format!("x{nth}");
        let dead = one.lock(&name).ttl(ttl).acquire().await.unwrap();
        dead.detach();
        let start = Instant::now();
        let next = other
            .lock(&name)
            .ttl(secs(60))
            .wait(secs(30))
            .acquire()
            .await
            .unwrap();
        let took = start.elapsed();
        println!("a holder with a TTL of {ttl:?} was replaced after {took:?}");
        next.release().await.unwrap();
        fastest = fastest.min(took);
        if fastest < ttl + secs(1) {
            return;
        }
    }
    panic!("{fastest:?}");
}

/// Whoever trusts clocks need not wait for a TTL of its own; and no sooner than the clocks allow.
#[tokio::test(flavor = "multi_thread")]
async fn trusted_clocks_let_a_newcomer_in_at_first_sight() {
    let server = AwsServer::ministack();
    let connect = async |options: &str| Locks::connect(server.dynamodb(options)).await.unwrap();
    let holder = connect("").await;
    let (ttl, skew) = (secs(3), secs(2));
    let sent = Instant::now();
    let dead = holder.lock("x").ttl(ttl).acquire().await.unwrap();
    dead.detach();
    let start = Instant::now();
    let first = connect("&max_clock_skew=2s").await;
    assert!(first.warnings()[0].contains("max_clock_skew"));
    let taken = loop {
        // Each has never seen it before.
        let newcomer = connect("&max_clock_skew=2s").await;
        let before = start.elapsed();
        let attempt = newcomer.lock("x").ttl(secs(60)).try_acquire();
        if let Some(lease) = attempt.await.unwrap() {
            assert!(sent.elapsed() >= ttl + skew - ms(5), "{:?}", sent.elapsed());
            break lease;
        }
        assert!(before < ttl + skew + ms(1500), "{before:?}");
        let other = connect("").await;
        let attempt = other.lock("x").try_acquire();
        assert!(attempt.await.unwrap().is_none(), "without trust in clocks");
        tokio::time::sleep(ms(100)).await;
    };
    // A holder that lives is not disturbed.
    let newcomer = connect("&max_clock_skew=2s").await;
    assert!(newcomer.lock("x").try_acquire().await.unwrap().is_none());
    taken.release().await.unwrap();
}
