//! One node of a deployment. A node that fails is left out until a task in the background has found it healthy again, so that
//! it costs its time-out once and not with every call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::protocol::SCRIPTS;
use crate::backoff::Backoff;
use crate::claim::ClaimId;
use crate::engine::redis::client::Client;
use crate::engine::redis::failure;
use crate::engine::redis::listener::Listener;
use crate::engine::redis::protocol::{Call, Reply};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// How long an unhealthy node may take to answer before it counts as healthy.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(1);

/// How many releases are kept for a node. The claims that it has seen are among the first that end after it has failed.
const MOST_DEFERRED: usize = 4096;

/// So many of them are sent at once: what is done stays done if the rest takes too long.
const BATCH: usize = 256;

#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: String,
    pub(super) client: Client,
    listener: Arc<Listener>,
    /// How long it may take to answer before it counts as unhealthy.
    timeout: Duration,
    /// Left out until it has recovered.
    unhealthy: AtomicBool,
    /// Left out only since its connection was lost, and it is not known yet whether another one can be made.
    reconnects: AtomicBool,
    /// The task that recovers it; gone with the runtime that it was started on.
    recovery: Mutex<Option<JoinHandle<()>>>,
    /// Something came up that the recovery in progress may have missed.
    recover_again: AtomicBool,
    /// Releases of claims that ended while it was unhealthy or busy, and what attempts give back: it may have granted them, or still have them in
    /// a queue.
    deferred: Mutex<Vec<Arc<Call>>>,
    /// This process has subscribed there, or will when the node is healthy.
    subscribes: AtomicBool,
}

