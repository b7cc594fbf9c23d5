//! The waiters of this process, each with a mailbox: for engines that learn of a hand-over by message.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::claim::ClaimId;
use crate::name::LockName;
use crate::sync::Mutex;

/// How much longer than the server says to wait before another attempt: a message that makes the attempt unnecessary may be about to come.
const GRACE: Duration = Duration::from_millis(5);

/// Waiters by claim, and by the number that messages name them by.
#[derive(Debug)]
pub(crate) struct LocalWaiters<M>(Mutex<Known<M>>);

#[derive(Debug)]
struct Known<M> {
    mailboxes: HashMap<u64, Arc<Mailbox<M>>>,
    numbers: HashMap<ClaimId, u64>,
    /// The lock that each waits for, where the listener has to know it.
    names: HashMap<u64, LockName>,
}

/// The messages for one waiter, kept until it reads them.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    posted: Notify,
    unread: Mutex<Unread<M>>,
}

#[derive(Debug)]
struct Unread<M> {
    messages: Vec<M>,
    /// Whether it is to make another attempt, whatever the messages say.
    look: bool,
}

impl<M> Default for Mailbox<M> {
    fn default() -> Self {
        Self {
            posted: Notify::new(),
            unread: Mutex::new(Unread {
                messages: Vec::new(),
                look: false,
            }),
        }
    }
}

impl<M> Default for LocalWaiters<M> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            mailboxes: HashMap::new(),
            numbers: HashMap::new(),
            names: HashMap::new(),
        }))
    }
}

impl<M> Mailbox<M> {
    pub(crate) fn post(&self, message: M) {
        self.unread.lock().messages.push(message);
        self.posted.notify_one();
    }

    /// Makes the waiter look again.
    pub(crate) fn wake(&self) {
        self.unread.lock().look = true;
        self.posted.notify_one();
    }

    /// Removes messages that no longer count. If there are any, the waiter looks again.
    pub(crate) fn keep_only(&self, still_counts: impl FnMut(&M) -> bool) {
        let mut unread = self.unread.lock();
        let before = unread.messages.len();
        unread.messages.retain(still_counts);
        unread.look |= unread.messages.len() < before;
    }

    /// As `read`, but if the messages only ask for another attempt after a delay, waits that long for others to come. Returns none if the delay has passed.
    /// Of several delays, the one that ends first counts.
    pub(crate) async fn read_past_delays(
        &self,
        delay: impl Fn(&[M]) -> Option<Duration>,
    ) -> Vec<M> {
        let mut messages = self.read().await;
        let mut first: Option<Instant> = None;
        while let Some(delay) = delay(&messages) {
            let ends = Instant::now() + delay + GRACE;
            let ends = first.map_or(ends, |first| first.min(ends));
            first = Some(ends);
            match tokio::time::timeout_at(ends, self.read()).await {
                Ok(more) => messages = more,
                Err(_) => return Vec::new(),
            }
        }
        messages
    }

    /// Waits for messages, and returns those since the last time. None means that the waiter is only to look again.
    pub(crate) async fn read(&self) -> Vec<M> {
        loop {
            self.posted.notified().await;
            let mut unread = self.unread.lock();
            let look = std::mem::take(&mut unread.look);
            // Otherwise the message of this notification was read together with an earlier one.
            if look || !unread.messages.is_empty() {
                return std::mem::take(&mut unread.messages);
            }
        }
    }
}

impl<M> LocalWaiters<M> {
    /// Makes a mailbox for a waiter. To be called before others can see the waiter in the queue.
    pub(crate) fn expect(&self, id: ClaimId, number: u64) {
        let mut known = self.0.lock();
        let before = known.numbers.insert(id, number);
        if before != Some(number) {
            let mailbox = Arc::new(Mailbox::default());
            known.mailboxes.insert(number, mailbox);
            // It has another place in the queue.
            before.and_then(|before| known.mailboxes.remove(&before));
        }
    }

    /// As `expect`, with the number that it has, or the next one of this process.
    pub(crate) fn expect_next(&self, id: ClaimId) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        if let Some((number, _)) = self.waiter(&id) {
            return number;
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.expect(id, number);
        number
    }

    /// As `expect_next`, and notes the lock that it waits for.
    pub(crate) fn expect_next_for(&self, id: ClaimId, name: &LockName) -> u64 {
        let number = self.expect_next(id);
        self.0.lock().names.insert(number, name.clone());
        number
    }

