//! What is asked of the queue of claims on a lock, as requests of etcd's, and how their answers are read. Nothing here sends
//! anything.

use super::claim::{Ahead, QueueEntry};
use super::keys::Span;
use super::leases::Lease;
use super::proto::*;
use super::value;
use crate::claim::{Claim, Mode};
use crate::engine::queue_rules::{self, position};
use crate::error::Result;

/// Where a claim is in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Position {
    /// It holds the lock, or may take it.
    Holds,
    Behind(Ahead),
}

/// All claims on a lock, the oldest first.
pub(crate) fn whole(queue: &Span) -> RangeRequest {
    RangeRequest {
        key: queue.start.clone(),
        range_end: queue.end.clone(),
        sort_order: Order::Ascend.into(),
        sort_target: By::Create.into(),
        ..RangeRequest::default()
    }
}

/// A claim and those ahead of it, as far as they matter to it: for an exclusive one the last of them is enough, however
/// long the queue.
pub(crate) fn up_to(queue: &Span, mode: Mode, created: i64) -> RangeRequest {
    let all = RangeRequest {
        max_create_revision: created,
        ..whole(queue)
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

/// The oldest claim on a lock.
pub(crate) fn head(queue: &Span) -> RangeRequest {
    RangeRequest {
        limit: 1,
        ..whole(queue)
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

/// Joins the queue if nobody is in it; otherwise an exclusive claim queues if there is a lease to wait under, and the answer to
/// the first request for others returns what is there.
pub(crate) fn join(
    claim: &Claim,
    key: &[u8],
    queue: &Span,
    hold: &Lease,
    wait: Option<&Lease>,
) -> TxnRequest {
    let others = match (claim.mode, wait) {
        (Mode::Exclusive, Some(wait)) => {
            let join = TxnRequest {
                compare: vec![absent(key)],
                success: vec![put(claim, key, wait, true)],
                failure: vec![Request::Range(one(key)).into()],
            };
            let last = up_to(queue, Mode::Exclusive, 0);
            vec![Request::Txn(join).into(), Request::Range(last).into()]
        }
        (Mode::Exclusive, None) => vec![Request::Range(one(key)).into()],
        _ => vec![Request::Range(whole(queue)).into()],
    };
    TxnRequest {
        compare: vec![is_empty(queue)],
        success: vec![put(claim, key, hold, false)],
        failure: others,
    }
}

/// Joins those who hold the lock, unless others have joined after this revision; or the queue, if there is none.
pub(crate) fn join_beside(
    claim: &Claim,
    key: &[u8],
    queue: &Span,
    lease: &Lease,
    unless_joined_since: Option<i64>,
) -> TxnRequest {
    let since = unless_joined_since.map(|revision| nobody_since(queue, revision));
    TxnRequest {
        compare: since.into_iter().chain([absent(key)]).collect(),
        success: vec![
            put(claim, key, lease, unless_joined_since.is_none()),
            Request::Range(whole(queue)).into(),
        ],
        failure: Vec::new(),
    }
}

/// Writes down that the claim holds the lock, under the lease of its TTL. For an exclusive claim that is also the look
/// whether it is its turn. If it is not, the answer has the claim's own entry, and that with those ahead.
pub(crate) fn take(
    entry: &QueueEntry,
    key: &[u8],
    queue: &Span,
    hold: &Lease,
    since: u64,
) -> TxnRequest {
    let mode = entry.claim.mode;
    let first = (mode == Mode::Exclusive).then(|| nobody_before(queue, entry.created));
    let value = value::write(&entry.claim, false, since);
    let look = up_to(queue, mode, entry.created);
    TxnRequest {
        compare: [unchanged(key, entry.modified)]
            .into_iter()
            .chain(first)
            .collect(),
        success: vec![put_value(key, value, hold)],
        failure: vec![Request::Range(one(key)).into(), Request::Range(look).into()],
    }
}

/// Moves the claim's key to this lease, unless it is under it or another process has changed it; and looks at it.
pub(crate) fn move_to(entry: &QueueEntry, key: &[u8], lease: &Lease, waits: bool) -> RequestOp {
    let look = RequestOp::from(Request::Range(one(key)));
    if entry.lease.id == lease.id {
        return look;
    }
    // What another process has written stays as it is.
    let value = match entry.since {
        0 => Vec::new(),
        since => value::write(&entry.claim, waits, since),
    };
    Request::Txn(TxnRequest {
        compare: vec![unchanged(key, entry.modified)],
        success: vec![put_value(key, value, lease), look.clone()],
        failure: vec![look],
    })
    .into()
}

/// Moves the key of a claim of which only the id is known to this lease, unless another process has changed it or this other key is gone;
/// and looks at it.
pub(crate) fn take_over(found: &KeyValue, lease: &Lease, while_there: &[u8]) -> TxnRequest {
    let look = RequestOp::from(Request::Range(one(&found.key)));
    TxnRequest {
        compare: vec![
            unchanged(&found.key, found.mod_revision),
            present(while_there),
        ],
        success: vec![
            put_value(&found.key, value::taken_over(found), lease),
            look.clone(),
        ],
        failure: vec![look],
    }
}

/// Moves the key of a claim that waits through another process to this lease, unless it has been changed. It keeps its position.
pub(crate) fn move_waiting(found: &KeyValue, lease: &Lease) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged(&found.key, found.mod_revision)],
        success: vec![put_value(&found.key, Vec::new(), lease)],
        failure: Vec::new(),
    }
}

/// The entry that the nth of several [`move_to`] in one transaction has found.
pub(crate) fn moved(reply: &TxnResponse, nth: usize) -> Option<Option<&KeyValue>> {
    let range = match reply.txn(nth) {
        Some(moved) => moved.range(usize::from(moved.succeeded)),
        None => reply.range(nth),
    };
    range.map(|range| range.kvs.first())
}

/// Deletes the key unless it has been changed after this revision.
pub(crate) fn delete_unchanged(key: &[u8], modified: i64) -> TxnRequest {
    TxnRequest {
        compare: vec![unchanged(key, modified)],
        success: vec![Request::DeleteRange(delete(key)).into()],
        failure: Vec::new(),
    }
}

/// Deletes the key, and returns what the queue was before.
pub(crate) fn look_and_delete(queue: &Span, key: &[u8]) -> TxnRequest {
    TxnRequest {
        success: vec![
            Request::Range(whole(queue)).into(),
            Request::DeleteRange(delete(key)).into(),
        ],
        ..TxnRequest::default()
    }
}

fn put(claim: &Claim, key: &[u8], lease: &Lease, waits: bool) -> RequestOp {
    let since = crate::token::wall_clock_micros();
    put_value(key, value::write(claim, waits, since), lease)
}

/// An empty value leaves the one that is there.
fn put_value(key: &[u8], value: Vec<u8>, lease: &Lease) -> RequestOp {
    Request::Put(PutRequest {
        key: key.to_vec(),
        ignore_value: value.is_empty(),
        value,
        lease: lease.id,
    })
    .into()
}

/// The position of the claim that [`up_to`] asked for; `None` if it is not in the queue.
pub(crate) fn position_in(
    mode: Mode,
    key: &[u8],
    created: i64,
    answer: &RangeResponse,
) -> Option<Position> {
    let revision = revision(&answer.header);
    let mine = |entry: &KeyValue| entry.key == key && entry.create_revision == created;
    if mode == Mode::Exclusive {
        let (first, rest) = answer.kvs.split_first()?;
        return mine(first).then(|| match rest.first() {
            Some(before) => Position::Behind(Ahead {
                watch: vec![before.key.clone()],
                revision,
            }),
            None => Position::Holds,
        });
    }
    let (last, ahead) = answer.kvs.split_last()?;
    mine(last).then(|| position_behind(mode, ahead, revision))
}

/// The position of a claim behind these.
pub(crate) fn position_behind(mode: Mode, ahead: &[KeyValue], revision: i64) -> Position {
    let modes: Vec<_> = ahead.iter().map(value::mode).collect();
    match position(&modes, mode) {
        queue_rules::Position::Holds => Position::Holds,
        queue_rules::Position::Behind(watch) => Position::Behind(Ahead {
            watch: watch
                .into_iter()
                .map(|nth| ahead[nth].key.clone())
                .collect(),
            revision,
        }),
    }
}

/// The claim's entry in its whole queue, if it is there, and whether it holds the lock: it may be its turn, and not have taken it.
pub(crate) fn find<'a>(queue: &'a [KeyValue], key: &[u8]) -> Option<(&'a KeyValue, bool)> {
    let nth = queue.iter().position(|entry| entry.key == key)?;
    let mode = value::mode(&queue[nth]);
    let may_hold = position_behind(mode, &queue[..nth], 0) == Position::Holds;
    Some((&queue[nth], may_hold && !value::waits(&queue[nth])))
}

