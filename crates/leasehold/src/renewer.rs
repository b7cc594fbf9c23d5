//! One renewer for all leases that a handle has on a runtime: a timer queue in one task.
//!
//! It renews in batches, each lease after a third of its validity (which is that of the TTL, or less if the engine granted less). After a failure it tries again
//! until the validity ends. It also carries out the releases that a `Drop` can only ask for. It ends when the last handle and the last lease are gone. Renewing
//! never releases.
//!
//! If its runtime ends before, the leases that were acquired there are no longer renewed. The releases that are not done pass to the renewer of another
//! runtime, if there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, mpsc, watch};

use crate::backoff::Backoff;
use crate::claim::{Claim, ClaimId, Ttl};
use crate::claims::{Claims, GivenUp};
use crate::clock::{Clock, Moment};
use crate::engine::{Engine, LossReason, Released, Renew, Renewal};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{Hold, LeaseState, Renewing};
use crate::observe;
use crate::sync::Mutex;

/// No single request is larger, so that one batch cannot hold up an engine for long.
const LARGEST_BATCH: usize = 1_000;

/// The timer queue is not swept before so many holds were added to it, however few are alive.
const UNSWEPT: usize = 64;

/// For how long at least to try to give up a claim that may be in a queue.
const ABANDONED: Duration = Duration::from_secs(60);

/// How soon an offer is renewed.
const CONFIRM: Duration = Duration::from_millis(20);

/// What a renewer is asked to do.
#[derive(Debug)]
enum Command {
    /// Keep it alive until it ends.
    Keep(Arc<Hold>),
    /// Send the last request of a claim. The number is that of the request.
    Finish(u64, LastRequest),
}

/// What is asked for a claim that nobody uses any more.
#[derive(Debug, Clone)]
enum LastRequest {
    /// Release what was held.
    Release(Arc<Hold>),
    /// Renew once more what is no longer kept alive, so that it lasts for its TTL.
    Confirm(Arc<Hold>),
    /// Give up a claim that may be queued or held, and that nobody waits for any more.
    Abandon(Claim, Arc<GivenUp>),
}

/// What the handle has of its renewers: it sends commands, and never blocks.
#[derive(Debug)]
pub(crate) struct Renewer {
    claims: Claims,
    shared: Arc<Shared>,
}

/// What the handle shares with its renewers.
#[derive(Debug, Default)]
struct Shared {
    /// Held for nanoseconds and never across an await, so a std Mutex. No task is started while it is locked: a runtime that is about to end drops the task at
    /// once, and that locks it too.
    renewers: Mutex<Renewers>,
    /// Notified when a last request is done.
    finished: Notify,
}

#[derive(Debug, Default)]
struct Renewers {
    /// One for each runtime that has used the handle.
    running: Vec<(runtime::Id, mpsc::UnboundedSender<Command>)>,
    /// The numbers of the last requests that are not done.
    unfinished: BTreeSet<u64>,
    next_number: u64,
}

impl Renewers {
    fn send_to(&self, runtime: runtime::Id, command: Command) -> Result<(), Command> {
        match self.running.iter().find(|(id, _)| *id == runtime) {
            Some((_, renewer)) => renewer.send(command).map_err(|refused| refused.0),
            None => Err(command),
        }
    }

    /// To any whose runtime has not ended.
    fn send_to_any(&self, mut command: Command) -> Result<(), Command> {
        for (_, renewer) in &self.running {
            match renewer.send(command) {
                Ok(()) => return Ok(()),
                Err(refused) => command = refused.0,
            }
        }
        Err(command)
    }

    /// Nobody carries it out.
    fn forget(&mut self, command: &Command) {
        if let Command::Finish(number, _) = command {
            self.unfinished.remove(number);
        }
    }
}

impl Renewer {
    pub(crate) fn new(claims: Claims) -> Self {
        Self {
            claims,
            shared: Arc::default(),
        }
    }

    pub(crate) fn keep(&self, hold: Arc<Hold>) {
        self.send(|_| Command::Keep(hold));
    }

    pub(crate) fn release(&self, hold: Arc<Hold>) {
        self.finish(LastRequest::Release(hold));
    }

    pub(crate) fn confirm(&self, hold: Arc<Hold>) {
        self.finish(LastRequest::Confirm(hold));
    }

    pub(crate) fn abandon(&self, claim: Claim) {
        let given_up = self.claims.give_up(&claim);
        self.finish(LastRequest::Abandon(claim, given_up));
    }

    fn finish(&self, request: LastRequest) {
        self.send(|renewers| {
            let number = renewers.next_number;
            renewers.next_number += 1;
            renewers.unfinished.insert(number);
            Command::Finish(number, request)
        });
    }

