//! Random sequences of all operations, by several clients and by claim id alone, checked step by step: no two claims that
//! exclude each other are valid at once, no claim is lost while it is valid, tokens rise, and nothing is stuck afterwards.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Ground;
use super::ground::{ms, queueing};
use crate::claim::{Claim, ClaimId, Mode, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::{Attempt, Engine, Expiry, Grant, Renew, Renewal, Survives, Wake};
use crate::error::Result;
use crate::locks::Locks;
use crate::name::LockName;
use crate::token::FencingToken;

/// One operation. Claims and clients are named by number: claims backwards from the newest, so that a sequence stays meaningful
/// when steps are left out of it.
#[derive(Debug, Clone)]
pub enum Step {
    /// A new claim makes its first attempt.
    Acquire {
        /// By which client.
        client: u8,
        /// On which lock.
        lock: u8,
        /// In which mode, if the engine has it; else exclusively.
        mode: Mode,
        /// Whether it queues if it is refused.
        queues: bool,
        /// For how long.
        ttl: Time,
    },
    /// A claim makes another attempt.
    AcquireAgain {
        /// Which claim.
        claim: u8,
    },
    /// A claim that queues waits for its turn, for a moment.
    Wait {
        /// Which claim.
        claim: u8,
        /// For how long at most.
        time: Time,
    },
    /// A claim is renewed.
    Renew {
        /// Which claim.
        claim: u8,
        /// By which client.
        client: u8,
        /// Whether that client knows the token.
        knows_token: bool,
        /// For how long.
        ttl: Time,
    },
    /// A claim is resumed by its id as a lease, and that is detached.
    Resume {
        /// Which claim.
        claim: u8,
        /// By which client.
        client: u8,
        /// For how long.
        ttl: Time,
    },
    /// The holder is done and lets the lock stay taken for a while, as with `hold_at_least`.
    Leave {
        /// Which claim.
        claim: u8,
        /// For how long.
        ttl: Time,
    },
    /// A claim is released, perhaps not for the first time.
    Release {
        /// Which claim.
        claim: u8,
        /// By which client.
        client: u8,
    },
    /// An operator breaks a lock.
    Break {
        /// By which client.
        client: u8,
        /// Which lock.
        lock: u8,
    },
    /// A client is dropped and connects anew, where locks do not end with it.
    Reconnect {
        /// Which client.
        client: u8,
    },
    /// All clients end at once, and the store starts anew, where locks survive that. Only for a store of the test's own.
    Restart,
    /// Time passes.
    Sleep(Time),
}

const PERMITS: usize = 2;
const PERMIT: Mode = Mode::Permit { of: 2 };

/// A length of time.
#[derive(Debug, Clone, Copy)]
pub enum Time {
    /// Often over before the next steps are done.
    Short,
    /// Sometimes.
    Middle,
    /// Never.
    Long,
}

impl Time {
    const ALL: [Time; 3] = [Time::Short, Time::Middle, Time::Long];

    fn ttl(self) -> Duration {
        match self {
            Time::Short => ms(150),
            Time::Middle => ms(500),
            Time::Long => ms(60_000),
        }
    }

    fn sleep(self) -> Duration {
        match self {
            Time::Short => ms(5),
            Time::Middle => ms(60),
            Time::Long => ms(250),
        }
    }
}

impl Step {
    /// A random one, or a restart.
    pub fn random_or_restart(random: &mut fastrand::Rng) -> Self {
        match random.u8(..32) {
            0 => Step::Restart,
            _ => Step::random(random),
        }
    }

    /// A random one, but no restart.
    pub fn random(random: &mut fastrand::Rng) -> Self {
        let (claim, client, lock) = (random.u8(..5), random.u8(..3), random.u8(..4) / 3);
        let time = Time::ALL[random.usize(..3)];
        match random.u8(..26) {
            0..=5 => Step::Acquire {
                client,
                lock,
                mode: match random.u8(..6) {
                    0 => Mode::Shared,
                    1 => PERMIT,
                    _ => Mode::Exclusive,
                },
                queues: random.bool(),
                ttl: time,
            },
            6..=9 => Step::AcquireAgain { claim },
            10..=12 => Step::Renew {
                claim,
                client,
                knows_token: random.bool(),
                ttl: time,
            },
            13 => Step::Resume {
                claim,
                client,
                ttl: time,
            },
            14 => Step::Leave { claim, ttl: time },
            15..=18 => Step::Release { claim, client },
            19 => Step::Break { client, lock },
            20 => Step::Reconnect { client },
            21..=22 => Step::Wait { claim, time },
            _ => Step::Sleep(time),
        }
    }
}

/// What was found to be wrong.
#[derive(Debug)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Carries out the steps on clients of one store, and says what was wrong first.
pub async fn check(ground: &Ground, steps: &[Step]) -> Result<(), Violation> {
    let mut run = Run::start(ground).await;
    for (nth, step) in steps.iter().enumerate() {
        let done = run.carry_out(step).await;
        done.map_err(|violation| Violation(format!("step {nth}, {step:?}: {violation}")))?;
    }
    run.is_stuck().await
}

/// A case of the suite: a sequence for a few seconds.
pub(super) async fn random_operations(ground: Ground) {
    let seed = std::env::var("LEASEHOLD_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..3 {
        let steps: Vec<_> = (0..40).map(|_| Step::random(&mut random)).collect();
        if let Err(violation) = check(&ground, &steps).await {
            panic!("LEASEHOLD_SEED={seed}: {violation}; the steps were {steps:?}");
        }
    }
}

struct Run<'a> {
    ground: &'a Ground,
    clock: Clock,
    clients: Vec<Arc<dyn Engine>>,
    names: [String; 2],
    claims: Vec<Known>,
}

