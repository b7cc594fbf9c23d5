//! One node of a deployment. A node that fails is left out until a look in the background finds it well, so that
//! it costs its time-out once and not with every call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Script;

use crate::backoff::Backoff;
use crate::claim::ClaimId;
use crate::engine::handover::ServerClock;
use crate::engine::redis::ears::Ears;
use crate::engine::redis::node::{Call, Node, RELEASE};
use crate::error::{Effect, Error, ErrorKind, Result};

/// How long a node that was found ill may take to answer before it counts as well.
const A_LOOK: Duration = Duration::from_secs(1);

/// The claims that a node has seen are among the first that end after it has fallen ill.
const MOST_WORDS: usize = 4096;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: String,
    pub(super) node: Node,
    pub(super) clock: ServerClock,
    ears: Arc<Ears>,
    /// Left out until it is well again.
    ill: AtomicBool,
    /// Claims that ended while it was ill: it may have granted them, or still have them in a queue.
    words: Mutex<Vec<Arc<Call>>>,
    /// This process listens there, or would if the node were well.
    listens: AtomicBool,
}

impl Member {
    pub(super) fn new(address: String, node: Node, ears: Arc<Ears>) -> Arc<Self> {
        Arc::new(Self {
            address,
            node,
            clock: ServerClock::default(),
            ears,
            ill: AtomicBool::new(false),
            words: Mutex::default(),
            listens: AtomicBool::new(false),
        })
    }

    /// Calls a script, and takes no longer than this.
    pub(super) async fn call(
        self: &Arc<Self>,
        script: &'static Script,
        call: &Call,
        patience: Duration,
    ) -> Result<Vec<String>> {
        self.in_time(patience, self.node.call(script, call)).await
    }

    /// Gives up a claim that is over: now, or when the node is well again.
    pub(super) async fn release(
        self: &Arc<Self>,
        call: Arc<Call>,
        patience: Duration,
    ) -> Result<Vec<String>> {
        let answer = self.call(&RELEASE, &call, patience).await;
        if answer.is_err() {
            self.leave_word(call);
        }
        answer
    }

    /// Not for a claim that goes on: this could undo what it is granted later.
    pub(super) fn leave_word(&self, release: Arc<Call>) {
        let mut words = self.words();
        if self.is_left_out() && words.len() < MOST_WORDS {
            words.push(release);
        }
    }

    fn words(&self) -> MutexGuard<'_, Vec<Arc<Call>>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever is asked of a node: a failure to answer leaves it out from now on.
    pub(super) async fn in_time<T>(
        self: &Arc<Self>,
        patience: Duration,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.is_left_out() {
            return Err(self.unreachable("it did not answer before"));
        }
        match tokio::time::timeout(patience, asking).await {
            Ok(Err(error)) if error.kind() == ErrorKind::Unreachable => {
                self.is_ill();
                Err(self.unreachable(error.what()))
            }
            Ok(answer) => answer,
            Err(_) => {
                self.is_ill();
                let after = humantime::format_duration(patience);
                Err(self.unreachable(&format!("no answer within {after}")))
            }
        }
    }

    /// Says of which node an error is; one that did not answer says so already.
    pub(super) fn place(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Unreachable {
            return error;
        }
        let mut placed = Error::new(error.kind(), format!("{}: {}", self.address, error.what()));
        if let Some(advice) = error.advice() {
            placed = placed.advise(advice);
        }
        match error.effect() {
            Effect::None => placed,
            Effect::Unknown => placed.of_unknown_effect(),
        }
    }

    pub(super) fn is_left_out(&self) -> bool {
        self.ill.load(Ordering::Acquire)
    }

    fn unreachable(&self, why: &str) -> Error {
        let address = &self.address;
        Error::new(ErrorKind::Unreachable, format!("{address}: {why}")).of_unknown_effect()
    }

    fn is_ill(self: &Arc<Self>) {
        if !self.ill.swap(true, Ordering::AcqRel) {
            tokio::spawn(nurse(Arc::downgrade(self)));
        }
    }

    /// Hears from now on what the node tells its waiters.
    pub(super) async fn listen(self: &Arc<Self>) {
        if !self.listens.swap(true, Ordering::AcqRel) {
            let channel = self.ears.channel();
            let _ = self.in_time(A_LOOK, self.node.subscribe(channel)).await;
        }
    }

    async fn look(&self) -> Result<()> {
        self.node.load_scripts().await?;
        let words = self.words().clone();
        let told = self.node.call_all::<Vec<String>>(&RELEASE, &words).await;
        told.into_iter().collect::<Result<Vec<_>>>()?;
        self.words().drain(..words.len());
        if self.listens.load(Ordering::Acquire) {
            self.node.subscribe(self.ears.channel()).await?;
        }
        Ok(())
    }
}

/// Looks after a node until it is well, or nobody needs it any more.
async fn nurse(member: Weak<Member>) {
    let seed = ClaimId::random().map_or(0, |id| id.seed());
    let mut delays = Backoff::new(seed, Duration::from_millis(20), Duration::from_secs(1));
    loop {
        {
            let Some(member) = member.upgrade() else {
                return;
            };
            if let Ok(Ok(())) = tokio::time::timeout(A_LOOK, member.look()).await {
                let words = member.words();
                if words.is_empty() {
                    member.ill.store(false, Ordering::Release);
                    return;
                }
                continue;
            }
        }
        tokio::time::sleep(delays.delay()).await;
    }
}
