//! What requests do to a document. Nothing here waits or sends: the same rules decide about what is there, and again about what others have made
//! of it meanwhile.

use std::time::Duration;

use super::document::{Document, Holder, Life, Signature, Waiter, millis};
use super::sightings::Sightings;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::Contention;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// How much longer an offer lasts than the waiter takes to look: for its own request, and a busy machine.
const TO_TAKE_AN_OFFER: Duration = Duration::from_secs(1);

/// No waiter looks less often than this many times the interval of the first.
const SLOWEST: u32 = 10;

/// As many waiters write signs of life at the shortest interval; the more there are, the less often.
const CROWD: u64 = 20;

/// A document may not get longer: DynamoDB has 400 KB for an item, its other attributes included.
const MAX_BYTES: usize = 350_000;

/// Shorter queues need not be measured: an entry has 3.5 KB at most.
const SHORT: usize = 50;

/// What holds for all locks of an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How often the first in the queue looks.
    pub(crate) poll: Duration,
    /// For how long a waiter's place is kept without a sign of life.
    pub(crate) waiter_ttl: Duration,
    /// Whether the documents have room for a queue.
    pub(crate) queue: bool,
}

impl Terms {
    /// How often a waiter looks that has so many before it in the queue.
    pub(crate) fn pace(&self, before: usize) -> Duration {
        let times = u32::try_from(before + 1).unwrap_or(SLOWEST).min(SLOWEST);
        self.poll * times
    }

    /// In a queue of this length, in milliseconds.
    fn waiter_ttl(&self, queue: usize) -> u64 {
        let ttl = millis(self.waiter_ttl);
        ttl.max(ttl * queue as u64 / CROWD)
    }
}

/// One request about one lock.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Acquire(Claim),
    Renew(Renewal),
    Release(Signature),
    Break,
    /// Only to know what is there.
    Look,
    /// These wait, and their process lives.
    SignOfLife(Vec<Signature>),
}

#[derive(Debug, Clone)]
pub(crate) struct Renewal {
    pub(crate) claim: Signature,
    pub(crate) ttl: Duration,
    pub(crate) shorten: bool,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// It holds the lock with this token. Others count from no earlier than this moment: its last sign of life left then.
    Granted(u64, Moment),
    Held(Contention),
    Renewed(u64, Moment),
    Lost,
    /// Whether it was held.
    Released(bool),
    /// This is there.
    Looked(Box<Document>),
    Failed(Error),
}

/// A look at the clocks, and what is needed to decide.
pub(crate) struct Present<'a> {
    pub(crate) now: Moment,
    /// In microseconds since 1970, by the wall clock.
    pub(crate) wall: u64,
    pub(crate) sightings: &'a Sightings,
    pub(crate) terms: &'a Terms,
    pub(crate) random: fastrand::Rng,
    /// The signs of life that were made so far, and are written together.
    pub(crate) made: Vec<u64>,
}