/// What is known of a claim.
struct Known {
    claim: Claim,
    client: usize,
    lock: usize,
    /// Its token, until the engine says that it does not hold the lock.
    token: Option<FencingToken>,
    /// The greatest token that it has had.
    greatest: Option<FencingToken>,
    /// Until when its holder may rely on it, as far as it was answered.
    valid_until: Option<Moment>,
    /// Whether it has been given up: what was granted after that may not be relied on.
    given_up: bool,
    /// Whether the lock was broken since its last attempt: what it hears until the next may be from before that.
    broken: bool,
}

impl Known {
    fn is_valid(&self, at: Moment) -> bool {
        self.valid_until.is_some_and(|until| until > at)
    }

    fn excludes(&self, other: &Known) -> bool {
        let (mine, others) = (self.claim.mode, other.claim.mode);
        self.lock == other.lock && (mine != others || mine == Mode::Exclusive)
    }
}

impl<'a> Run<'a> {
    async fn start(ground: &'a Ground) -> Self {
        let unique = ClaimId::random().expect("random bits").reveal();
        let mut run = Self {
            ground,
            clock: Clock::machine(),
            clients: Vec::new(),
            names: ["a", "b"].map(|name| ground.name(&format!("{unique}/{name}"))),
            claims: Vec::new(),
        };
        run.connect().await;
        run.clock = run.clients[0].about().clock;
        run
    }

    async fn connect(&mut self) {
        while self.clients.len() < 3 {
            self.clients.push(self.ground.engine().await);
        }
    }

    fn nth(&self, claim: u8) -> Option<usize> {
        self.claims.len().checked_sub(1 + usize::from(claim))
    }

