//! Passing a lock on within this process, before the server has heard of it.
//!
//! The server tells a new holder who comes next, as long as they wait in the same process, and reserves tokens for them. It lets nobody
//! else in while the holder's time lasts. So when the holder releases, the next may begin at once, for as long as the holder could have
//! gone on. The server is told after that, by one at a time, of all that were passed on meanwhile. What one of them has to say to
//! the server itself, to renew or to release, waits until the server has agreed to it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::claim::{ClaimId, Ttl};
use crate::clock::{Clock, Moment};
use crate::engine::handover::{Heard, Heirs};
use crate::engine::waiters::Waiters;
use crate::engine::{Grant, Released};
use crate::error::Result;
use crate::name::LockName;
use crate::token::FencingToken;

/// The locks that this process may pass on.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<LockName, Line>>,
    /// Claims that have passed a lock on, of which the server could not be told, and until when another relies on it.
    untold: Mutex<HashMap<ClaimId, Moment>>,
}

/// One such lock.
#[derive(Debug)]
struct Line {
    /// Whom the server takes for the holder.
    agreed: Holder,
    holder: Holder,
    /// Those after whom the server takes for the holder, up to who holds it, that it is not being told of yet.
    passed: Vec<Holder>,
    /// Those who have released meanwhile, and want to know what comes of it.
    released: Vec<oneshot::Sender<Turn>>,
    is_telling: bool,
    heirs: VecDeque<u64>,
    next_token: FencingToken,
    offer: Duration,
    /// Until when the server lets nobody in but whom it takes for the holder.
    until: Moment,
    /// A holder that does not pass it on.
    kept_by: Option<ClaimId>,
    settled: Arc<Notify>,
}

/// A claim, the number that it waited with, and its token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) id: ClaimId,
    pub(crate) number: u64,
    pub(crate) token: FencingToken,
}

/// What becomes of a release by which a lock was passed on.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The server was told.
    Over(Result<Released>),
    /// It has to tell the server, for all who have released meanwhile.
    Tell(News),
}

/// What the server is to be told in one call. If it is dropped before, nothing more is passed on, and nobody waits for it any more.
#[derive(Debug)]
pub(crate) struct News {
    lines: Arc<Lines>,
    pub(crate) lock: LockName,
    pub(crate) agreed: Holder,
    pub(crate) passed: Vec<Holder>,
    released: Vec<oneshot::Sender<Turn>>,
    is_agreed: bool,
}

impl News {
    /// What came of it.
    pub(crate) fn is_over(&mut self, answer: impl Fn() -> Result<Released>) {
        for waiting in self.released.drain(..) {
            let _ = waiting.send(Turn::Over(answer()));
        }
    }

    /// The server takes the last of them for the holder now, and says who comes next. Returns what is to be told after that, unless
    /// another who waits for it will do so: its runtime is awake, while this one may be about to rest.
    pub(crate) fn agreed(mut self, heirs: Option<Heirs>, until: Moment) -> Option<News> {
        let last = *self.passed.last()?;
        self.is_agreed = true;
        self.lines.agreed(&self.lock, last, heirs, until);
        let mut next = self.lines.news(&self.lock)?;
        while let Some(teller) = next.released.pop() {
            match teller.send(Turn::Tell(next)) {
                Err(Turn::Tell(news)) => next = news,
                _ => return None,
            }
        }
        Some(next)
    }
}

impl Drop for News {
    fn drop(&mut self) {
        if !self.is_agreed {
            self.lines.break_off(self);
        }
    }
}

impl Line {
    fn news(&mut self, lines: &Arc<Lines>, lock: &LockName) -> News {
        News {
            lines: Arc::clone(lines),
            lock: lock.clone(),
            agreed: self.agreed,
            passed: std::mem::take(&mut self.passed),
            released: std::mem::take(&mut self.released),
            is_agreed: false,
        }
    }
}

impl Lines {
    fn lines(&self) -> MutexGuard<'_, HashMap<LockName, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has handed a lock over, and said who comes next.
    pub(crate) fn begin(&self, lock: &LockName, holder: Holder, heirs: Heirs, until: Moment) {
        const MANY: usize = 100;
        let mut lines = self.lines();
        if lines.len() > MANY {
            let now = Clock::machine().now();
            lines.retain(|_, line| line.is_telling || line.until > now);
        }
        if lines.get(lock).is_some_and(|line| line.is_telling) {
            return;
        }
        let line = Line {
            agreed: holder,
            holder,
            passed: Vec::new(),
            released: Vec::new(),
            is_telling: false,
            heirs: heirs.numbers.into(),
            next_token: heirs.first_token,
            offer: heirs.offer,
            until,
            kept_by: None,
            settled: Arc::default(),
        };
        lines.insert(lock.clone(), line);
    }

