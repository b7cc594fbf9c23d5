//! Work that goes on when nobody waits for it any more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Does the work here, without the cost of a task; if this is dropped, a task does the rest.
pub(super) fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> ToTheEnd<T> {
    ToTheEnd(Some(Box::pin(work)))
}

pub(super) struct ToTheEnd<T: Send + 'static>(Option<Work<T>>);

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn what_is_dropped_is_done_all_the_same() {
        let (done, heard) = tokio::sync::oneshot::channel();
        let work = to_the_end(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            done.send(()).unwrap();
        });
        let in_time = tokio::time::timeout(Duration::from_secs(1), work).await;
        assert!(in_time.is_err());
        heard.await.unwrap();
    }
}