    /// Returns when all last requests asked for so far are done.
    pub(crate) async fn flush(&self) {
        let asked = self.shared.renewers.lock().next_number;
        loop {
            let finished = self.shared.finished.notified();
            let first = self.shared.renewers.lock().unfinished.first().copied();
            if first.is_none_or(|first| first >= asked) {
                return;
            }
            finished.await;
        }
    }

    /// Sends a command to the renewer of the present runtime, which is started at the first command. Outside of any runtime, to another renewer. If there is
    /// none, the command is dropped: what was held then ends with its TTL.
    fn send(&self, command: impl FnOnce(&mut Renewers) -> Command) {
        let runtime = Handle::try_current().ok();
        let mut renewers = self.shared.renewers.lock();
        let command = command(&mut renewers);
        let Some(runtime) = runtime else {
            if let Err(refused) = renewers.send_to_any(command) {
                renewers.forget(&refused);
            }
            return;
        };
        let Err(refused) = renewers.send_to(runtime.id(), command) else {
            return;
        };
        let (renewer, commands) = mpsc::unbounded_channel();
        let _ = renewer.send(refused);
        let running = &mut renewers.running;
        running.retain(|(_, renewer)| !renewer.is_closed());
        running.push((runtime.id(), renewer));
        drop(renewers);
        let shared = Arc::downgrade(&self.shared);
        runtime.spawn(RenewerTask::new(self.claims.clone(), shared, commands).run());
    }
}

/// Returns when something has happened that may have ended locks all at once.
async fn changed(events: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = events
        && receiver.changed().await.is_ok()
    {
        return;
    }
    // The engine has no such events, or there will be no more.
    std::future::pending().await
}

/// Releases the lock; or, with `hold_at_least`, makes it end when that time is over.
pub(crate) async fn release(claims: &Claims, hold: &Hold) -> Result<Released> {
    let (engine, clock) = (claims.engine(), &claims.about().clock);
    if let Some(stay) = hold.must_stay(clock.now()) {
        // A renewal that is in flight could be carried out after the last one, and undo it.
        tokio::select! {
            () = hold.no_renewal() => {}
            () = clock.sleep_until(clock.now() + stay) => {}
        }
    }
    let Some(stay) = hold.must_stay(clock.now()) else {
        return claims.release(&hold.claim).await;
    };
    let mut claim = hold.claim.clone();
    claim.ttl = Ttl::new(stay.max(Ttl::MIN.get()))?;
    let renew = Renew {
        claim: &claim,
        token: Some(hold.token),
        shorten: true,
    };
    match renew_one(&**engine, renew).await? {
        Renewal::Renewed(_) => Ok(Released::Yes),
        Renewal::Lost(_) => Ok(Released::WasNotHeld),
    }
}

/// A batch of one.
pub(crate) async fn renew_one(engine: &dyn Engine, renew: Renew<'_>) -> Result<Renewal> {
    let answer = engine.renew(&[renew]).await.pop();
    answer.unwrap_or_else(|| Err(no_answer()))
}

pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unexpected, "the engine gave no answer").of_unknown_effect()
}

/// The answers to a batch of renewals.
type Done = Vec<(Arc<Kept>, Answer)>;

#[derive(Debug)]
enum Answer {
    /// As the engine gave it, with the moment before it was asked.
    From(Moment, Result<Renewal>),
    /// The engine did not answer within the longest TTL of the batch.
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
    /// How long the last grant was valid: as the TTL says, or less if the engine granted less.
    span: Duration,
    /// When the next renewal is due.
    renew_at: Moment,
    /// The number of the one entry in the timer queue that counts; others are stale.
    entry: u64,
    /// Renewals in flight.
    asking: usize,
    /// Delays between tries after a failure; gone after a success, to keep a lease small.
    backoff: Option<Box<Backoff>>,
}

struct RenewerTask {
    claims: Claims,
    /// Gone when the last handle and the last lease are.
    shared: Weak<Shared>,
    engine: Arc<dyn Engine>,
    clock: Clock,
    commands: mpsc::UnboundedReceiver<Command>,
    queue: BTreeMap<(Moment, u64), Arc<Kept>>,
    entries: u64,
    /// How many holds were added to the queue since it was swept.
    unswept: usize,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Each returns its number.
    last_requests: FuturesUnordered<BoxFuture<'static, u64>>,
    /// The same by their numbers, for another renewer.
    unfinished: BTreeMap<u64, LastRequest>,
}

/// Its runtime has ended, or there is nothing left to do.
impl Drop for RenewerTask {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        // What is under way ends here, before another renewer repeats it.
        self.last_requests.clear();
        let mut renewers = shared.renewers.lock();
        self.commands.close();
        let unfinished = std::mem::take(&mut self.unfinished).into_iter();
        let begun = unfinished.map(|(number, request)| Command::Finish(number, request));
        let mut left: Vec<_> = begun.collect();
        while let Ok(command) = self.commands.try_recv() {
            left.push(command);
        }
        for command in left {
            let refused = match command {
                // A lease ends with the runtime that it was acquired on.
                Command::Keep(_) => Err(command),
                Command::Finish(..) => renewers.send_to_any(command),
            };
            if let Err(refused) = refused {
                renewers.forget(&refused);
            }
        }
        drop(renewers);
        shared.finished.notify_waiters();
    }
}

