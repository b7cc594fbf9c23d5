//! Two writers, one resource that refuses stale tokens: even a writer that slept past its lease does no harm.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::{FencingToken, Locks};

/// A resource that keeps the highest token it has seen.
#[derive(Default)]
struct Resource(Mutex<(Option<FencingToken>, Vec<String>)>);

impl Resource {
    fn write(&self, line: &str, token: FencingToken) -> Result<(), FencingToken> {
        let mut state = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        match state.0 {
            Some(highest) if token < highest => Err(highest),
            _ => {
                state.0 = Some(token);
                state.1.push(line.to_owned());
                Ok(())
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let locks = Locks::connect("memory:").await?;
    let resource = Resource::default();

    let sleeper = locks
        .lock("ledger")
        .ttl(Duration::from_millis(100))
        .acquire()
        .await?;
    let token = sleeper.token();
    sleeper.detach(); // stands for a process that is stopped: nothing renews its lease

    let lease = locks.lock("ledger").acquire().await?; // after the sleeper's TTL
    println!(
        "the next one writes: {:?}",
        resource.write("b", lease.token())
    );
    println!(
        "the sleeper wakes and writes: {:?}",
        resource.write("a", token)
    );
    lease.release().await?;
    Ok(())
}
