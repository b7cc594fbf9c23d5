//! Counting votes: pure, so that every way an attempt can go is a table in a test.

use std::collections::HashMap;
use std::time::Duration;

use crate::engine::redis::protocol::Answer;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// The votes on one attempt.
#[derive(Debug)]
pub(super) struct Tally {
    nodes: usize,
    quorum: usize,
    /// Who has granted: to be given back if nothing comes of it.
    pub(super) granted_by: Vec<usize>,
    /// Who may have granted.
    pub(super) unanswered: Vec<usize>,
    /// By token: a claim may hold a lock already with an earlier one.
    granted: HashMap<FencingToken, usize>,
    /// For how long the others hold it where it is held.
    held: Vec<Duration>,
    ahead: Option<usize>,
    behind: Vec<u64>,
    blank: Vec<Blank>,
    failed: Vec<Error>,
}

/// A node that has lost its memory, or is new.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blank {
    pub(super) node: usize,
    pub(super) votes_in: Duration,
    pub(super) uptime: Duration,
}

/// What the votes come to.
#[derive(Debug)]
pub(super) enum Outcome {
    Granted(FencingToken),
    /// Propose again at once, a token greater than this.
    Behind(u64),
    /// No node has a memory: the deployment is new, or has lost power as a whole.
    AllBlank(Vec<Blank>),
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
            granted_by: Vec::new(),
            unanswered: Vec::new(),
            granted: HashMap::new(),
            held: Vec::new(),
            ahead: None,
            behind: Vec::new(),
            blank: Vec::new(),
            failed: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, node: usize, answer: Result<Answer>) {
        match answer {
            Ok(Answer::Granted { token, .. }) => {
                self.granted_by.push(node);
                *self.granted.entry(token).or_default() += 1;
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
            Ok(Answer::Blank { votes_in, uptime }) => self.blank.push(Blank {
                node,
                votes_in,
                uptime,
            }),
            Err(error) => {
                self.unanswered.push(node);
                self.failed.push(error);
            }
        }
    }

    /// Whether the answers that are still out can change nothing.
    pub(super) fn is_granted(&self) -> bool {
        self.granted.values().any(|votes| *votes >= self.quorum)
    }

    pub(super) fn outcome(self) -> Outcome {
        let votes = self.granted.values().sum::<usize>();
        let most = self.granted.iter().max_by_key(|(_, votes)| **votes);
        if let Some((token, _)) = most.filter(|(_, votes)| **votes >= self.quorum) {
            return Outcome::Granted(*token);
        }
        // The others go on without a few that are set up wrong; a bad request is bad on every node.
        let mut failed = self.failed;
        if failed.len() > self.nodes - self.quorum
            && let Some(nth) = failed
                .iter()
                .position(|e| e.kind() != ErrorKind::Unreachable)
        {
            // The others may have granted it.
            return Outcome::Failed(failed.swap_remove(nth).of_unknown_effect());
        }
        let passed = self.behind.iter().max().copied();
        let split = self.granted.keys().max().filter(|_| self.granted.len() > 1);
        if let Some(register) = passed.max(split.map(|token| token.get())) {
            return Outcome::Behind(register);
        }
        if self.blank.len() == self.nodes {
            return Outcome::AllBlank(self.blank);
        }
        let mut waits = self.held;
        waits.extend(self.blank.iter().map(|blank| blank.votes_in));
        if waits.is_empty() || failed.len() > self.nodes - self.quorum {
            return Outcome::Failed(no_quorum(self.nodes, self.quorum, &failed, &self.blank));
        }
        waits.sort();
        // Whoever granted is free already; then the ones that are free soonest, until there are enough.
        let needed = self.quorum.saturating_sub(votes).clamp(1, waits.len());
        Outcome::Held {
            look_again_in: waits[needed - 1],
            ahead: self.ahead,
        }
    }
}

/// Names the nodes, and says what is wrong with each.
pub(super) fn no_quorum(nodes: usize, quorum: usize, failed: &[Error], blank: &[Blank]) -> Error {
    let mut wrong: Vec<_> = failed.iter().map(|error| error.what().to_owned()).collect();
    wrong.sort();
    if !blank.is_empty() {
        wrong.push(format!(
            "{} lost their memory and do not vote yet",
            blank.len()
        ));
    }
    let well = nodes - failed.len() - blank.len();
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "only {well} of {nodes} nodes can vote, {quorum} are needed ({})",
            wrong.join("; ")
        ),
    )
    .advise("bring the nodes back; nothing else needs to be done")
    .of_unknown_effect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 100;

    fn granted(token: u64) -> Result<Answer> {
        let token = FencingToken::new(token).unwrap();
        Ok(Answer::Granted { token, now: 0 })
    }

    fn held(left: u64) -> Result<Answer> {
        Ok(Answer::Held {
            left: Some(Duration::from_millis(left)),
            now: 0,
            rank: 0,
            holders: 1,
        })
    }

    fn blank() -> Result<Answer> {
        Ok(Answer::Blank {
            votes_in: Duration::from_secs(9),
            uptime: Duration::ZERO,
        })
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
    fn what_was_granted_in_vain_is_given_back() {
        let tally = tally(vec![granted(T), held(1), down(), held(1), granted(T)]);
        assert_eq!(tally.granted_by, [0, 4]);
        assert_eq!(tally.unanswered, [2]);
    }
}
