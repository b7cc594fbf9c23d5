//! Who holds a lock whose claims stand in one line, in the order in which the store took them: for engines
//! where holders and waiters are the same kind of entry.

use crate::claim::Mode;

/// Where a claim stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It holds the lock.
    Holds,
    /// It waits. Nothing changes for it before one of these (counted from the head of the line) has gone; when
    /// one has, it must look again. One for an exclusive or shared claim, so that a release wakes one; as many as
    /// there are permits for a permit.
    Behind(Vec<usize>),
}

/// How a claim of this mode stands behind those ahead of it, the oldest first.
pub(crate) fn standing(ahead: &[Mode], mine: Mode) -> Standing {
    let blocks = |other: &Mode| match mine {
        Mode::Exclusive => true,
        Mode::Shared => *other != Mode::Shared,
        Mode::Permit { .. } => !matches!(other, Mode::Permit { .. }),
    };
    if let Some(last) = ahead.iter().rposition(blocks) {
        return Standing::Behind(vec![last]);
    }
    match mine {
        // While all of the `of` nearest are there, there is no permit left.
        Mode::Permit { of } if ahead.len() >= of as usize => {
            Standing::Behind((ahead.len() - of as usize..ahead.len()).collect())
        }
        _ => Standing::Holds,
    }
}

/// How many at the head of the line hold the lock.
pub(crate) fn holders(line: &[Mode]) -> usize {
    (0..line.len())
        .take_while(|&place| standing(&line[..place], line[place]) == Standing::Holds)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Exclusive, Permit, Shared};
    use proptest::prelude::*;

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Exclusive), Just(Shared), Just(Permit { of: 3 })]
    }

    proptest! {
        /// The rule of all engines: the head of the queue is let in for as long as it fits.
        #[test]
        fn the_same_hold_it_as_where_the_head_is_let_in_while_it_fits(line in prop::collection::vec(mode(), 0..12)) {
            let mut admitted = 0;
            while admitted < line.len() && line[admitted].fits(line[..admitted].iter().copied()) {
                admitted += 1;
            }
            prop_assert_eq!(holders(&line), admitted);
        }

        /// No wake-up is missed: as long as all that a claim watches are there, it cannot hold the lock, whoever else goes.
        #[test]
        fn nothing_changes_before_one_of_the_watched_has_gone(
            line in prop::collection::vec(mode(), 1..12),
            gone in prop::collection::vec(any::<bool>(), 12),
        ) {
            let (mine, ahead) = line.split_last().unwrap();
            if let Standing::Behind(watched) = standing(ahead, *mine) {
                let left: Vec<_> = (0..ahead.len())
                    .filter(|place| watched.contains(place) || !gone[*place])
                    .map(|place| ahead[place])
                    .collect();
                prop_assert_ne!(standing(&left, *mine), Standing::Holds);
            }
        }

        /// Who holds the lock goes on holding it when others go.
        #[test]
        fn a_holder_stays_one(ahead in prop::collection::vec(mode(), 0..12), mine in mode(), goes in 0usize..12) {
            if standing(&ahead, mine) == Standing::Holds && goes < ahead.len() {
                let mut left = ahead.clone();
                left.remove(goes);
                prop_assert_eq!(standing(&left, mine), Standing::Holds);
            }
        }
    }
}
