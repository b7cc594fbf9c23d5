//! A job that is started on many hosts at about the same time and should run on one of them.
//!
//! `cargo run -p leasehold --example cron_job -- [URL]`, several at once, and again within the minute.

use std::time::Duration;

use leasehold::Locks;
use leasehold::recipe::PeriodTurn;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1);
    let locks = Locks::connect(url.as_deref().unwrap_or("sqlite:")).await?;
    // A little less than the time between two starts: what asks too early is too early.
    let turn = locks
        .lock("example/cron-job")
        .reason("the report of the minute")
        .once_per(Duration::from_secs(50))
        .retry_failed()
        .begin()
        .await?;
    match turn {
        PeriodTurn::Ours(run) => {
            println!("running, with token {}", run.lease().token());
            run.succeeded().await?;
        }
        PeriodTurn::Taken(ran) => println!(
            "{} (pid {}) has run it; it may run again in {} s",
            ran.by.label,
            ran.by.pid,
            ran.next_in.as_secs()
        ),
    }
    Ok(())
}
