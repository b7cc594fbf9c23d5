//! How much keeping leases alive costs: holds many in one process for a while and reports memory and CPU.
//!
//! `cargo run --release -p leasehold --example many_leases -- [URL] [LEASES] [SECONDS]`

use std::time::{Duration, Instant};

use leasehold::Locks;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let count: usize = arguments.next().map_or(Ok(100_000), |n| n.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(60), |n| n.parse())?;

    let locks = Locks::connect(&url).await?;
    let before = Usage::now()?;
    let start = Instant::now();
    let mut leases = Vec::with_capacity(count);
    for number in 0..count {
        leases.push(locks.lock(format!("lease/{number}")).acquire().await?);
    }
    let held = Usage::now()?;
    println!(
        "{count} leases on {} in {:.1} s; {} bytes of memory each",
        locks.location(),
        start.elapsed().as_secs_f64(),
        held.memory.saturating_sub(before.memory) / count as u64,
    );

    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = Usage::now()?;
    let valid = leases.iter().filter(|lease| lease.is_valid()).count();
    println!(
        "after {seconds} s: {valid} valid, {:.1} % of a core, {} MiB in all",
        100.0 * (after.cpu - held.cpu).as_secs_f64() / seconds as f64,
        after.memory >> 20,
    );
    assert_eq!(valid, count);
    Ok(())
}

struct Usage {
    memory: u64,
    cpu: Duration,
}

impl Usage {
    /// From /proc, in its units: pages of 4 KiB, ticks of 10 ms.
    fn now() -> Result<Self, Box<dyn std::error::Error>> {
        let pages = std::fs::read_to_string("/proc/self/statm")?;
        let resident: u64 = pages.split(' ').nth(1).unwrap_or("0").parse()?;
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(Self {
            memory: resident * 4096,
            cpu: Duration::from_millis(ticks * 10),
        })
    }
}
