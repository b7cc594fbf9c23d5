//! The claims of this process, for engines whose store ends a lock only with a lease or session that many claims share: the state of each claim, and every
//! transition between states.
//!
//! | state | event | next state |
//! |---|---|---|
//! | unknown | it has joined the queue | `Queued`, or `Held` if nobody is ahead |
//! | unknown | it was found by its id, and this process renews it from now on | `Held` |
//! | `Queued` | its turn has come | `Held` |
//! | `Queued`, `Held` | its entry is gone, or another process renews it | unknown |
//! | `Queued` | it leaves the queue, or is to join it anew in another mode | `Ending` |
//! | any | it is released, or has expired | `Ending` |
//! | `Ending` | the deletion of its entry was answered | unknown |
//!
//! There is no way from `Ending` back to `Held`: a deletion that was not answered may be carried out at any time, so no answer that arrives meanwhile may count
//! as proof that the claim holds the lock.

use std::collections::HashMap;

use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::local_expiry::{Key, LocalExpiry, key};
use crate::sync::Mutex;

/// A claim's own entry in the queue, as last seen.
pub(crate) trait Entry: Clone {
    /// What is known of the claims ahead while this one waits.
    type Ahead: Clone;

    /// Whether both are the same entry. A claim that has ended may join the queue again, with another one.
    fn is_same(&self, other: &Self) -> bool;

    /// Whether this is a later state of the other, which is the same entry.
    fn is_newer_than(&self, _other: &Self) -> bool {
        false
    }
}

#[derive(Clone)]
pub(crate) enum OwnClaim<E: Entry> {
    /// It waits for its turn.
    Queued { entry: E, ahead: E::Ahead },
    /// It holds the lock.
    Held(E),
    /// Its entry is being deleted.
    Ending(Ending<E>),
}

#[derive(Clone)]
pub(crate) struct Ending<E> {
    /// The entry that has expired, or leaves the queue; `None` if the claim is released, with all entries that it has, or was in doubt.
    pub(crate) entry: Option<E>,
    /// It leaves the queue, or was in doubt: to this process's knowledge it does not hold the lock.
    pub(crate) leaves_queue: bool,
    /// Distinguishes it from other endings of the same claim.
    number: u64,
}

/// What is known of a claim that is to be renewed.
pub(crate) enum Renewing<E> {
    Held(E),
    /// This process does not know whether the claim holds the lock: the engine has to look at the queue.
    Unknown,
    Ending,
}

impl<E: Entry> OwnClaim<E> {
    pub(crate) fn entry(&self) -> Option<&E> {
        match self {
            OwnClaim::Queued { entry, .. } | OwnClaim::Held(entry) => Some(entry),
            OwnClaim::Ending(_) => None,
        }
    }

    pub(crate) fn entry_mut(&mut self) -> Option<&mut E> {
        match self {
            OwnClaim::Queued { entry, .. } | OwnClaim::Held(entry) => Some(entry),
            OwnClaim::Ending(_) => None,
        }
    }

    fn is_same(&self, entry: &E) -> bool {
        self.entry().is_some_and(|own| own.is_same(entry))
    }
}

pub(crate) struct OwnClaims<E: Entry>(Mutex<Known<E>>);

struct Known<E: Entry> {
    claims: HashMap<Key, OwnClaim<E>>,
    /// When the claims expire.
    expiry: LocalExpiry,
    /// Claims that may have entries which this process does not know, and when to delete those.
    in_doubt: HashMap<Key, Moment>,
    endings: u64,
}

impl<E: Entry> Known<E> {
    /// The claim, if this is still its entry.
    fn same(&mut self, claim: &Claim, entry: &E) -> Option<&mut OwnClaim<E>> {
        self.claims
            .get_mut(&key(claim))
            .filter(|own| own.is_same(entry))
    }

    fn forget(&mut self, claim: &Claim) {
        self.claims.remove(&key(claim));
        match self.in_doubt.get(&key(claim)) {
            Some(end) => self.expiry.ends_at(claim, *end),
            None => self.expiry.forget(claim),
        }
    }

    fn is_ending(&self, claim: &Claim, ending: &Ending<E>) -> bool {
        matches!(self.claims.get(&key(claim)), Some(OwnClaim::Ending(own)) if own.number == ending.number)
    }

