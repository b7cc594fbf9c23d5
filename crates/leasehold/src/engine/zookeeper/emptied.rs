//! Up to where a lock's line is known to be empty: whoever joins it next need not look.
//!
//! Whoever holds a lock exclusively has nobody before it, and nobody comes before it any more. When its node has gone, there is none of its
//! number or a lower one. The servers number the children of a node one after the other, so whoever gets the next number is the first in line.
//!
//! Unless the lock's node has been removed meanwhile and made again, for then numbers begin at nought. To come as far as ours, so many others
//! must have joined since; each takes its place by a transaction of its own, and the numbers of those show that there were not so many.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::places::Place;

/// So many locks are remembered; to forget one costs its next user a look.
const AT_MOST: usize = 1_000;

/// Held for nanoseconds and never across an await, so a std Mutex.
#[derive(Debug, Default)]
pub(crate) struct Emptied(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// By the path of the lock.
    known: HashMap<String, Last>,
    /// The latest transaction that was heard of.
    latest: u64,
}

/// Who left the line last.
#[derive(Debug, Clone, Copy)]
struct Last {
    sequence: i64,
    /// The transaction that made its node.
    made: u64,
}

impl Emptied {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever held the lock exclusively here has gone.
    pub(crate) fn note(&self, lock: String, gone: &Place) {
        let last = Last {
            sequence: gone.sequence,
            made: gone.token.get(),
        };
        let mut lines = self.lines();
        lines.latest = lines.latest.max(last.made);
        let known = &mut lines.known;
        if known.len() >= AT_MOST && !known.contains_key(&lock) {
            known.clear();
        }
        known.insert(lock, last);
    }

    /// Whether whoever joins the line now will likely be known to be first.
    pub(crate) fn expects_one(&self, lock: &str) -> bool {
        let lines = self.lines();
        // Two more at least: the end of the last place, and the next one.
        let next = lines.latest + 2;
        let known = lines.known.get(lock);
        known.is_some_and(|last| last.is_close(next))
    }

    /// Whether this place is surely the first in line; if it may not be, the line is no longer known.
    pub(crate) fn is_first(&self, lock: &str, place: &Place) -> bool {
        let known = &mut self.lines().known;
        let first = known.get(lock).is_some_and(|last| last.precedes(place));
        if !first {
            known.remove(lock);
        }
        first
    }
}

impl Last {
    fn precedes(&self, next: &Place) -> bool {
        next.sequence == self.sequence + 1 && self.is_close(next.token.get())
    }

    /// Whether fewer transactions lie between than others would need who begin at nought.
    fn is_close(&self, transaction: u64) -> bool {
        let others = u64::try_from(self.sequence).unwrap_or(0);
        let between = transaction.checked_sub(self.made);
        between.is_some_and(|between| between <= others)
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::Stands;
    use super::*;
    use crate::token::FencingToken;

    fn place(sequence: i64, made: u64) -> Place {
        Place {
            session: 1,
            path: String::new(),
            sequence,
            token: FencingToken::new(made).unwrap(),
            standing: Stands::Holds,
            has_waited: false,
        }
    }

    fn is_first(gone: &Place, next: &Place) -> bool {
        let emptied = Emptied::default();
        emptied.note("x".to_owned(), gone);
        let first = emptied.is_first("x", next);
        assert_eq!(emptied.lines().known.contains_key("x"), first);
        first
    }

    #[test]
    fn the_next_number_is_the_first_in_line() {
        assert!(is_first(&place(7, 100), &place(8, 102)));
        assert!(!is_first(&place(7, 100), &place(9, 103)));
        assert!(!Emptied::default().is_first("x", &place(8, 102)));
    }

    /// The lock's node may have been removed, made again, and joined by as many others.
    #[test]
    fn but_not_where_numbers_may_have_begun_anew() {
        // Ours goes, the lock's node goes, is made again, another joins it, and then we do.
        assert!(!is_first(&place(0, 100), &place(1, 105)));
        assert!(is_first(&place(7, 100), &place(8, 107)));
        assert!(!is_first(&place(7, 100), &place(8, 108)));
        let next_election = 1 << 32;
        assert!(!is_first(&place(7, 100), &place(8, next_election)));
        assert!(!is_first(&place(7, 100), &place(8, 99)));
        assert!(!is_first(&place(-8, 100), &place(-7, 102)));
    }

    #[test]
    fn one_is_expected_where_not_much_else_happens() {
        let emptied = Emptied::default();
        assert!(!emptied.expects_one("x"));
        emptied.note("x".to_owned(), &place(1, 100));
        assert!(!emptied.expects_one("x"));
        emptied.note("x".to_owned(), &place(8, 200));
        assert!(emptied.expects_one("x"));
        emptied.note("y".to_owned(), &place(0, 206));
        assert!(emptied.expects_one("x"));
        emptied.note("y".to_owned(), &place(1, 207));
        assert!(!emptied.expects_one("x"));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let emptied = Emptied::default();
        for nth in 0..5 * AT_MOST {
            emptied.note(nth.to_string(), &place(7, 100));
        }
        assert!(emptied.lines().known.len() <= AT_MOST);
    }
}