impl Present<'_> {
    fn life(&mut self) -> Life {
        let beat = self.random.u64(..);
        self.made.push(beat);
        Life {
            beat,
            at: self.wall / 1000,
        }
    }

    /// The next sign of life after this one: the same if it was made just now, since another request goes by it.
    fn life_after(&mut self, life: Life) -> Life {
        match self.made.contains(&life.beat) {
            true => life,
            false => self.life(),
        }
    }

    fn has_ended(&self, holder: &Holder) -> bool {
        let left = self.sightings.left_of(holder, self.now, self.wall);
        left.is_none()
    }

    fn has_left(&self, waiter: &Waiter) -> bool {
        let (life, ttl) = (&waiter.life, waiter.ttl);
        self.sightings
            .left(life, ttl, self.now, self.wall)
            .is_none()
    }

    /// Does what is asked, as far as the document allows it. What fails changes nothing.
    pub(crate) fn apply(&mut self, request: &Request, document: &mut Document) -> Outcome {
        let before = document.clone();
        let done = match request {
            Request::Acquire(claim) => self.acquire(claim, document),
            Request::Renew(renewal) => self.renew(renewal, document),
            Request::Release(claim) => self.release(claim, document),
            Request::Break => self.break_lock(document),
            Request::Look => Ok(Outcome::Looked(Box::new(document.clone()))),
            Request::SignOfLife(claims) => {
                let ttl = self.terms.waiter_ttl(document.queue.len());
                for (place, waiter) in document.queue.iter_mut().enumerate() {
                    if claims.contains(&waiter.claim) {
                        waiter.life = self.life();
                        // The queue has changed since it came.
                        waiter.ttl = ttl;
                        waiter.pace = millis(self.terms.pace(place));
                    }
                }
                Ok(Outcome::Looked(Box::new(document.clone())))
            }
        };
        done.unwrap_or_else(|failure| {
            *document = before;
            Outcome::Failed(failure)
        })
    }

    /// Takes out whoever has given no sign of life for too long, and hands over what became free.
    pub(crate) fn settle(&mut self, document: &mut Document) -> Result<()> {
        document.holders.retain(|holder| !self.has_ended(holder));
        document.queue.retain(|waiter| !self.has_left(waiter));
        self.hand_over(document)
    }

    /// Offers the lock to the first in the queue while they fit.
    fn hand_over(&mut self, document: &mut Document) -> Result<()> {
        while let Some(first) = document.queue.first()
            && first.mode().fits(document.holders.iter().map(Holder::mode))
        {
            let token = self.next_token(document)?;
            let waiter = document.queue.remove(0);
            let ttl = waiter.pace.saturating_add(millis(TO_TAKE_AN_OFFER));
            let offer = Holder::offer(waiter, token, ttl, self.life());
            document.holders.push(offer);
        }
        Ok(())
    }

    fn next_token(&self, document: &mut Document) -> Result<u64> {
        let token = FencingToken::after(document.token, self.wall)?.get();
        document.token = token;
        Ok(token)
    }

    fn acquire(&mut self, claim: &Claim, document: &mut Document) -> Result<Outcome> {
        let signature = Signature::of(&claim.id);
        // A waiter that asks again may do so in another mode: the last one counts.
        if let Some(place) = document.position(&signature) {
            document.queue[place].set_mode(claim.mode);
        }
        self.settle(document)?;
        let holders = document.holders.iter().map(Holder::mode);
        let there = holders.chain(document.queue.iter().map(Waiter::mode));
        there
            .into_iter()
            .try_for_each(|there| claim.mode.agrees_with(there))?;
        if let Some(nth) = document.holder(&signature) {
            claim.mode.is_still(document.holders[nth].mode())?;
            return Ok(self.hold_on(claim, &mut document.holders[nth]));
        }
        let place = document.position(&signature);
        let fits = claim.mode.fits(document.holders.iter().map(Holder::mode));
        if fits && document.queue.is_empty() {
            let token = self.next_token(document)?;
            let holder = Holder::new(claim, token, self.life());
            document.holders.push(holder);
            is_not_too_long(document)?;
            return Ok(Outcome::Granted(token, self.now));
        }
        let ahead = place.unwrap_or(document.queue.len());
        match place {
            None if claim.queues && self.terms.queue => {
                let ttl = self.terms.waiter_ttl(document.queue.len() + 1);
                let pace = millis(self.terms.pace(document.queue.len()));
                let waiter = Waiter::new(claim, ttl, pace, self.life());
                document.queue.push(waiter);
                is_not_too_long(document)?;
            }
            Some(place) if !claim.queues => drop(document.queue.remove(place)),
            _ => {}
        }
        Ok(Outcome::Held(Contention {
            look_again_in: None,
            ahead: Some(document.holders.len() + ahead),
            because: None,
        }))
    }

    /// The claim holds the lock already, or was handed it.
    fn hold_on(&mut self, claim: &Claim, holder: &mut Holder) -> Outcome {
        let sight = self.sightings.sight(&holder.life);
        let ttl = millis(claim.ttl.get());
        let relied_on = !holder.offered && !holder.unattended;
        let known = sight.filter(|sight| sight.ours && relied_on);
        if let Some(sight) = known.filter(|_| holder.ttl >= ttl) {
            return Outcome::Granted(holder.token, sight.at);
        }
        // Since when others count is not known, or not for how long: from this sign of life on it is.
        holder.ttl = match holder.offered {
            true => ttl,
            false => holder.ttl.max(ttl),
        };
        holder.offered = false;
        holder.unattended = false;
        holder.life = self.life_after(holder.life);
        Outcome::Granted(holder.token, self.now)
    }

    fn renew(&mut self, renewal: &Renewal, document: &mut Document) -> Result<Outcome> {
        let Some(nth) = document.holder(&renewal.claim) else {
            return Ok(Outcome::Lost);
        };
        let holder = &mut document.holders[nth];
        if self.has_ended(holder) {
            document.holders.remove(nth);
            self.settle(document)?;
            return Ok(Outcome::Lost);
        }
        let asked = millis(renewal.ttl);
        // What is left of a claim that another process has renewed is not known: at most all of it.
        let left = match self.sightings.sight(&holder.life) {
            Some(sight) if sight.ours => {
                millis((sight.at + Duration::from_millis(holder.ttl)).since(self.now))
            }
            _ => holder.ttl,
        };
        holder.ttl = match renewal.shorten || holder.offered {
            true => asked,
            false => asked.max(left),
        };
        holder.offered = false;
        holder.unattended = renewal.shorten;
        holder.life = self.life_after(holder.life);
        Ok(Outcome::Renewed(holder.token, self.now))
    }

    fn release(&mut self, claim: &Signature, document: &mut Document) -> Result<Outcome> {
        if let Some(place) = document.position(claim) {
            document.queue.remove(place);
        }
        let mut held = false;
        if let Some(nth) = document.holder(claim) {
            let holder = document.holders.remove(nth);
            held = !self.has_ended(&holder);
        }
        self.settle(document)?;
        Ok(Outcome::Released(held))
    }

    fn break_lock(&mut self, document: &mut Document) -> Result<Outcome> {
        self.settle(document)?;
        let held = !document.holders.is_empty();
        document.holders.clear();
        self.hand_over(document)?;
        Ok(Outcome::Released(held))
    }
}

