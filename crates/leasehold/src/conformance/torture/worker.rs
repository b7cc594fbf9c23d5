//! What each process does until it is killed.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::claim::Mode;
use crate::conformance::child::{Report, say};
use crate::conformance::ground::{ms, now};
use crate::error::ErrorKind;
use crate::locks::Locks;
use crate::torture::history::{Event, Recorder};

pub(super) const TTL: Duration = ms(500);

/// A lock, and a file that only its holders touch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Haunt {
    /// The lock.
    pub lock: String,
    /// The file.
    pub file: PathBuf,
}

/// Comes and goes, more to the first than to the second.
pub(in crate::conformance) async fn come_and_go(
    locks: &Locks,
    haunts: &[Haunt; 2],
) -> crate::Result<()> {
    loop {
        let haunt = &haunts[usize::from(fastrand::u8(..4) == 0)];
        let shared = locks.capabilities().shared && fastrand::u8(..4) == 0;
        while let Err(error) = visit(locks, haunt, shared).await {
            // A busy store may keep someone waiting for too long; what must not be is that nobody comes in.
            if error.kind() != ErrorKind::Unreachable {
                return Err(error);
            }
            tokio::time::sleep(ms(10)).await;
        }
    }
}

async fn visit(locks: &Locks, Haunt { lock, file }: &Haunt, shared: bool) -> crate::Result<()> {
    let request = locks.lock(lock).ttl(TTL).wait_forever();
    let (request, mode) = match shared {
        true => (request.shared(), Mode::Shared),
        false => (request, Mode::Exclusive),
    };
    say(&Report::Asks {
        lock: lock.clone(),
        at: now().since_origin(),
    });
    let lease = request.acquire().await?;
    let (valid_until, entered) = (lease.valid_until(), now());
    // A process that was kept from running may come too late.
    if entered < valid_until {
        let recorder = Recorder::default();
        let visit = recorder.enter(lock, mode, lease.token(), entered);
        say(&Report::Held {
            token: lease.token().get(),
            valid_until: valid_until.since_origin(),
        });
        say_all(recorder.events());
        let mark = if shared {
            fs::read_to_string(file).unwrap()
        } else {
            leave_mark(file, &visit);
            visit.clone()
        };
        tokio::time::sleep(ms(fastrand::u64(..=10))).await;
        let found_at = now();
        let found = fs::read_to_string(file).unwrap();
        let still_valid = lease.is_valid();
        if still_valid && found != mark {
            say(&Report::Overwritten {
                by: found,
                at: found_at.since_origin(),
            });
        }
        let left = if still_valid {
            found_at
        } else {
            found_at.min(valid_until)
        };
        let recorder = Recorder::default();
        recorder.leave(visit, left);
        say_all(recorder.events());
    }
    lease.release().await?;
    Ok(())
}

fn say_all(events: Vec<Event>) {
    for event in events {
        say(&Report::Happened(event));
    }
}

/// In one write over the mark before, which is as long: nobody finds half a mark.
fn leave_mark(file: &Path, visit: &str) {
    let file = OpenOptions::new().write(true).open(file);
    file.unwrap().write_all(visit.as_bytes()).unwrap();
}
