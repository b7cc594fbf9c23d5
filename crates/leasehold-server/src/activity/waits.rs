//! How long claims waited, minute by minute, for the last hour.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use leasehold::LockName;
use serde::Serialize;

use super::End;
use crate::time::millis;

pub(crate) const MINUTES: usize = 60;
pub(crate) const BUCKET: Duration = Duration::from_secs(60);

/// The locks that are counted apart; the least contended ones are forgotten if there are more.
const LOCKS: usize = 2_000;

/// The hour so far. The last entry of each list is the current minute.
#[derive(Debug)]
pub(super) struct Waits {
    began: Instant,
    /// The number of the current minute since then.
    minute: u64,
    by_lock: HashMap<LockName, VecDeque<u64>>,
    held: VecDeque<usize>,
    waiting: VecDeque<usize>,
    lost: VecDeque<(Instant, End)>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            minute: 0,
            by_lock: HashMap::new(),
            held: [0; MINUTES].into(),
            waiting: [0; MINUTES].into(),
            lost: VecDeque::new(),
        }
    }
}

/// How many held and waited, and what was lost.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Series {
    pub(crate) held: Vec<usize>,
    pub(crate) waiting: Vec<usize>,
    #[serde(skip)]
    pub(crate) expired: usize,
    #[serde(skip)]
    pub(crate) broken: usize,
}

impl Waits {
    /// Goes on to the current minute.
    fn advance(&mut self) {
        let now = self.began.elapsed().as_secs() / BUCKET.as_secs();
        let passed = (now - self.minute).min(MINUTES as u64);
        self.minute = now;
        for _ in 0..passed {
            for counts in [&mut self.held, &mut self.waiting] {
                counts.pop_front();
                counts.push_back(0);
            }
            for buckets in self.by_lock.values_mut() {
                buckets.pop_front();
                buckets.push_back(0);
            }
        }
        if passed > 0 {
            self.by_lock
                .retain(|_, buckets| buckets.iter().any(|waited| *waited > 0));
        }
        while let Some((at, _)) = self.lost.front()
            && at.elapsed() > BUCKET * MINUTES as u32
        {
            self.lost.pop_front();
        }
    }

    /// What a look saw: so many waited for each lock, for about this long.
    pub(super) fn saw<'a>(
        &mut self,
        held: usize,
        waiting: impl Iterator<Item = (&'a LockName, usize)>,
        for_about: Duration,
    ) {
        self.advance();
        let mut all = 0;
        for (name, waiters) in waiting.filter(|(_, waiters)| *waiters > 0) {
            all += waiters;
            let buckets = self.by_lock.entry(name.clone());
            let buckets = buckets.or_insert_with(|| [0; MINUTES].into());
            if let Some(current) = buckets.back_mut() {
                *current += millis(for_about) * waiters as u64;
            }
        }
        for (counts, now) in [(&mut self.held, held), (&mut self.waiting, all)] {
            if let Some(most) = counts.back_mut() {
                *most = now.max(*most);
            }
        }
        if self.by_lock.len() > LOCKS {
            let mut totals: Vec<u64> = self.by_lock.values().map(|it| it.iter().sum()).collect();
            totals.sort_unstable();
            let least = totals[totals.len() - LOCKS];
            self.by_lock
                .retain(|_, buckets| buckets.iter().sum::<u64>() >= least);
        }
    }

    pub(super) fn lost(&mut self, end: End) {
        self.lost.push_back((Instant::now(), end));
        self.advance();
    }

    pub(super) fn series(&mut self) -> Series {
        self.advance();
        let lost = |end: End| self.lost.iter().filter(|(_, lost)| *lost == end).count();
        Series {
            expired: lost(End::Expired),
            broken: lost(End::Broken),
            held: self.held.iter().copied().collect(),
            waiting: self.waiting.iter().copied().collect(),
        }
    }

    pub(super) fn most_contended(
        &mut self,
        limit: usize,
        is_asked_for: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<u64>)> {
        self.advance();
        let asked = self.by_lock.iter();
        let asked = asked.filter(|(name, _)| is_asked_for(name.as_str()));
        let mut asked: Vec<_> = asked
            .map(|(name, buckets)| (buckets.iter().sum::<u64>(), name, buckets))
            .collect();
        asked.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        let most = asked.into_iter().take(limit);
        most.map(|(_, name, buckets)| (name.as_str().to_owned(), buckets.iter().copied().collect()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_lock_and_forgotten_in_time() {
        let name = |text: &str| LockName::new(text).unwrap();
        let (a, b) = (name("a"), name("b"));
        let mut waits = Waits::default();
        let second = Duration::from_secs(1);
        waits.saw(3, [(&a, 2), (&b, 5)].into_iter(), second);
        waits.saw(1, [(&a, 2), (&b, 0)].into_iter(), second);
        let told = waits.most_contended(9, |_| true);
        let totals: Vec<_> = told.iter().map(|(name, it)| (&**name, it[59])).collect();
        assert_eq!(totals, [("b", 5000), ("a", 4000)]);
        assert_eq!(waits.most_contended(1, |name| name == "a")[0].0, "a");
        let series = waits.series();
        assert_eq!((series.held[59], series.waiting[59]), (3, 7));
        // A minute later.
        waits.began -= BUCKET;
        assert_eq!(waits.most_contended(1, |_| true)[0].1[58], 5000);
        waits.began -= BUCKET * 60;
        assert!(waits.most_contended(9, |_| true).is_empty());
    }
}