    /// Lets the next one in after this holder, which releases the lock. If it does not hold it, nobody passes it on to this one from now on.
    pub(crate) fn pass_on(
        self: &Arc<Self>,
        lock: &LockName,
        holder: &ClaimId,
        waiters: &Waiters<Heard>,
    ) -> Option<oneshot::Receiver<Turn>> {
        let mut lines = self.lines();
        let line = lines.get_mut(lock);
        let Some(line) = line.filter(|line| line.holder.id == *holder) else {
            waiters.forget(holder);
            return None;
        };
        if line.kept_by == Some(*holder) {
            return None;
        }
        let now = Clock::machine().now();
        let offered = now + Ttl::new(line.offer).ok()?.validity();
        let valid_until = line.until.min(offered);
        if valid_until.since(now) < line.offer / 2 {
            return None;
        }
        let (number, bell) = loop {
            let number = line.heirs.pop_front()?;
            if let Some(bell) = waiters.bell(number) {
                break (number, bell);
            }
        };
        let (id, token) = (bell.id, line.next_token);
        line.next_token = FencingToken::new(token.get() + 1)?;
        line.holder = Holder { id, number, token };
        line.passed.push(line.holder);
        bell.pass_on(Grant { token, valid_until });
        let (turn, turns) = oneshot::channel();
        if std::mem::replace(&mut line.is_telling, true) {
            line.released.push(turn);
        } else {
            let news = line.news(self, lock);
            drop(lines);
            let _ = turn.send(Turn::Tell(news));
        }
        Some(turns)
    }

    /// What the server has not been told yet; if nothing, it has agreed to all.
    fn news(self: &Arc<Self>, lock: &LockName) -> Option<News> {
        let mut lines = self.lines();
        let line = lines.get_mut(lock)?;
        if line.passed.is_empty() {
            line.is_telling = false;
            line.settled.notify_waiters();
            return None;
        }
        Some(line.news(self, lock))
    }

    fn agreed(&self, lock: &LockName, to: Holder, heirs: Option<Heirs>, until: Moment) {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(lock) else {
            return;
        };
        line.agreed = to;
        line.until = until;
        line.heirs.clear();
        if let Some(heirs) = heirs {
            let is_in = |number: &u64| line.passed.iter().any(|passed| passed.number == *number);
            line.heirs = heirs.numbers.into_iter().filter(|n| !is_in(n)).collect();
            line.next_token = heirs.first_token;
            line.offer = heirs.offer;
        }
        line.settled.notify_waiters();
    }

    /// This holder's time may end sooner than was known.
    pub(crate) fn cut_short(&self, lock: &LockName, holder: &ClaimId, until: Moment) {
        if let Some(line) = self.lines().get_mut(lock)
            && line.holder.id == *holder
        {
            line.until = line.until.min(until);
        }
    }

    /// This holder is not to pass it on.
    pub(crate) fn keep(&self, lock: &LockName, holder: &ClaimId) {
        if let Some(line) = self.lines().get_mut(lock)
            && line.holder.id == *holder
        {
            line.kept_by = Some(*holder);
        }
    }

    /// This holder holds the lock no more.
    pub(crate) fn end(&self, lock: &LockName, holder: &ClaimId) {
        let mut lines = self.lines();
        match lines.get_mut(lock) {
            Some(line) if line.is_telling => line.heirs.clear(),
            Some(line) if line.holder.id == *holder => drop(lines.remove(lock)),
            _ => {}
        }
    }

    /// The server has not agreed, or cannot be told.
    fn break_off(&self, news: &News) {
        let Some(line) = self.lines().remove(&news.lock) else {
            return;
        };
        let now = Clock::machine().now();
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.retain(|_, until| *until > now);
        let had_it = news.passed.iter().chain(&line.passed);
        for Holder { id, .. } in had_it.chain([&news.agreed]) {
            if *id != line.holder.id {
                untold.insert(*id, line.until);
            }
        }
        line.settled.notify_waiters();
    }

    /// Until when this claim must not be given up at the server, since whom it passed the lock on to relies on it.
    pub(crate) fn relied_on_until(&self, id: &ClaimId) -> Option<Moment> {
        let untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.get(id).copied()
    }

