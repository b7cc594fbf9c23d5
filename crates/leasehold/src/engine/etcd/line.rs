//! What is asked of the line of claims on a lock: the transactions, and how their answers are read.

use super::entry;
use super::keys::Span;
use super::places::Stands;
use super::proto::*;
use crate::claim::Mode;
use crate::engine::lineup::{Standing, standing};
use crate::error::Result;

/// All claims on a lock, the oldest first.
pub(crate) fn whole(line: &Span) -> RangeRequest {
    RangeRequest {
        key: line.start.clone(),
        range_end: line.end.clone(),
        sort_order: Order::Ascend.into(),
        sort_target: By::Create.into(),
        ..RangeRequest::default()
    }
}

/// A claim and those before it, as far as they matter to it: for an exclusive one the last before it is enough, however
/// long the line.
pub(crate) fn up_to(line: &Span, mode: Mode, created: i64) -> RangeRequest {
    let all = RangeRequest {
        max_create_revision: created,
        ..whole(line)
    };
    match mode {
        Mode::Exclusive => RangeRequest {
            sort_order: Order::Descend.into(),
            limit: 2,
            keys_only: true,
            ..all
        },
        _ => all,
    }
}

/// How the claim stands that [`up_to`] asked for; `None` if it is not in the line.
pub(crate) fn stands(
    mode: Mode,
    key: &[u8],
    created: i64,
    answer: &RangeResponse,
) -> Option<Stands> {
    let revision = revision(&answer.header);
    let mine = |entry: &KeyValue| entry.key == key && entry.create_revision == created;
    let behind = |watch: Vec<Vec<u8>>| Stands::Behind { watch, revision };
    if mode == Mode::Exclusive {
        let (first, rest) = answer.kvs.split_first()?;
        return mine(first).then(|| match rest.first() {
            Some(before) => behind(vec![before.key.clone()]),
            None => Stands::Holds,
        });
    }
    let (last, ahead) = answer.kvs.split_last()?;
    mine(last).then(|| would_stand(mode, ahead, revision))
}

/// How a claim would stand behind these.
pub(crate) fn would_stand(mode: Mode, ahead: &[KeyValue], revision: i64) -> Stands {
    let modes: Vec<_> = ahead.iter().map(entry::mode).collect();
    match standing(&modes, mode) {
        Standing::Holds => Stands::Holds,
        Standing::Behind(watch) => Stands::Behind {
            watch: watch
                .into_iter()
                .map(|nth| ahead[nth].key.clone())
                .collect(),
            revision,
        },
    }
}

/// Refuses a claim that counts the permits otherwise than those already there.
pub(crate) fn agrees(mode: Mode, line: &[KeyValue]) -> Result<()> {
    line.iter()
        .try_for_each(|entry| mode.agrees_with(entry::mode(entry)))
}

/// Nobody stands in the line.
pub(crate) fn is_empty(line: &Span) -> Compare {
    nobody_since(line, 0)
}

/// Nobody has joined the line after this revision.
pub(crate) fn nobody_since(line: &Span, revision: i64) -> Compare {
    Compare {
        result: Is::Less.into(),
        target: What::Create.into(),
        key: line.start.clone(),
        range_end: line.end.clone(),
        with: Some(With::CreateRevision(revision + 1)),
    }
}

pub(crate) fn absent(key: &[u8]) -> Compare {
    Compare {
        result: Is::Equal.into(),
        target: What::Create.into(),
        key: key.to_vec(),
        range_end: Vec::new(),
        with: Some(With::CreateRevision(0)),
    }
}

pub(crate) fn unchanged(key: &[u8], modified: i64) -> Compare {
    Compare {
        result: Is::Equal.into(),
        target: What::Mod.into(),
        key: key.to_vec(),
        range_end: Vec::new(),
        with: Some(With::ModRevision(modified)),
    }
}

/// Nobody stands before the claim that was made at this revision.
pub(crate) fn nobody_before(line: &Span, created: i64) -> Compare {
    Compare {
        result: Is::Greater.into(),
        with: Some(With::CreateRevision(created - 1)),
        ..is_empty(line)
    }
}

/// The oldest claim on a lock, by what one member knows.
pub(crate) fn head(line: &Span) -> RangeRequest {
    RangeRequest {
        limit: 1,
        serializable: true,
        ..whole(line)
    }
}

/// The entry of one claim, without its value.
pub(crate) fn one(key: &[u8]) -> RangeRequest {
    RangeRequest {
        key: key.to_vec(),
        keys_only: true,
        ..RangeRequest::default()
    }
}

pub(crate) fn delete(key: &[u8]) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.to_vec(),
        range_end: Vec::new(),
    }
}

pub(crate) fn revision(header: &Option<Header>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

impl TxnResponse {
    /// The answer to its nth request, if that was a range.
    pub(crate) fn range(&self, nth: usize) -> Option<&RangeResponse> {
        match self.responses.get(nth)?.response.as_ref()? {
            Response::Range(range) => Some(range),
            _ => None,
        }
    }

    /// The answer to its nth request, if that was a transaction.
    pub(crate) fn txn(&self, nth: usize) -> Option<&TxnResponse> {
        match self.responses.get(nth)?.response.as_ref()? {
            Response::Txn(txn) => Some(txn),
            _ => None,
        }
    }

    /// How many its nth request deleted.
    pub(crate) fn deleted(&self, nth: usize) -> i64 {
        match self.responses.get(nth).and_then(|op| op.response.as_ref()) {
            Some(Response::DeleteRange(delete)) => delete.deleted,
            _ => 0,
        }
    }
}
