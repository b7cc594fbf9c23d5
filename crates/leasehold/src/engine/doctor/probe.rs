//! Checks that need nothing but the contract: real locks, of a name that nobody else has.

use std::time::{Duration, Instant};

use humantime::format_duration;

use super::{Finding, in_millis};
use crate::claim::{Claim, ClaimId, Ttl};
use crate::engine::{Attempt, Engine, Grant};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;

/// How often a lock is acquired and released to measure round trips; less often if that takes longer than [`MEASURED`].
const ROUNDS: u32 = 20;
const MEASURED: Duration = Duration::from_secs(2);

/// The TTL of the lock that is left to expire.
const SHORT: Duration = Duration::from_secs(1);

/// How much later than its TTL a lock may end. Generous, since this process or the server may stand still meanwhile.
const LATE: Duration = Duration::from_secs(5);

/// Before another attempt at a lock that is to expire.
const A_MOMENT: Duration = Duration::from_millis(50);

/// Acquires locks, lets one expire, and says what it saw.
pub(super) async fn probe(engine: &dyn Engine, ttl: Ttl) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = try_locks(engine, ttl, &mut findings).await {
        findings.push(failed(&error));
    }
    findings
}

fn failed(error: &Error) -> Finding {
    let finding = match error.kind() {
        // A server may deny just the name of this lock.
        ErrorKind::Unreachable | ErrorKind::Denied => Finding::warning("exclusion", error.what()),
        // Such as a TTL that is longer than the URL allows.
        ErrorKind::InvalidConfig => Finding::unknown("exclusion", error.what()),
        _ => Finding::unfit("exclusion", error.what()),
    };
    finding
        .means("a lock could not be acquired and released")
        .fix(error.advice().unwrap_or_default())
}

async fn try_locks(engine: &dyn Engine, ttl: Ttl, findings: &mut Vec<Finding>) -> Result<()> {
    let first = claim(ttl)?;
    let second = Claim {
        id: ClaimId::random()?,
        ..first.clone()
    };
    let tried = exclusion(engine, &first, &second, findings).await;
    // Whatever has become of them.
    let _ = engine.release(&first).await;
    let _ = engine.release(&second).await;
    if tried? {
        findings.push(round_trip(engine, ttl).await?);
        findings.push(expiry(engine).await?);
    }
    Ok(())
}

/// A claim on a lock of a name that nobody else has.
fn claim(ttl: Ttl) -> Result<Claim> {
    // A claim id is a secret; a name is not, so it is made of another.
    let name = format!("leasehold-doctor/{:016x}", ClaimId::random()?.seed());
    let mut claim = Claim::new(LockName::new(name)?, ClaimId::random()?);
    claim.ttl = ttl;
    claim.reason = Some("leasehold doctor tries whether locks hold".into());
    Ok(claim)
}

async fn attempt(engine: &dyn Engine, claim: &Claim) -> Result<Option<Grant>> {
    match engine.try_acquire(claim).await {
        Ok(Attempt::Granted(grant)) => Ok(Some(grant)),
        Ok(Attempt::Held(_)) => Ok(None),
        Err(error) => {
            let _ = engine.release(claim).await;
            Err(error)
        }
    }
}

/// Returns whether locks can be had.
async fn exclusion(
    engine: &dyn Engine,
    first: &Claim,
    second: &Claim,
    findings: &mut Vec<Finding>,
) -> Result<bool> {
    let begun = Instant::now();
    let held = match engine.try_acquire(first).await? {
        Attempt::Granted(grant) => grant,
        Attempt::Held(contention) => {
            let why = contention.because;
            let why = why.unwrap_or_else(|| "nobody holds it, but it was refused".to_owned());
            findings.push(Finding::unknown("exclusion", why));
            return Ok(false);
        }
    };
    let refused = attempt(engine, second).await?.is_none();
    engine.release(first).await?;
    // The first may have expired if this process stood still.
    if !refused && begun.elapsed() < first.ttl.validity() {
        findings.push(
            Finding::unfit("exclusion", "a lock was granted that another claim holds")
                .means("two hold a lock at once")
                .fix("use another engine, and report this as a bug of leasehold"),
        );
        return Ok(false);
    }
    let next = attempt(engine, second).await?;
    engine.release(second).await?;
    findings.push(match next {
        Some(next) if next.token > held.token => Finding::good(
            "exclusion",
            "a second claim was refused, and then got a greater token",
        ),
        Some(_) => Finding::unfit("exclusion", "the next holder's token is not greater")
            .means("a resource that checks tokens refuses the next holder, or accepts the last one")
            .fix("report this as a bug of leasehold"),
        None => Finding::unknown("exclusion", "the lock was not free after its release"),
    });
    Ok(true)
}

