//! A task that an engine needs for as long as it is used, whatever runtime it is used from: if the runtime ends that the task was started on, the next
//! request starts it anew on its own.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Background(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    /// The engine is gone: nothing is started any more.
    ended: bool,
}

#[derive(Debug)]
struct Running {
    task: AbortHandle,
    goes_on: Arc<AtomicBool>,
}

impl Background {
    /// Starts the task on this runtime, unless it runs already. `when_stopped` is called when it does not go on, for whatever reason: this can be called
    /// again then.
    pub(crate) fn ensure<F>(
        &self,
        task: impl FnOnce() -> F,
        when_stopped: impl FnOnce() + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut state = self.0.lock();
        let runs = |running: &Running| running.goes_on.load(Ordering::Acquire);
        if state.ended || state.running.as_ref().is_some_and(runs) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let goes_on = Arc::new(AtomicBool::new(true));
        // Dropped with the task, even if that never begins.
        let stop = Stop {
            goes_on: Arc::clone(&goes_on),
            then: Some(when_stopped),
        };
        let task = task();
        let task = runtime.spawn(async move {
            let _stop = stop;
            task.await;
        });
        let task = task.abort_handle();
        state.running = Some(Running { task, goes_on });
    }

    /// Stops the task for good.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.ended = true;
        if let Some(running) = state.running.take() {
            running.task.abort();
        }
    }
}

struct Stop<F: FnOnce()> {
    goes_on: Arc<AtomicBool>,
    then: Option<F>,
}

impl<F: FnOnce()> Drop for Stop<F> {
    fn drop(&mut self) {
        self.goes_on.store(false, Ordering::Release);
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn task_is_started_again_once_its_runtime_has_ended() {
        let background = Background::default();
        let (started, stopped) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let ensure = || {
            let stopped = Arc::clone(&stopped);
            background.ensure(
                || {
                    started.fetch_add(1, Ordering::Relaxed);
                    std::future::pending()
                },
                move || {
                    stopped.fetch_add(1, Ordering::Relaxed);
                },
            );
        };
        let counts = || {
            (
                started.load(Ordering::Relaxed),
                stopped.load(Ordering::Relaxed),
            )
        };
        ensure();
        assert_eq!(counts(), (0, 0), "there is no runtime");
        let (first, second) = (runtime(), runtime());
        first.block_on(async {
            ensure();
            tokio::task::yield_now().await;
            ensure();
        });
        second.block_on(async { ensure() });
        assert_eq!(counts(), (1, 0));
        first.shutdown_timeout(Duration::from_secs(1));
        assert_eq!(counts(), (1, 1));
        second.block_on(async { ensure() });
        assert_eq!(counts(), (2, 1));
        // It never began.
        drop(second);
        assert_eq!(counts(), (2, 2));
        background.end();
        runtime().block_on(async { ensure() });
        assert_eq!(counts(), (2, 2));
    }
}
