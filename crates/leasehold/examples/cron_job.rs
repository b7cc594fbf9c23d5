//! A job that is started on many hosts at about the same time and should run on one of them.
//!
//! `cargo run --example cron_job -- [URL]`, several at once.

use std::time::Duration;

use leasehold::Locks;

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1);
    let locks = Locks::connect(url.as_deref().unwrap_or("sqlite:")).await?;
    let lease = locks
        .lock("example/cron-job")
        .reason("the nightly report")
        // However quick the job is, a host whose clock is two seconds late does not run it again.
        .hold_at_least(Duration::from_secs(2))
        .try_acquire()
        .await?;
    match lease {
        Some(lease) => {
            println!("running, with token {}", lease.token());
            lease.release().await?;
        }
        None => println!("another one runs it"),
    }
    Ok(())
}
