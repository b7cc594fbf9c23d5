//! A leader with a worker: exactly one of all that run this does the work.
//!
//! `cargo run -p leasehold --example leader -- [URL]`, several at once; end the one that leads, with Ctrl-C or kill -9.

use std::time::Duration;

use leasehold::recipe::ElectionEvent;
use leasehold::{LeaseView, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> leasehold::Result<()> {
    let url = std::env::args().nth(1);
    let locks = Locks::connect(url.as_deref().unwrap_or("sqlite:")).await?;
    let label = format!("leader-{}", std::process::id());
    let mut election = locks
        .lock("example/leader")
        .ttl(Duration::from_secs(5))
        .label(label)
        .elect()?;
    loop {
        match election.next().await {
            Ok(ElectionEvent::Leading(lease)) => {
                println!("leading, in term {}", lease.token());
                tokio::select! {
                    reason = lease.lost() => println!("stopped in the midst of it: {reason}"),
                    () = work(&lease) => {
                        println!("done for now; another may lead");
                        election.resign().await?;
                    }
                }
            }
            Ok(ElectionEvent::Following(leader)) => println!("{} leads", leader.claimant.label),
            Ok(ElectionEvent::Lost(reason)) => println!("no longer leading: {reason}"),
            Ok(_) => {}
            // The next call tries again after a while.
            Err(error) => eprintln!("{error}"),
        }
    }
}

async fn work(lease: &LeaseView) {
    for step in 1..=10 {
        println!("step {step}, as of term {}", lease.token());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
