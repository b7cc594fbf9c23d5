//! One lock as this process knows it. Its requests are served together: what has come while the store was busy with the last is decided about in
//! one go, and written at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::document::{Document, Signature};
use super::rules::{Outcome, Present, Request, Terms};
use super::sightings::Sightings;
use super::store::{CasStore, Found, Stored, Written};
use crate::backoff::Backoff;
use crate::claim::{ClaimId, fill_with_random};
use crate::clock::{Clock, Moment};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::wall_clock_micros;

/// Whoever collides so often with others has been unlucky for long enough.
const TRIES: usize = 60;

/// How often a write is looked for whose answer was lost.
const LOOKS: usize = 3;

/// So long after it was sent, a write whose answer was lost is carried out by nobody: AWS refuses a signature whose time is 15 minutes off, and the
/// clock that it was made by may have been ahead by as much.
const LATEST: Duration = Duration::from_secs(30 * 60);

struct Pending {
    request: Request,
    /// `None` if nobody has begun with it, and whoever would have is gone.
    answer: oneshot::Sender<Option<Result<Outcome>>>,
}

/// One lock.
pub(crate) struct Lock<S> {
    pub(crate) name: LockName,
    store: Arc<S>,
    sightings: Arc<Sightings>,
    terms: Terms,
    clock: Clock,
    state: Mutex<State>,
    /// What is known has changed, or who waits.
    pub(crate) changed: Notify,
}

#[derive(Default)]
struct State {
    pending: Vec<Pending>,
    serving: bool,
    view: View,
    /// The waiters of this process.
    waiting: HashMap<Signature, ClaimId>,
    polling: bool,
    /// When the store was last heard.
    heard: Option<Moment>,
}

/// What this process knows of the document.
#[derive(Default, Clone)]
struct View {
    known: Known,
    doubt: Doubt,
}

/// Writes that were not answered, and may still be carried out.
#[derive(Default, Clone)]
struct Doubt {
    /// While this tag is there.
    replace: Option<String>,
    /// While nothing is there, or an idle document of a lower token than this.
    create: Option<u64>,
    /// When the last of them was not answered.
    since: Option<Moment>,
}

impl Doubt {
    fn exists(&self) -> bool {
        self.replace.is_some() || self.create.is_some()
    }

    /// Whether one of them may still arrive.
    fn is_open(&self, now: Moment) -> bool {
        let is_recent = |since| now.since(since) < LATEST;
        self.exists() && self.since.is_some_and(is_recent)
    }
}

#[derive(Default, Clone)]
enum Known {
    #[default]
    Nothing,
    Absent,
    There(Stored),
}

impl Known {
    fn stored(&self) -> Option<&Stored> {
        match self {
            Known::There(stored) => Some(stored),
            Known::Nothing | Known::Absent => None,
        }
    }

    fn document(&self) -> Option<&Document> {
        self.stored().map(|stored| &stored.document)
    }

    /// Whether this write is what is there.
    fn is(&self, written: &Document) -> bool {
        self.document()
            .is_some_and(|there| there.version == written.version)
    }
}

impl<S> std::fmt::Debug for Lock<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lock({})", self.name)
    }
}

