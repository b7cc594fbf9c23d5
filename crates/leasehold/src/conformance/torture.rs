//! Processes that come and go on two locks, killed at random moments.

mod record;
pub(super) mod worker;

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::record::{Life, Record};
use self::worker::{Haunt, TTL};
use super::Ground;
use super::child::{Child, Report, Task};
use super::ground::{ms, now};
use crate::clock::Moment;
use crate::engine::{Capabilities, Expiry};
use crate::torture::history::Event;

const PROCESSES: usize = 6;

/// Of so many one dies inside for sure, or nearly: where locks stand still most of the time because of the dead, chance alone
/// would strike nobody there.
const ONE_INSIDE: usize = 4;

/// How much longer than a dead holder's claim stands its lock may stand still on a loaded machine.
const LOADED: Duration = ms(2500);

/// How long until the next one dies. Where a dead waiter keeps its queue entry for as long as a session, most must live longer than
/// that, or nobody ever comes in.
fn until_the_next_kill(able: &Capabilities) -> Duration {
    ms(match able.expiry {
        Expiry::Ttl | Expiry::Observed => fastrand::u64(20..=120),
        Expiry::Session => fastrand::u64(200..=700),
    })
}

/// How long someone who is to die inside is waited for.
const BEFORE_LONG: Duration = ms(2000);

/// For how long, if the environment says so.
pub(super) fn asked_for() -> Option<Duration> {
    let seconds = std::env::var("LEASEHOLD_TORTURE_SECONDS").ok()?;
    let seconds = seconds.parse().expect("a number of seconds");
    Some(Duration::from_secs(seconds))
}

pub(super) async fn processes_killed_at_random_break_nothing(ground: Ground) {
    let folder = std::env::temp_dir();
    let haunts = ["x", "y"].map(|rest| Haunt {
        lock: ground.name(rest),
        file: folder.join(format!("leasehold-{}", ground.name(rest).replace('/', "-"))),
    });
    for haunt in &haunts {
        std::fs::write(&haunt.file, "").unwrap();
    }
    let length = asked_for().unwrap_or((ground.patience() / 4).min(ms(5000)));
    let record = torment(&ground, &haunts, length).await;
    println!(
        "{}, killed at random for {length:?}: {record}",
        ground.fixture().scheme()
    );
    for haunt in &haunts {
        std::fs::remove_file(&haunt.file).unwrap();
    }
    let longest = TTL + ground.fixture().slack() + LOADED;
    record.check(longest);
    for haunt in &haunts {
        nothing_is_left_of(&ground, &haunt.lock, longest).await;
    }
}

async fn torment(ground: &Ground, haunts: &[Haunt; 2], length: Duration) -> Record {
    let able = ground.engine().await.about().capabilities;
    let mut record = Record::default();
    let mut victims = Vec::new();
    for _ in 0..PROCESSES {
        victims.push(Victim::start(ground, haunts).await);
    }
    let end = now() + length;
    // Where nobody was killed inside, nothing has been shown.
    while now() < end || (record.killed_inside() == 0 && now() < end + ground.patience()) {
        tokio::time::sleep(until_the_next_kill(&able)).await;
        let new = Victim::start(ground, haunts).await;
        let nth = fastrand::usize(..PROCESSES);
        let old = std::mem::replace(&mut victims[nth], new);
        let when = match record.kills() % ONE_INSIDE {
            0 => Death::Inside,
            _ => Death::Now,
        };
        record.add(old.kill(when).await);
    }
    for victim in victims {
        record.add(victim.kill(Death::Now).await);
    }
    record
}

async fn nothing_is_left_of(ground: &Ground, lock: &str, longest: Duration) {
    let locks = ground.locks().await;
    let free = locks.lock(lock).wait(longest).acquire().await;
    free.expect("free after the TTL").release().await.unwrap();
    ground
        .until("nobody holds or waits", async || {
            let left = locks.inspect(lock).await.unwrap();
            left.holders.is_empty() && left.waiters.is_empty()
        })
        .await;
}

/// When a process is to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Now,
    /// As soon as it says that it has entered, if it does so before long.
    Inside,
}

/// A process whose reports are read until it is killed.
struct Victim {
    /// Dropped, it kills too.
    die: oneshot::Sender<Death>,
    life: JoinHandle<Life>,
}

impl Victim {
    async fn start(ground: &Ground, haunts: &[Haunt; 2]) -> Self {
        let child = ground.child(Task::ComeAndGo(haunts.clone())).await;
        let (die, order) = oneshot::channel();
        let life = tokio::spawn(live(child, order));
        Self { die, life }
    }

    async fn kill(self, when: Death) -> Life {
        let _ = self.die.send(when);
        self.life.await.unwrap()
    }
}

async fn read_reports(child: &mut Child, reports: &mut Vec<Report>) {
    match child.next_report().await {
        Some(report) => reports.push(report),
        None => panic!("a process ended by itself after {:?}", reports.last()),
    }
}

async fn live(mut child: Child, mut die: oneshot::Receiver<Death>) -> Life {
    let mut reports = Vec::new();
    let when = loop {
        tokio::select! {
            when = &mut die => break when.unwrap_or(Death::Now),
            () = read_reports(&mut child, &mut reports) => {}
        }
    };
    if when == Death::Inside {
        let entered = async {
            while !matches!(reports.last(), Some(Report::Happened(Event::Enter { .. }))) {
                read_reports(&mut child, &mut reports).await;
            }
        };
        let _ = tokio::time::timeout(BEFORE_LONG, entered).await;
    }
    let killed: Moment = now();
    child.kill().await;
    while let Some(report) = child.next_report().await {
        reports.push(report);
    }
    let failed = reports
        .iter()
        .find(|report| matches!(report, Report::Failed(_)));
    assert_eq!(failed, None);
    Life { reports, killed }
}
