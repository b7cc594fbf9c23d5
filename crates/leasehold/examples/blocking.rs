//! The same without async.

use std::time::Duration;

use leasehold::blocking::Locks;

fn main() -> leasehold::Result<()> {
    let locks = Locks::connect("sqlite:")?;
    let done = locks
        .lock("example/blocking")
        .wait(Duration::from_secs(5))
        .run(|lease| format!("worked with token {}", lease.token()))?;
    println!("{done}");
    Ok(())
}
