//! What the clients did and what was done to them: all times are nanoseconds on the machine's clock, which all processes share.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::torture::history::Wait;
use serde::{Deserialize, Serialize};

use super::faults::Fault;

/// For how long a client may feel a fault that is over: it has to connect again.
const RECOVERY: Duration = Duration::from_secs(2);

/// One of the two sets that the holders of the lock update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Set {
    /// Whoever writes, overwrites.
    Unguarded,
    /// Writes carry the fencing token.
    Guarded,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Written {
    /// The store took it, and the lease was still valid then: the client may rely on it.
    Acknowledged,
    /// The store took it, but the lease had ended: the client knows that it was too late.
    Late,
    /// The store refused its token.
    Refused,
    /// It is unknown.
    Failed,
}

/// What a client did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub(super) enum Did {
    /// Began to wait for the lock.
    Ask,
    /// Did not get it.
    GiveUp { why: String },
    /// Has the lock.
    Enter { token: u64, valid_until: u64 },
    /// Is about to replace the update that it has read by its own.
    Write {
        set: Set,
        update: u64,
        previous: u64,
    },
    /// Has done so.
    Wrote {
        set: Set,
        update: u64,
        written: Written,
    },
    /// Learned that the engine had lost the lock, although it was to be relied on until later.
    Gone { valid_until: u64 },
    /// Has not relied on the lock since then.
    Leave { until: u64 },
}

/// A line of a client's stdout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) at: u64,
    #[serde(flatten)]
    pub(super) did: Did,
}

/// A fault that struck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Struck {
    pub(super) fault: Fault,
    /// Whom it struck; everybody if it is the server.
    pub(super) client: Option<u32>,
    pub(super) from: u64,
    pub(super) until: u64,
}

impl Struck {
    fn touches(&self, client: u32, from: u64, until: u64) -> bool {
        let felt = self.until + nanos(RECOVERY);
        self.client.is_none_or(|struck| struck == client) && self.from <= until && felt >= from
    }
}

/// Everything that is known of a run.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) lines: Vec<(u32, Line)>,
    pub(super) faults: Vec<Struck>,
    /// When a client was killed or had ended.
    pub(super) ends: BTreeMap<u32, u64>,
    /// When the host kept this process from running: when it continued, and for how long.
    pub(super) stalls: Vec<(u64, Duration)>,
}

/// A time in which a client relied on the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) client: u32,
    pub(super) token: u64,
    pub(super) entered: u64,
    pub(super) left: u64,
}

/// A time in which a client waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waited {
    pub(super) client: u32,
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) obtained: bool,
}

impl Record {
    /// The lines of each client, in their order.
    fn by_client(&self) -> BTreeMap<u32, Vec<&Line>> {
        let mut clients: BTreeMap<u32, Vec<&Line>> = BTreeMap::new();
        for (client, line) in &self.lines {
            clients.entry(*client).or_default().push(line);
        }
        clients
    }

    fn end_of(&self, client: u32) -> u64 {
        self.ends.get(&client).copied().unwrap_or(self.ended)
    }

    /// All holds, in the order in which they began.
    pub(super) fn holds(&self) -> Vec<Hold> {
        let mut holds = Vec::new();
        for (client, lines) in self.by_client() {
            let mut inside = None;
            for line in lines {
                match line.did {
                    Did::Enter { token, valid_until } => {
                        // The dead do nothing any more, and the late could not rely on it.
                        let left = valid_until.min(self.end_of(client));
                        let hold = Hold {
                            client,
                            token,
                            entered: line.at,
                            left,
                        };
                        inside = Some(hold);
                    }
                    Did::Leave { until } => {
                        holds.extend(inside.take().map(|hold| Hold {
                            left: until,
                            ..hold
                        }));
                    }
                    _ => {}
                }
            }
            holds.extend(inside);
        }
        holds.sort_by_key(|hold| (hold.entered, hold.token));
        holds
    }

    /// All waits, in the order in which they began.
    pub(super) fn waits(&self) -> Vec<Waited> {
        let mut waits = Vec::new();
        for (client, lines) in self.by_client() {
            let mut asked = None;
            let mut waited = |from: &mut Option<u64>, until: u64, obtained| {
                let wait = from.take().map(|from| Waited {
                    client,
                    from,
                    until: until.max(from),
                    obtained,
                });
                waits.extend(wait);
            };
            for line in lines {
                match line.did {
                    Did::Ask => asked = Some(line.at),
                    Did::Enter { .. } => waited(&mut asked, line.at, true),
                    Did::GiveUp { .. } => waited(&mut asked, line.at, false),
                    _ => {}
                }
            }
            waited(&mut asked, self.end_of(client), false);
        }
        waits.sort_by_key(|wait| wait.from);
        waits
    }

    /// Whether a fault struck this client at that time, or just before.
    pub(super) fn is_touched(&self, client: u32, from: u64, until: u64) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|struck| struck.touches(client, from, until))
    }

    /// How many clients were struck at that time, or just before.
    pub(super) fn touched(&self, from: u64, until: u64) -> usize {
        let clients = self
            .ends
            .keys()
            .chain(self.lines.iter().map(|(who, _)| who));
        let clients: std::collections::BTreeSet<_> = clients.collect();
        clients
            .iter()
            .filter(|client| self.is_touched(***client, from, until))
            .count()
    }

    /// For how long the host kept us from running at that time.
    pub(super) fn stalled(&self, from: u64, until: u64) -> Duration {
        let within =
            |(at, time): &&(u64, Duration)| *at >= from && at.saturating_sub(nanos(*time)) <= until;
        self.stalls
            .iter()
            .filter(within)
            .map(|(_, time)| *time)
            .sum()
    }
}

impl Waited {
    pub(super) fn as_wait(self) -> Wait {
        Wait {
            from: moment(self.from),
            until: moment(self.until),
            obtained: self.obtained,
        }
    }
}

pub(super) fn now() -> u64 {
    since_origin(Clock::machine().now())
}

pub(super) fn since_origin(moment: Moment) -> u64 {
    nanos(moment.since_origin())
}

pub(super) fn moment(nanos: u64) -> Moment {
    Moment::from_origin(Duration::from_nanos(nanos))
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Set::Unguarded => "without the token",
            Set::Guarded => "with the token",
        })
    }
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Did::Ask => f.write_str("asks for the lock"),
            Did::GiveUp { why } => write!(f, "does not get it: {why}"),
            Did::Enter { token, .. } => write!(f, "holds the lock, token {token}"),
            Did::Write { set, update, .. } => write!(f, "writes update {update:x} {set}"),
            Did::Wrote {
                set,
                update,
                written,
            } => {
                let became = match written {
                    Written::Acknowledged => "is acknowledged",
                    Written::Late => "is written after the lease had ended",
                    Written::Refused => "is refused: a later holder has written",
                    Written::Failed => "fails, its effect is unknown",
                };
                write!(f, "update {update:x} {set} {became}")
            }
            Did::Gone { .. } => f.write_str("learns that the engine has lost its lock"),
            Did::Leave { .. } => f.write_str("leaves"),
        }
    }
}