impl RenewerTask {
    fn new(
        claims: Claims,
        shared: Weak<Shared>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let engine = Arc::clone(claims.engine());
        Self {
            clock: claims.about().clock.clone(),
            claims,
            shared,
            engine,
            commands,
            queue: BTreeMap::new(),
            entries: 0,
            unswept: 0,
            in_flight: FuturesUnordered::new(),
            last_requests: FuturesUnordered::new(),
            unfinished: BTreeMap::new(),
        }
    }

    async fn run(mut self) {
        let mut handles_left = true;
        let mut session_events = self.claims.about().session_events.clone();
        while handles_left || !self.in_flight.is_empty() || !self.last_requests.is_empty() {
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                command = self.commands.recv(), if handles_left => match command {
                    Some(command) => self.start(command),
                    None => handles_left = false,
                },
                Some(done) = self.in_flight.next() => self.apply(done),
                Some(number) = self.last_requests.next() => self.finished(number),
                () = changed(&mut session_events) => self.look_at_all(),
                () = self.clock.sleep_until(next.unwrap_or(Moment::from_origin(Duration::ZERO))),
                    if next.is_some() => self.look(),
            }
        }
    }

    fn start(&mut self, command: Command) {
        match command {
            Command::Keep(hold) if hold.has_ended() => {}
            Command::Keep(hold) => {
                self.sweep();
                let span = hold.validity_left(hold.acquired);
                // A validity much shorter than the TTL is that of an offer, which is to be renewed soon; but not at once, since many locks are held for less
                // time than that.
                let first = match span < hold.claim.ttl.get() / 2 {
                    true => (span / 3).min(CONFIRM),
                    false => span / 3,
                };
                let renew_at = hold.acquired + first;
                let plan = Plan {
                    span,
                    renew_at,
                    entry: 0,
                    asking: 0,
                    backoff: None,
                };
                let kept = Arc::new(Kept {
                    hold,
                    plan: Mutex::new(plan),
                });
                self.look_again(kept, |_| {});
            }
            Command::Finish(number, request) => {
                self.unfinished.insert(number, request.clone());
                self.finish(number, request);
            }
        }
    }

    /// Sends a last request in the background until it is answered.
    fn finish(&mut self, number: u64, request: LastRequest) {
        let claims = self.claims.clone();
        let request = match request {
            LastRequest::Release(hold) => {
                let tries = Tries::of(&hold.claim, &self.clock);
                async move {
                    tries.until_done(|| release(&claims, &hold)).await;
                    number
                }
                .boxed()
            }
            LastRequest::Confirm(hold) => {
                let tries = Tries::of(&hold.claim, &self.clock);
                async move {
                    let renew = || renew_one(&**claims.engine(), hold.as_renewal());
                    tries.until_done(renew).await;
                    number
                }
                .boxed()
            }
            LastRequest::Abandon(claim, given_up) => {
                let mut tries = Tries::of(&claim, &self.clock);
                // A queue entry does not end with the TTL, and other waiters would have to wait for it.
                tries.end = tries.end.max(self.clock.now() + ABANDONED);
                async move {
                    let release = || claims.release_given_up(&claim, &given_up);
                    tries.until_done(release).await;
                    number
                }
                .boxed()
            }
        };
        self.last_requests.push(request);
    }

    fn finished(&mut self, number: u64) {
        self.unfinished.remove(&number);
        if let Some(shared) = self.shared.upgrade() {
            shared.renewers.lock().unfinished.remove(&number);
            shared.finished.notify_waiters();
        }
    }

    /// Removes holds that have ended from the timer queue, since a release does not. So the queue is never much larger than twice the number of holds that are
    /// alive, whatever their TTL. The cost is constant for each hold that is added.
    fn sweep(&mut self) {
        self.unswept += 1;
        if self.unswept > UNSWEPT.max(self.queue.len() / 2) {
            self.unswept = 0;
            self.queue
                .retain(|(_, nth), kept| kept.plan.lock().entry == *nth && !kept.hold.has_ended());
        }
    }

    /// Changes the plan and puts the hold into the queue for when something is to be done next.
    fn look_again(&mut self, kept: Arc<Kept>, change: impl FnOnce(&mut Plan)) {
        self.entries += 1;
        let at = {
            let mut plan = kept.plan.lock();
            change(&mut plan);
            plan.entry = self.entries;
            plan.renew_at.min(kept.hold.valid_until())
        };
        self.queue.insert((at, self.entries), kept);
    }

    /// Renews everything now.
    fn look_at_all(&mut self) {
        let now = self.clock.now();
        for ((_, nth), kept) in std::mem::take(&mut self.queue) {
            if kept.plan.lock().entry == nth {
                self.look_again(kept, |plan| plan.renew_at = now);
            }
        }
        self.look();
    }

    /// Goes through all that is due. A renewal may come a tenth early, so that leases that are due
    /// at about the same time travel together from then on.
    fn look(&mut self) {
        let now = self.clock.now();
        let (mut due, mut later) = (Vec::new(), Vec::new());
        let mut early = Duration::ZERO;
        while let Some(entry) = self.queue.first_entry() {
            let (at, nth) = *entry.key();
            if at > now + early {
                break;
            }
            let kept = entry.remove();
            let renew_at = {
                let plan = kept.plan.lock();
                if plan.entry != nth {
                    continue;
                }
                plan.renew_at
            };
            match kept.hold.state(now) {
                LeaseState::Lost(reason) => {
                    if kept.hold.end(reason.clone()) {
                        observe::lost(self.claims.about(), &kept.hold, &reason);
                    }
                }
                _ if renew_at <= now + early => {
                    let a_tenth = kept.plan.lock().span / 30;
                    early = if due.is_empty() {
                        a_tenth
                    } else {
                        early.min(a_tenth)
                    };
                    due.push(kept);
                }
                // After the loop: its next time may be due, too, and the loop would come to it again.
                _ => later.push(kept),
            }
        }
        for kept in later {
            self.look_again(kept, |_| {});
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
        let under_way: Vec<_> = batch.iter().map(|kept| Renewing::of(&kept.hold)).collect();
        let asking = async move {
            let held: Vec<_> = batch.iter().map(|kept| kept.hold.as_renewal()).collect();
            let sent = clock.now();
            let patience = clock.sleep_until(sent + patience.unwrap_or_default());
            let mut answers = tokio::select! {
                answers = engine.renew(&held) => answers.into_iter().map(|a| Answer::From(sent, a)).collect(),
                () = patience => Vec::new(),
            }
            .into_iter();
            drop((held, under_way));
            let answers = batch
                .into_iter()
                .map(|kept| (kept, answers.next().unwrap_or(Answer::Silence)));
            answers.collect()
        };
        self.in_flight.push(asking.boxed());
    }

    fn apply(&mut self, done: Done) {
        let now = self.clock.now();
        for (kept, answer) in done {
            let hold = Arc::clone(&kept.hold);
            kept.plan.lock().asking -= 1;
            if hold.has_ended() {
                continue;
            }
            let failure = match answer {
                Answer::From(sent, Ok(Renewal::Renewed(grant))) if grant.token == hold.token => {
                    let valid_until = grant.valid_until.min(sent + hold.claim.ttl.validity());
                    match hold.renewed(valid_until, &self.clock) {
                        Ok(()) => {
                            observe::renewed(self.claims.about(), &hold);
                            if kept.plan.lock().renewed(sent, hold.validity_left(sent)) {
                                self.look_again(kept, |plan| plan.renew_at = sent + plan.span / 3);
                            }
                            continue;
                        }
                        Err(reason) => reason.into(),
                    }
                }
                Answer::From(_, Ok(Renewal::Renewed(_))) => LossReason::Gone.into(),
                Answer::From(_, Ok(Renewal::Lost(reason))) => reason.into(),
                Answer::From(_, Err(failure)) => Trouble::Failed(failure),
                Answer::Silence => Trouble::Failed(unanswered()),
            };
            match failure {
                Trouble::Lost(reason) => {
                    if hold.end(reason.clone()) {
                        observe::lost(self.claims.about(), &hold, &reason);
                    }
                }
                Trouble::Failed(failure) => {
                    hold.failed(&failure);
                    observe::renewal_failed(self.claims.about(), &hold, &failure);
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

impl Plan {
    /// Notes a new grant. Returns whether the next renewal is due at quite another time than was planned.
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

/// Delays in proportion to the validity, but a few seconds at most: an engine that is back is to be asked soon, however long the TTL.
fn retry_delays(id: &ClaimId, span: Duration) -> Backoff {
    let first = (span / 50).min(Duration::from_millis(100));
    Backoff::new(id.seed(), first, (span / 10).min(Duration::from_secs(5)))
}

/// Tries a request again until it is answered, or the TTL has made it unnecessary.
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

    async fn until_done<F, R, T>(mut self, mut attempt: F)
    where
        F: FnMut() -> R,
        R: Future<Output = Result<T>>,
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
        assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 1);
        drop(waiting);
        locks.flush().await;
        assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 0);
        drop(held);
        locks.flush().await;
        assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 0);
        locks.flush().await;
    }
}