    /// All locks that are waited for.
    pub(crate) fn names(&self) -> HashSet<LockName> {
        self.0.lock().names.values().cloned().collect()
    }

    /// The locks that the waiters with these numbers wait for.
    pub(crate) fn names_of(&self, numbers: &[u64]) -> HashSet<LockName> {
        let known = self.0.lock();
        let names = numbers.iter().filter_map(|number| known.names.get(number));
        names.cloned().collect()
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().mailboxes.is_empty()
    }

    /// The number of a waiter, and its mailbox.
    pub(crate) fn waiter(&self, id: &ClaimId) -> Option<(u64, Arc<Mailbox<M>>)> {
        let known = self.0.lock();
        let number = *known.numbers.get(id)?;
        Some((number, Arc::clone(known.mailboxes.get(&number)?)))
    }

    /// The mailbox of the waiter with this number.
    pub(crate) fn mailbox(&self, number: u64) -> Option<Arc<Mailbox<M>>> {
        self.0.lock().mailboxes.get(&number).cloned()
    }

    /// Forgets a waiter that has the lock, or waits no longer.
    pub(crate) fn forget(&self, id: &ClaimId) {
        let mut known = self.0.lock();
        if let Some(number) = known.numbers.remove(id) {
            known.mailboxes.remove(&number);
            known.names.remove(&number);
        }
    }

    /// A waiter makes another attempt: it need not be woken for what asked for one before.
    pub(crate) fn looks(&self, id: &ClaimId) {
        if let Some((_, mailbox)) = self.waiter(id) {
            mailbox.unread.lock().look = false;
        }
    }

    /// Makes one waiter look again.
    pub(crate) fn wake(&self, id: &ClaimId) {
        if let Some((_, mailbox)) = self.waiter(id) {
            mailbox.wake();
        }
    }

    /// Posts a message to all waiters.
    pub(crate) fn post_all(&self, message: impl Fn() -> M) {
        for mailbox in self.0.lock().mailboxes.values() {
            mailbox.post(message());
        }
    }

    /// Makes all waiters look again, as when messages may have been missed.
    pub(crate) fn wake_all(&self) {
        for mailbox in self.0.lock().mailboxes.values() {
            mailbox.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn reads_nothing(mailbox: &Mailbox<u8>) -> bool {
        let soon = Duration::from_millis(20);
        tokio::time::timeout(soon, mailbox.read()).await.is_err()
    }

    #[tokio::test]
    async fn message_read_with_another_wakes_nobody_again() {
        let mailbox = Mailbox::default();
        mailbox.post(1);
        mailbox.unread.lock().messages.push(2);
        assert_eq!(mailbox.read().await, [1, 2]);
        // What `post` does last, late.
        mailbox.posted.notify_one();
        assert!(reads_nothing(&mailbox).await);
        mailbox.post(3);
        assert_eq!(mailbox.read().await, [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn later_delay_does_not_replace_an_earlier_one() {
        let mailbox = Mailbox::default();
        let start = Instant::now();
        mailbox.post(1);
        let read =
            mailbox.read_past_delays(|all| all.iter().min().map(|s| Duration::from_secs(*s)));
        let post = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            mailbox.post(60);
        };
        let (messages, ()) = tokio::join!(read, post);
        assert!(messages.is_empty());
        assert_eq!(start.elapsed().as_secs(), 1);
    }

    #[tokio::test]
    async fn attempt_after_a_wake_up_is_not_repeated() {
        let (waiters, id) = (LocalWaiters::<u8>::default(), ClaimId::random().unwrap());
        waiters.expect(id, 1);
        let mailbox = waiters.mailbox(1).unwrap();
        waiters.wake_all();
        waiters.looks(&id);
        assert!(reads_nothing(&mailbox).await);
        mailbox.post(3);
        waiters.looks(&id);
        assert_eq!(mailbox.read().await, [3]);
    }

    #[tokio::test]
    async fn waiter_that_is_woken_looks_without_a_message() {
        let mailbox = Mailbox::<u8>::default();
        mailbox.wake();
        assert!(mailbox.read().await.is_empty());
        assert!(reads_nothing(&mailbox).await);
        mailbox.post(1);
        mailbox.keep_only(|_| false);
        assert!(
            mailbox.read().await.is_empty(),
            "what is void is looked at anew"
        );
    }
}
