//! A case as data: what it needs, who must be caught by it, and what it does.

use std::fmt;

use futures_util::future::LocalBoxFuture;

use super::ground::Ground;
use super::saboteur::Saboteur;
use crate::engine::{Capabilities, Expiry, Fairness, Survives};

/// Cases that belong together.
#[derive(Debug)]
pub struct Theme {
    /// Its name.
    pub name: &'static str,
    /// Its cases.
    pub cases: &'static [Case],
}

/// One thing that every engine must do.
pub struct Case {
    /// What it shows.
    pub name: &'static str,
    /// What an engine must have for the case to apply.
    pub needs: &'static [Need],
    /// Engines broken on purpose that fail this case.
    pub caught_by: &'static [Saboteur],
    /// Does it; panics if the engine is wrong.
    pub run: fn(Ground) -> LocalBoxFuture<'static, ()>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What a case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The engine has shared mode.
    Shared,
    /// The engine has no shared mode.
    NoShared,
    /// The engine has permits.
    Permits,
    /// The engine has no permits.
    NoPermits,
    /// Whoever has waited longest is next.
    Fifo,
    /// Locks end with their own TTL, not with a session.
    OwnTtl,
    /// The engine keeps guarded records.
    Store,
    /// Other processes reach the same store.
    Processes,
    /// Held locks survive a restart of the store.
    SurvivesRestart,
    /// The case disturbs the store, and so gets one of its own.
    OwnStore,
}

impl Need {
    const ALL: [Self; 10] = [
        Self::Shared,
        Self::NoShared,
        Self::Permits,
        Self::NoPermits,
        Self::Fifo,
        Self::OwnTtl,
        Self::Store,
        Self::Processes,
        Self::SurvivesRestart,
        Self::OwnStore,
    ];

    /// The needs that an engine with these capabilities does not meet, whose store other processes can reach or not.
    pub fn unmet(able: &Capabilities, processes: bool) -> Vec<Self> {
        let is_met = |need: &Self| match need {
            Need::Shared => able.shared,
            Need::NoShared => !able.shared,
            Need::Permits => able.permits,
            Need::NoPermits => !able.permits,
            Need::Fifo => able.fairness == Fairness::Fifo,
            Need::OwnTtl => able.expiry != Expiry::Session,
            Need::Store => able.store,
            Need::Processes => processes,
            Need::SurvivesRestart => able.survives.contains(&Survives::EngineRestart),
            Need::OwnStore => true,
        };
        let unmet = Self::ALL.into_iter().filter(|need| !is_met(need));
        unmet.collect()
    }
}

/// A theme made of the functions of a module.
macro_rules! theme {
    ($theme:ident: $($case:ident [$($need:ident),*] caught by [$($saboteur:ident),*];)*) => {
        pub(in crate::conformance) const THEME: $crate::conformance::Theme = $crate::conformance::Theme {
            name: stringify!($theme),
            cases: &[$($crate::conformance::Case {
                name: stringify!($case),
                needs: &[$($crate::conformance::Need::$need),*],
                caught_by: &[$($crate::conformance::saboteur::Saboteur::$saboteur),*],
                run: |ground| Box::pin($case(ground)),
            }),*],
        };
    };
}
pub(super) use theme;