impl<S: CasStore> Lock<S> {
    pub(crate) fn new(
        name: LockName,
        store: Arc<S>,
        sightings: Arc<Sightings>,
        terms: Terms,
        clock: Clock,
    ) -> Self {
        Self {
            name,
            store,
            sightings,
            terms,
            clock,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Serves a request, together with others. Runs to its end even if the future is dropped.
    pub(crate) async fn serve(self: &Arc<Self>, request: Request) -> Result<Outcome> {
        loop {
            let (answer, answered) = oneshot::channel();
            let start = {
                let mut state = self.state.lock();
                let request = request.clone();
                state.pending.push(Pending { request, answer });
                !std::mem::replace(&mut state.serving, true)
            };
            if start {
                let mut serving = Serving {
                    lock: Arc::clone(self),
                    view: None,
                    is_done: false,
                };
                tokio::spawn(async move { while serving.serve_pending().await {} });
            }
            match answered.await {
                Ok(Some(answer)) => return answer,
                // The task was of another runtime, which has ended.
                Ok(None) if !start => {}
                // It had begun with the request: the claim may ask again.
                Err(_) if !start => return Err(ended().because_busy()),
                // It was of this one.
                Ok(None) | Err(_) => return Err(ended()),
            }
        }
    }

    async fn carry_out(&self, requests: &[Request], view: &mut View) -> Result<Vec<Outcome>> {
        let mut maybe_written = false;
        let done = self.try_out(requests, view, &mut maybe_written).await;
        done.map_err(|failure| match maybe_written {
            true => failure.of_unknown_effect(),
            false => failure,
        })
    }

    /// Says whether a write of it may have been carried out that others have written over.
    async fn try_out(
        &self,
        requests: &[Request],
        view: &mut View,
        maybe_written: &mut bool,
    ) -> Result<Vec<Outcome>> {
        let mut seed = [0; 8];
        fill_with_random(&mut seed)?;
        let mut random = fastrand::Rng::with_seed(u64::from_ne_bytes(seed));
        // In a crowd, whoever wants in leaves the way to those who renew and release.
        let upkeep = |request: &Request| {
            !matches!(
                request,
                Request::Acquire(_) | Request::Look | Request::SignOfLife(_)
            )
        };
        let cap = match requests.iter().any(upkeep) {
            true => Duration::from_millis(50),
            false => Duration::from_millis(500),
        };
        let mut delays = Backoff::new(random.u64(..), Duration::from_millis(2), cap);
        let acquires = requests.iter().any(|r| matches!(r, Request::Acquire(_)));
        // Whether what is known was heard since the requests were made.
        let mut fresh = false;
        // What a write of ours may have released whose answer was lost.
        let mut maybe_released = Vec::new();
        for nth in 0..TRIES {
            if matches!(view.known, Known::Nothing) && (!acquires || nth > 0 || view.doubt.exists())
            {
                self.read(view).await?;
                fresh = true;
            }
            let before = view.known.document().cloned();
            let mut document = before
                .clone()
                .unwrap_or_else(|| Document::new(self.name.as_str()));
            let sent = self.clock.now();
            let mut present = Present {
                now: sent,
                wall: wall_clock_micros(),
                sightings: &self.sightings,
                terms: &self.terms,
                random: random.fork(),
                made: Vec::new(),
            };
            let outcomes = requests.iter().map(|request| match request {
                // The next holder may have the lock already: a lock is not broken twice.
                Request::Break if *maybe_written => Outcome::Failed(maybe_broken_already()),
                request => present.apply(request, &mut document),
            });
            let outcomes: Vec<_> = outcomes.collect();
            let changes = before.as_ref() != Some(&document)
                && !(before.is_none() && document.is_idle() && document.token == 0);
            let releases = requests.iter().any(|r| matches!(r, Request::Release(_)));
            // Another program's row is not written, not even to settle a doubt: that program would lose its lock.
            let settles_doubt = view.doubt.exists() && releases && !document.is_foreign();
            if !changes && !settles_doubt {
                if fresh {
                    return Ok(released(outcomes, requests, &maybe_released));
                }
                self.read(view).await?;
                fresh = true;
                continue;
            }
            if settles_doubt && let Some(token) = view.doubt.create {
                document.token = document.token.max(token);
            }
            // With a holder's sign of life in it, for layouts that have one place for both.
            let life = document.holders.first().map(|holder| holder.life.beat);
            document.version = format!(
                "{:016x}{:016x}",
                random.u64(..),
                life.unwrap_or_else(|| random.u64(..))
            );
            self.sightings.write(&document, before.as_ref(), sent);
            match self.write(&document, view).await {
                Ok(Write::Done) => {
                    self.note(view, before.as_ref(), sent);
                    return Ok(released(outcomes, requests, &maybe_released));
                }
                Ok(Write::Changed) => {
                    self.sightings.forget(&document, before.as_ref());
                    self.note(view, before.as_ref(), self.clock.now());
                }
                // Its signs of life may be there: those of them that count from when it left.
                Ok(Write::MaybeOverwritten) => {
                    for (request, outcome) in requests.iter().zip(&outcomes) {
                        if let (Request::Release(claim), Outcome::Released(true)) =
                            (request, outcome)
                        {
                            maybe_released.push(claim.clone());
                        }
                    }
                    *maybe_written = true;
                    self.note(view, None, self.clock.now());
                }
                Err(failure) => {
                    if failure.effect() == Effect::None {
                        self.sightings.forget(&document, before.as_ref());
                    }
                    return Err(failure);
                }
            }
            fresh = !matches!(view.known, Known::Nothing);
            // The first collision is chance; after that it is a crowd.
            if nth > 0 {
                tokio::time::sleep(delays.delay()).await;
            }
        }
        Err(unlucky())
    }

    fn note(&self, view: &View, before: Option<&Document>, at: Moment) {
        if let Some(document) = view.known.document() {
            self.sightings.note(document, before, at);
        }
    }

    async fn read(&self, view: &mut View) -> Result<()> {
        let before = view.known.document().cloned();
        let found = self.store.read(&self.name).await?;
        view.found(found);
        self.note(view, before.as_ref(), self.clock.now());
        Ok(())
    }

    /// Writes on condition of what is known.
    async fn write(&self, document: &Document, view: &mut View) -> Result<Write> {
        let base = view.known.clone();
        let failure = match self.send(document, &base).await {
            Ok(Written::Done(tag)) => {
                view.found(Some(Stored {
                    document: document.clone(),
                    tag,
                }));
                return Ok(Write::Done);
            }
            Ok(Written::Changed(found)) => {
                match found {
                    Found::There(stored) => view.found(Some(*stored)),
                    Found::Absent => view.found(None),
                    Found::Untold => match self.store.read(&self.name).await {
                        Ok(found) => view.found(found),
                        Err(_) => view.known = Known::Nothing,
                    },
                }
                // Something on the way may have sent it twice: it was refused because it had been carried out.
                return Ok(match view.known.is(document) {
                    true => Write::Done,
                    false => Write::Changed,
                });
            }
            Err(failure) if failure.effect() == Effect::None => return Err(failure),
            Err(failure) => failure,
        };
        // Nobody knows whether it was carried out, or will be. Its version tells, and to send it again does no harm: its condition holds once.
        view.doubt_write(document.token, self.clock.now());
        for _ in 0..LOOKS {
            let Ok(found) = self.store.read(&self.name).await else {
                continue;
            };
            view.found(found);
            if view.known.is(document) {
                return Ok(Write::Done);
            }
            let may_come = match &base {
                Known::There(_) => view.doubt.replace.is_some(),
                Known::Nothing | Known::Absent => view.doubt.create.is_some(),
            };
            if !may_come {
                return Ok(Write::MaybeOverwritten);
            }
            // If it is refused, then by the first one or by another's write: the next look tells.
            if let Ok(Written::Done(tag)) = self.send(document, &base).await {
                view.found(Some(Stored {
                    document: document.clone(),
                    tag,
                }));
                return Ok(Write::Done);
            }
        }
        view.known = Known::Nothing;
        Err(failure)
    }

    async fn send(&self, document: &Document, base: &Known) -> Result<Written> {
        match base {
            Known::There(stored) => self.store.replace(&self.name, document, &stored.tag).await,
            Known::Nothing | Known::Absent => self.store.create(&self.name, document).await,
        }
    }

    /// What is known of the document; `None` if nothing is.
    pub(crate) fn known(&self) -> Option<Document> {
        match &self.state.lock().view.known {
            Known::Nothing => None,
            Known::Absent => Some(Document::new(self.name.as_str())),
            Known::There(stored) => Some(stored.document.clone()),
        }
    }

    /// Notes a waiter of this process, and whether there is one who looks for it.
    pub(crate) fn expect(&self, claim: Signature, id: ClaimId) -> bool {
        let mut state = self.state.lock();
        state.waiting.insert(claim, id);
        std::mem::replace(&mut state.polling, true)
    }

    pub(crate) fn forget(&self, claim: &Signature) {
        self.state.lock().waiting.remove(claim);
        self.changed.notify_one();
    }

    /// The waiters of this process; if there are none, nobody looks for them any more.
    pub(crate) fn waiting(&self) -> Vec<(Signature, ClaimId)> {
        let mut state = self.state.lock();
        state.polling = !state.waiting.is_empty();
        let waiting = state.waiting.iter();
        waiting.map(|(claim, id)| (claim.clone(), *id)).collect()
    }

    /// Nobody looks for the waiters of this process any more; returns them.
    pub(crate) fn stop_polling(&self) -> Vec<ClaimId> {
        let mut state = self.state.lock();
        state.polling = false;
        state.waiting.values().copied().collect()
    }

    /// When the store last answered a request about this lock.
    pub(crate) fn heard(&self) -> Option<Moment> {
        self.state.lock().heard
    }

    /// Nobody waits and nothing is asked: it can be forgotten.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.state.lock();
        let in_doubt = state.view.doubt.is_open(self.clock.now());
        let busy = state.serving || state.polling || in_doubt;
        !busy && state.waiting.is_empty() && !self.is_held_by_us(&state.view)
    }

    /// Its next renewal needs what is known.
    fn is_held_by_us(&self, view: &View) -> bool {
        let holders = view.known.document().into_iter();
        let mut holders = holders.flat_map(|document| &document.holders);
        holders.any(|holder| {
            let ours = self
                .sightings
                .sight(&holder.life)
                .is_some_and(|sight| sight.ours);
            let (now, wall) = (self.clock.now(), wall_clock_micros());
            let left = self.sightings.left_of(holder, now, wall);
            ours && left.is_some()
        })
    }
}

/// The task that serves the requests for a lock. It is dropped half-way only if its runtime ends. Those of other runtimes go on.
struct Serving<S> {
    lock: Arc<Lock<S>>,
    /// What is known while requests are under way.
    view: Option<View>,
    is_done: bool,
}

impl<S: CasStore> Serving<S> {
    /// Whether there is more to do.
    async fn serve_pending(&mut self) -> bool {
        let lock = &*self.lock;
        let (batch, view) = {
            let mut state = lock.state.lock();
            if state.pending.is_empty() {
                state.serving = false;
                self.is_done = true;
                return false;
            }
            (std::mem::take(&mut state.pending), state.view.clone())
        };
        let requests: Vec<_> = batch
            .iter()
            .map(|pending| pending.request.clone())
            .collect();
        let done = lock.carry_out(&requests, self.view.insert(view)).await;
        {
            let mut state = lock.state.lock();
            state.view = self.view.take().unwrap_or_default();
            if done.is_ok() {
                state.heard = Some(lock.clock.now());
            }
        }
        lock.changed.notify_one();
        match done {
            Ok(all) => {
                for (pending, outcome) in batch.into_iter().zip(all) {
                    let answer = match outcome {
                        Outcome::Failed(failure) => Err(failure),
                        outcome => Ok(outcome),
                    };
                    let _ = pending.answer.send(Some(answer));
                }
            }
            Err(failure) => {
                for pending in batch {
                    let _ = pending.answer.send(Some(Err(failure.clone())));
                }
            }
        }
        true
    }
}

impl<S> Drop for Serving<S> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut state = self.lock.state.lock();
        state.serving = false;
        if let Some(mut view) = self.view.take() {
            // A write may have been sent.
            view.doubt_write(wall_clock_micros(), self.lock.clock.now());
            view.known = Known::Nothing;
            state.view = view;
        }
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        for Pending { answer, .. } in pending {
            let _ = answer.send(None);
        }
    }
}

