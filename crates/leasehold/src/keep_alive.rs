//! One renewer for all leases of a handle: a timer queue in one task.
//!
//! It renews at a third of the validity (which is that of the TTL, or less where the engine promised less), in batches; goes on through failures until validity ends; and
//! carries out the releases that a `Drop` can only ask for. It ends when the last handle and the
//! last lease are gone. Renewing never releases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use crate::backoff::Backoff;
use crate::claim::{Claim, ClaimId, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::{Engine, LossReason, Released, Renew, Renewal};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::lease::LeaseState;
use crate::observe;

/// No single request is larger, so that one batch cannot hold up an engine for long.
const LARGEST_BATCH: usize = 1_000;

/// When a hand-over is confirmed at the latest.
const CONFIRM: Duration = Duration::from_millis(20);

/// What the renewer is asked to do.
#[derive(Debug)]
enum Errand {
    /// Keep it alive until it ends.
    Keep(Arc<Hold>),
    /// Release what was held.
    GiveBack(Arc<Hold>),
    /// Give up a claim whose fate nobody waits for any more.
    GiveUp(Claim),
    /// Say when all releases asked for so far are done.
    Settle(oneshot::Sender<()>),
}

/// The handle's end: sends errands, never blocks.
#[derive(Debug)]
pub(crate) struct Keeper {
    engine: Arc<dyn Engine>,
    errands: Mutex<Option<mpsc::UnboundedSender<Errand>>>,
}

impl Keeper {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine,
            errands: Mutex::new(None),
        }
    }

    pub(crate) fn keep(&self, hold: Arc<Hold>) {
        self.send(Errand::Keep(hold));
    }

    pub(crate) fn give_back(&self, hold: Arc<Hold>) {
        self.send(Errand::GiveBack(hold));
    }

    pub(crate) fn give_up(&self, claim: Claim) {
        self.send(Errand::GiveUp(claim));
    }

    /// Returns when all releases asked for so far are done.
    pub(crate) async fn settle(&self) {
        let (done, settled) = oneshot::channel();
        self.send(Errand::Settle(done));
        let _ = settled.await;
    }

    /// Starts the renewer at the first errand, and again if the runtime it lived on has gone. Without
    /// any runtime the errand is dropped: what was held then ends with its TTL.
    fn send(&self, errand: Errand) {
        let mut errands = self.errands.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = match errands.as_ref() {
            Some(sender) => match sender.send(errand) {
                Ok(()) => return,
                Err(refused) => refused.0,
            },
            None => errand,
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        runtime.spawn(Renewer::new(Arc::clone(&self.engine), receiver).run());
        let _ = sender.send(refused);
        *errands = Some(sender);
    }
}

/// Releases what was held, or lets it stay taken for as long as was asked.
pub(crate) async fn give_back(engine: &dyn Engine, hold: &Hold) -> Result<Released> {
    let Some(stay) = hold.must_stay(engine.clock().now()) else {
        return engine.release(&hold.claim).await;
    };
    let mut claim = hold.claim.clone();
    claim.ttl = Ttl::new(stay.max(Ttl::MIN.get()))?;
    let renew = Renew {
        claim: &claim,
        token: Some(hold.token),
    };
    match renew_one(engine, renew).await? {
        Renewal::Renewed(_) => Ok(Released::Yes),
        Renewal::Lost(_) => Ok(Released::WasNotHeld),
    }
}

/// A batch of one.
pub(crate) async fn renew_one(engine: &dyn Engine, renew: Renew<'_>) -> Result<Renewal> {
    let answer = engine.renew(&[renew]).await.pop();
    answer.unwrap_or_else(|| Err(no_answer()))
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Unexpected, "the engine gave no answer").of_unknown_effect()
}

/// What an errand or a batch that was under way has come to.
type Done = Vec<(Arc<Kept>, Answer)>;

#[derive(Debug)]
enum Answer {
    /// As the engine gave it, with the moment before it was asked.
    From(Moment, Result<Renewal>),
    /// The engine did not answer while it mattered.
    Silence,
}

/// A hold as the renewer sees it.
#[derive(Debug)]
struct Kept {
    hold: Arc<Hold>,
    plan: Mutex<Plan>,
}

#[derive(Debug)]
struct Plan {
    /// How long the last promise was for: that of the TTL, or less where the engine promised less.
    span: Duration,
    /// When the next renewal is due.
    renew_at: Moment,
    /// The one entry in the timer queue that counts; others are stale.
    look_at: Moment,
    /// Renewals under way.
    asking: usize,
    /// Delays between tries after a failure; gone after a success, to keep a lease small.
    backoff: Option<Box<Backoff>>,
}

struct Renewer {
    engine: Arc<dyn Engine>,
    clock: Clock,
    errands: mpsc::UnboundedReceiver<Errand>,
    queue: BTreeMap<(Moment, u64), Arc<Kept>>,
    entries: u64,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    releases: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Wait for the releases.
    settling: Vec<oneshot::Sender<()>>,
}

