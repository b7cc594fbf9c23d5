//! A batch of renewals with each claim once: for engines that can change a claim's entry only once in a transaction.

use std::collections::HashMap;

use crate::engine::Renew;

/// The renewals of a batch, of which several may be for the same claim.
#[derive(Debug)]
pub(crate) struct MergedRenewals<'a> {
    /// Each claim once: with the longest TTL that is asked for, and shortened only if all renewals of it say so.
    pub(crate) each: Vec<Renew<'a>>,
    /// For each renewal of the batch, its place in `each`.
    places: Vec<usize>,
}

impl<'a> MergedRenewals<'a> {
    pub(crate) fn of(batch: &[Renew<'a>]) -> Self {
        let (mut each, mut known) = (Vec::<Renew<'a>>::new(), HashMap::new());
        let places = batch.iter().map(|renew| {
            let claim = (&renew.claim.name, renew.claim.id);
            let place = *known.entry(claim).or_insert(each.len());
            match each.get_mut(place) {
                Some(first) => {
                    if first.claim.ttl < renew.claim.ttl {
                        first.claim = renew.claim;
                    }
                    first.shorten &= renew.shorten;
                }
                None => each.push(*renew),
            }
            place
        });
        let places = places.collect();
        Self { each, places }
    }

    /// The answers to the whole batch, from an answer for each claim.
    pub(crate) fn answers<T: Clone>(&self, each: &[T]) -> Vec<T> {
        let answers = self.places.iter().map(|place| each[*place].clone());
        answers.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::claim::{Claim, Ttl};

    #[test]
    fn claim_renewed_twice_in_a_batch_gets_the_longest_ttl() {
        let claim = |id, seconds| Claim {
            ttl: Ttl::new(Duration::from_secs(seconds)).unwrap(),
            ..Claim::example(id)
        };
        let renew = |claim, shorten| Renew {
            shorten,
            ..Renew::new(claim)
        };
        let (short, other, long) = (claim(1, 1), claim(2, 5), claim(1, 60));
        let batch = [
            renew(&short, true),
            renew(&other, true),
            renew(&long, false),
        ];
        let merged = MergedRenewals::of(&batch);
        let [first, second] = &merged.each[..] else {
            panic!("two claims");
        };
        assert_eq!((first.claim.ttl, first.shorten), (long.ttl, false));
        assert_eq!((second.claim.ttl, second.shorten), (other.ttl, true));
        assert_eq!(
            merged.answers(&["first", "second"]),
            ["first", "second", "first"]
        );
    }
}