    fn ending(&mut self, entry: Option<E>) -> Ending<E> {
        self.endings += 1;
        Ending {
            entry,
            leaves_queue: false,
            number: self.endings,
        }
    }
}

impl<E: Entry> Default for OwnClaims<E> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            claims: HashMap::new(),
            expiry: LocalExpiry::default(),
            in_doubt: HashMap::new(),
            endings: 0,
        }))
    }
}

impl<E: Entry> OwnClaims<E> {
    pub(crate) fn get(&self, claim: &Claim) -> Option<OwnClaim<E>> {
        self.0.lock().claims.get(&key(claim)).cloned()
    }

    /// It waits for its turn.
    pub(crate) fn queued(&self, claim: &Claim, entry: E, ahead: E::Ahead) {
        let queued = OwnClaim::Queued { entry, ahead };
        self.0.lock().claims.insert(key(claim), queued);
    }

    /// Changes what is known of the claim, if this is still its entry.
    pub(crate) fn change(&self, claim: &Claim, entry: &E, change: impl FnOnce(&mut OwnClaim<E>)) {
        if let Some(own) = self.0.lock().same(claim, entry) {
            change(own);
        }
    }

    /// The claim holds the lock, and expires no sooner than `end`. Returns false, and changes nothing, if it is being ended.
    pub(crate) fn hold(&self, claim: &Claim, entry: E, end: Moment) -> bool {
        self.hold_if(claim, entry, end, |own, _| {
            !matches!(own, Some(OwnClaim::Ending(_)))
        })
    }

    /// The same for an entry that was known before. Returns false also if the claim was released, or has another entry, since then.
    pub(crate) fn still_hold(&self, claim: &Claim, entry: E, end: Moment) -> bool {
        self.hold_if(claim, entry, end, |own, entry| {
            own.is_some_and(|own| own.is_same(entry))
        })
    }

    fn hold_if(
        &self,
        claim: &Claim,
        entry: E,
        end: Moment,
        may: impl Fn(Option<&OwnClaim<E>>, &E) -> bool,
    ) -> bool {
        let mut known = self.0.lock();
        let own = known.claims.get(&key(claim));
        if !may(own, &entry) {
            return false;
        }
        // Answers may arrive in another order than the requests were carried out.
        let newer = own.and_then(OwnClaim::entry);
        let newer = newer.filter(|own| own.is_newer_than(&entry)).cloned();
        let held = OwnClaim::Held(newer.unwrap_or(entry));
        known.claims.insert(key(claim), held);
        known.expiry.ends_no_sooner_than(claim, end);
        true
    }

    /// The entry is gone, or another process renews it.
    pub(crate) fn gone(&self, claim: &Claim, entry: &E) {
        let mut known = self.0.lock();
        if known.same(claim, entry).is_some() {
            known.forget(claim);
        }
    }

    /// The claim is to be renewed. If it is held, it expires no sooner than `end` from now on.
    pub(crate) fn renewing(&self, claim: &Claim, end: Moment) -> Renewing<E> {
        let Known { claims, expiry, .. } = &mut *self.0.lock();
        match claims.get(&key(claim)) {
            Some(OwnClaim::Held(entry)) if expiry.knows(claim) => {
                expiry.ends_no_sooner_than(claim, end);
                Renewing::Held(entry.clone())
            }
            Some(OwnClaim::Held(_)) => Renewing::Ending,
            Some(OwnClaim::Ending(_)) => Renewing::Ending,
            Some(OwnClaim::Queued { .. }) | None => Renewing::Unknown,
        }
    }

    /// The claim expires at `end`, even if it would have lasted longer.
    pub(crate) fn shorten(&self, claim: &Claim, end: Moment) {
        let mut known = self.0.lock();
        if let Some(OwnClaim::Held(_)) = known.claims.get(&key(claim)) {
            known.expiry.ends_at(claim, end);
        }
    }

    /// The claim is released. Returns what was known of it.
    pub(crate) fn released(&self, claim: &Claim) -> (Option<OwnClaim<E>>, Ending<E>) {
        let mut known = self.0.lock();
        known.expiry.forget(claim);
        let ending = known.ending(None);
        let before = known
            .claims
            .insert(key(claim), OwnClaim::Ending(ending.clone()));
        (before, ending)
    }