    /// Returns when the server has agreed to this holder, or will not.
    pub(crate) async fn settled(&self, lock: &LockName, holder: &ClaimId) {
        loop {
            let settled = {
                let lines = self.lines();
                match lines.get(lock) {
                    Some(line) if line.is_telling && line.agreed.id != *holder => {
                        Arc::clone(&line.settled).notified_owned()
                    }
                    _ => return,
                }
            };
            settled.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    struct Crowd {
        lines: Arc<Lines>,
        waiters: Waiters<Heard>,
        lock: LockName,
        claims: Vec<Holder>,
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn in_ms(count: u64) -> Moment {
        Clock::machine().now() + Duration::from_millis(count)
    }

    impl Crowd {
        /// One holder, and so many who wait.
        fn of(size: u64) -> Self {
            let waiters = Waiters::default();
            let claim = |nth| {
                let id = ClaimId::random().unwrap();
                let number = waiters.expect_next(id);
                let token = token(10 + nth);
                Holder { id, number, token }
            };
            Self {
                claims: (0..=size).map(claim).collect(),
                lines: Arc::default(),
                waiters,
                lock: LockName::new("x").unwrap(),
            }
        }

        fn heirs(&self, from: usize, first_token: u64) -> Heirs {
            let heirs = self.claims[from..].iter();
            Heirs {
                numbers: heirs.map(|claim| claim.number).collect(),
                first_token: token(first_token),
                offer: Duration::from_millis(500),
            }
        }

        fn begins(&self, until: Moment) {
            let heirs = self.heirs(1, 11);
            self.lines.begin(&self.lock, self.claims[0], heirs, until);
        }

        fn pass_on(&self, from: usize) -> Option<oneshot::Receiver<Turn>> {
            let holder = &self.claims[from].id;
            self.lines.pass_on(&self.lock, holder, &self.waiters)
        }

        fn grant(&self, to: usize) -> Option<Grant> {
            self.waiters.bell(self.claims[to].number)?.passed_on()
        }

        fn is_settled(&self, nth: usize) -> bool {
            let settled = self.lines.settled(&self.lock, &self.claims[nth].id);
            settled.now_or_never().is_some()
        }
    }

    fn news(turn: &mut oneshot::Receiver<Turn>) -> News {
        match turn.try_recv() {
            Ok(Turn::Tell(news)) => news,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_next_is_let_in_for_no_longer_than_the_holder_and_speaks_when_the_server_agrees() {
        let crowd = Crowd::of(4);
        let until = in_ms(400);
        crowd.begins(until);
        assert!(crowd.is_settled(0));
        let mut first = crowd.pass_on(0).unwrap();
        let grant = crowd.grant(1).unwrap();
        assert_eq!(grant.token, token(11));
        assert_eq!(grant.valid_until, until);
        assert!(!crowd.is_settled(1));
        // Once only, and by nobody who does not hold it.
        assert!(crowd.pass_on(0).is_none());

        let mut told = news(&mut first);
        assert_eq!((told.agreed.id, told.passed.len()), (crowd.claims[0].id, 1));
        // Meanwhile it goes on, and the next call tells of that. Who has given up does not tell.
        let mut second = crowd.pass_on(1).unwrap();
        drop(crowd.pass_on(2).unwrap());
        assert_eq!(crowd.grant(2).unwrap().token, token(12));
        assert!(second.try_recv().is_err());
        told.is_over(|| Ok(Released::Yes));
        let heirs = Some(crowd.heirs(2, 21));
        assert!(told.agreed(heirs, in_ms(9000)).is_none());
        assert!(crowd.is_settled(1));
        assert!(!crowd.is_settled(3));
        let told = news(&mut second);
        assert_eq!((told.agreed.id, told.passed.len()), (crowd.claims[1].id, 2));
        // Who was let in already is not let in again.
        let mut third = crowd.pass_on(3).unwrap();
        assert_eq!(crowd.grant(4).unwrap().token, token(21));
        assert!(!crowd.is_settled(4));
        // Whoever should tell is gone: nobody waits for ever.
        drop(told);
        assert!(crowd.is_settled(4));
        assert!(third.try_recv().is_err());
        assert!(crowd.pass_on(4).is_none());
        // But the server must not hear of those who had it while the last one relies on it.
        let relied_on = |nth: usize| crowd.lines.relied_on_until(&crowd.claims[nth].id);
        assert!((1..=3).all(|nth| relied_on(nth) > Some(in_ms(8000))));
        assert_eq!(relied_on(4), None);
    }

    #[tokio::test]
    async fn nobody_is_let_in_without_time_or_after_a_loss_or_who_waits_no_more() {
        let crowd = Crowd::of(3);
        crowd.begins(in_ms(200));
        assert!(crowd.pass_on(0).is_none(), "too little time is left");
        crowd.begins(in_ms(9000));
        let holder = crowd.claims[0].id;
        crowd.lines.cut_short(&crowd.lock, &holder, in_ms(200));
        assert!(crowd.pass_on(0).is_none(), "it was renewed for less");
        crowd.begins(in_ms(9000));
        crowd.lines.keep(&crowd.lock, &holder);
        assert!(crowd.pass_on(0).is_none(), "it is kept");
        crowd.begins(in_ms(9000));
        crowd.lines.end(&crowd.lock, &holder);
        assert!(crowd.pass_on(0).is_none(), "it has been lost");
        crowd.begins(in_ms(9000));
        assert!(crowd.pass_on(1).is_none(), "it gives up");
        let told = news(&mut crowd.pass_on(0).unwrap());
        assert!(crowd.grant(2).is_some());
        crowd.waiters.forget(&crowd.claims[3].id);
        assert!(crowd.pass_on(2).is_none(), "nobody is left");
        assert!(told.agreed(None, in_ms(9000)).is_none());
        assert!(crowd.is_settled(2));
    }
}
