//! Engines broken on purpose: a test that cannot fail is worthless, so each case of the suite names
//! saboteurs that it catches, and a test of the suite holds it to that.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::broken_records::BrokenRecords;
use crate::claim::{Claim, ClaimId, Mode, Ttl};
use crate::engine::{
    About, Attempt, Contention, Engine, Grant, LockInfo, LossReason, Query, Released, Renew,
    Renewal, WaiterInfo, Wake,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::{FencingToken, wall_clock_micros};

macro_rules! saboteurs {
    ($($(#[doc = $what:literal])* $name:ident,)*) => {
        /// A way of being broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Saboteur {
            $($(#[doc = $what])* $name,)*
        }

        impl Saboteur {
            /// All of them.
            pub const ALL: &[Saboteur] = &[$(Saboteur::$name,)*];
        }
    };
}

saboteurs! {
    /// Nothing is wrong: the control.
    Nobody,
    /// Nothing is wrong, but it has neither shared mode nor permits: another control.
    LacksModes,
    /// Says that it has neither shared mode nor permits, and grants them all the same.
    AcceptsWhatItLacks,
    /// Grants a lock that others hold.
    GrantsAlways,
    /// Grants a lock that others hold, now and then.
    GrantsSometimes,
    /// A second attempt of a holder gets another token.
    GrantsAnew,
    /// A claim keeps the mode that it asked for first, and is told that it has the last.
    KeepsTheFirstMode,
    /// Whoever does not want to queue is queued all the same.
    QueuesEverybody,
    /// Each attempt of a waiter takes another position.
    QueuesAnew,
    /// The queue is for show: whoever comes at the right moment gets the lock.
    HasNoQueue,
    /// A release does nothing, and says that it did.
    ReleaseDoesNothing,
    /// A release frees the lock, whoever holds it.
    ReleaseFreesAnybodys,
    /// A release of what is not held is an error.
    ReleaseFailsIfNotHeld,
    /// A release says that it was held, whatever was the case.
    ReleaseAlwaysSaysYes,
    /// A release leaves the queue entry.
    ReleaseLeavesGhosts,
    /// Breaking does nothing, and says that it did.
    BreakDoesNothing,
    /// Breaking says that something was held, whatever was the case.
    BreakAlwaysSaysYes,
    /// Breaking sends the waiters away.
    BreakDropsWaiters,
    /// Breaking one lock breaks all that its name matches as a pattern.
    BreakMatchesPatterns,
    /// A grant goes on for ever.
    NeverExpires,
    /// A grant ends after half of its TTL.
    ExpiresEarly,
    /// A renewal does nothing, and says that it did.
    RenewDoesNothing,
    /// A renewal says that it succeeded, whatever was the case.
    RenewAlwaysSaysRenewed,
    /// A renewal of what has expired takes the lock again.
    RenewTakesTheLock,
    /// A renewal says that the lock is lost, whatever is the case.
    RenewSaysLost,
    /// A renewal releases the lock.
    RenewReleases,
    /// A renewal for less than the time left shortens the lock.
    RenewShortens,
    /// A renewal never shortens the lock, not even the last one of `hold_at_least`.
    RenewNeverShortens,
    /// Validity is counted from when the reply arrives.
    CountsFromTheReply,
    /// Waiters are not woken.
    NeverWakes,
    /// Every grant has the same token.
    TokensRepeat,
    /// Each grant has a lower token than the one before.
    TokensFall,
    /// Tokens start from 1 when the store does.
    TokensRestart,
    /// All readers of a lock have the same token.
    ReadersShareAToken,
    /// Shared mode is exclusive.
    SharedIsExclusive,
    /// There is one permit more than was said.
    OnePermitTooMany,
    /// Whatever number of permits was said, there are 3.
    PermitsAreThree,
    /// Upper and lower case are the same.
    NamesLowerCase,
    /// The 255th byte of a name is lost.
    NamesTruncated,
    /// Anything unusual in a name becomes an underscore.
    NamesFlattened,
    /// Spaces around a name are lost.
    NamesTrimmed,
    /// A name ends at its first slash.
    NamesCutAtSlash,
    /// A combining accent is put together with its letter.
    NamesComposed,
    /// Waiters are not shown.
    InspectMissesWaiters,
    /// The first claim that was seen is shown instead of who is there.
    InspectMixesUpClaimants,
    /// Reasons are not shown.
    InspectForgetsReasons,
    /// Ages are not shown.
    InspectKnowsNoAges,
    /// Claim ids are shown.
    InspectShowsClaimIds,
    /// Some characters of a prefix match anything.
    InspectMatchesPatterns,
    /// Names are shown as they are stored.
    InspectEscapesNames,
    /// Locks are shown in no order.
    InspectHasNoOrder,
    /// Records that nobody wrote are there.
    RecordsAppear,
    /// After a while records are said to be written, and are not.
    RecordsVanish,
    /// The last byte of a value is lost.
    RecordsAreCut,
    /// A write leaves the version as it was.
    VersionsStandStill,
    /// Any token may write.
    RecordsIgnoreTokens,
    /// A holder may write only once.
    RecordsRefuseEqualTokens,
    /// Any version will do.
    RecordsIgnoreVersions,
    /// Tokens of any lock will do.
    RecordsIgnoreLocks,
    /// Upper and lower case are the same in keys.
    RecordsMixUpKeys,
    /// What recipes and fences keep is under keys that users can have too.
    RecordsAreReachable,
    /// A deletion does nothing, and says that it did.
    DeletionsDoNothing,
    /// With a record its token is forgotten.
    DeletionsForgetTokens,
    /// What was deleted cannot be written anew.
    DeletionsAreForEver,
    /// The versions of a record that was deleted begin with 1 again.
    VersionsComeBack,
    /// Whatever its lifetime, a record stays.
    LifetimesNeverEnd,
    /// A later write does not change the lifetime.
    LifetimesStick,
}

impl fmt::Display for Saboteur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Saboteur {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|how| how.to_string() == name);
        found.copied().ok_or(format!("no saboteur {name:?}"))
    }
}

/// A broken engine, made of one that works.
#[derive(Debug)]
pub struct Sabotaged {
    inner: Arc<dyn Engine>,
    how: Saboteur,
    memory: Arc<Memory>,
}

/// What all clients of a broken store remember.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    granted: HashSet<ClaimId>,
    queued: HashMap<ClaimId, Claim>,
    modes: HashMap<ClaimId, Mode>,
    first_token: Option<u64>,
    readers: HashMap<LockName, FencingToken>,
}

use Saboteur as Is;

impl Sabotaged {
    /// Breaks an engine. Clients of one store share what they remember.
    pub fn new(inner: Arc<dyn Engine>, how: Saboteur, memory: Arc<Memory>) -> Self {
        Self { inner, how, memory }
    }

    fn bend_name(&self, name: &LockName) -> LockName {
        let text = name.as_str();
        let bent = match self.how {
            Is::NamesLowerCase => text.to_lowercase(),
            Is::NamesTruncated => {
                let whole = |end: &usize| *end < 255 && text.is_char_boundary(*end);
                let end = (0..=text.len()).rev().find(whole).unwrap_or(0);
                text[..end].to_owned()
            }
            Is::NamesFlattened => text.replace(
                |c: char| !(c.is_ascii_alphanumeric() || "/ ".contains(c)),
                "_",
            ),
            Is::NamesTrimmed => text.trim().to_owned(),
            Is::NamesCutAtSlash => text.split('/').next().unwrap_or(text).to_owned(),
            Is::NamesComposed => text.replace("e\u{301}", "\u{e9}"),
            _ => return name.clone(),
        };
        LockName::new(bent).unwrap_or_else(|_| name.clone())
    }

    fn bend(&self, claim: &Claim) -> Claim {
        let mut bent = claim.clone();
        bent.name = self.bend_name(&claim.name);
        match (self.how, claim.mode) {
            (Is::ExpiresEarly, _) => {
                bent.ttl = Ttl::new(claim.ttl.get() / 2).unwrap_or(claim.ttl);
            }
            (Is::NeverExpires, _) => bent.ttl = Ttl::MAX,
            (Is::KeepsTheFirstMode, mode) => {
                let mut memory = self.memory.0.lock();
                bent.mode = *memory.modes.entry(claim.id).or_insert(mode);
            }
            (Is::HasNoQueue, _) => bent.queues = false,
            (Is::QueuesEverybody, _) => bent.queues = true,
            (Is::SharedIsExclusive, Mode::Shared) => bent.mode = Mode::Exclusive,
            (Is::OnePermitTooMany, Mode::Permit { of }) => bent.mode = Mode::Permit { of: of + 1 },
            (Is::PermitsAreThree, Mode::Permit { .. }) => bent.mode = Mode::Permit { of: 3 },
            _ => {}
        }
        bent
    }

    fn bend_token(&self, claim: &Claim, token: FencingToken) -> FencingToken {
        let number = match self.how {
            Is::TokensRepeat => 1,
            Is::TokensFall => FencingToken::MAX.get() - token.get(),
            Is::TokensRestart => {
                let first = *self.memory.0.lock().first_token.get_or_insert(token.get());
                token.get() - first + 1
            }
            Is::ReadersShareAToken if claim.mode == Mode::Shared => {
                let mut memory = self.memory.0.lock();
                let first = memory.readers.entry(claim.name.clone()).or_insert(token);
                first.get()
            }
            _ => token.get(),
        };
        FencingToken::new(number).unwrap_or(token)
    }

    fn bend_grant(&self, claim: &Claim, grant: Grant) -> Grant {
        let valid_until = match self.how {
            Is::ExpiresEarly | Is::CountsFromTheReply => {
                self.inner.about().clock.now() + claim.ttl.validity()
            }
            Is::NeverExpires => grant.valid_until - (Ttl::MAX.validity() - claim.ttl.validity()),
            _ => grant.valid_until,
        };
        Grant {
            token: self.bend_token(claim, grant.token),
            valid_until,
        }
    }

    fn invented(&self, claim: &Claim, token: Option<FencingToken>) -> Grant {
        let now = FencingToken::new(wall_clock_micros()).unwrap_or(FencingToken::MAX);
        Grant {
            token: token.unwrap_or(now),
            valid_until: self.inner.about().clock.now() + claim.ttl.validity(),
        }
    }

    fn granted(&self, claim: &Claim, grant: Grant) -> Grant {
        let mut grant = self.bend_grant(claim, grant);
        let first = {
            let mut memory = self.memory.0.lock();
            memory.queued.remove(&claim.id);
            memory.granted.insert(claim.id)
        };
        if self.how == Is::GrantsAnew && !first {
            grant = self.invented(claim, None);
        }
        grant
    }

    fn lacks_modes(&self) -> bool {
        matches!(self.how, Is::LacksModes | Is::AcceptsWhatItLacks)
    }
}

fn waiter(claim: &Claim) -> WaiterInfo {
    WaiterInfo {
        claimant: (*claim.claimant).clone(),
        reason: None,
        mode: claim.mode,
        waited_for: Duration::ZERO,
    }
}

#[async_trait]
impl Engine for Sabotaged {
    fn about(&self) -> About {
        let mut about = self.inner.about();
        about.capabilities.shared &= !self.lacks_modes();
        about.capabilities.permits &= !self.lacks_modes();
        about
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        if self.how == Is::LacksModes && claim.mode != Mode::Exclusive {
            return Err(Error::new(ErrorKind::Unsupported, "no such mode"));
        }
        if self.how == Is::CountsFromTheReply {
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        let queued = self.memory.0.lock().queued.contains_key(&claim.id);
        if self.how == Is::QueuesAnew && queued {
            let id = ClaimId::random()?;
            let another = Claim {
                id,
                ..claim.clone()
            };
            self.inner.try_acquire(&another).await?;
        }
        let attempt = self.inner.try_acquire(&self.bend(claim)).await?;
        let contention = match attempt {
            Attempt::Granted(grant) => return Ok(Attempt::Granted(self.granted(claim, grant))),
            Attempt::Held(contention) => contention,
        };
        let lets_in = match self.how {
            Is::GrantsAlways => true,
            Is::GrantsSometimes => fastrand::u8(..4) == 0,
            _ => false,
        };
        if lets_in {
            return Ok(Attempt::Granted(self.invented(claim, None)));
        }
        if claim.queues {
            self.memory.0.lock().queued.insert(claim.id, claim.clone());
        }
        Ok(Attempt::Held(Contention {
            look_again_in: match self.how {
                Is::HasNoQueue => Some(Duration::from_millis(fastrand::u64(5..50))),
                _ => contention.look_again_in,
            },
            ..contention
        }))
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake> {
        if matches!(self.how, Is::NeverWakes | Is::HasNoQueue) {
            return std::future::pending().await;
        }
        Ok(match self.inner.wait(&self.bend(claim)).await? {
            Wake::Granted(grant) => Wake::Granted(self.granted(claim, grant)),
            Wake::Retry => Wake::Retry,
        })
    }

    async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let mut answers = Vec::new();
        for Renew {
            claim,
            token,
            shorten,
        } in held
        {
            let bent = self.bend(claim);
            let renew = Renew {
                claim: &bent,
                // The token that the store knows is the one it gave, not the one that was returned.
                token: None,
                shorten: match self.how {
                    Is::RenewShortens => true,
                    Is::RenewNeverShortens => false,
                    _ => *shorten,
                },
            };
            match self.how {
                Is::RenewDoesNothing => {
                    let invented = self.invented(claim, *token);
                    answers.push(Ok(Renewal::Renewed(invented)));
                    continue;
                }
                Is::RenewSaysLost => {
                    answers.push(Ok(Renewal::Lost(LossReason::Gone)));
                    continue;
                }
                Is::RenewReleases => {
                    let _ = self.inner.release(&bent).await;
                }
                Is::CountsFromTheReply => tokio::time::sleep(Duration::from_millis(60)).await,
                _ => {}
            }
            let answer = self.inner.renew(&[renew]).await.pop();
            answers.push(match answer {
                Some(Ok(Renewal::Renewed(grant))) => {
                    Ok(Renewal::Renewed(self.bend_grant(claim, grant)))
                }
                Some(Ok(Renewal::Lost(_))) if self.how == Is::RenewAlwaysSaysRenewed => {
                    Ok(Renewal::Renewed(self.invented(claim, *token)))
                }
                Some(Ok(Renewal::Lost(reason))) if self.how == Is::RenewTakesTheLock => {
                    match self.inner.try_acquire(&bent).await {
                        Ok(Attempt::Granted(grant)) => Ok(Renewal::Renewed(grant)),
                        _ => Ok(Renewal::Lost(reason)),
                    }
                }
                Some(answer) => answer,
                None => Err(Error::new(ErrorKind::Unexpected, "no answer")),
            });
        }
        answers
    }

    async fn release(&self, claim: &Claim) -> Result<Released> {
        let was_granted = {
            let mut memory = self.memory.0.lock();
            memory.queued.remove(&claim.id);
            memory.granted.remove(&claim.id)
        };
        match self.how {
            Is::ReleaseDoesNothing => return Ok(Released::Yes),
            Is::ReleaseLeavesGhosts if !was_granted => return Ok(Released::WasNotHeld),
            _ => {}
        }
        let bent = self.bend(claim);
        let released = self.inner.release(&bent).await?;
        match (self.how, released) {
            (Is::ReleaseFreesAnybodys, Released::WasNotHeld) => {
                self.inner.force_release(&bent.name).await
            }
            (Is::ReleaseFailsIfNotHeld, Released::WasNotHeld) => {
                Err(Error::new(ErrorKind::Unexpected, "there is no such claim"))
            }
            (Is::ReleaseAlwaysSaysYes, _) => Ok(Released::Yes),
            _ => Ok(released),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let query = match query {
            Query::Name(name) => Query::Name(self.bend_name(name)),
            Query::Prefix(prefix) if self.how == Is::InspectMatchesPatterns => {
                let end = prefix.find(|c| "%_*?[".contains(c)).unwrap_or(prefix.len());
                Query::Prefix(prefix[..end].to_owned())
            }
            Query::Prefix(prefix) => Query::Prefix(prefix.clone()),
        };
        let mut locks = self.inner.inspect(&query).await?;
        if self.how == Is::InspectHasNoOrder {
            locks.reverse();
        }
        for lock in &mut locks {
            self.bend_info(lock);
        }
        Ok(locks)
    }

    fn store(&self) -> Option<Arc<dyn GuardedStore>> {
        let records = self.inner.store()?;
        Some(Arc::new(BrokenRecords::new(records, self.how)))
    }

    async fn force_release(&self, name: &LockName) -> Result<Released> {
        if self.how == Is::BreakDoesNothing {
            return Ok(Released::Yes);
        }
        if self.how == Is::BreakDropsWaiters {
            let queued: Vec<_> = self.memory.0.lock().queued.values().cloned().collect();
            for claim in queued.iter().filter(|claim| claim.name == *name) {
                self.inner.release(claim).await?;
            }
        }
        let end = name.as_str().find(['%', '*', '_', '[']);
        if let (Is::BreakMatchesPatterns, Some(end)) = (self.how, end) {
            let query = Query::Prefix(name.as_str()[..end].to_owned());
            for lock in self.inner.inspect(&query).await? {
                self.inner.force_release(&lock.name).await?;
            }
        }
        let broken = self.inner.force_release(&self.bend_name(name)).await?;
        Ok(match self.how {
            Is::BreakAlwaysSaysYes => Released::Yes,
            _ => broken,
        })
    }
}

impl Sabotaged {
    fn bend_info(&self, lock: &mut LockInfo) {
        let owners = lock.holders.iter().map(|holder| holder.claimant.clone());
        let first = owners.into_iter().next();
        for holder in &mut lock.holders {
            match self.how {
                Is::InspectForgetsReasons => holder.reason = None,
                Is::InspectKnowsNoAges => holder.held_for = Duration::ZERO,
                Is::InspectShowsClaimIds => {
                    let ids = self.memory.0.lock().granted.clone();
                    let ids: Vec<_> = ids.iter().map(ClaimId::reveal).collect();
                    holder.reason = Some(ids.join(" "));
                }
                _ => {}
            }
        }
        for waiter in &mut lock.waiters {
            match (self.how, &first) {
                (Is::InspectMixesUpClaimants, Some(first)) => waiter.claimant = first.clone(),
                (Is::InspectKnowsNoAges, _) => waiter.waited_for = Duration::ZERO,
                _ => {}
            }
        }
        match self.how {
            Is::InspectMissesWaiters => lock.waiters.clear(),
            Is::HasNoQueue => {
                let memory = self.memory.0.lock();
                let queued = memory.queued.values().filter(|c| c.name == lock.name);
                lock.waiters = queued.map(waiter).collect();
            }
            Is::InspectEscapesNames => {
                let escaped = lock.name.as_str().replace('%', "%25");
                lock.name = LockName::new(escaped).unwrap_or_else(|_| lock.name.clone());
            }
            _ => {}
        }
    }
}
