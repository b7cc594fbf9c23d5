//! How fast a pool gives ids out, and how many requests it takes.
//!
//! `cargo run --release -p leasehold --example id_pool -- [URL]`

use std::time::Instant;

use leasehold::{ClaimId, Locks};

const IDS: u32 = 1_000_000;

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1);
    let locks = Locks::connect(url.as_deref().unwrap_or("sqlite:")).await?;
    let pool = locks.id_pool("example/ids")?;
    let start = Instant::now();
    for _ in 0..IDS {
        pool.next().await?;
    }
    let rate = f64::from(IDS) / start.elapsed().as_secs_f64();
    let refills = pool.refills();
    println!(
        "a pool: {rate:.0} ids a second, {refills} blocks, {} requests",
        2 * refills
    );

    let start = Instant::now();
    for _ in 0..IDS {
        ClaimId::random()?;
    }
    let rate = f64::from(IDS) / start.elapsed().as_secs_f64();
    println!("at random: {rate:.0} ids a second");
    Ok(())
}