impl Renewer {
    fn new(engine: Arc<dyn Engine>, errands: mpsc::UnboundedReceiver<Errand>) -> Self {
        Self {
            clock: engine.clock(),
            engine,
            errands,
            queue: BTreeMap::new(),
            entries: 0,
            under_way: FuturesUnordered::new(),
            releases: FuturesUnordered::new(),
            settling: Vec::new(),
        }
    }

    async fn run(mut self) {
        let mut handles_left = true;
        let engine = Arc::clone(&self.engine);
        let mut seen = 0;
        let mut disturbed = engine.disturbed(seen);
        while handles_left || !self.under_way.is_empty() || !self.releases.is_empty() {
            if self.releases.is_empty() {
                self.settling.drain(..).for_each(|settled| {
                    let _ = settled.send(());
                });
            }
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                errand = self.errands.recv(), if handles_left => match errand {
                    Some(errand) => self.start(errand),
                    None => handles_left = false,
                },
                Some(done) = self.under_way.next() => self.settle(done),
                Some(()) = self.releases.next() => {}
                now_seen = &mut disturbed => {
                    seen = now_seen;
                    disturbed = engine.disturbed(seen);
                    self.look_at_all();
                }
                () = self.clock.sleep_until(next.unwrap_or(Moment::from_origin(Duration::ZERO))),
                    if next.is_some() => self.look(),
            }
        }
    }

    fn start(&mut self, errand: Errand) {
        match errand {
            Errand::Keep(hold) => {
                let span = hold.validity_left(hold.acquired);
                // A promise much shorter than the TTL is a hand-over that is to be confirmed soon: not at once, since
                // many a lock is held for less.
                let first = match span < hold.claim.ttl.get() / 2 {
                    true => (span / 3).min(CONFIRM),
                    false => span / 3,
                };
                let renew_at = hold.acquired + first;
                let plan = Plan {
                    span,
                    renew_at,
                    look_at: renew_at,
                    asking: 0,
                    backoff: None,
                };
                let kept = Arc::new(Kept {
                    hold,
                    plan: Mutex::new(plan),
                });
                self.look_again(kept, |_| {});
            }
            Errand::GiveBack(hold) => {
                let engine = Arc::clone(&self.engine);
                let tries = Tries::of(&hold.claim, &self.clock);
                let release = async move { tries.until_done(|| give_back(&*engine, &hold)).await };
                self.releases.push(release.boxed());
            }
            Errand::GiveUp(claim) => {
                let engine = Arc::clone(&self.engine);
                let tries = Tries::of(&claim, &self.clock);
                let release = async move { tries.until_done(|| engine.release(&claim)).await };
                self.releases.push(release.boxed());
            }
            Errand::Settle(done) => self.settling.push(done),
        }
    }

    /// Changes the plan and puts the hold into the queue for when something is to be done next.
    fn look_again(&mut self, kept: Arc<Kept>, change: impl FnOnce(&mut Plan)) {
        let at = {
            let mut plan = kept.plan();
            change(&mut plan);
            plan.look_at = plan.renew_at.min(kept.hold.valid_until());
            plan.look_at
        };
        self.entries += 1;
        self.queue.insert((at, self.entries), kept);
    }

    /// Renews everything now.
    fn look_at_all(&mut self) {
        let now = self.clock.now();
        for ((at, _), kept) in std::mem::take(&mut self.queue) {
            if kept.plan().look_at == at {
                self.look_again(kept, |plan| plan.renew_at = now);
            }
        }
        self.look();
    }

    /// Goes through all that is due. A renewal may come a tenth early, so that leases that are due
    /// at about the same time travel together from then on.
    fn look(&mut self) {
        let now = self.clock.now();
        let mut due = Vec::new();
        let mut early = Duration::ZERO;
        while let Some(entry) = self.queue.first_entry() {
            let (at, _) = *entry.key();
            if at > now + early {
                break;
            }
            let kept = entry.remove();
            let renew_at = {
                let plan = kept.plan();
                if plan.look_at != at {
                    continue;
                }
                plan.renew_at
            };
            match kept.hold.state(now) {
                LeaseState::Lost(reason) => {
                    if kept.hold.end(reason.clone()) {
                        observe::lost(&*self.engine, &kept.hold, &reason);
                    }
                }
                _ if renew_at <= now + early => {
                    let a_tenth = kept.plan().span / 30;
                    early = if due.is_empty() {
                        a_tenth
                    } else {
                        early.min(a_tenth)
                    };
                    due.push(kept);
                }
                _ => self.look_again(kept, |_| {}),
            }
        }
        for batch in due.chunks(LARGEST_BATCH) {
            self.renew(batch.to_vec(), now);
        }
    }

    fn renew(&mut self, batch: Vec<Arc<Kept>>, now: Moment) {
        for kept in &batch {
            self.look_again(Arc::clone(kept), |plan| {
                if plan.asking > 0 {
                    kept.hold.failed(&unanswered());
                }
                plan.asking += 1;
                plan.renew_at = now + plan.span / 3;
            });
        }
        let engine = Arc::clone(&self.engine);
        let clock = self.clock.clone();
        let patience = batch.iter().map(|kept| kept.hold.claim.ttl.get()).max();
        let asking = async move {
            let held: Vec<_> = batch.iter().map(|kept| kept.hold.as_renewal()).collect();
            let sent = clock.now();
            let patience = clock.sleep_until(sent + patience.unwrap_or_default());
            let mut answers = tokio::select! {
                answers = engine.renew(&held) => answers.into_iter().map(|a| Answer::From(sent, a)).collect(),
                () = patience => Vec::new(),
            }
            .into_iter();
            drop(held);
            let answers = batch
                .into_iter()
                .map(|kept| (kept, answers.next().unwrap_or(Answer::Silence)));
            answers.collect()
        };
        self.under_way.push(asking.boxed());
    }

    fn settle(&mut self, done: Done) {
        let now = self.clock.now();
        for (kept, answer) in done {
            let hold = Arc::clone(&kept.hold);
            kept.plan().asking -= 1;
            if hold.has_ended() {
                continue;
            }
            let failure = match answer {
                Answer::From(sent, Ok(Renewal::Renewed(grant))) if grant.token == hold.token => {
                    hold.renewed(grant.valid_until.min(sent + hold.claim.ttl.validity()));
                    observe::renewed(&*self.engine, &hold);
                    if kept.plan().renewed(sent, hold.validity_left(sent)) {
                        self.look_again(kept, |plan| plan.renew_at = sent + plan.span / 3);
                    }
                    continue;
                }
                Answer::From(_, Ok(Renewal::Renewed(_))) => LossReason::Gone.into(),
                Answer::From(_, Ok(Renewal::Lost(reason))) => reason.into(),
                Answer::From(_, Err(failure)) => Trouble::Failed(failure),
                Answer::Silence => Trouble::Failed(unanswered()),
            };
            match failure {
                Trouble::Lost(reason) => {
                    if hold.end(reason.clone()) {
                        observe::lost(&*self.engine, &hold, &reason);
                    }
                }
                Trouble::Failed(failure) => {
                    hold.failed(&failure);
                    observe::renewal_failed(&*self.engine, &hold, &failure);
                    self.look_again(kept, |plan| plan.retry(now, &hold));
                }
            }
        }
    }
}

