//! Many renewals in one call of a script. Most need no more than a look at the lock's key; the others are made one by one.

use std::collections::HashMap;
use std::time::Duration;

use super::connection::Connection;
use super::keys::Keys;
use super::protocol::{self, Call, Renewed, Reply};
use crate::claim::Mode;
use crate::engine::Renew;
use crate::error::{Error, Result};

/// How many one script renews: it blocks the server while it runs.
const BATCH: usize = 100;

/// The renewals that can be made together, and where they are in the list of all.
pub(crate) struct Batches {
    calls: Vec<Call>,
    numbers: Vec<Vec<usize>>,
}

impl Batches {
    /// `attempt` is what the locks say that were renewed before.
    pub(crate) fn of(keys: &Keys, held: &[Renew<'_>], max_ttl: Duration, attempt: u64) -> Self {
        let mut alike: HashMap<_, Vec<_>> = HashMap::new();
        for (nth, renew) in held.iter().enumerate() {
            if let (Some(token), Mode::Exclusive, false) =
                (renew.token, renew.claim.mode, renew.shorten)
            {
                let (ttl, digits) = (renew.claim.ttl, token.get().checked_ilog10());
                let group = (ttl, digits, keys.group(&renew.claim.name));
                let members = alike.entry(group).or_default();
                members.push((nth, renew.claim, token));
            }
        }
        let mut batches = Self {
            calls: Vec::new(),
            numbers: Vec::new(),
        };
        for batch in alike.values().flat_map(|members| members.chunks(BATCH)) {
            let claims: Vec<_> = batch
                .iter()
                .map(|(_, claim, token)| (*claim, *token))
                .collect();
            let call = protocol::renew_quickly(keys, &claims, max_ttl, attempt);
            batches.calls.extend(call);
            let numbers = batch.iter().map(|(nth, _, _)| *nth);
            batches.numbers.push(numbers.collect());
        }
        batches
    }

    /// An answer for each of those that are held. `slowly` makes the call for one of them.
    pub(crate) async fn renew(
        &self,
        connection: &Connection,
        held: &[Renew<'_>],
        slowly: impl Fn(usize) -> Call,
    ) -> Vec<Result<Renewed>> {
        let mut renewed: Vec<Option<Result<Renewed>>> = held.iter().map(|_| None).collect();
        let answers = connection.call_all::<Vec<usize>>(&self.calls).await;
        for (numbers, answer) in self.numbers.iter().zip(answers) {
            let rest = match answer {
                Ok(rest) => rest,
                Err(error) => {
                    numbers
                        .iter()
                        .for_each(|nth| renewed[*nth] = Some(Err(error.clone())));
                    continue;
                }
            };
            for (place, nth) in numbers.iter().enumerate() {
                let token = held[*nth].token.filter(|_| !rest.contains(&(place + 1)));
                renewed[*nth] = token.map(|token| Ok(Renewed::Yes(token)));
            }
        }
        let rest: Vec<_> = (0..held.len())
            .filter(|nth| renewed[*nth].is_none())
            .collect();
        let calls: Vec<_> = rest.iter().map(|nth| slowly(*nth)).collect();
        let answers = connection.call_all::<Reply>(&calls).await;
        for (nth, answer) in rest.into_iter().zip(answers) {
            renewed[nth] = Some(answer.and_then(|reply| Renewed::read(&reply)));
        }
        let renewed = renewed.into_iter();
        renewed
            .map(|answer| answer.unwrap_or_else(|| Err(no_answer())))
            .collect()
    }
}

fn no_answer() -> Error {
    super::failure::nonsense(&[])
}
