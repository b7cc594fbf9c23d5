//! How a lock is given up: passed on within this process, or left to the server to hand over.

use std::sync::Arc;

use super::Shared;
use super::calls;
use super::failure;
use super::heirs::{News, Turn};
use super::server::{Answer, Lane, cell};
use crate::claim::{Claim, ClaimId};
use crate::clock::Clock;
use crate::engine::Released;
use crate::engine::handover::HandedOver;
use crate::engine::rows::{self, signature};
use crate::error::Result;
use crate::name::LockName;

pub(super) async fn release(shared: &Arc<Shared>, claim: &Claim) -> Result<Released> {
    let (name, ears) = (&claim.name, &shared.ears);
    shared.under_way.is_over(&claim.id).await;
    let pass_on = || ears.lines.pass_on(name, &claim.id, &ears.waiters);
    let mut passed_on = pass_on();
    if passed_on.is_none() {
        settled(shared, claim).await;
        passed_on = pass_on();
    }
    if let Some(passed_on) = passed_on {
        match passed_on.await {
            Ok(Turn::Over(released)) => return released,
            // Whom it was passed on to relies on it that the server will agree.
            Ok(Turn::Tell(news)) => {
                let shared = Arc::clone(shared);
                let telling = tokio::spawn(async move { tell_news(&shared, news).await });
                return telling.await.unwrap_or_else(|_| Err(rows::interrupted()));
            }
            // Another was to tell of it, and could not.
            Err(_) => {}
        }
    }
    if let Some(until) = ears.lines.relied_on_until(&claim.id) {
        tokio::time::sleep(until.since(Clock::machine().now())).await;
    }
    ears.lines.end(name, &claim.id);
    let (released, handed_over) = tell(shared, name, &claim.id, None).await?;
    if let Some((number, handed_over)) = handed_over {
        ears.tell(number, handed_over);
    }
    Ok(released)
}

/// Waits until the server knows who has this lock now.
pub(super) async fn settled(shared: &Shared, claim: &Claim) {
    let settled = shared.ears.lines.settled(&claim.name, &claim.id);
    let _ = tokio::time::timeout(shared.server.settings().limit(), settled).await;
}

/// Tells the server of all that was passed on; what came of it the first time.
async fn tell_news(shared: &Shared, news: News) -> Result<Released> {
    let mut first = None;
    let mut next = Some(news);
    while let Some(mut news) = next.take() {
        let claims: Vec<_> = news.passed.iter().map(|to| signature(&to.id)).collect();
        let tokens = std::iter::once(&news.agreed).chain(&news.passed);
        let tokens: Vec<_> = tokens
            .map(|holder| i64::try_from(holder.token.get()).unwrap_or(i64::MAX))
            .collect();
        let passed = Some((claims.as_slice(), tokens.as_slice()));
        let answer = tell(shared, &news.lock, &news.agreed.id, passed).await;
        let released = || match &answer {
            Ok((released, _)) => Ok(*released),
            Err(error) => Err(rows::same(error)),
        };
        news.is_over(released);
        first.get_or_insert_with(released);
        match answer {
            Ok((Released::Yes, Some((_, now)))) => {
                // If nobody knows for how long, nothing more is passed on until the next answer.
                let until = shared.ears.valid_until(&now);
                next = news.agreed(now.heirs, until.unwrap_or_else(|| Clock::machine().now()));
            }
            // It was not held any more, and went to another of this process.
            Ok((_, Some((number, handed_over)))) => shared.ears.tell(number, handed_over),
            _ => {}
        }
    }
    first.unwrap_or_else(|| Err(rows::interrupted()))
}

/// Tells the server that a claim is given up, and to whom it was passed on. Who has the lock now is told in turn, if it is of this process.
async fn tell(
    shared: &Shared,
    name: &LockName,
    id: &ClaimId,
    passed: Option<(&[Vec<u8>], &[i64])>,
) -> Result<(Released, Option<(u64, HandedOver)>)> {
    let (server, ears) = (&shared.server, &shared.ears);
    let (claims, tokens) = passed.unzip();
    let answer_is_due = ears.expect_answer();
    let answered = server
        .call(
            Lane::GoOn,
            &shared.calls.release,
            &[
                &name.as_str(),
                &signature(id),
                &ears.id(),
                &claims,
                &tokens,
                &server.patience(),
            ],
        )
        .await;
    let answer = answered?;
    if answer.doubt.is_none() {
        answer_is_due.came();
    }
    ears.waiters.forget(id);
    let handed_over = calls::handed_over(&answer.rows);
    match (released(&answer)?, answer.doubt) {
        // The first try may have done it.
        (Released::WasNotHeld, Some(doubt)) => {
            if let Some((number, handed_over)) = handed_over {
                ears.tell(number, handed_over);
            }
            Err(doubt)
        }
        (released, _) => Ok((released, handed_over)),
    }
}

pub(super) fn released(answer: &Answer) -> Result<Released> {
    let rows = &answer.rows;
    let row = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
    Ok(match cell(row, 0)? {
        true => Released::Yes,
        false => Released::WasNotHeld,
    })
}
