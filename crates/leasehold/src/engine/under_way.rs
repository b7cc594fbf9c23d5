//! Attempts that go on although nobody waits for them any more: for engines with several connections, on one of which a
//! release could overtake the attempt that it is to end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::claim::ClaimId;

/// Which claims have an attempt under way.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<HashMap<ClaimId, Arc<Turn<()>>>>);

/// While it is there, the attempt is under way.
#[derive(Debug)]
pub(crate) struct Attempting {
    all: Arc<UnderWay>,
    id: ClaimId,
    turn: Arc<Turn<()>>,
    _mine: OwnedMutexGuard<()>,
}

impl UnderWay {
    fn turns(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Turn<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt, once earlier ones of the same claim are over.
    pub(crate) async fn begin(self: &Arc<Self>, id: ClaimId) -> Attempting {
        let turn = Arc::clone(self.turns().entry(id).or_default());
        let mine = Arc::clone(&turn).lock_owned().await;
        self.turns().insert(id, Arc::clone(&turn));
        Attempting {
            all: Arc::clone(self),
            id,
            turn,
            _mine: mine,
        }
    }

    /// Returns when no attempt of this claim is under way.
    pub(crate) async fn is_over(&self, id: &ClaimId) {
        let turn = self.turns().get(id).cloned();
        if let Some(turn) = turn {
            drop(turn.lock().await);
        }
    }
}

impl Drop for Attempting {
    fn drop(&mut self) {
        let mut turns = self.all.turns();
        if turns
            .get(&self.id)
            .is_some_and(|turn| Arc::ptr_eq(turn, &self.turn))
        {
            turns.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn a_release_waits_for_the_attempt_and_nothing_is_left() {
        let all = Arc::new(UnderWay::default());
        let id = ClaimId::random().unwrap();
        assert!(all.is_over(&id).now_or_never().is_some());
        let attempt = all.begin(id).await;
        assert!(all.is_over(&id).now_or_never().is_none());
        assert!(all.begin(id).now_or_never().is_none());
        drop(attempt);
        assert!(all.is_over(&id).now_or_never().is_some());
        assert!(all.turns().is_empty());
    }
}