    /// The claim leaves the queue. `None` if it does not wait with this entry any more.
    pub(crate) fn leaves(&self, claim: &Claim, entry: &E) -> Option<Ending<E>> {
        let mut known = self.0.lock();
        let OwnClaim::Queued { entry, .. } = known.same(claim, entry)?.clone() else {
            return None;
        };
        let ending = Ending {
            leaves_queue: true,
            ..known.ending(Some(entry))
        };
        let own = OwnClaim::Ending(ending.clone());
        known.claims.insert(key(claim), own);
        Some(ending)
    }

    /// The claim has expired, or a deletion that has failed is due again. `None` if the claim was renewed meanwhile.
    pub(crate) fn expired(&self, claim: &Claim) -> Option<Ending<E>> {
        let mut known = self.0.lock();
        if known.expiry.knows(claim) {
            return None;
        }
        let ending = match known.claims.get(&key(claim)).cloned() {
            None => {
                known.in_doubt.get(&key(claim))?;
                Ending {
                    leaves_queue: true,
                    ..known.ending(None)
                }
            }
            Some(OwnClaim::Queued { .. }) => return None,
            Some(OwnClaim::Held(entry)) => known.ending(Some(entry)),
            Some(OwnClaim::Ending(ending)) => ending,
        };
        let own = OwnClaim::Ending(ending.clone());
        known.claims.insert(key(claim), own);
        Some(ending)
    }

    /// The deletion of its entry has failed, and is to be tried again at `end`.
    pub(crate) fn end_again_at(&self, claim: &Claim, end: Moment) {
        let mut known = self.0.lock();
        if let Some(OwnClaim::Ending(_)) = known.claims.get(&key(claim)) {
            known.expiry.ends_at(claim, end);
        }
    }

    /// Whether this ending is still under way.
    pub(crate) fn is_ending(&self, claim: &Claim, ending: &Ending<E>) -> bool {
        self.0.lock().is_ending(claim, ending)
    }

    /// The deletion was answered. The claim may have joined the queue again since.
    pub(crate) fn ended(&self, claim: &Claim, ending: &Ending<E>) {
        let mut known = self.0.lock();
        if known.is_ending(claim, ending) {
            if ending.entry.is_none() {
                known.in_doubt.remove(&key(claim));
            }
            known.forget(claim);
        }
    }

    /// A request that makes an entry for the claim was not answered. Unless the claim is asked for again or ended before, what it has made is deleted at
    /// `end`: in a session that lives on it would stay.
    pub(crate) fn doubt(&self, claim: &Claim, end: Moment) {
        let mut known = self.0.lock();
        known.in_doubt.insert(key(claim), end);
        if !known.claims.contains_key(&key(claim)) {
            known.expiry.ends_at(claim, end);
        }
    }

    /// What a claim in doubt may have made is deleted no sooner than `end`. Returns false if the claim is not in doubt, or that is being deleted.
    pub(crate) fn doubt_longer(&self, claim: &Claim, end: Moment) -> bool {
        let mut known = self.0.lock();
        let own = known.claims.get(&key(claim));
        let (is_unknown, is_ending) = (own.is_none(), matches!(own, Some(OwnClaim::Ending(_))));
        let Some(doubt) = known.in_doubt.get_mut(&key(claim)) else {
            return false;
        };
        if is_ending {
            return false;
        }
        *doubt = (*doubt).max(end);
        let end = *doubt;
        if is_unknown {
            known.expiry.ends_at(claim, end);
        }
        true
    }

    pub(crate) fn is_in_doubt(&self, claim: &Claim) -> bool {
        self.0.lock().in_doubt.contains_key(&key(claim))
    }

    /// All entries of the claim have been seen.
    pub(crate) fn settled(&self, claim: &Claim) {
        let mut known = self.0.lock();
        let was_in_doubt = known.in_doubt.remove(&key(claim)).is_some();
        if was_in_doubt && let Some(OwnClaim::Queued { .. }) = known.claims.get(&key(claim)) {
            known.expiry.forget(claim);
        }
    }

