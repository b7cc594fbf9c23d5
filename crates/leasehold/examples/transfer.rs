//! Transfers between two accounts, under the locks of both: no two transfers get into each other's way, in whatever
//! order they name the accounts.
//!
//! `cargo run -p leasehold --example transfer -- [URL]`, several at once.

use leasehold::guard::{Fenced, Store};
use leasehold::{Lease, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1);
    let locks = Locks::connect(url.as_deref().unwrap_or("sqlite:")).await?;
    let store = locks.store()?;
    for _ in 0..10 {
        transfer(&locks, &store, "example/account/7", "example/account/3", 5).await?;
        transfer(&locks, &store, "example/account/3", "example/account/7", 2).await?;
    }
    Ok(())
}

async fn transfer(
    locks: &Locks,
    store: &Store,
    from: &str,
    to: &str,
    amount: i64,
) -> leasehold::Result<()> {
    let both = locks.all([from, to]).acquire().await?;
    for (account, change) in [(from, -amount), (to, amount)] {
        let Some(lease) = both.get(account) else {
            continue;
        };
        // A holder that slept past its lease is refused here.
        if !add(store, lease, change).await? {
            println!("too late for {account}");
        }
    }
    both.release().await?;
    Ok(())
}

async fn add(store: &Store, lease: &Lease, change: i64) -> leasehold::Result<bool> {
    let account = lease.name().as_str();
    let record = store.read(account).await?;
    let text = record.map(|record| String::from_utf8_lossy(&record.value).into_owned());
    let balance = text.and_then(|text| text.parse().ok()).unwrap_or(0) + change;
    let written = store
        .write_fenced(account, balance.to_string(), lease)
        .await?;
    println!("{account}: {balance}");
    Ok(matches!(written, Fenced::Written { .. }))
}