/// How many at the head of a whole queue hold the lock, or may take it.
pub(crate) fn may_hold(queue: &[KeyValue]) -> usize {
    let modes: Vec<_> = queue.iter().map(value::mode).collect();
    queue_rules::holders(&modes)
}

/// Those in a whole queue that hold the lock.
pub(crate) fn holders(queue: &[KeyValue]) -> impl Iterator<Item = &KeyValue> {
    let may_hold = queue[..may_hold(queue)].iter();
    may_hold.filter(|entry| !value::waits(entry))
}

/// Refuses a claim that counts the permits otherwise than those already there.
pub(crate) fn agrees(mode: Mode, queue: &[KeyValue]) -> Result<()> {
    let mut there = queue.iter().map(value::mode);
    there.try_for_each(|there| mode.agrees_with(there))
}

/// Nobody is in the queue.
fn is_empty(queue: &Span) -> Compare {
    nobody_since(queue, 0)
}

/// Nobody has joined the queue after this revision.
fn nobody_since(queue: &Span, revision: i64) -> Compare {
    Compare {
        result: Is::Less.into(),
        target: What::Create.into(),
        key: queue.start.clone(),
        range_end: queue.end.clone(),
        with: Some(With::CreateRevision(revision + 1)),
    }
}

/// Nobody is ahead of the claim that was made at this revision.
fn nobody_before(queue: &Span, created: i64) -> Compare {
    Compare {
        result: Is::Greater.into(),
        with: Some(With::CreateRevision(created - 1)),
        ..is_empty(queue)
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

fn present(key: &[u8]) -> Compare {
    Compare {
        result: Is::Greater.into(),
        ..absent(key)
    }
}

pub(crate) fn unchanged(key: &[u8], modified: i64) -> Compare {
    Compare {
        target: What::Mod.into(),
        with: Some(With::ModRevision(modified)),
        ..absent(key)
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
