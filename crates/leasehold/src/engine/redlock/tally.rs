//! Counting votes: pure, so that every way an attempt can go is a table in a test.

use std::time::Duration;

use crate::engine::redis::protocol::{Answer, Blank};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::token::FencingToken;

/// The votes on one attempt.
#[derive(Debug, Default)]
pub(super) struct Tally {
    nodes: usize,
    quorum: usize,
    /// Who has granted, and with which token: a claim may hold a lock already with an earlier one.
    granted: Vec<(usize, FencingToken)>,
    /// Who was asked, and may have granted.
    pub(super) unanswered: Vec<usize>,
    /// For how long the others hold it where it is held.
    held: Vec<Duration>,
    ahead: Option<usize>,
    behind: Vec<u64>,
    /// With the number of the node.
    blank: Vec<(usize, Blank)>,
    failed: Vec<Error>,
}

/// What the votes come to.
#[derive(Debug)]
pub(super) enum Outcome {
    Granted(FencingToken),
    /// Propose again at once, a token greater than this.
    Behind(u64),
    /// No node has a memory: the deployment is new, or has lost power as a whole.
    AllBlank(Vec<(usize, Blank)>),
    /// Others hold it, or have split the votes. After this time a quorum may be free.
    Held {
        look_again_in: Duration,
        ahead: Option<usize>,
    },
    Failed(Error),
}