fn is_not_too_long(document: &Document) -> Result<()> {
    let entries = document.queue.len() + document.holders.len();
    if entries <= SHORT || document.to_json().len() <= MAX_BYTES {
        return Ok(());
    }
    let what = format!(
        "its document is full, with {} holders and {} waiters",
        document.holders.len(),
        document.queue.len()
    );
    Err(Error::new(ErrorKind::Unreachable, what)
        .advise("let fewer wait for the same lock, or use shorter labels and reasons")
        .because_busy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Mode, Ttl};

    struct World {
        now: Moment,
        /// In microseconds.
        wall: u64,
        sightings: Sightings,
        document: Document,
    }

    const TERMS: Terms = Terms {
        poll: Duration::from_millis(200),
        waiter_ttl: Duration::from_secs(10),
        queue: true,
    };

    impl World {
        fn new() -> Self {
            Self {
                now: Moment::from_origin(Duration::from_secs(1000)),
                wall: 5,
                sightings: Sightings::default(),
                document: Document::new("x"),
            }
        }

        fn ask(&mut self, request: Request) -> Outcome {
            let mut present = Present {
                now: self.now,
                wall: self.wall,
                sightings: &self.sightings,
                terms: &TERMS,
                random: fastrand::Rng::new(),
                made: Vec::new(),
            };
            let before = self.document.clone();
            let outcome = present.apply(&request, &mut self.document);
            // As another process sees it, which looks at once.
            self.sightings.note(&self.document, Some(&before), self.now);
            outcome
        }

        fn acquire(&mut self, claim: &Claim) -> Outcome {
            self.ask(Request::Acquire(claim.clone()))
        }

        fn release(&mut self, claim: &Claim) -> Outcome {
            self.ask(Request::Release(Signature::of(&claim.id)))
        }

        fn holds(&self, claim: &Claim) -> bool {
            self.document.holder(&Signature::of(&claim.id)).is_some()
        }

        fn pass(&mut self, millis: u64) {
            self.now = self.now + Duration::from_millis(millis);
        }

        /// So much later, as a process sees it that has never seen the lock.
        fn see_first_after(&mut self, millis: u64) {
            self.pass(millis);
            self.wall += 1000 * millis;
            self.sightings = Sightings::default();
        }
    }

    fn claim(nth: u8) -> Claim {
        Claim::example(nth)
    }

    #[test]
    fn release_hands_the_lock_to_the_first_in_the_queue() {
        let mut world = World::new();
        let [first, second, third] = [1, 2, 3].map(claim);
        assert!(matches!(world.acquire(&first), Outcome::Granted(5, _)));
        for waiter in [&second, &third] {
            assert!(matches!(world.acquire(waiter), Outcome::Held(_)));
        }
        assert!(matches!(world.release(&first), Outcome::Released(true)));
        assert!(world.holds(&second) && world.document.holders[0].offered);
        assert!(matches!(world.acquire(&third), Outcome::Held(_)));
        assert!(matches!(world.acquire(&second), Outcome::Granted(6, _)));
        assert!(!world.document.holders[0].offered);
        assert_eq!(world.document.holders[0].ttl, 30_000);
    }

    #[test]
    fn another_waiter_does_not_restart_the_timer() {
        let mut world = World::new();
        let [first, second, third] = [1, 2, 3].map(claim);
        world.acquire(&first);
        world.acquire(&second);
        for _ in 0..6 {
            world.pass(4_900);
            let alive = vec![Signature::of(&second.id)];
            world.ask(Request::SignOfLife(alive));
        }
        world.acquire(&third);
        world.pass(700);
        assert!(matches!(world.acquire(&second), Outcome::Granted(..)));
        assert!(!world.holds(&first));
    }

    #[test]
    fn renewal_restarts_the_timer_and_never_shortens() {
        let mut world = World::new();
        let [first, second] = [1, 2].map(claim);
        world.acquire(&first);
        let renew = |ttl, shorten| {
            Request::Renew(Renewal {
                claim: Signature::of(&claim(1).id),
                ttl: Duration::from_secs(ttl),
                shorten,
            })
        };
        world.pass(20_000);
        assert!(matches!(world.ask(renew(1, false)), Outcome::Renewed(5, _)));
        world.pass(20_000);
        assert!(matches!(world.acquire(&second), Outcome::Held(_)));
        assert!(matches!(world.ask(renew(1, true)), Outcome::Renewed(5, _)));
        world.pass(1_000);
        assert!(matches!(world.ask(renew(60, false)), Outcome::Lost));
        assert!(!world.holds(&first));
    }

    #[test]
    fn lock_that_its_process_has_left_ends_by_the_wall_clock() {
        let renew = |ttl, shorten| {
            Request::Renew(Renewal {
                claim: Signature::of(&claim(1).id),
                ttl: Duration::from_secs(ttl),
                shorten,
            })
        };
        let single = |nth| Claim {
            queues: false,
            ..claim(nth)
        };
        let mut world = World::new();
        world.acquire(&claim(1));
        world.ask(renew(300, true));
        world.see_first_after(299_000);
        assert!(matches!(world.acquire(&single(2)), Outcome::Held(_)));
        world.see_first_after(3_000);
        assert!(matches!(world.acquire(&single(3)), Outcome::Granted(..)));
        // Not one whose process may rely on it: nobody's wall clock counts there.
        let mut world = World::new();
        world.acquire(&claim(1));
        world.ask(renew(300, true));
        world.ask(renew(300, false));
        world.see_first_after(303_000);
        assert!(matches!(world.acquire(&single(2)), Outcome::Held(_)));
        let mut world = World::new();
        world.acquire(&claim(1));
        world.ask(renew(300, true));
        assert!(matches!(world.acquire(&claim(1)), Outcome::Granted(..)));
        world.see_first_after(303_000);
        assert!(matches!(world.acquire(&single(2)), Outcome::Held(_)));
    }

    #[test]
    fn dead_waiter_is_passed_over() {
        let mut world = World::new();
        let [first, dead, third] = [1, 2, 3].map(claim);
        world.acquire(&first);
        world.acquire(&dead);
        world.acquire(&third);
        world.release(&first);
        world.pass(1_199);
        assert!(matches!(world.acquire(&third), Outcome::Held(_)));
        world.pass(1);
        assert!(matches!(world.acquire(&third), Outcome::Granted(..)));
        // All of them at once, if they have been dead for long enough.
        for nth in 10..20 {
            world.acquire(&claim(nth));
        }
        world.pass(10_000);
        world.ask(Request::Renew(Renewal {
            claim: Signature::of(&third.id),
            ttl: Duration::from_secs(30),
            shorten: false,
        }));
        world.acquire(&claim(30));
        assert_eq!(world.document.queue.len(), 1);
    }

    #[test]
    fn readers_are_offered_the_lock_together() {
        let mut world = World::new();
        let writer = claim(1);
        let reader = |nth| Claim {
            mode: Mode::Shared,
            ..claim(nth)
        };
        world.acquire(&writer);
        for nth in [2, 3] {
            world.acquire(&reader(nth));
        }
        world.acquire(&claim(4));
        world.acquire(&reader(5));
        world.release(&writer);
        assert_eq!(
            (world.document.holders.len(), world.document.queue.len()),
            (2, 2)
        );
        let tokens: Vec<_> = world.document.holders.iter().map(|h| h.token).collect();
        assert_eq!(tokens, [6, 7]);
    }

    #[test]
    fn full_document_is_a_busy_error_that_changes_nothing() {
        let mut world = World::new();
        world.acquire(&claim(0));
        for nth in 0..u32::MAX {
            let mut id = [1; 16];
            id[..4].copy_from_slice(&nth.to_be_bytes());
            // The longest that there are: each of these takes two bytes in JSON.
            let claimant = crate::claim::Claimant {
                label: "\"".repeat(255),
                host: "\"".repeat(255),
                pid: u32::MAX,
            };
            let claim = Claim {
                id: crate::claim::ClaimId::from_bytes(id),
                reason: Some("\"".repeat(1024).into()),
                claimant: claimant.into(),
                ..claim(1)
            };
            let before = world.document.queue.len();
            if let Outcome::Failed(error) = world.acquire(&claim) {
                assert!(error.is_busy() && error.advice().is_some());
                assert_eq!(world.document.queue.len(), before);
                assert!((90..200).contains(&before), "{before}");
                return;
            }
            assert!(world.document.to_json().len() <= MAX_BYTES);
        }
    }

    #[test]
    fn tokens_rise_though_clocks_step_back() {
        let mut world = World::new();
        world.document.token = 1_000_000;
        let short = Claim {
            ttl: Ttl::MIN,
            ..claim(1)
        };
        assert!(matches!(
            world.acquire(&short),
            Outcome::Granted(1_000_001, _)
        ));
        world.release(&short);
        assert!(matches!(
            world.acquire(&short),
            Outcome::Granted(1_000_002, _)
        ));
    }

    #[test]
    fn the_nth_waiter_looks_n_times_less_often() {
        let paces = [0, 1, 5, 9, 50].map(|before| TERMS.pace(before).as_millis());
        assert_eq!(paces, [200, 400, 1200, 2000, 2000]);
        assert_eq!(TERMS.waiter_ttl(3), 10_000);
        assert_eq!(TERMS.waiter_ttl(100), 50_000);
    }
}