enum Trouble {
    Lost(LossReason),
    Failed(Error),
}

impl From<LossReason> for Trouble {
    fn from(reason: LossReason) -> Self {
        Trouble::Lost(reason)
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unreachable, "the engine does not answer").of_unknown_effect()
}

impl Kept {
    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    /// Takes a new promise down. Returns whether the next renewal is due at quite another time than was planned.
    fn renewed(&mut self, sent: Moment, span: Duration) -> bool {
        self.backoff = None;
        self.span = span;
        let due = sent + span / 3;
        let apart = due.since(self.renew_at).max(self.renew_at.since(due));
        apart > span / 10
    }

    fn retry(&mut self, now: Moment, hold: &Hold) {
        let backoff = self
            .backoff
            .get_or_insert_with(|| Box::new(retry_delays(&hold.claim.id, self.span)));
        self.renew_at = self.renew_at.min(now + backoff.delay());
    }
}

fn retry_delays(id: &ClaimId, span: Duration) -> Backoff {
    Backoff::new(id.seed(), span / 50, span / 10)
}

/// Tries a release again until it is answered, or the TTL has made it unnecessary.
struct Tries {
    clock: Clock,
    end: Moment,
    delays: Backoff,
}

impl Tries {
    fn of(claim: &Claim, clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            end: clock.now() + claim.ttl.get(),
            delays: retry_delays(&claim.id, claim.ttl.get()),
        }
    }

    async fn until_done<F, R>(mut self, mut attempt: F)
    where
        F: FnMut() -> R,
        R: Future<Output = Result<Released>>,
    {
        loop {
            let answered = tokio::select! {
                answer = attempt() => answer.is_ok(),
                () = self.clock.sleep_until(self.end) => return,
            };
            let again = self.clock.now() + self.delays.delay();
            if answered || again >= self.end {
                return;
            }
            self.clock.sleep_until(again).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Locks;

    #[tokio::test]
    async fn settling_waits_for_what_was_dropped() {
        let locks = Locks::connect("memory:").await.unwrap();
        let held = locks.lock("a").acquire().await.unwrap();
        let mut waiting = Box::pin(locks.lock("a").wait_forever().acquire());
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(locks.show("a").await.unwrap().waiters.len(), 1);
        drop(waiting);
        locks.settle().await;
        assert_eq!(locks.show("a").await.unwrap().waiters.len(), 0);
        drop(held);
        locks.settle().await;
        assert_eq!(locks.show("a").await.unwrap().holders.len(), 0);
        locks.settle().await;
    }
}