    /// Waits until a claim expires, and returns it. To be called by one task only.
    pub(crate) async fn next_expired(&self) -> Claim {
        let clock = Clock::machine();
        loop {
            let (first, sooner) = {
                let expiry = &mut self.0.lock().expiry;
                if let Some(due) = expiry.take_due(clock.now()) {
                    return due;
                }
                expiry.look()
            };
            match first {
                None => sooner.notified().await,
                Some(first) => tokio::select! {
                    () = clock.sleep_until(first) => {}
                    () = sooner.notified() => {}
                },
            }
        }
    }

    /// Whether there is a claim that will expire.
    pub(crate) fn any_expires(&self) -> bool {
        !self.0.lock().expiry.is_empty()
    }

    /// The entries of those that wait.
    pub(crate) fn waiting(&self) -> Vec<E> {
        let known = self.0.lock();
        let waiting = known.claims.values().filter_map(|own| match own {
            OwnClaim::Queued { entry, .. } => Some(entry.clone()),
            _ => None,
        });
        waiting.collect()
    }

    pub(crate) fn any(&self, is: impl FnMut(&OwnClaim<E>) -> bool) -> bool {
        self.0.lock().claims.values().any(is)
    }
}

/// Without the claims: their ids are secrets.
impl<E: Entry> std::fmt::Debug for OwnClaims<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OwnClaims({})", self.0.lock().claims.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Seen {
        made: u32,
        changed: u32,
    }

    impl Entry for Seen {
        type Ahead = ();

        fn is_same(&self, other: &Self) -> bool {
            self.made == other.made
        }

        fn is_newer_than(&self, other: &Self) -> bool {
            self.changed > other.changed
        }
    }

    fn seen(changed: u32) -> Seen {
        Seen { made: 1, changed }
    }

    fn later() -> Moment {
        Clock::machine().now() + Duration::from_secs(3600)
    }

    fn held() -> (OwnClaims<Seen>, Claim) {
        let (claims, claim) = (OwnClaims::default(), Claim::example(7));
        assert!(claims.hold(&claim, seen(2), later()));
        (claims, claim)
    }

    fn entry(claims: &OwnClaims<Seen>, claim: &Claim) -> Option<Seen> {
        claims.get(claim)?.entry().copied()
    }

    /// As if its time were over.
    fn expire(claims: &OwnClaims<Seen>, claim: &Claim) -> Option<Ending<Seen>> {
        claims.0.lock().expiry.forget(claim);
        claims.expired(claim)
    }

    #[test]
    fn older_of_two_answers_changes_nothing() {
        let (claims, claim) = held();
        assert!(claims.still_hold(&claim, seen(4), later()));
        assert!(claims.still_hold(&claim, seen(3), later()));
        assert!(claims.hold(&claim, seen(3), later()));
        assert_eq!(entry(&claims, &claim), Some(seen(4)));
    }

    #[test]
    fn claim_that_is_ending_is_never_held_again() {
        let (claims, claim) = held();
        let ending = expire(&claims, &claim).unwrap();
        assert_eq!(ending.entry, Some(seen(2)));
        let is_held = || {
            let renewing = claims.renewing(&claim, later());
            claims.hold(&claim, seen(3), later())
                || claims.still_hold(&claim, seen(3), later())
                || !matches!(renewing, Renewing::Ending)
        };
        assert!(!is_held());
        // Nor while its deletion is repeated.
        claims.end_again_at(&claim, later());
        assert!(!is_held());
        let again = expire(&claims, &claim).unwrap();
        claims.ended(&claim, &again);
        assert!(claims.hold(&claim, seen(5), later()));
    }

    #[test]
    fn renewal_in_time_keeps_the_claim() {
        let (claims, claim) = held();
        let renewing = claims.renewing(&claim, later());
        assert!(matches!(renewing, Renewing::Held(entry) if entry == seen(2)));
        assert!(claims.expired(&claim).is_none());
    }

    #[test]
    fn renewal_after_the_end_was_due_is_too_late() {
        let (claims, claim) = held();
        claims.0.lock().expiry.forget(&claim);
        let renewing = claims.renewing(&claim, later());
        assert!(matches!(renewing, Renewing::Ending));
    }

    #[test]
    fn released_claim_is_not_held_by_a_late_answer() {
        let (claims, claim) = (OwnClaims::default(), Claim::example(7));
        claims.queued(&claim, seen(1), ());
        assert!(matches!(
            claims.renewing(&claim, later()),
            Renewing::Unknown
        ));
        let (before, ending) = claims.released(&claim);
        assert!(matches!(before, Some(OwnClaim::Queued { .. })));
        assert!(!claims.still_hold(&claim, seen(2), later()));
        claims.ended(&claim, &ending);
        assert!(!claims.still_hold(&claim, seen(2), later()));
        assert!(claims.get(&claim).is_none());
    }

    #[test]
    fn end_of_an_earlier_entry_leaves_the_next() {
        let (claims, claim) = held();
        let ending = expire(&claims, &claim).unwrap();
        claims.ended(&claim, &ending);
        let next = Seen {
            made: 5,
            changed: 5,
        };
        assert!(claims.hold(&claim, next, later()));
        assert!(!claims.is_ending(&claim, &ending));
        claims.ended(&claim, &ending);
        claims.gone(&claim, &seen(2));
        assert!(!claims.still_hold(&claim, seen(6), later()));
        assert_eq!(entry(&claims, &claim), Some(next));
        claims.gone(&claim, &next);
        assert!(claims.get(&claim).is_none() && !claims.any_expires());
    }

    #[test]
    fn claim_in_doubt_is_ended_unless_it_is_settled() {
        let (claims, claim) = (OwnClaims::default(), Claim::example(7));
        claims.doubt(&claim, later());
        assert!(claims.get(&claim).is_none() && claims.any_expires());
        // What is found later may not be all that it has.
        claims.queued(&claim, seen(1), ());
        let leaves = claims.leaves(&claim, &seen(1)).unwrap();
        claims.ended(&claim, &leaves);
        let ending = expire(&claims, &claim).unwrap();
        assert!(ending.entry.is_none() && ending.leaves_queue);
        claims.ended(&claim, &ending);
        assert!(!claims.is_in_doubt(&claim) && !claims.any_expires());
        claims.doubt(&claim, later());
        claims.queued(&claim, seen(1), ());
        claims.settled(&claim);
        assert!(!claims.any_expires());
        claims.gone(&claim, &seen(1));
        assert!(expire(&claims, &claim).is_none());
    }

    #[tokio::test]
    async fn sooner_and_later_ends_are_both_noticed_in_time() {
        let claims = OwnClaims::<Seen>::default();
        let (claim, start) = (Claim::example, Clock::machine().now());
        let after = |millis| start + Duration::from_millis(millis);
        claims.hold(&claim(1), seen(1), after(60_000));
        let listener = async {
            let mut ended = Vec::new();
            while ended.len() < 3 {
                ended.push(claims.next_expired().await.id);
            }
            ended
        };
        let others = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            // Gone before its time, while the listener sleeps until then.
            claims.gone(&claim(1), &seen(1));
            for (nth, end) in [(4, 90), (2, 60), (3, 120)] {
                claims.hold(&claim(nth), seen(1), after(end));
            }
            let renewing = claims.renewing(&claim(4), after(150));
            assert!(matches!(renewing, Renewing::Held(_)));
        };
        let both = async { tokio::join!(listener, others).0 };
        let ended = tokio::time::timeout(Duration::from_secs(20), both).await;
        assert_eq!(ended.unwrap(), [2, 3, 4].map(|nth| claim(nth).id));
    }

    #[test]
    fn claim_in_doubt_is_kept_while_it_is_asked_for() {
        let (claims, claim) = (OwnClaims::<Seen>::default(), Claim::example(7));
        assert!(!claims.doubt_longer(&claim, later()), "it is not in doubt");
        claims.doubt(&claim, Clock::machine().now());
        // Its time is over, and just then it is asked for.
        claims.0.lock().expiry.forget(&claim);
        assert!(claims.doubt_longer(&claim, later()));
        assert!(claims.expired(&claim).is_none());
        let ending = expire(&claims, &claim).unwrap();
        assert!(!claims.doubt_longer(&claim, later()), "it is being ended");
        claims.ended(&claim, &ending);
        assert!(!claims.doubt_longer(&claim, later()), "it has ended");
    }
}