    async fn carry_out(&mut self, step: &Step) -> Result<(), Violation> {
        match *step {
            Step::Acquire {
                client,
                lock,
                mode,
                queues,
                ttl,
            } => {
                let lock = usize::from(lock);
                let mut claim = queueing(&self.names[lock], ttl.ttl());
                claim.queues = queues;
                let able = self.clients[0].about().capabilities;
                claim.mode = match mode {
                    Mode::Shared if able.shared => mode,
                    Mode::Permit { .. } if able.permits => mode,
                    _ => Mode::Exclusive,
                };
                self.claims.push(Known {
                    claim,
                    client: usize::from(client),
                    lock,
                    token: None,
                    greatest: None,
                    valid_until: None,
                    given_up: false,
                    broken: false,
                });
                self.acquire(self.claims.len() - 1).await
            }
            Step::AcquireAgain { claim } => match self.nth(claim) {
                Some(nth) if !self.claims[nth].given_up => self.acquire(nth).await,
                _ => Ok(()),
            },
            Step::Wait { claim, time } => match self.nth(claim) {
                Some(nth) => self.wait(nth, time).await,
                None => Ok(()),
            },
            Step::Renew {
                claim,
                client,
                knows_token,
                ttl,
            } => match self.nth(claim) {
                Some(nth) => self.renew(nth, client, knows_token, ttl, false).await,
                None => Ok(()),
            },
            Step::Resume { claim, client, ttl } => match self.nth(claim) {
                Some(nth) => self.resume(nth, client, ttl).await,
                None => Ok(()),
            },
            Step::Leave { claim, ttl } => match self.nth(claim) {
                Some(nth) => {
                    let client = self.claims[nth].client as u8;
                    self.renew(nth, client, true, ttl, true).await
                }
                None => Ok(()),
            },
            Step::Release { claim, client } => match self.nth(claim) {
                Some(nth) => self.release(nth, usize::from(client)).await,
                None => Ok(()),
            },
            Step::Break { client, lock } => {
                let name = LockName::new(&self.names[usize::from(lock)]).unwrap();
                let broken = self.clients[usize::from(client)].force_release(&name).await;
                // Even one that failed may have been carried out.
                for known in &mut self.claims {
                    if known.lock == usize::from(lock) {
                        known.valid_until = None;
                        known.broken = true;
                    }
                }
                drop(broken);
                Ok(())
            }
            Step::Reconnect { client } => {
                let client = &mut self.clients[usize::from(client)];
                // Where locks end with the client's session, its claims would too.
                if client.about().capabilities.expiry != Expiry::Session {
                    *client = self.ground.engine().await;
                }
                Ok(())
            }
            Step::Restart => {
                let able = self.clients[0].about().capabilities;
                if able.survives.contains(&Survives::EngineRestart)
                    && able.expiry != Expiry::Session
                {
                    self.clients.clear();
                    self.ground.fixture().restart().await;
                    self.connect().await;
                }
                Ok(())
            }
            Step::Sleep(time) => {
                tokio::time::sleep(time.sleep()).await;
                Ok(())
            }
        }
    }

    async fn acquire(&mut self, nth: usize) -> Result<(), Violation> {
        let known = &mut self.claims[nth];
        known.broken = false;
        let (claim, client) = (known.claim.clone(), known.client);
        let sent = self.clock.now();
        match self.clients[client].try_acquire(&claim).await {
            Ok(Attempt::Granted(grant)) => self.granted(nth, sent, grant, claim.ttl),
            Ok(Attempt::Held(_)) => self.not_lost(nth),
            // Of unknown effect: as the core does, it is given up.
            Err(_) => self.release(nth, client).await,
        }
    }

    /// Waits as the core does, which does so for a claim that was refused.
    async fn wait(&mut self, nth: usize, time: Time) -> Result<(), Violation> {
        let known = &self.claims[nth];
        if !known.claim.queues || known.given_up || known.broken || known.token.is_some() {
            return Ok(());
        }
        let (claim, sent) = (known.claim.clone(), self.clock.now());
        let woken = self.clients[known.client].wait(&claim);
        match tokio::time::timeout(time.sleep(), woken).await {
            // Handed over too long ago to be relied on: the next attempt will tell.
            Ok(Ok(Wake::Granted(grant))) if grant.valid_until > self.clock.now() => {
                self.granted(nth, sent, grant, claim.ttl)
            }
            _ => Ok(()),
        }
    }

    async fn renew(
        &mut self,
        nth: usize,
        client: u8,
        knows_token: bool,
        ttl: Time,
        shorten: bool,
    ) -> Result<(), Violation> {
        let known = &mut self.claims[nth];
        let claim = Claim {
            ttl: Ttl::new(ttl.ttl()).unwrap(),
            ..known.claim.clone()
        };
        let renew = Renew {
            claim: &claim,
            token: known.token.filter(|_| knows_token),
            shorten,
        };
        if shorten {
            // Only its holder does so, and works no more.
            known.valid_until = None;
            known.given_up = true;
        }
        let sent = self.clock.now();
        let mut answers = self.clients[usize::from(client)].renew(&[renew]).await;
        match answers.pop() {
            Some(Ok(Renewal::Renewed(grant))) => self.renewed(nth, sent, grant, claim.ttl),
            Some(Ok(Renewal::Lost(_))) => self.not_lost(nth),
            Some(Err(_)) => Ok(()),
            None => wrong("no answer to a renewal".to_owned()),
        }
    }

