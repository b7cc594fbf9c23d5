//! When signs of life were first seen: the clock of leases on a store that has none.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::document::{Document, Holder, Life, millis};
use crate::clock::Moment;
use crate::sync::Mutex;

/// More than so many are not kept; those go first that were not seen for the longest time. One that has gone counts from the next sight of it.
const KEPT: usize = if cfg!(test) { 1_000 } else { 100_000 };

/// By how much wall clocks may differ where the time of a claim ends by them that nobody relies on.
const SKEW: Duration = Duration::from_secs(1);

/// On this process's clock. Whoever waits for a claim to end counts from *after* the request that first showed a sign of life; whoever wrote it
/// counts from *before* its request left. So the one who waits never counts less than the one who relies on it.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    /// For those who trust each other's wall clocks: by how much they may differ.
    pub(crate) max_clock_skew: Option<Duration>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    by_beat: HashMap<u64, (Sight, Moment)>,
    /// By when each was last seen.
    by_time: BTreeSet<(Moment, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    pub(crate) at: Moment,
    /// This process wrote it, in a request that left then.
    pub(crate) ours: bool,
}

impl Seen {
    fn insert(&mut self, beat: u64, sight: Sight, last: Moment) {
        self.remove(beat);
        self.by_beat.insert(beat, (sight, last));
        self.by_time.insert((last, beat));
        if self.by_beat.len() > KEPT
            && let Some(&(_, oldest)) = self.by_time.first()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, beat: u64) {
        if let Some((_, last)) = self.by_beat.remove(&beat) {
            self.by_time.remove(&(last, beat));
        }
    }
}

impl Sightings {
    pub(crate) fn trusting(max_clock_skew: Option<Duration>) -> Self {
        Self {
            max_clock_skew,
            seen: Mutex::default(),
        }
    }

    /// A request that was answered at this moment has shown the document; before, this one was there.
    pub(crate) fn note(&self, document: &Document, before: Option<&Document>, at: Moment) {
        let mut seen = self.seen.lock();
        if let Some(before) = before {
            let now: Vec<_> = document.beats().collect();
            for beat in before.beats().filter(|beat| !now.contains(beat)) {
                seen.remove(beat);
            }
        }
        for beat in document.beats() {
            let first = seen.by_beat.get(&beat).map(|(sight, _)| *sight);
            seen.insert(beat, first.unwrap_or(Sight { at, ours: false }), at);
        }
    }

    /// This process is about to write the document, with signs of life that were not in the one before.
    pub(crate) fn write(&self, document: &Document, before: Option<&Document>, sent: Moment) {
        let known: Vec<_> = before.into_iter().flat_map(Document::beats).collect();
        let mut seen = self.seen.lock();
        for beat in document.beats().filter(|beat| !known.contains(beat)) {
            let sight = Sight {
                at: sent,
                ours: true,
            };
            seen.insert(beat, sight, sent);
        }
    }

    /// The document will never be there.
    pub(crate) fn forget(&self, document: &Document, before: Option<&Document>) {
        let known: Vec<_> = before.into_iter().flat_map(Document::beats).collect();
        let mut seen = self.seen.lock();
        for beat in document.beats().filter(|beat| !known.contains(beat)) {
            seen.remove(beat);
        }
    }

    pub(crate) fn sight(&self, life: &Life) -> Option<Sight> {
        let seen = self.seen.lock();
        seen.by_beat.get(&life.beat).map(|(sight, _)| *sight)
    }

    /// How much is left of a claim that lasts for `ttl` milliseconds from its last sign of life. `None`: it has ended. The wall clock is in
    /// microseconds since 1970.
    pub(crate) fn left(&self, life: &Life, ttl: u64, now: Moment, wall: u64) -> Option<Duration> {
        let lasts = Duration::from_millis(ttl);
        let since = self.sight(life).map_or(now, |sight| sight.at);
        let left = (since + lasts).since(now);
        let is_over = |skew| left_by_wall_clock(life, ttl, skew, wall).is_zero();
        if left.is_zero() || self.max_clock_skew.is_some_and(is_over) {
            return None;
        }
        Some(left)
    }

    /// The same of a holder.
    pub(crate) fn left_of(&self, holder: &Holder, now: Moment, wall: u64) -> Option<Duration> {
        let left = self.left(&holder.life, holder.ttl, now, wall)?;
        if !holder.unattended {
            return Some(left);
        }
        // Whoever sees it for the first time after its end need not wait: nobody relies on it, so clocks that differ harm nobody.
        let by_wall_clock = left_by_wall_clock(&holder.life, holder.ttl, SKEW, wall);
        Some(left.min(by_wall_clock)).filter(|left| !left.is_zero())
    }
}

/// If the clocks of those who read and write differ by no more than this.
fn left_by_wall_clock(life: &Life, ttl: u64, skew: Duration, wall: u64) -> Duration {
    let end = life.at.saturating_add(ttl).saturating_add(millis(skew));
    // One more, since both were rounded down.
    Duration::from_millis(end.saturating_add(1).saturating_sub(wall / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Claim;

    const WALL: u64 = 1_000_000_000;

    fn at(millis: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(1_000_000 + millis))
    }

    fn document(beat: u64) -> (Document, Life) {
        let life = Life { beat, at: 0 };
        let mut document = Document::new("x");
        document
            .holders
            .push(Holder::new(&Claim::example(1), 1, life));
        (document, life)
    }

    #[test]
    fn claim_is_timed_from_the_first_sight_of_its_last_sign() {
        let sightings = Sightings::default();
        let (first, life) = document(1);
        sightings.note(&first, None, at(0));
        sightings.note(&first, Some(&first), at(50));
        assert_eq!(
            sightings.left(&life, 100, at(60), WALL),
            Some(Duration::from_millis(40))
        );
        assert_eq!(sightings.left(&life, 100, at(100), WALL), None);
        let (renewed, next) = document(2);
        sightings.note(&renewed, Some(&first), at(90));
        assert_eq!(
            sightings.left(&next, 100, at(100), WALL),
            Some(Duration::from_millis(90))
        );
        assert_eq!(sightings.sight(&life), None);
    }

    #[test]
    fn own_write_counts_from_before_it_left() {
        let sightings = Sightings::default();
        let (written, life) = document(1);
        sightings.write(&written, None, at(0));
        sightings.note(&written, None, at(80));
        assert_eq!(sightings.left(&life, 100, at(100), WALL), None);
        assert!(sightings.sight(&life).unwrap().ours);
    }

    #[test]
    fn dead_claim_is_seen_at_once_only_by_trusted_clocks() {
        let (_, old) = document(1);
        let now = at(0);
        let sightings = Sightings::default();
        assert!(sightings.left(&old, 100, now, WALL).is_some());
        let trusting = Sightings::trusting(Some(Duration::from_secs(1)));
        assert_eq!(trusting.left(&old, 100, now, WALL), None);
        let just_now = Life {
            beat: 2,
            at: WALL / 1000 - 500,
        };
        assert!(trusting.left(&just_now, 100, now, WALL).is_some());
    }

    #[test]
    fn memory_of_sights_is_bounded() {
        let sightings = Sightings::default();
        for beat in 0..2 * KEPT as u64 {
            sightings.note(&document(beat).0, None, at(beat));
        }
        let seen = sightings.seen.lock();
        assert_eq!((seen.by_beat.len(), seen.by_time.len()), (KEPT, KEPT));
    }
}