enum Write {
    Done,
    Changed,
    /// It was not answered, and something else is there: it has never been carried out, or others have written since.
    MaybeOverwritten,
}

impl View {
    /// A write with this token, on condition of what is known, was not answered.
    fn doubt_write(&mut self, token: u64, now: Moment) {
        self.doubt.since = Some(now);
        match &self.known {
            Known::There(stored) => self.doubt.replace = Some(stored.tag.clone()),
            Known::Nothing | Known::Absent => {
                self.doubt.create = self.doubt.create.max(Some(token));
            }
        }
    }

    fn found(&mut self, found: Option<Stored>) {
        self.known = match found {
            Some(stored) => Known::There(stored),
            None => Known::Absent,
        };
        let there = self.known.stored();
        if self.doubt.replace.as_ref() != there.map(|stored| &stored.tag) {
            self.doubt.replace = None;
        }
        let token = there.map_or(0, |stored| stored.document.token);
        self.doubt.create = self.doubt.create.filter(|create| token < *create);
    }
}

/// A release counts although its entry is gone, if an earlier try may have taken it out.
fn released(
    outcomes: Vec<Outcome>,
    requests: &[Request],
    maybe_released: &[Signature],
) -> Vec<Outcome> {
    let outcomes = outcomes.into_iter().zip(requests);
    let outcomes = outcomes.map(|(outcome, request)| match (outcome, request) {
        (Outcome::Released(false), Request::Release(claim)) if maybe_released.contains(claim) => {
            Outcome::Released(true)
        }
        (outcome, _) => outcome,
    });
    outcomes.collect()
}

fn maybe_broken_already() -> Error {
    let what = "the answer was lost, and the lock has changed since";
    Error::new(ErrorKind::Unreachable, what)
        .advise("see who holds it now before you break it again")
        .of_unknown_effect()
}

fn unlucky() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("in each of {TRIES} tries someone else wrote first"),
    )
    .advise("let fewer ask for the same lock at once")
    .because_busy()
}

fn ended() -> Error {
    Error::new(ErrorKind::Unreachable, "the runtime has ended")
        .advise("keep the runtime until all locks are released")
        .of_unknown_effect()
}