    async fn resume(&mut self, nth: usize, client: u8, ttl: Time) -> Result<(), Violation> {
        let locks = Locks::new(Arc::clone(&self.clients[usize::from(client)]));
        let known = &self.claims[nth];
        let sent = self.clock.now();
        let resumed = locks
            .resume(known.claim.name.as_str(), known.claim.id)
            .unwrap();
        match resumed.into_lease(ttl.ttl()).await {
            Ok(Some(lease)) => {
                let grant = Grant {
                    token: lease.token(),
                    valid_until: lease.valid_until(),
                };
                lease.detach();
                self.renewed(nth, sent, grant, Ttl::new(ttl.ttl()).unwrap())
            }
            Ok(None) => self.not_lost(nth),
            Err(_) => Ok(()),
        }
    }

    fn renewed(
        &mut self,
        nth: usize,
        sent: Moment,
        grant: Grant,
        ttl: Ttl,
    ) -> Result<(), Violation> {
        let token = self.claims[nth].token;
        if token.is_some_and(|token| token != grant.token) {
            return wrong(format!("{token:?} was renewed as {}", grant.token));
        }
        self.granted(nth, sent, grant, ttl)
    }

    /// The engine says that the claim holds the lock: then no other is valid that it excludes, and none of these has a greater
    /// token.
    fn granted(
        &mut self,
        nth: usize,
        sent: Moment,
        grant: Grant,
        ttl: Ttl,
    ) -> Result<(), Violation> {
        let now = self.clock.now();
        let known = &mut self.claims[nth];
        let is_new = known.token.replace(grant.token).is_none();
        let greatest = known.greatest.replace(grant.token);
        if greatest > known.token || (is_new && greatest == known.token) {
            return wrong(format!("{} after {greatest:?}", grant.token));
        }
        if known.given_up {
            return Ok(());
        }
        let until = grant.valid_until.min(sent + ttl.validity());
        known.valid_until = known.valid_until.max(Some(until));
        let known = &self.claims[nth];
        for (other, claim) in self.claims.iter().enumerate() {
            if other == nth || claim.lock != known.lock {
                continue;
            }
            if claim.greatest == known.greatest {
                return wrong(format!("claims {other} and {nth} have the same token"));
            }
            // A grant that is answered after its time may be older than what others were answered meanwhile.
            if !claim.excludes(known) || !known.is_valid(now) {
                continue;
            }
            if claim.is_valid(now) {
                return wrong(format!("claims {other} and {nth} are valid at once"));
            }
            if claim.greatest > known.greatest {
                return wrong(format!("claim {other} had a greater token than {nth}"));
            }
        }
        let beside = self.claims.iter().filter(|claim| {
            claim.lock == known.lock && claim.claim.mode == PERMIT && claim.is_valid(now)
        });
        if known.claim.mode == PERMIT && known.is_valid(now) && beside.count() > PERMITS {
            return wrong(format!("more than {PERMITS} permits are valid at once"));
        }
        Ok(())
    }

    /// The engine says that the claim does not hold the lock.
    fn not_lost(&mut self, nth: usize) -> Result<(), Violation> {
        let now = self.clock.now();
        let known = &mut self.claims[nth];
        known.token = None;
        match known.is_valid(now) {
            true => wrong(format!("claim {nth} is lost while it is valid")),
            false => Ok(()),
        }
    }

    async fn release(&mut self, nth: usize, client: usize) -> Result<(), Violation> {
        let known = &mut self.claims[nth];
        known.valid_until = None;
        known.given_up = true;
        let claim = known.claim.clone();
        let end = self.clock.now() + self.ground.patience();
        while self.clients[client].release(&claim).await.is_err() {
            if self.clock.now() > end {
                return wrong("a release fails again and again".to_owned());
            }
            tokio::time::sleep(ms(20)).await;
        }
        Ok(())
    }

    /// Whether the locks can be taken once every claim has been given up.
    async fn is_stuck(&mut self) -> Result<(), Violation> {
        for nth in 0..self.claims.len() {
            self.release(nth, 0).await?;
        }
        for name in &self.names {
            let claim = queueing(name, ms(5_000));
            let end = self.clock.now() + self.ground.patience();
            while !matches!(
                self.clients[0].try_acquire(&claim).await,
                Ok(Attempt::Granted(_))
            ) {
                if self.clock.now() > end {
                    return wrong(format!("the lock {name:?} is stuck"));
                }
                tokio::time::sleep(ms(20)).await;
            }
            let _ = self.clients[0].release(&claim).await;
        }
        Ok(())
    }
}

fn wrong<T>(what: String) -> Result<T, Violation> {
    Err(Violation(what))
}