async fn round_trip(engine: &dyn Engine, ttl: Ttl) -> Result<Finding> {
    let claim = claim(ttl)?;
    let (begun, mut slowest, mut requests) = (Instant::now(), Duration::ZERO, 0);
    for _ in 0..ROUNDS {
        for is_release in [false, true] {
            let sent = Instant::now();
            match is_release {
                false => drop(attempt(engine, &claim).await?),
                true => drop(engine.release(&claim).await?),
            }
            slowest = slowest.max(sent.elapsed());
            requests += 1;
        }
        if begun.elapsed() > MEASURED {
            break;
        }
    }
    Ok(judge_round_trip(slowest, requests, ttl.get()))
}

fn judge_round_trip(slowest: Duration, requests: u32, ttl: Duration) -> Finding {
    let shown = match slowest < Duration::from_millis(1) {
        true => Duration::from_micros(slowest.as_micros() as u64),
        false => in_millis(slowest),
    };
    let seen = format!(
        "the slowest of {requests} requests took {}, at a TTL of {}",
        format_duration(shown),
        format_duration(ttl)
    );
    if slowest <= ttl / 10 {
        return Finding::good("round_trip", seen);
    }
    Finding::warning("round_trip", seen)
        .means("renewals may come too late, and leases be lost")
        .fix(format!(
            "use a TTL of {} or more (--ttl), or a store that is nearer",
            format_duration(Duration::from_secs((slowest * 10).as_secs() + 1))
        ))
}

async fn expiry(engine: &dyn Engine) -> Result<Finding> {
    let first = claim(Ttl::new(SHORT)?)?;
    let second = Claim {
        id: ClaimId::random()?,
        ..first.clone()
    };
    let begun = Instant::now();
    if attempt(engine, &first).await?.is_none() {
        return Ok(Finding::unknown(
            "expiry",
            "a lock that is free was refused",
        ));
    }
    let granted = loop {
        let granted = attempt(engine, &second).await;
        if !matches!(granted, Ok(None)) || begun.elapsed() > 2 * SHORT + LATE {
            break granted;
        }
        tokio::time::sleep(A_MOMENT).await;
    };
    let took = begun.elapsed();
    let _ = engine.release(&second).await;
    let _ = engine.release(&first).await;
    Ok(judge_expiry(granted?.is_some(), took, first.ttl))
}

/// `took` includes both requests, so a lock that was granted before its validity was over was surely granted too early.
fn judge_expiry(granted: bool, took: Duration, ttl: Ttl) -> Finding {
    let (after, ttl_is) = (format_duration(in_millis(took)), format_duration(ttl.get()));
    if !granted {
        return Finding::warning(
            "expiry",
            format!("not after {after}, with a TTL of {ttl_is}"),
        )
        .means("a lock whose holder has died does not end")
        .fix("report this as a bug of leasehold");
    }
    let seen = format!("a lock with a TTL of {ttl_is} was free after {after}");
    match took < ttl.validity() {
        true => Finding::unfit("expiry", seen)
            .means("locks end while their holders still rely on them")
            .fix("see whether the clock of the server runs too fast"),
        false => Finding::good("expiry", seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;
    use crate::engine::memory::Memory;

    #[tokio::test]
    async fn a_good_engine_passes_and_nothing_is_left() {
        let memory = Memory::default();
        let findings = probe(&memory, Ttl::DEFAULT).await;
        let ids: Vec<_> = findings.iter().map(|finding| finding.id).collect();
        assert_eq!(ids, ["exclusion", "round_trip", "expiry"]);
        assert!(
            findings
                .iter()
                .all(|finding| finding.weight == Weight::Good),
            "{findings:?}"
        );
        let all = crate::engine::Query::Prefix(String::new());
        assert!(memory.inspect(&all).await.unwrap().is_empty());
    }

    #[test]
    fn round_trips_are_judged_by_the_ttl() {
        let (fast, slow) = (Duration::from_millis(3), Duration::from_millis(600));
        let ttl = Duration::from_secs(5);
        assert_eq!(judge_round_trip(fast, 40, ttl).weight, Weight::Good);
        let finding = judge_round_trip(slow, 40, ttl);
        assert_eq!(finding.weight, Weight::Warning);
        assert!(finding.fix.contains("7s"), "{finding}");
    }

    #[test]
    fn a_lock_ends_neither_early_nor_never() {
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        for (granted, millis, weight) in [
            (true, 1_020, Weight::Good),
            (true, 4_000, Weight::Good),
            (true, 400, Weight::Unfit),
            (false, 7_000, Weight::Warning),
        ] {
            let finding = judge_expiry(granted, Duration::from_millis(millis), ttl);
            assert_eq!(finding.weight, weight, "{finding}");
        }
    }
}