impl Tally {
    pub(super) fn new(nodes: usize, quorum: usize) -> Self {
        Self {
            nodes,
            quorum,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, node: usize, answer: Result<Answer>) {
        match answer {
            Ok(Answer::Granted(token)) => {
                self.granted.push((node, token));
            }
            Ok(Answer::Held {
                left,
                rank,
                holders,
                ..
            }) => {
                self.held.push(left.unwrap_or(Duration::from_secs(1)));
                self.ahead = self.ahead.max(Some(rank + holders));
            }
            Ok(Answer::Behind(register)) => self.behind.push(register),
            Ok(Answer::Blank(blank)) => self.blank.push((node, blank)),
            Err(error) => {
                if error.effect() == Effect::Unknown {
                    self.unanswered.push(node);
                }
                self.failed.push(error);
            }
        }
    }

    /// The token that so many nodes have granted that the answers that are still out can change nothing.
    fn granted(&self) -> Option<FencingToken> {
        let votes = |token| self.granted.iter().filter(|(_, of)| *of == token).count();
        let mut tokens = self.granted.iter().map(|(_, token)| *token);
        tokens.find(|token| votes(*token) >= self.quorum)
    }

    pub(super) fn is_granted(&self) -> bool {
        self.granted().is_some()
    }

    /// Who has granted another token than this one, if there is one.
    pub(super) fn granted_except(&self, token: Option<FencingToken>) -> Vec<usize> {
        let granted = self.granted.iter();
        let others = granted.filter(|(_, granted)| Some(*granted) != token);
        others.map(|(node, _)| *node).collect()
    }

    pub(super) fn outcome(self) -> Outcome {
        if let Some(token) = self.granted() {
            return Outcome::Granted(token);
        }
        // The others go on without a few that are set up wrong; a bad request is bad on every node.
        let failed = self.failed;
        let worst = failed.iter().max_by_key(|error| match error.kind() {
            ErrorKind::Unreachable => 0,
            ErrorKind::InvalidConfig => 2,
            _ => 1,
        });
        if let Some(error) = worst.filter(|_| failed.len() > self.nodes - self.quorum)
            && error.kind() != ErrorKind::Unreachable
        {
            return Outcome::Failed(match error.kind() {
                // The claim may hold the lock in another mode, and must not be released.
                ErrorKind::InvalidConfig => error.clone(),
                // The others may have granted it.
                _ => error.clone().of_unknown_effect(),
            });
        }
        let passed = self.behind.iter().max().copied();
        let tokens = || self.granted.iter().map(|(_, token)| token.get());
        let split = tokens().max().filter(|_| tokens().min() != tokens().max());
        if let Some(register) = passed.max(split) {
            return Outcome::Behind(register);
        }
        if self.blank.len() == self.nodes {
            return Outcome::AllBlank(self.blank);
        }
        let mut waits = self.held;
        waits.extend(self.blank.iter().map(|(_, blank)| blank.votes_in));
        if waits.is_empty() || failed.len() > self.nodes - self.quorum {
            return Outcome::Failed(no_quorum(self.nodes, self.quorum, &failed, &self.blank));
        }
        waits.sort();
        // Whoever granted is free already; then the ones that are free soonest, until there are enough.
        let needed = self
            .quorum
            .saturating_sub(self.granted.len())
            .clamp(1, waits.len());
        Outcome::Held {
            look_again_in: waits[needed - 1],
            ahead: self.ahead,
        }
    }
}

/// Names the nodes, and says what is wrong with each.
pub(super) fn no_quorum(
    nodes: usize,
    quorum: usize,
    failed: &[Error],
    blank: &[(usize, Blank)],
) -> Error {
    let mut wrong: Vec<_> = failed.iter().map(|error| error.what().to_owned()).collect();
    wrong.sort();
    if !blank.is_empty() {
        wrong.push(format!(
            "{} were restarted and do not vote yet",
            blank.len()
        ));
    }
    let well = nodes - failed.len() - blank.len();
    let error = Error::new(
        ErrorKind::Unreachable,
        format!(
            "only {well} of {nodes} nodes can vote, {quorum} are needed ({})",
            wrong.join("; ")
        ),
    )
    .advise("bring the nodes back; nothing else needs to be done")
    .of_unknown_effect();
    let busy = failed.iter().filter(|error| error.is_busy()).count();
    match well + busy >= quorum {
        true => error.because_busy(),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 100;

    fn granted(token: u64) -> Result<Answer> {
        let token = FencingToken::new(token).unwrap();
        Ok(Answer::Granted(token))
    }

    fn held(left: u64) -> Result<Answer> {
        Ok(Answer::Held {
            left: Some(Duration::from_millis(left)),
            rank: 0,
            holders: 1,
            now: 1,
        })
    }

    fn blank() -> Result<Answer> {
        Ok(Answer::Blank(Blank {
            votes_in: Duration::from_secs(9),
            uptime: Duration::ZERO,
        }))
    }

    fn down() -> Result<Answer> {
        Err(Error::new(ErrorKind::Unreachable, "h:1: gone"))
    }

    fn tally(answers: Vec<Result<Answer>>) -> Tally {
        let mut tally = Tally::new(5, 3);
        for (node, answer) in answers.into_iter().enumerate() {
            tally.add(node, answer);
        }
        tally
    }

    #[test]
    fn a_quorum_decides_at_once() {
        let tally = tally(vec![granted(T), held(5), granted(T), granted(T)]);
        assert!(tally.is_granted());
        assert!(matches!(tally.outcome(), Outcome::Granted(token) if token.get() == T));
    }

    #[test]
    fn two_grants_decide_nothing() {
        assert!(!tally(vec![granted(T), granted(T), down()]).is_granted());
    }

    #[test]
    fn a_grant_that_was_had_before_counts_as_it_was() {
        let tally = tally(vec![granted(7), granted(7), granted(7), held(1)]);
        assert!(matches!(tally.outcome(), Outcome::Granted(token) if token.get() == 7));
    }

    #[test]
    fn votes_for_two_tokens_do_not_add_up() {
        let tally = tally(vec![
            granted(T),
            granted(T),
            granted(T + 7),
            held(1),
            held(1),
        ]);
        assert!(matches!(tally.outcome(), Outcome::Behind(107)));
    }

    #[test]
    fn a_quorum_is_free_when_enough_have_expired() {
        let tally = tally(vec![granted(T), held(30), held(10), held(20), held(40)]);
        let Outcome::Held { look_again_in, .. } = tally.outcome() else {
            panic!("held");
        };
        assert_eq!(look_again_in, Duration::from_millis(20));
    }

    #[test]
    fn too_many_down_is_an_error_that_names_them() {
        let tally = tally(vec![granted(T), granted(T), down(), down(), down()]);
        let Outcome::Failed(error) = tally.outcome() else {
            panic!("failed");
        };
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.what().contains("only 2 of 5") && error.what().contains("h:1"));
    }

    #[test]
    fn nodes_that_are_busy_are_asked_again_if_there_are_enough_of_them() {
        let busy = || Err(Error::new(ErrorKind::Unreachable, "full").because_busy());
        let asked_again = |answers| match tally(answers).outcome() {
            Outcome::Failed(error) => error.is_busy(),
            other => panic!("{other:?}"),
        };
        assert!(asked_again(vec![
            granted(T),
            busy(),
            busy(),
            busy(),
            down()
        ]));
        assert!(!asked_again(vec![
            granted(T),
            busy(),
            down(),
            down(),
            down()
        ]));
    }

    #[test]
    fn a_few_that_are_set_up_wrong_do_not_count() {
        let wrong = || Err(Error::new(ErrorKind::Denied, "no"));
        let waits = tally(vec![held(1), wrong(), held(1), wrong(), held(1)]);
        assert!(matches!(waits.outcome(), Outcome::Held { .. }));
        let fails = tally(vec![held(1), wrong(), down(), wrong(), held(1)]);
        let Outcome::Failed(error) = fails.outcome() else {
            panic!("failed");
        };
        assert_eq!(error.kind(), ErrorKind::Denied);
    }

    #[test]
    fn all_blank_is_known_only_when_all_have_said_so() {
        let all = tally((0..5).map(|_| blank()).collect());
        assert!(matches!(all.outcome(), Outcome::AllBlank(_)));
        let some = tally(vec![blank(), blank(), blank(), granted(T), granted(T)]);
        assert!(matches!(some.outcome(), Outcome::Held { .. }));
    }

    #[test]
    fn what_the_claim_has_been_granted_before_is_kept() {
        let tally = tally(vec![granted(7), held(1), granted(T), down(), granted(7)]);
        assert_eq!(tally.granted_except(FencingToken::new(7)), [2]);
    }

    #[test]
    fn what_was_granted_in_vain_is_given_back() {
        let lost = down().map_err(Error::of_unknown_effect);
        let tally = tally(vec![granted(T), down(), lost, held(1), granted(T)]);
        assert_eq!(tally.granted_except(None), [0, 4]);
        assert_eq!(tally.unanswered, [2]);
    }
}