impl Member {
    pub(super) fn new(
        address: String,
        client: Client,
        listener: Arc<Listener>,
        timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            client,
            listener,
            timeout,
            unhealthy: AtomicBool::new(false),
            reconnects: AtomicBool::new(false),
            recovery: Mutex::default(),
            recover_again: AtomicBool::new(false),
            deferred: Mutex::default(),
            subscribes: AtomicBool::new(false),
        })
    }

    /// Calls a script, and takes no longer than this.
    pub(super) async fn call(
        self: Arc<Self>,
        call: Arc<Call>,
        patience: Duration,
    ) -> Result<Reply> {
        self.in_time(patience, self.client.call(&call)).await
    }

    /// Gives up a claim that is over: now, or when the node answers again.
    pub(super) async fn release(
        self: Arc<Self>,
        call: Arc<Call>,
        patience: Duration,
    ) -> Result<Reply> {
        let answer = Arc::clone(&self).call(Arc::clone(&call), patience).await;
        if answer.as_ref().is_err_and(may_pass) {
            self.defer(call);
        }
        answer
    }

    /// No release of a claim that goes on: it could undo what the claim is granted later.
    pub(super) fn defer(self: &Arc<Self>, call: Arc<Call>) {
        let mut deferred = self.deferred.lock();
        if deferred.len() < MOST_DEFERRED {
            deferred.push(call);
        }
        drop(deferred);
        self.catch_up();
    }

    /// Receives from now on what the node tells its waiters.
    pub(super) async fn subscribe(self: &Arc<Self>) {
        if !self.subscribes.swap(true, Ordering::AcqRel) {
            let subscribing = self.client.subscribe(&self.listener.channel);
            if self.in_time(RECOVERY_TIMEOUT, subscribing).await.is_err() {
                self.catch_up();
            }
        }
    }

    /// Whatever is asked of a node: a failure to answer leaves it out from now on. A request that has less time than the node may take says
    /// nothing of the node.
    pub(super) async fn in_time<T>(
        self: &Arc<Self>,
        patience: Duration,
        asking: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if self.is_left_out() {
            self.start_recovery();
            // Nothing is sent.
            let why = match self.reconnects.load(Ordering::Acquire) {
                true => {
                    Error::new(ErrorKind::Unreachable, "it is being connected again").because_busy()
                }
                false => Error::new(ErrorKind::Unreachable, "it did not answer before"),
            };
            return Err(why.with_context(&self.address));
        }
        match tokio::time::timeout(patience, asking).await {
            // It answers, so it costs no time, and needs no recovery.
            Ok(Err(error)) if error.is_busy() => Err(error.with_context(&self.address)),
            Ok(Err(error)) if failure::is_lost_connection(&error) => {
                self.reconnects.store(true, Ordering::Release);
                self.leave_out();
                Err(error.with_context(&self.address).because_busy())
            }
            Ok(Err(error)) if error.kind() == ErrorKind::Unreachable => {
                self.leave_out();
                Err(error.with_context(&self.address).of_unknown_effect())
            }
            Ok(answer) => answer,
            Err(_) => {
                if patience >= self.timeout {
                    self.leave_out();
                }
                let after = humantime::format_duration(patience);
                let why = format!("no answer within {after}");
                let error = Error::new(ErrorKind::Unreachable, why);
                Err(error.with_context(&self.address).of_unknown_effect())
            }
        }
    }

    /// Says of which node an error is; one that did not answer says so already.
    pub(super) fn with_context(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Unreachable => error,
            _ => error.with_context(&self.address),
        }
    }

    fn is_left_out(&self) -> bool {
        self.unhealthy.load(Ordering::Acquire)
    }

    pub(super) fn leave_out(self: &Arc<Self>) {
        self.unhealthy.store(true, Ordering::Release);
        self.start_recovery();
    }

    /// For what a node would not do just now, healthy or not.
    fn catch_up(self: &Arc<Self>) {
        self.recover_again.store(true, Ordering::Release);
        self.start_recovery();
    }

    fn start_recovery(self: &Arc<Self>) {
        let mut recovery = self.recovery.lock();
        if recovery.as_ref().is_none_or(JoinHandle::is_finished) {
            *recovery = Some(tokio::spawn(recover(Arc::downgrade(self))));
        }
    }

    /// Does what was left undone while the node did not answer.
    async fn recover(&self) -> Result<()> {
        self.recover_again.store(false, Ordering::Release);
        self.client.load_scripts(&SCRIPTS).await?;
        // As many as there are now: more come in while claims keep failing.
        let mut left = self.deferred.lock().len();
        while left > 0 {
            let batch = self.deferred.lock()[..left.min(BATCH)].to_vec();
            let told = self.client.call_all::<Reply>(&batch).await;
            // What is refused for good is not repeated.
            if let Some(error) = told.into_iter().filter_map(Result::err).find(may_pass) {
                return Err(error);
            }
            self.deferred.lock().drain(..batch.len());
            left -= batch.len();
        }
        if self.subscribes.load(Ordering::Acquire) {
            self.client.subscribe(&self.listener.channel).await?;
        }
        Ok(())
    }
}

/// The node did not answer, or cannot do it just now.
pub(super) fn may_pass(error: &Error) -> bool {
    error.kind() == ErrorKind::Unreachable
}

/// Tries until a node has recovered, or nobody needs it any more.
async fn recover(member: Weak<Member>) {
    let seed = ClaimId::random().map_or(0, |id| id.seed());
    let mut delays = Backoff::new(seed, Duration::from_millis(20), Duration::from_secs(1));
    loop {
        {
            let Some(member) = member.upgrade() else {
                return;
            };
            let answers = member.client.answers();
            let recovered = tokio::time::timeout(RECOVERY_TIMEOUT, member.recover()).await;
            // From here on it is known whether the node answers.
            member.reconnects.store(false, Ordering::Release);
            if recovered.is_err() {
                // The connection may have been lost in silence.
                member.client.leave_if_silent(answers);
            }
            if let Ok(Ok(())) = recovered {
                // It votes from now on, whatever else there is to do: as long as it does not, more claims fail, and each of
                // them leaves more to do.
                if member.unhealthy.swap(false, Ordering::AcqRel) {
                    // Its vote may be the one that a waiter lacks.
                    member.listener.waiters.wake_all();
                }
                // Whatever comes up from now on finds no recovery in progress.
                let mut recovery = member.recovery.lock();
                let done = member.deferred.lock().is_empty();
                if done && !member.recover_again.load(Ordering::Acquire) {
                    *recovery = None;
                    return;
                }
                continue;
            }
        }
        tokio::time::sleep(delays.delay()).await;
    }
}
