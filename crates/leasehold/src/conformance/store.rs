//! Guarded records refuse stale writes, whoever sends them and whatever happens in between.

pub(super) mod contention;
pub(super) mod ends;
pub(super) mod keys;
pub(super) mod writes;

use super::Ground;
use crate::guard::{Fenced, Pass, Record, Store, Version};
use crate::name::LockName;
use crate::token::FencingToken;

async fn store(ground: &Ground) -> Store {
    ground
        .locks()
        .await
        .store()
        .expect("it says that it has one")
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn pass(number: u64, lock: &str) -> Pass {
    Pass::new(token(number), LockName::new(lock).unwrap())
}

async fn there(store: &Store, key: &str) -> Record {
    store.read(key).await.unwrap().expect("a record")
}

async fn fenced(store: &Store, key: &str, value: &str, number: u64) -> Fenced {
    store.write_fenced(key, value, token(number)).await.unwrap()
}

fn written(fenced: Fenced) -> Version {
    match fenced {
        Fenced::Written { version } => version,
        Fenced::Refused { highest } => panic!("refused: {highest} has written"),
    }
}
